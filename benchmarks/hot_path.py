"""Measure the client's own part: encode, group commit, pack, handle replies, return each caller its result.  No
network.

The same sequence of calls is made twice: on real servers, where every reply is recorded, and then by a client whose
wires replay these replies immediately.  So all of the library runs except sockets and servers, whatever its calls look
like.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pstats import Stats
from typing import Any

import hiredis

import zkrq
from benchmarks import load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.coordination.memory import Hub
from zkrq.replication.batching import FURTHER_LEAST
from zkrq.replication.urls import dial
from zkrq.replication.wire import Wire

HOT_PATH = Topic(
    "hot-path",
    "The hot path alone",
    "Processor time of the client for each item, without network: its wires immediately give the replies that the "
    f"servers gave before. {FURTHER_LEAST} tasks push one item at a time; `pop_many` of {FURTHER_LEAST}, then a task "
    "for each with `async with claim`. 100 bytes as JSON.",
    "",
    "part",
)

WARM_UP_QUEUES = 12
"""Number of queues, large enough for every server to be some queue's primary."""

PORTION = FURTHER_LEAST
"""Items in flight: as many as leave in one batch, so that the same calls are made again."""

PROFILE_LINES = 60

Notes = dict[tuple[str, str], deque[object]]
"""Recorded replies by server and command, in order; script calls under the server's name of the script."""


async def run(plan: Plan, sheet: Sheet) -> None:
    items = plan.items(20_000)
    async for parts in _played(items, plan.repetitions + 1):
        await parts.run()
        for part, seconds in parts.spent.items():
            sheet.add(HOT_PATH, part, **{"µs per item": seconds / items * 1e6, "items/s": items / seconds})


async def profile(plan: Plan) -> str:
    """Return cProfile's table, by each function's own time."""
    items = plan.items(20_000)
    profiler = cProfile.Profile()
    async for parts in _played(items, 1):
        profiler.enable()
        await parts.run()
        profiler.disable()
    text = StringIO()
    Stats(profiler, stream=text).strip_dirs().sort_stats("tottime").print_stats(PROFILE_LINES)
    return text.getvalue()


async def _played(items: int, times: int) -> AsyncGenerator[_Parts, None]:
    """Run this many clients, one after the other, on replayed replies of the same servers."""
    hub = Hub()
    async with load.local.servers(redis=3, zookeeper=0) as group:
        async with load.cluster_of(group.redis_urls, "", hub=hub) as cluster:
            for n in range(WARM_UP_QUEUES):  # loads every script on every server
                await _Parts(cluster.queue(f"warm-up-{n}"), PORTION).run()
        recorder = _Recorder()
        async with load.cluster_of(group.redis_urls, "", hub=hub, dial=recorder.dial) as cluster:
            await _Parts(cluster.queue("hot"), items).run()
        for _ in range(times):
            gc.collect()
            gc.freeze()  # scanning all recorded replies again and again is not part of the work
            player = _Player(recorder.notes)
            async with load.cluster_of(group.redis_urls, "", hub=hub, dial=player.dial) as cluster:
                yield _Parts(cluster.queue("hot"), items)
            gc.unfreeze()


@dataclass(slots=True)
class _Parts:
    """Push, claim and ack in batches; measure the processor time of each part."""

    queue: zkrq.Queue[Any]
    items: int
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    async def run(self) -> None:
        await self._timed("push", load.push(self.queue, self.items, PORTION))
        for count in self._portions():
            claims = await self._timed("claim", self.queue.pop_many(count, timeout=0))
            await self._timed("ack", asyncio.gather(*map(_work, claims)))

    async def _timed(self, part: str, work: Awaitable[Any]) -> Any:
        began = time.process_time()
        try:
            return await work
        finally:
            self.spent[part] += time.process_time() - began

    def _portions(self) -> Iterator[int]:
        return (min(PORTION, self.items - start) for start in range(0, self.items, PORTION))


async def _work(claim: zkrq.Claim[Any]) -> None:
    async with claim:
        pass


def _commands(packed: bytes) -> Iterator[str]:
    """Name each command of a packed text: a script by the server's name for it, others by their first word."""
    reader = hiredis.Reader()
    reader.feed(packed)
    while (words := reader.gets()) is not False:
        yield (words[1] if words[0] == b"FCALL" else words[0]).decode()


class _Recorder:
    """Make wires to real servers that record every reply."""

    def __init__(self) -> None:
        self.notes: Notes = defaultdict(deque)

    def dial(self, url: str, timeout: float) -> Callable[[], Wire]:
        make = dial(url, timeout)
        return lambda: _RecordingWire(make(), url, self.notes)


class _RecordingWire:
    def __init__(self, wire: Wire, url: str, notes: Notes) -> None:
        self._wire = wire
        self._url = url
        self._notes = notes
        self._asked: deque[str] = deque()
        self.connect = wire.connect
        self.close = wire.close

    async def send(self, commands: Sequence[bytes]) -> None:
        for packed in commands:
            self._asked.extend(_commands(packed))
        await self._wire.send(commands)

    async def receive(self) -> object:
        reply = await self._wire.receive()
        self._notes[self._url, self._asked.popleft() if self._asked else ""].append(reply)
        return reply


class _Player:
    """Make wires without servers, which replay the recorded replies."""

    def __init__(self, notes: Notes) -> None:
        self._notes: Notes = {what: deque(replies) for what, replies in notes.items()}

    def dial(self, url: str, timeout: float) -> Callable[[], Wire]:
        return lambda: _PlayingWire(url, self._notes)


class _PlayingWire:
    def __init__(self, url: str, notes: Notes) -> None:
        self._url = url
        self._notes = notes
        self._replies: asyncio.Queue[object] = asyncio.Queue()

    async def connect(self) -> None:
        pass

    async def send(self, commands: Sequence[bytes]) -> None:
        for command in (name for packed in commands for name in _names(packed)):
            replies = self._notes.get((self._url, command))
            if not replies:
                raise ConnectionError(f"no reply to {command} was noted")
            # The last one is repeated for commands that are more frequent this time: looks in the background.
            self._replies.put_nowait(replies.popleft() if len(replies) > 1 else replies[0])

    async def receive(self) -> object:
        return await self._replies.get()

    async def close(self) -> None:
        pass


def _names(packed: bytes) -> Sequence[str]:
    """Do the same as ``_commands``, but read only the beginning of a script call, since parsing is not measured."""
    parts = packed[:100].split(b"\r\n", 5)  # *N, $5, FCALL, its length, its name
    return [parts[4].decode()] if parts[2] == b"FCALL" else list(_commands(packed))
