"""Count what one item costs instead of timing it, so that fast and busy machines give the same figures.

    python -m benchmarks.counts    # prints the counts beside their limits

``tests/integration/test_counts.py`` fails when a count exceeds its limit.  Lower the limit when an item gets cheaper.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

import zkrq
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.consuming.observing import Observer
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.opentelemetry import Tracing
from zkrq.prometheus import Metrics

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
    "claim and ack: Python calls of the client": 50.0,
    "push, alone: script calls on a server": 1.01,
    "push, alone: commands on a server": 9.1,
    "push, alone: Python calls of the client": 290.0,
    "claim and ack, alone: script calls on a server": 1.7,
    "claim and ack, alone: commands on a server": 19.0,
    "claim and ack, alone: Python calls of the client": 430.0,
    "push, many queues: script calls on a server": 0.05,
    "push, many queues: Python calls of the client": 210.0,
    "claim and ack, many queues: script calls on a server": 0.25,
    "claim and ack, many queues: Python calls of the client": 420.0,
    "push, metrics: Python calls of the client": 23.5,
    "claim and ack, metrics: Python calls of the client": 62.0,
    "push, traces: Python calls of the client": 147.0,
    "push, traces: bytes to a server": 199.0,
    "claim and ack, traces: Python calls of the client": 235.0,
}
"""Limits per item of about 100 bytes, the mean over three servers.  256 tasks push and consume one at a time, in one
queue or in 64; metrics, traces: with these on, without an exporter; alone: one task does.  A tenth above the count when
the limit was set, or twice that if the count depends on the batch sizes of a run."""


async def count(names: Collection[str] = LIMITS.keys()) -> dict[str, float]:
    """Count these of ``LIMITS``, under the same names."""
    counts: dict[str, float] = {}
    async with local.servers(redis=3, zookeeper=0) as servers:
        settings = Settings(
            namespace="counted", found=True, description="counts", command_timeout=10.0, operation_timeout=30.0
        )
        async with Cluster(servers.redis_urls, MemoryCoordinator(Hub()), settings) as cluster:
            await _cycle(cluster.queue("warm-up"), TASKS)  # loads every script on every server
            urls = list(servers.redis_urls.values())
            for kind, tasks, items, queues, observer in (
                ("", TASKS, ITEMS, [cluster.queue("counted")], None),
                (", metrics", TASKS, ITEMS, [cluster.queue("metrics")], _metrics(cluster)),
                (", traces", TASKS, TRACED, [cluster.queue("traces")], Tracing(TracerProvider().get_tracer("counts"))),
                (", alone", 1, ALONE, [cluster.queue("alone")], None),
                (", many queues", TASKS, ITEMS, [cluster.queue(f"many-{number}") for number in range(QUEUES)], None),
            ):
                if not any(name.startswith((f"push{kind}:", f"claim and ack{kind}:")) for name in names):
                    continue
                stop = cluster.observe(observer or Observer())
                push, consume = _tasks(queues, tasks, items)
                counts |= await _counted(f"push{kind}", urls, push, items)
                counts |= await _counted(f"claim and ack{kind}", urls, consume, items)
                stop()
    return {name: counts[name] for name in counts if name in names}


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
        "script calls on a server": calls.get("evalsha", 0),
        "commands on a server": sum(calls.values()) - calls.get("evalsha", 0) - calls.get("info", 0),
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
    for name, counted in asyncio.run(count()).items():
        print(f"{name:55} {counted:10.3f}   limit {LIMITS[name]:g}")
