"""Measure whether an item's cost grows with the queue's depth, consumers, delayed items or queues; and its memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from typing import Any

import zkrq
from benchmarks import load
from benchmarks.peers.common import PAYLOAD
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.client.cluster import Cluster
from zkrq.local import Servers

ABOUT_COST = "By the clock, and the processor time of the client and all servers together."

DEPTH = Topic(
    "depth",
    "By depth of the queue",
    f"This many items are waiting; then {load.TASKS} tasks push some thousand more and consume as many, the depths in "
    f"turn, all queues on the same servers. {ABOUT_COST}",
    "µs per item",
    "items waiting",
    plot="lines",
    log=True,
)
CONSUMERS = Topic(
    "consumers",
    "By consumers",
    f"Claim and ack of one item at a time by this many loops in one client; enough items are ready. {ABOUT_COST}",
    "µs per item",
    "consumers",
    plot="lines",
    log=True,
)
CLIENTS = Topic(
    "clients",
    "By clients",
    "Sixteen consuming loops in all, in this many clients, each with a session and connections of its own (one "
    f"process). Claim and ack. {ABOUT_COST}",
    "µs per item",
    "clients",
)
DELAYED = Topic(
    "delayed",
    "By items that are scheduled for later",
    f"This many items of the queue are due in an hour; {load.TASKS} tasks push some thousand others and consume them. "
    f"{ABOUT_COST}",
    "µs per item",
    "delayed items",
    plot="lines",
    log=True,
)
QUEUES = Topic(
    "queues",
    "By queues",
    f"{load.TASKS} tasks push some thousand items to this many queues in turn; as many loops of `async for claim in "
    f"queue.pop(wait=False)`, at least one for each queue, consume them. {ABOUT_COST}",
    "µs per item",
    "queues",
    plot="lines",
    log=True,
)
MEMORY = Topic(
    "memory",
    "Memory of a queued item",
    "Growth of `used_memory` per item, beyond the 100 bytes of payload, on the server with the most. The items are "
    "pushed by `push_many`.",
    "bytes per item",
    "items",
)
PUSHED = Topic(
    "memory-by-push",
    "Memory of a queued item, by how it was pushed",
    "The same for items that one caller pushes one after the other, that many tasks push at the same time, and that "
    "one call of `push_many` brings.",
    "bytes per item",
    "pushed",
)

FILL = 10_000
"""Items in one ``push_many`` while filling."""


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers(config=load.NO_REWRITE) as group, load.meter(group.redis_urls.values()) as meter:
        async with load.open_cluster(group) as cluster:
            await _cycle(cluster.queue("warm-up"), 2_000)
            await _memory_by_push(plan, sheet, meter, cluster)
            await _depth(plan, sheet, meter, cluster)
            await _delayed(plan, sheet, meter, cluster)
            await _consumers(plan, sheet, meter, cluster)
            await _queues(plan, sheet, meter, cluster)
        for count in plan.rows((1, 4, 16), (1, 16)):
            for repetition in range(plan.repetitions):
                await _clients(plan, sheet, meter, group, count, repetition)


async def _beyond_payload(meter: load.Meter, items: int, pushing: Awaitable[None]) -> float:
    """Bytes that a server keeps of each item beside its payload; the server with the most."""
    empty = await meter.memory()
    await pushing
    grown = [after - before for before, after in zip(empty, await meter.memory(), strict=True)]
    return max(grown) / items - len(PAYLOAD)


async def _memory_by_push(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster) -> None:
    items = plan.items(20_000)
    for row, pushing in (
        ("one after the other", load.push(cluster.queue("memory-1"), items, tasks=1)),
        (f"by {load.TASKS} tasks", load.push(cluster.queue("memory-tasks"), items)),
        ("by push_many", fill(cluster.queue("memory-many"), items)),
    ):
        sheet.add(PUSHED, row, beyond_payload=await _beyond_payload(meter, items, pushing))


async def _depth(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster) -> None:
    items = plan.items(10_000)
    depths = plan.rows((1_000, 10_000, 100_000, 1_000_000), (1_000, 100_000))
    for depth in depths:
        beyond = await _beyond_payload(meter, depth, fill(cluster.queue(f"depth-{depth}"), depth))
        if depth >= 10_000:
            sheet.add(MEMORY, f"{depth:,}", beyond_payload=beyond)
    for _ in range(2 * plan.repetitions):
        for depth in depths:
            cost = await meter.cost(_cycle(cluster.queue(f"depth-{depth}"), items))
            note(sheet, DEPTH, f"{depth:,}", cost, items)


async def _delayed(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster) -> None:
    items = plan.items(10_000)
    delayed = plan.rows((0, 1_000_000), (0, 50_000))
    for count in delayed:
        await fill(cluster.queue(f"delayed-{count}"), count, delay=3600)
    for _ in range(plan.repetitions):
        for count in delayed:
            cost = await meter.cost(_cycle(cluster.queue(f"delayed-{count}"), items))
            note(sheet, DELAYED, f"{count:,}", cost, items)


async def _consumers(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster) -> None:
    queue = cluster.queue("consumers")
    for _ in range(plan.repetitions):
        for count in (1, 4, 10, 100):
            items = plan.items(1_000 * min(count, 10))
            await load.push(queue, items)
            note(sheet, CONSUMERS, f"{count:,}", await meter.cost(load.consume(queue, count)), items)


async def _queues(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster) -> None:
    items = plan.items(4_000)
    for _ in range(plan.repetitions):
        for count in plan.rows((1, 10, 100, 1_000), (1, 100)):
            queues = [cluster.queue(f"queues-{count}-{n}") for n in range(count)]
            await _push_to_all(queues, count)  # registers every queue on every server
            await _consume_all(queues)
            pushing = await meter.cost(_push_to_all(queues, items))
            consuming = await meter.cost(_consume_all(queues))
            note(sheet, QUEUES, f"{count:,}", pushing + consuming, items)


async def _clients(plan: Plan, sheet: Sheet, meter: load.Meter, group: Servers, count: int, repetition: int) -> None:
    if count > 1 and not group.zookeeper:
        sheet.remark("several clients: not measured, they need ZooKeeper")
        return
    items = plan.items(4_000)
    name = f"clients-{count}-{repetition}"
    clusters = [load.open_cluster(group, namespace="clients") for _ in range(count)]
    try:
        for cluster in clusters:
            await cluster.__aenter__()
        await load.push(clusters[0].queue(name), items)
        loops = 16 // count
        work = asyncio.gather(*(load.consume(cluster.queue(name), loops) for cluster in clusters))
        note(sheet, CLIENTS, f"{count:,}", await meter.cost(work), items)
    finally:
        for cluster in clusters:
            await cluster.aclose()


def note(sheet: Sheet, topic: Topic, row: str, cost: load.Cost, items: int) -> None:
    """Write down the cost per item."""
    each = cost.each(items)
    sheet.add(topic, row, by_the_clock=each.wall, processor=each.client + each.servers)


async def fill(queue: zkrq.Queue[Any], items: int, delay: float | None = None) -> None:
    """Push this many items in large batches."""
    for _ in range(0, items, FILL):
        await queue.push_many([load.ITEM] * min(FILL, items), delay=delay)


async def _cycle(queue: zkrq.Queue[Any], items: int) -> None:
    """Push this many items and consume as many, whatever else is waiting."""
    await load.push(queue, items)
    await load.consume(queue, limit=items)


async def _push_to_all(queues: Sequence[zkrq.Queue[Any]], items: int) -> None:
    """Push this many items, to the queues in turn."""
    left = itertools.islice(itertools.cycle(queues), items)

    async def run() -> None:
        for queue in left:
            await queue.push(load.ITEM)

    await asyncio.gather(*(run() for _ in range(load.TASKS)))


async def _consume_all(queues: Sequence[zkrq.Queue[Any]]) -> None:
    loops = max(1, load.TASKS // len(queues))
    await asyncio.gather(*(load.consume(queue, loops) for queue in queues))
