"""Servers that speak TLS, and certificates for them."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest

from tests.security.certificates import Certificates
from zkrq import local
from zkrq.base.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Secured:
    """Servers that also listen on a port for TLS, where they ask for a client's certificate."""

    servers: local.Servers
    ports: dict[str, int]
    files: Certificates

    @property
    def zookeeper(self) -> str:
        return f"127.0.0.1:{self.ports['zookeeper-1']}"

    @property
    def redis(self) -> dict[str, str]:
        return {server.name: f"rediss://127.0.0.1:{self.ports[server.name]}" for server in self.servers.redis}


PORT_ATTEMPTS = 5
"""Another process may take a port that was free, or the port that a server leaves for a moment."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def give_port(server: local.LocalRedis | local.LocalZooKeeper, option: str) -> int:
    """Restart a server that listens on a further port, by this option of it."""
    for attempt in range(1, PORT_ATTEMPTS + 1):
        server.config[option] = str(free_port())
        try:
            await server.restart()
        except Unavailable as error:
            if attempt == PORT_ATTEMPTS or "Address already in use" not in str(error):
                raise
        else:
            break
    return int(server.config[option])


@pytest.fixture(scope="module")
async def secured_servers(anyio_backend: str, files: Certificates) -> AsyncGenerator[Secured]:
    """Three Redis servers and one ZooKeeper server with TLS."""
    if missing := {"redis", "zookeeper"} - local.available():
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    zookeeper = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.type": "PEM",
        "ssl.keyStore.location": files("server-both"),
        "ssl.trustStore.type": "PEM",
        "ssl.trustStore.location": files("ca"),
    }
    config = {
        "tls-cert-file": files("server"),
        "tls-key-file": files.key("server"),
        "tls-ca-cert-file": files("ca"),
        "tls-auth-clients": "yes",
    }
    try:
        async with local.servers(3, 1, redis_config=config, zookeeper_config=zookeeper) as servers:
            ports = {server.name: await give_port(server, "tls-port") for server in servers.redis}
            ports |= {server.name: await give_port(server, "secureClientPort") for server in servers.zookeeper}
            yield Secured(servers, ports, files)
    except Unavailable as error:
        if "tls" in str(error):
            pytest.skip("redis-server was built without TLS")
        raise


@pytest.fixture
async def secured(secured_servers: Secured) -> AsyncGenerator[Secured]:
    yield secured_servers
    await secured_servers.servers.start()
