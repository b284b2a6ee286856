"""Items per second through the public API on three private Redis servers, 100-byte items, one client process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import zkrq

ITEM = {"to": "ann@example.org", "text": "x" * 60}
CALLERS = {1: 1_000, 16: 10_000, 256: 20_000}
"""How many tasks push and consume one item at a time, and how many items they share."""


async def produce(queue: zkrq.Queue[object], left: Iterator[int]) -> None:
    for _ in left:
        await queue.push(ITEM)


async def consume(queue: zkrq.Queue[object]) -> None:
    async for claim in queue.pop(wait=False):
        async with claim:
            pass


async def rate(work: Callable[[], Awaitable[None]], callers: int, items: int) -> float:
    """Items per second of ``callers`` tasks that share the work."""
    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(callers)))
    return items / (time.perf_counter() - began)


async def run() -> dict[str, float]:
    """Pushes per second, then claims with their acks per second, by number of callers."""
    results: dict[str, float] = {}
    async with zkrq.embedded(servers=3) as cluster:
        for callers, items in CALLERS.items():
            queue = cluster.queue(f"by-{callers}")
            pushing = partial(produce, queue, iter(range(items)))
            results[f"push, {callers} callers: items/s"] = await rate(pushing, callers, items)
            results[f"claim + ack, {callers} callers: items/s"] = await rate(partial(consume, queue), callers, items)
    return results
