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
from zkrq.replication.stream import Inbox, Receiver
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
        self.prepare = wire.prepare
        self.connect = wire.connect
        self.close = wire.close

    async def ask(self, *commands: bytes) -> list[object]:
        replies = await self._wire.ask(*commands)
        for command, reply in zip(_commands(b"".join(commands)), replies, strict=True):
            self._notes[self._url, command].append(reply)
        return replies

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        listener = _RecordingReceiver(receiver, self._url, self._notes)
        write = self._wire.start(listener)

        def send(data: bytes) -> None:
            listener.asked.extend(_commands(data))
            write(data)

        return send


class _RecordingReceiver:
    def __init__(self, receiver: Receiver, url: str, notes: Notes) -> None:
        self.asked: deque[str] = deque()
        self._receiver = receiver
        self._url = url
        self._notes = notes
        self.ended = receiver.ended
        self.pause_writing = receiver.pause_writing
        self.resume_writing = receiver.resume_writing

    def heard(self, reply: object) -> None:
        self._notes[self._url, self.asked.popleft() if self.asked else ""].append(reply)
        self._receiver.heard(reply)


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
        self._inbox = Inbox()
        self._receiver: Receiver | None = self._inbox

    async def prepare(self) -> str:
        return ""

    async def connect(self) -> None:
        pass

    async def ask(self, *commands: bytes) -> list[object]:
        for command in commands:
            self._write(command)
        return await self._inbox.take(len(commands))

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        self._receiver = receiver
        return self._write

    def _write(self, data: bytes) -> None:
        # The calls for several queues are one command; several commands of one turn are rare here, and all are read.
        for command in _commands(data) if data.count(b"\r\nEVALSHA\r\n") > 1 else _names(data):
            replies = self._notes.get((self._url, command))
            if not replies:
                raise ConnectionError(f"no reply to {command} was noted")
            # The last one is repeated for commands that are more frequent this time: looks in the background.
            reply = replies.popleft() if len(replies) > 1 else replies[0]
            asyncio.get_running_loop().call_soon(self._arrive, reply)

    def _arrive(self, reply: object) -> None:
        if self._receiver:
            self._receiver.heard(reply)

    def close(self) -> None:
        self._receiver = None


def _names(packed: bytes) -> Sequence[str]:
    """Do the same as ``_commands``, but read only the beginning of a script call, since parsing is not measured."""
    parts = packed[:100].split(b"\r\n", 5)  # *N, $5, FCALL, its length, its name
    return [parts[4].decode()] if parts[2] == b"FCALL" else list(_commands(packed))
