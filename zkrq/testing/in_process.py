"""Run Redis servers and a coordinator inside the process, and clusters on them: no sockets, no threads, no waiting."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import hiredis

from zkrq.base.checks import check_count, check_id
from zkrq.base.errors import ConfigError
from zkrq.base.settings import DEFAULTS, Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.replication.stream import Inbox
from zkrq.testing.clock import Clock, running_clock
from zkrq.testing.redis import lua
from zkrq.testing.redis.server import MiniRedis

if TYPE_CHECKING:
    from zkrq.base.events import Event
    from zkrq.replication.stream import Receiver
    from zkrq.replication.wire import Dial, Wire


class _Server:
    """One server by its name.  ``redis`` is its present life; like a disk, it keeps the data while the server is
    down."""

    def __init__(self, clock: Clock, *, running: bool = True) -> None:
        self.running = running
        self._clock = clock
        self.redis = self._begin()
        self.wires: set[_Wire] = set()

    def _begin(self) -> MiniRedis:
        return MiniRedis(run_id=secrets.token_hex(20), clock_us=self._clock.now_us)

    def kill(self) -> None:
        self.running = False
        for wire in tuple(self.wires):
            wire.shut("connection reset by peer")

    def start(self, *, wipe: bool) -> None:
        if not self.running:
            before, self.redis, self.running = self.redis, self._begin(), True
            self.redis.restore(None if wipe else before.dump())

    def take(self, wire: _Wire, command: list[bytes]) -> None:
        """Execute a command and reply."""
        if command[0] == b"SUBSCRIBE":
            channel = command[1]
            wire.at_end = self.redis.subscribe(channel, lambda text: wire.reply([b"message", channel, text]))
            wire.reply([b"subscribe", channel, 1])
        else:
            wire.reply(self.redis.execute(*command))


class _Wire:
    """A connection that executes each command immediately."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._parser = hiredis.Reader()
        self._inbox = Inbox()
        self._receiver: Receiver | None = None
        """None while there is no connection."""
        self.at_end: Callable[[], None] | None = None
        """Ends its subscription."""

    async def prepare(self) -> str:
        return ""

    async def connect(self) -> None:
        if not self._server.running:
            raise ConnectionRefusedError("connection refused")
        self._receiver = self._inbox
        self._server.wires.add(self)

    async def ask(self, *commands: bytes) -> list[object]:
        self._write(b"".join(commands))
        return await self._inbox.take(len(commands))

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        if self._receiver:
            self._receiver = receiver
        self._inbox.pass_on(receiver)
        return self._write

    def _write(self, data: bytes) -> None:
        self._parser.feed(data)
        while self._receiver and (command := self._parser.gets()) is not False:
            self._server.take(self, cast("list[bytes]", command))

    def close(self) -> None:
        self._leave()

    def reply(self, reply: object) -> None:
        # In a turn of its own, as bytes come from a socket: the caller has begun to wait by then.
        asyncio.get_running_loop().call_soon(self._arrive, reply)

    def _arrive(self, reply: object) -> None:
        if self._receiver:
            self._receiver.heard(reply)

    def shut(self, why: str) -> None:
        """End the connection from the server's side."""
        if receiver := self._leave():
            receiver.ended(ConnectionResetError(why))

    def _leave(self) -> Receiver | None:
        receiver, self._receiver = self._receiver, None
        if receiver:
            self._server.wires.discard(self)
            if self.at_end:
                self.at_end()
        return receiver


class Servers:
    """Redis servers in this process, named ``redis-1`` and so on, and a substitute for ZooKeeper.

    ``connect()`` makes a client; each one behaves like a process of its own.
    """

    def __init__(self, count: int, clock: Clock) -> None:
        self.clock = clock
        """Clock of the servers, of their clients, and of the event loop."""
        self._servers = {f"redis-{number}": _Server(clock) for number in range(1, count + 1)}
        self._hub = Hub()

    def __repr__(self) -> str:
        up = [name for name, server in self._servers.items() if server.running]
        return f"<Servers {', '.join(up) or 'all down'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all servers, running or not."""
        return tuple(self._servers)

    def connect(
        self,
        *,
        min_replicas: int | None = DEFAULTS.min_replicas,
        description: str = "test",
        on_event: Callable[[Event], object] | None = DEFAULTS.on_event,
        first: int | None = None,
    ) -> TestCluster:
        """Make a client of these servers, to be opened with ``async with``; see ``zkrq.connect``.

        ``first``: how many of the servers are those of the first shard, None: all; use the others with ``add_shard``.
        The first client fixes ``min_replicas``.  Raises ``ConfigError`` for bad arguments.
        """
        settings = Settings(
            found=True, min_replicas=min_replicas, description=check_id("description", description), on_event=on_event
        )
        return TestCluster(self, self._hub, self._dial, settings, self.urls(*self.names[:first]))

    def urls(self, *names: str) -> Mapping[str, str]:
        """Return the URLs of these servers, as for ``add_shard``."""
        return {name: f"redis://{name}" for name in names}

    def kill(self, name: str) -> None:
        """Kill a server; its data stays, as on a disk.  Does nothing if it is down."""
        self._find(name).kill()

    def start(self, name: str, *, wipe: bool = False) -> None:
        """Start a killed server, with its data or, with ``wipe``, empty.  It is in sync some seconds later."""
        self._find(name).start(wipe=wipe)

    def _find(self, name: str) -> _Server:
        if name not in self._servers:
            raise ConfigError(f"no server is called {name!r}: there are {', '.join(self._servers)}")
        return self._servers[name]

    def _dial(self, url: str, timeout: float) -> Callable[[], Wire]:
        server = self._servers.get(urlsplit(url).hostname or "") or _Server(self.clock, running=False)
        return lambda: _Wire(server)


class TestCluster(Cluster):
    """A ``Cluster`` on servers in this process, whose clock the test moves.  Made by ``Servers.connect``."""

    __test__ = False  # nothing for pytest to collect

    def __init__(self, servers: Servers, hub: Hub, dial: Dial, settings: Settings, urls: Mapping[str, str]) -> None:
        self.servers = servers
        """Servers that it is connected to."""
        self._hub = hub
        super().__init__(urls, MemoryCoordinator(hub), settings, dial=dial)

    @property
    def clock(self) -> Clock:
        """Clock of the servers, of their clients, and of the event loop."""
        return self.servers.clock

    def lose_session(self) -> None:
        """End the session, as ZooKeeper does with a client that has been silent for too long.

        It happens as soon as the caller waits for something.  The claims of this client are lost, their handlers are
        stopped and the items are delivered to other consumers; a new session begins immediately.
        """
        # From outside, because a claim does not stop the task that finds it lost.
        asyncio.get_running_loop().call_soon(self._hub.expire, self._client.coordinator.session.id)


@asynccontextmanager
async def servers(count: int = 3, *, start: datetime | None = None) -> AsyncGenerator[Servers]:
    """Run ``count`` Redis servers in this process.  ``start`` is the moment that their clock shows, None: the present.

    Raises ``ConfigError`` without lupa (extra ``testing``), for an event loop whose clock cannot be moved (uvloop's),
    and for a ``start`` if a clock is already in use.
    """
    with _running("count", count, start) as made:
        yield made


@asynccontextmanager
async def cluster(
    servers: int = 3,
    *,
    min_replicas: int | None = DEFAULTS.min_replicas,
    start: datetime | None = None,
    on_event: Callable[[Event], object] | None = DEFAULTS.on_event,
) -> AsyncGenerator[TestCluster]:
    """Open a cluster on servers in this process, for tests: one client of ``servers()``, which see."""
    with _running("servers", servers, start) as own:
        async with own.connect(min_replicas=min_replicas, on_event=on_event) as made:
            yield made


@contextmanager
def _running(what: str, count: int, start: datetime | None) -> Generator[Servers]:
    check_count(what, count, least=1)
    lua.interpreter()
    with running_clock(start) as clock:
        yield Servers(count, clock)
