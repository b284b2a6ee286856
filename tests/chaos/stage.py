"""The stage of a run: servers, client processes, and a proxy between each client and each server, so that every pair
can be cut separately."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from tests.chaos import client_process
from tests.chaos.client_process import CONNECTED, IDLE, QUEUE, SMALL, SMALL_FILLING, STOP, Orders
from tests.chaos.record import CONTROLLER, Journal, Kind
from tests.proxy import Nat, Proxy
from tests.stored import SHIFT_BYTES
from zkrq import local
from zkrq.protocol.keys import key
from zkrq.protocol.payloads import payload_at, split_payload
from zkrq.protocol.records import unpack
from zkrq.replication.urls import dial
from zkrq.replication.wire import Word, pack

CLIENTS = 2

PASSWORD = "secret"

ANSWER_TIMEOUT = 10.0
"""Seconds that a server may take for a command of ours; none is sent to one that is stopped."""

CONNECT_TIMEOUT = 30.0
IDLE_TIMEOUT = 45.0
LEAVE_TIMEOUT = 20.0
"""Seconds that the client processes may take to connect, to have their last pushes returned, to end."""

POLL = 0.1

READ_ITEMS = "return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}"
"""Records and payloads of a queue, read at one moment."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a run, in seconds.

    seconds: under load and faults; what has begun by then is brought to its end.
    hold: a fault's length, where it is not in the fault's name.  pause: at most, between one and the next.
    zookeeper_down: how long all of ZooKeeper is away.  outlived: how much longer than a session a client is stopped.
    claim_timeout: longer than a client is stopped, so that it goes on in good faith.
    delay: for how much later a push is at most.  long_work: what a slow handler takes at most.
    whole: within which every server must be back in the view.  drain: within which the queue must be empty.
    once: whether one fault is enough.
    backlog: items that lie in a further queue, where a fault asks for one.
    rest: what a producer rests on average between two pushes.
    """

    seconds: float
    hold: float
    pause: float
    zookeeper_down: float
    outlived: float
    session_timeout: float
    command_timeout: float
    operation_timeout: float
    claim_timeout: float
    delay: float
    long_work: float
    whole: float
    drain: float
    once: bool = False
    backlog: int = 20_000
    rest: float = 0.025


LONG = Pace(
    seconds=20,
    hold=2.0,
    pause=3.0,
    zookeeper_down=60,
    outlived=2.0,
    session_timeout=4,
    command_timeout=0.75,
    operation_timeout=6,
    claim_timeout=8,
    delay=4.0,
    long_work=1.5,
    whole=45,
    drain=45,
)

SHORT = Pace(
    seconds=1.0,
    hold=0.4,
    pause=0.2,
    zookeeper_down=4,
    outlived=1.0,
    session_timeout=3,
    command_timeout=0.5,
    operation_timeout=3,
    claim_timeout=5,
    delay=0.5,
    long_work=0.5,
    whole=30,
    drain=30,
    once=True,
    backlog=2_000,
    rest=0.15,
)
"""For one fault in the least time."""


class Sight(NamedTuple):
    """The newest view that any client has told of: its members, in which life each."""

    epoch: int
    primary: str
    primary_of_small: str
    members: Mapping[str, str]


class Release(NamedTuple):
    """The release that a client process runs: what to call, in which directory and environment."""

    python: str = sys.executable
    directory: Path | None = None
    environment: Mapping[str, str] | None = None


PRESENT = Release()


class ClientProcess:
    """One client process, as its controller sees it.

    ``proxies`` are its ways to the servers, by their names; ``nat`` stands at those to the Redis servers.
    """

    def __init__(
        self, orders: Orders, process: asyncio.subprocess.Process, proxies: Mapping[str, Proxy], nat: Nat, errors: Path
    ) -> None:
        self.orders = orders
        self.name = orders.name
        self.proxies = proxies
        self.nat = nat
        self.errors = errors
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def hear(self, expected: str) -> None:
        assert self._process.stdout
        heard = (await self._process.stdout.readline()).decode().strip()
        if heard != expected:
            raise RuntimeError(f"{self.name} said {heard!r} instead of {expected!r}: see its log of errors")

    def tell(self, word: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{word}\n".encode())

    async def leave(self) -> int:
        """Have it end in good order; returns its exit code."""
        assert self._process.stdin
        self._process.stdin.close()
        return await self._process.wait()

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


Start = Callable[[str, Release, bool], Awaitable[ClientProcess]]
"""Starts a client process: its name, its release, and whether it pauses the small queue."""


class Stage:
    """Everything that faults can be done to."""

    def __init__(
        self,
        servers: local.Servers,
        clients: list[ClientProcess],
        journal: Journal,
        pace: Pace,
        namespace: str,
        chance: random.Random,
        start: Start,
    ) -> None:
        self.servers = servers
        self.clients = clients
        self.journal = journal
        self.pace = pace
        self.chance = chance
        self.namespace = namespace
        self.start = start
        self.sight = Sight(0, "", "", {})
        self.progress = 0
        """Pushes that returned and claims that were settled, so far."""
        self.troubles: list[str] = []
        """What else did not go as it should, as sentences."""
        self._recorder = journal.recorder(CONTROLLER)

    def note(self, kind: Kind, detail: str = "", at: float | None = None) -> None:
        self._recorder.note(kind, detail=detail, at=at)

    def close(self) -> None:
        self._recorder.close()

    def look(self) -> Sight:
        """Read what the clients have written down meanwhile; the newest view."""
        for entry in self.journal.poll():
            self.progress += entry.kind in (Kind.PUSHED, Kind.SETTLED)
            if entry.kind is Kind.VIEW:
                epoch, primary, of_small, members = entry.detail.split()
                told = Sight(int(epoch), primary, of_small, dict(_pair(member) for member in members.split(",")))
                self.sight = max(self.sight, told, key=lambda sight: sight.epoch)
        return self.sight

    async def missing(self) -> list[str]:
        """The servers that are not in the newest view in the life that they live now.

        Members by name would not do: while ZooKeeper is away, the view goes on naming servers that lost their data.
        """
        return [server.name for server in self.servers.redis if not await self._is_believed(server)]

    async def _is_believed(self, server: local.LocalRedis) -> bool:
        try:
            run_id = re.search(rb"run_id:(\w+)", await info(server, "server"))
            generation = await command(server, "HGET", key(self.namespace, "", "server"), "generation")
        except (OSError, TimeoutError):
            return False
        if run_id is None or not isinstance(generation, bytes):
            return False
        return self.look().members.get(server.name) == f"{run_id[1].decode()}/{generation.decode()}"

    async def become_whole(self, timeout: float) -> bool:
        """Wait until every server is in the view; False when one was not in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while missing := await self.missing():
            if loop.time() > until:
                self.troubles.append(f"{', '.join(missing)} not back in the view after {timeout:g} s")
                return False
            await asyncio.sleep(POLL)
        return True

    @property
    def primary(self) -> local.LocalRedis:
        """The server that decides for the queue."""
        return self._server(self.look().primary)

    def _server(self, name: str) -> local.LocalRedis:
        return next(server for server in self.servers.redis if server.name == name)

    async def left_over(self) -> dict[str, str]:
        """Everything that is in the queues, by the word of their primaries: name -> in which state."""
        small = self._server(self.look().primary_of_small)
        return await self._items(self.primary, QUEUE) | await self._items(small, SMALL)

    async def _items(self, server: local.LocalRedis, queue: str) -> dict[str, str]:
        keys = [key(self.namespace, queue, name) for name in ("records", "payloads")]
        found = await command(server, "EVAL", READ_ITEMS, len(keys), *keys)
        if not isinstance(found, list):
            raise TypeError(f"the queue could not be read: {found!r}")
        records, payloads = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in cast("list[list[bytes]]", found))
        left: dict[str, str] = {}
        for bundle, packed in records.items():
            states = unpack(packed[SHIFT_BYTES:]).states
            for position, state in enumerate(states):
                if state in "QRCD":
                    payload = payload_at(payloads[bundle], position) if bundle in payloads else None
                    name = json.loads(split_payload(payload)[0])["id"] if payload else f"{bundle!r} {position}"
                    left[name] = state
        return left

    async def heal(self) -> None:
        """Undo whatever was done to anybody, except for lost data."""
        for client in self.clients:
            client.signal(signal.SIGCONT)
            for proxy in client.proxies.values():
                proxy.bandwidth = None
                proxy.flow()
                await proxy.accept()
        await restore(self.servers)


async def restore(servers: local.Servers) -> None:
    """Have every server run again, as a master without limits."""
    for server in servers.all:
        server.resume()
    await servers.start()
    for server in servers.redis:
        await command(server, "REPLICAOF", "NO", "ONE")
        await command(server, "CONFIG", "SET", "maxmemory", 0)


async def command(server: local.LocalRedis, *words: Word) -> object:
    """One command to one server, past all proxies; its reply."""
    wire = dial(server.url, ANSWER_TIMEOUT)()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await wire.prepare()
            await wire.connect()
            (reply,) = await wire.ask(pack(words))
            return reply
    finally:
        wire.close()


async def let_in(server: local.LocalRedis, user: str, password: str) -> None:
    """Have this user come in with this password, and no other."""
    assert (
        await command(server, "ACL", "SETUSER", user, "on", "resetpass", f">{password}", "~*", "&*", "+@all") == b"OK"
    )


async def info(server: local.LocalRedis, section: str) -> bytes:
    """What a server tells of itself."""
    reply = await command(server, "INFO", section)
    assert isinstance(reply, bytes)
    return reply


async def until(condition: Callable[[], bool], timeout: float) -> bool:
    """Wait until something becomes true; False when it did not in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(POLL)
            return True
    return False


@asynccontextmanager
async def set_stage(
    servers: local.Servers,
    directory: Path,
    namespace: str,
    *,
    min_replicas: int,
    pace: Pace,
    seed: str,
    filling: int = SMALL_FILLING,
    users: bool = False,
    release: Release = PRESENT,
) -> AsyncGenerator[Stage, None]:
    """Start the client processes, connected through their proxies; they are gone when this is left.

    ``release``: that of the first ones.  ``users``: each client is a user of its own at the Redis servers.  These
    forget it when they are restarted.
    """
    journal = Journal(directory)
    async with AsyncExitStack() as stack:

        async def start(name: str, release: Release, pauses: bool) -> ClientProcess:
            proxies = {
                server.name: await stack.enter_async_context(Proxy(server.host, server.port)) for server in servers.all
            }
            nat = Nat()
            for server in servers.redis:
                proxies[server.name].on_request = nat.see
            for server in servers.redis if users else ():
                await let_in(server, name, PASSWORD)
            redis = {server.name: proxies[server.name].address for server in servers.redis}
            orders = Orders(
                name=name,
                log=str(journal.file(name)),
                redis=_urls(redis, f"{name}:{PASSWORD}@" if users else ""),
                zookeeper=",".join(proxies[server.name].address for server in servers.zookeeper),
                namespace=namespace,
                min_replicas=min_replicas,
                seed=seed,
                session_timeout=pace.session_timeout,
                command_timeout=pace.command_timeout,
                operation_timeout=pace.operation_timeout,
                claim_timeout=pace.claim_timeout,
                delay=pace.delay,
                long_work=pace.long_work,
                pauses=pauses,
                filling=filling,
                pause=pace.rest,
            )
            errors = directory / f"{name}.stderr"
            client = ClientProcess(orders, await _spawn(orders, errors, release), proxies, nat, errors)
            stack.push_async_callback(client.end)
            return client

        clients = [await start(f"client-{number}", release, number == 1) for number in range(1, CLIENTS + 1)]
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await asyncio.gather(*(client.hear(CONNECTED) for client in clients))
        stage = Stage(servers, clients, journal, pace, namespace, random.Random(seed), start)
        stack.callback(stage.close)
        yield stage


def _urls(addresses: Mapping[str, str], login: str) -> dict[str, str]:
    return {name: f"redis://{login}{address}" for name, address in addresses.items()}


async def _spawn(orders: Orders, errors: Path, release: Release) -> asyncio.subprocess.Process:
    with errors.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *(release.python, "-m", client_process.__name__, orders.dump()),
            cwd=release.directory,
            env=release.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C is the controller's to deal with
        )


async def quiesce(stage: Stage) -> None:
    """Have the producers stop and their last pushes return."""
    for client in stage.clients:
        client.tell(STOP)
    try:
        async with asyncio.timeout(IDLE_TIMEOUT):
            await asyncio.gather(*(client.hear(IDLE) for client in stage.clients))
    except TimeoutError:
        stage.troubles.append(f"the last pushes did not return within {IDLE_TIMEOUT:g} s")
    except RuntimeError as error:
        stage.troubles.append(str(error))


async def dismiss(stage: Stage) -> None:
    """Have the clients end in good order."""
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT):
            codes = await asyncio.gather(*(client.leave() for client in stage.clients))
    except TimeoutError:
        stage.troubles.append(f"a client did not end within {LEAVE_TIMEOUT:g} s")
        return
    ended = zip(stage.clients, codes, strict=True)
    stage.troubles += [f"{client.name} ended with code {code}" for client, code in ended if code != 0]


def _pair(member: str) -> tuple[str, str]:
    name, _, life = member.partition("=")
    return name, life
