"""Count what one item costs instead of timing it, so that fast and busy machines give the same figures.

    python -m benchmarks.counts    # prints the counts beside their limits

``tests/integration/test_item_costs.py`` fails when a count exceeds its limit.  Lower the limit when an item gets
cheaper.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

import zkrq
from benchmarks import load
from benchmarks.recording import Recording
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.consuming.observing import Observer
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.opentelemetry import Tracing
from zkrq.prometheus import Metrics
from zkrq.protocol.keys import key

NAMESPACE = "counted"
ITEM = {"to": "ann@example.org", "text": "x" * 60}
TASKS = 256
ITEMS = 4096
TRACED = 2048  # each costs ten times as much to count
ALONE = 300  # items of a caller that waits for each
QUEUES = 64

Work = Callable[[], Awaitable[None]]

LIMITS: Mapping[str, float] = {
    "push: script calls on a server": 0.012,
    "push: commands on a server": 0.1,
    "push: bytes to a server": 121.0,
    "push: bytes from a server": 1.4,  # 1.03 with Redis; 1.26 with Valkey, whose longer reply to INFO counts, too
    "push: Python calls of the client": 22.0,
    "claim and ack: script calls on a server": 0.018,
    "claim and ack: commands on a server": 0.24,
    "claim and ack: bytes to a server": 30.0,
    "claim and ack: bytes from a server": 44.0,
    "claim and ack: Python calls of the client": 45.0,
    "claim and ack, batches: script calls on a server": 0.012,
    "claim and ack, batches: Python calls of the client": 7.0,
    "push, alone: script calls on a server": 1.01,
    "push, alone: commands on a server": 9.1,
    "push, alone: Python calls of the client": 235.0,
    "claim and ack, alone: script calls on a server": 1.1,
    "claim and ack, alone: commands on a server": 19.0,
    "claim and ack, alone: Python calls of the client": 360.0,
    "push, many queues: script calls on a server": 0.03,
    "push, many queues: Python calls of the client": 105.0,
    "claim and ack, many queues: script calls on a server": 0.05,
    "claim and ack, many queues: Python calls of the client": 150.0,
    "push, metrics: Python calls of the client": 23.5,
    "claim and ack, metrics: Python calls of the client": 58.0,
    "push, traces: Python calls of the client": 147.0,
    "push, traces: bytes to a server": 199.0,
    "claim and ack, traces: Python calls of the client": 235.0,
}
"""Limits per item of about 100 bytes, the mean over three servers.  256 tasks push and consume one at a time, in one
queue or in 64; metrics, traces: with these on, without an exporter; alone: one task does; batches: 8
loops consume 100 at a time.  A tenth above the count when
the limit was set, or twice that if the count depends on the batch sizes of a run."""


IDLE, BUSY = "a lone worker that waits for each item", "a lone worker with items waiting"

IDLE_CALLS, BUSY_CALLS = 9.05, 6.2

SCRIPT_CALLS: Mapping[str, float] = {IDLE: IDLE_CALLS, BUSY: BUSY_CALLS}
"""Limits for ``count_script_calls``: calls per item, of all three servers together.  Slightly above the counts, which
are the same in each run; lower a limit when an item needs fewer calls."""

LONE_ITEMS = 40
LONE_SECONDS = 0.005
"""Seconds that the handler of a lone worker takes."""
LONE_INTERVAL = 0.16
"""Seconds from an item to the next one for a worker that waits: 50 items a second, for eight such workers."""

QUIET_TURNS = 50
"""Turns of the event loop without a call in flight, after which only a timer makes a client send another."""
QUIET_PATIENCE = 60.0
"""Seconds, by the clock of the machine, after which a client that does not get quiet is an error."""


async def count(names: Collection[str] = LIMITS.keys()) -> dict[str, float]:
    """Count these of ``LIMITS``, under the same names."""
    counts: dict[str, float] = {}
    async with local.servers(redis=3, zookeeper=0) as servers:
        settings = Settings(
            namespace=NAMESPACE, found=True, description="counts", command_timeout=10.0, operation_timeout=30.0
        )
        async with Cluster(servers.redis_urls, MemoryCoordinator(Hub()), settings) as cluster:
            await _cycle(cluster.queue("warm-up"), TASKS)  # loads every script on every server
            urls = list(servers.redis_urls.values())
            for kind, tasks, items, queues, observer in (
                ("", TASKS, ITEMS, [cluster.queue("counted")], None),
                (", metrics", TASKS, ITEMS, [cluster.queue("metrics")], _metrics(cluster)),
                (", traces", TASKS, TRACED, [cluster.queue("traces")], Tracing(TracerProvider().get_tracer("counts"))),
                (", batches", TASKS, ITEMS, [cluster.queue("batches")], None),
                (", alone", 1, ALONE, [cluster.queue("alone")], None),
                (", many queues", TASKS, ITEMS, [cluster.queue(f"many-{number}") for number in range(QUEUES)], None),
            ):
                if not any(name.startswith((f"push{kind}:", f"claim and ack{kind}:")) for name in names):
                    continue
                stop = cluster.observe(observer or Observer())
                push, consume = _tasks(queues, tasks, items)
                if kind == ", batches":
                    consume = partial(load.consume_batches, queues[0])
                counts |= await _counted(f"push{kind}", urls, push, items)
                counts |= await _counted(f"claim and ack{kind}", urls, consume, items)
                stop()
    return {name: counts[name] for name in counts if name in names}


def count_script_calls() -> dict[str, float]:
    """Count what ``SCRIPT_CALLS`` limits, under the same names.

    Producer and worker are clients of their own.  The clock of their event loop stands still and is put forward between
    calls only, so a timer fires between the same calls in each run, however slow the machine is.
    """
    with asyncio.Runner(loop_factory=_StillLoop) as runner:
        return runner.run(_count_script_calls())


async def _count_script_calls() -> dict[str, float]:
    hub, recording = Hub(), Recording()
    async with (
        local.servers(redis=3, zookeeper=0) as servers,
        load.cluster_of(servers.redis_urls, "", hub=hub, dial=recording.dial, namespace=NAMESPACE) as producer,
        load.cluster_of(servers.redis_urls, "", hub=hub, dial=recording.dial, namespace=NAMESPACE) as consumer,
    ):
        return {
            IDLE: await _Lone(recording, producer.queue("idle"), consumer.queue("idle")).idle(),
            BUSY: await _Lone(recording, producer.queue("busy"), consumer.queue("busy")).busy(),
        }


class _StillLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be stopped and put forward."""

    _ahead = 0.0
    _still_at: float | None = None

    def time(self) -> float:
        return super().time() + self._ahead if self._still_at is None else self._still_at

    def put_forward(self, seconds: float) -> None:
        assert self._still_at is not None
        self._still_at += seconds

    @contextmanager
    def standing_still(self) -> Generator[None]:
        self._still_at = self.time()
        try:
            yield
        finally:
            self._ahead, self._still_at = self._still_at - super().time(), None


class _Lone:
    """A producer that awaits each push, and a worker with one slot."""

    def __init__(self, recording: Recording, producer: zkrq.Queue[Any], consumer: zkrq.Queue[Any]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _StillLoop)
        self._loop, self._recording, self._producer, self._consumer = loop, recording, producer, consumer
        self._handled = 0

    async def idle(self) -> float:
        """Count the calls per item where each item is pushed to an empty queue."""
        async with self._working():
            await self._push_and_pass(1)  # loads the scripts
            self._recording.take()
            await self._push_and_pass(LONE_ITEMS)
            return self._calls()

    async def busy(self) -> float:
        """Count the calls per item where all of them were pushed before the worker begins."""
        self._recording.take()
        for _ in range(LONE_ITEMS):
            await self._producer.push(ITEM)
        async with self._working():
            while self._handled < LONE_ITEMS:
                await self._pass(LONE_SECONDS)
            await self._pass(LONE_INTERVAL)
            return self._calls()

    def _calls(self) -> float:
        """Return the calls per item since the last time, without those that are not about the queue's items."""
        records = key(NAMESPACE, self._producer.name, "records").encode()
        return sum(records in call.words for call in self._recording.take()) / LONE_ITEMS

    async def _push_and_pass(self, items: int) -> None:
        for _ in range(items):
            handled = self._handled
            await self._producer.push(ITEM)
            await self._quiet(handled + 1)
            await self._pass(LONE_INTERVAL)

    async def _pass(self, seconds: float) -> None:
        """Put the clock forward in steps, each followed by all calls that it brings about."""
        for _ in range(round(seconds / LONE_SECONDS)):
            self._loop.put_forward(LONE_SECONDS)
            await self._quiet()

    async def _quiet(self, handled: int = 0) -> None:
        """Wait until this many items have reached the handler and no call is in flight."""
        turns, until = 0, time.monotonic() + QUIET_PATIENCE
        while turns < QUIET_TURNS:
            await asyncio.sleep(0)
            turns = 0 if self._recording.in_flight or self._handled < handled else turns + 1
            if time.monotonic() > until:
                raise TimeoutError(f"{self._recording.in_flight} calls in flight, {self._handled} items handled")

    @asynccontextmanager
    async def _working(self) -> AsyncGenerator[None]:
        with self._loop.standing_still():
            worker = asyncio.create_task(self._consumer.work(self._handle, concurrency=1))
            try:
                await self._quiet()
                yield
            finally:
                worker.cancel()
                await asyncio.wait([worker])

    async def _handle(self, item: object) -> None:
        self._handled += 1
        await asyncio.sleep(LONE_SECONDS)


def _metrics(cluster: Cluster) -> Metrics:
    return Metrics(cluster, CollectorRegistry(), every_queue=False)


def _tasks(queues: list[zkrq.Queue[Any]], tasks: int, items: int) -> tuple[Work, Work]:
    """Return functions that push this many items by this many tasks, and consume them."""
    left = iter(range(items))

    async def push() -> None:
        for number in left:
            await queues[number % len(queues)].push(ITEM)

    async def consume(queue: zkrq.Queue[Any]) -> None:
        async for claim in queue.pop(wait=False):
            async with claim:
                pass

    async def push_all() -> None:
        await asyncio.gather(*(push() for _ in range(tasks)))

    async def consume_all() -> None:
        await asyncio.gather(*(consume(queues[number % len(queues)]) for number in range(tasks)))

    return push_all, consume_all


async def _cycle(queue: zkrq.Queue[Any], items: int) -> None:
    await asyncio.gather(*(queue.push(ITEM) for _ in range(items)))
    async for claim in queue.pop(wait=False):
        await claim.ack()


async def _counted(part: str, urls: list[str], work: Work, items: int) -> dict[str, float]:
    before = [await _figures(url) for url in urls]
    with python_calls() as calls:
        await work()
    after = [await _figures(url) for url in urls]
    counts = {
        f"{part}: {name}": sum(new[name] - old[name] for old, new in zip(before, after, strict=True))
        / len(urls)
        / items
        for name in after[0]
    }
    return {**counts, f"{part}: Python calls of the client": calls[0] / items}


async def _figures(url: str) -> dict[str, float]:
    """Read the counters of a server."""
    async with Redis.from_url(url) as redis:  # pyright: ignore[reportUnknownMemberType]
        commands: dict[str, Any] = await redis.info("commandstats")  # pyright: ignore[reportUnknownMemberType]
        traffic: dict[str, Any] = await redis.info("stats")  # pyright: ignore[reportUnknownMemberType]
    calls = {name.removeprefix("cmdstat_"): figures["calls"] for name, figures in commands.items()}
    return {
        "script calls on a server": calls.get("fcall", 0),
        "commands on a server": sum(calls.values()) - calls.get("fcall", 0) - calls.get("info", 0),
        "bytes to a server": traffic["total_net_input_bytes"],
        "bytes from a server": traffic["total_net_output_bytes"],
    }


@contextmanager
def python_calls() -> Generator[list[int]]:
    """Count the calls of functions written in Python, and the resumptions of coroutines."""
    calls = [0]

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[0] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


if __name__ == "__main__":
    for name, counted in (count_script_calls() | asyncio.run(count())).items():
        print(f"{name:55} {counted:10.3f}   limit {(SCRIPT_CALLS | LIMITS)[name]:g}")
