"""Run NATS and RabbitMQ on loopback, for the contest: three nodes each, guarded like zkrq's own private servers.

Nothing of them outlives this process: the guard kills the whole group and removes its directory.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar

from zkrq.local import guard

START_TIMEOUT = 90.0
END_TIMEOUT = 15.0
POLL = 0.1

NODES = 3
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's program, without the wrapper that changes the user."""


class BrokerFailed(Exception):
    """A broker did not start; the text says why, in one line."""


class Broker(ABC):
    """Three nodes of one broker below one directory."""

    needs: ClassVar[str]
    """The program, and the Debian package that contains it."""

    def __init__(self, directory: Path, group: int) -> None:
        self.directory = directory
        self._group = group
        self.processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    def installed(cls) -> bool:
        """Check whether the broker can be started here."""
        return shutil.which(cls.needs) is not None

    @property
    @abstractmethod
    def urls(self) -> list[str]:
        """Return the URLs of the nodes."""

    @abstractmethod
    async def start(self) -> None:
        """Start every node and wait until all are one cluster.  Raises ``BrokerFailed``."""

    def spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Run a command in the guarded group, with its output in a log."""
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes.append(_spawn(command, self._group, log, environment))

    async def until_open(self, ports: Sequence[int]) -> None:
        """Wait until each port is open.  Raises ``BrokerFailed``."""
        try:
            async with asyncio.timeout(START_TIMEOUT):
                for port in ports:
                    while not await _is_open(port):
                        self._check_running()
                        await asyncio.sleep(POLL)
        except TimeoutError:
            raise BrokerFailed(f"did not start within {START_TIMEOUT:g} s: {self._last_words()}") from None

    def _check_running(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise BrokerFailed(f"ended instead of becoming ready: {self._last_words()}")

    def _last_words(self) -> str:
        logs = (log.read_text(errors="replace").split() for log in sorted(self.directory.glob("*.log")))
        return " ".join(word for words in logs for word in words[-20:])


class Nats(Broker):
    """Three servers with JetStream."""

    needs = "nats-server"

    def __init__(self, directory: Path, group: int) -> None:
        super().__init__(directory, group)
        self._ports = _free_ports(2 * NODES)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self._ports[:NODES]]

    async def start(self) -> None:
        clients, routes = self._ports[:NODES], self._ports[NODES:]
        peers = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        for n, (client, route) in enumerate(zip(clients, routes, strict=True)):
            file = self.directory / f"nats-{n}.conf"
            file.write_text(
                f"server_name: nats-{n}\nlisten: 127.0.0.1:{client}\n"
                f'jetstream {{ store_dir: "{self.directory}/nats-{n}" }}\n'
                f"cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{peers}] }}\n"
            )
            self.spawn(f"nats-{n}", ["nats-server", "-c", str(file)])
        await self.until_open(clients)
        await self._until_led()

    async def _until_led(self) -> None:
        """Wait until the servers have elected a leader, because streams need one."""
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not any("metadata leader" in log.read_text() for log in self.directory.glob("nats-*.log")):  # noqa: ASYNC110
                    await asyncio.sleep(POLL)
        except TimeoutError:
            raise BrokerFailed("elected no leader of JetStream in time") from None


class RabbitMQ(Broker):
    """Three nodes that find each other by a list of names, under a port mapper of their own."""

    needs = "rabbitmq-server"

    @classmethod
    def installed(cls) -> bool:
        return super().installed() and RABBITMQ.exists()

    def __init__(self, directory: Path, group: int) -> None:
        super().__init__(directory, group)
        self._mapper, *self._ports = _free_ports(1 + 2 * NODES)

    @property
    def urls(self) -> list[str]:
        return [f"amqp://guest:guest@127.0.0.1:{port}/" for port in self._ports[:NODES]]

    async def start(self) -> None:
        cookie = self.directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        names = [f"rabbit{n}@localhost" for n in range(NODES)]
        (self.directory / "rabbitmq.conf").write_text(
            "cluster_formation.peer_discovery_backend = classic_config\n"
            + "".join(f"cluster_formation.classic_config.nodes.{n} = {name}\n" for n, name in enumerate(names, 1))
            + "log.console = true\nlog.file = false\n"
        )
        (self.directory / "plugins").write_text("[].\n")
        self.spawn("epmd", ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper)])
        await self.until_open([self._mapper])
        for n, name in enumerate(names):
            self.spawn(name, [str(RABBITMQ)], self._environment(name, self._ports[n], self._ports[NODES + n]))
        await self.until_open(self._ports[:NODES])

    def _environment(self, name: str, port: int, distribution: int) -> dict[str, str]:
        base = self.directory / name
        return {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self._mapper),
            "RABBITMQ_NODENAME": name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": f"{base}/data",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_PID_FILE": f"{base}/pid",
            # Erlang's schedulers spin while they wait, and three nodes share a small machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2",
        }


@asynccontextmanager
async def running(kind: type[Nats] | type[RabbitMQ]) -> AsyncGenerator[Broker, None]:
    """Start a broker; stop it and remove its data at the end.  Raises ``BrokerFailed``, also if it is not installed."""
    if not kind.installed():
        raise BrokerFailed(f"{kind.needs} is not installed (apt-get install {kind.needs})")
    directory = Path(tempfile.mkdtemp(prefix="zkrq-bench-"))
    watch = _spawn([sys.executable, "-I", "-S", guard.__file__, str(directory)], 0, stdin=subprocess.PIPE)
    assert watch.stdin
    try:
        while not (directory / guard.ON_DUTY).exists():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(POLL)
        broker = kind(directory, watch.pid)
        await broker.start()
        yield broker
    finally:
        watch.stdin.close()
        await asyncio.to_thread(watch.wait, END_TIMEOUT)


def _spawn(
    command: Sequence[str],
    group: int,
    output: BinaryIO | int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={**os.environ, **(environment or {})},
        process_group=group,
    )


async def _is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [holder.getsockname()[1] for holder in holders]
    finally:
        for holder in holders:
            holder.close()
