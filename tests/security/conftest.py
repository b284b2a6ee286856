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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
async def secured_servers(anyio_backend: str, files: Certificates) -> AsyncGenerator[Secured]:
    """Three Redis servers and one ZooKeeper server with TLS."""
    if missing := {"redis", "zookeeper"} - local.available():
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    ports = {name: free_port() for name in ("redis-1", "redis-2", "redis-3", "zookeeper-1")}
    zookeeper = {
        "secureClientPort": str(ports["zookeeper-1"]),
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
            for server in servers.redis:
                server.config["tls-port"] = str(ports[server.name])
                await server.restart()
            yield Secured(servers, ports, files)
    except Unavailable as error:
        if "tls" in str(error):
            pytest.skip("redis-server was built without TLS")
        raise


@pytest.fixture
async def secured(secured_servers: Secured) -> AsyncGenerator[Secured]:
    yield secured_servers
    await secured_servers.servers.start()
