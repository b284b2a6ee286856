"""Measure how an item's cost depends on the fate of its neighbours, and on the number of items claimed in one call.

Items that are pushed together are mostly claimed and acked together.  Here some are nacked, or each is claimed alone.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import zkrq
from benchmarks import growth, load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.client.cluster import Cluster
from zkrq.local import Servers

FATES = Topic(
    "fates",
    "By what becomes of the items",
    f"{load.TASKS} tasks push some thousand items; as many loops claim them until each is acked. A nacked item is "
    f"ready again immediately. {growth.ABOUT_COST}",
    "µs per item",
    "items",
)
SINGLY = Topic(
    "singly",
    "Claimed one at a time",
    f"{load.TASKS} tasks push some thousand items; a hundred loops of `queue.pop_one()`, which claims one item in a "
    "call, ack each of them: all loops in one client, then each in a client of its own (one Python process). "
    f"Claim and ack. {growth.ABOUT_COST}",
    "µs per item",
    "clients",
)

LOOPS = 100
"""Loops that claim one item at a time."""

PATIENT = zkrq.Retry(max_attempts=None)
"""No number of nacks makes an item a dead letter."""

EVERY_TENTH, THREE_TIMES = "every tenth nacked once", "all nacked three times"


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers(config=load.NO_REWRITE) as group, load.meter(group.redis_urls.values()) as meter:
        async with load.open_cluster(group) as cluster:
            await _until_acked(cluster, "warm-up", 2_000, nacks=0, share=1)
            for repetition in range(plan.repetitions):
                for row, nacks, share in (("all acked", 0, 1), (EVERY_TENTH, 1, 10), (THREE_TIMES, 3, 1)):
                    items = plan.items(10_000)
                    cycle = _until_acked(cluster, f"{row}-{repetition}", items, nacks=nacks, share=share)
                    growth.note(sheet, FATES, row, await meter.cost(cycle), items)
        for repetition in range(plan.repetitions):
            for clients in plan.rows((1, LOOPS), (1, 10)):
                await _singly(plan, sheet, meter, group, clients, repetition)


async def _until_acked(cluster: Cluster, name: str, items: int, *, nacks: int, share: int) -> None:
    """Push items and consume them; of each ``share`` of them one is nacked so many times first."""
    queue = cluster.queue(name.replace(" ", "-"), retry=PATIENT)
    left, first_deliveries, done = items, 0, asyncio.Event()

    async def consume() -> None:
        nonlocal left, first_deliveries
        async for claim in queue.pop():
            first_deliveries += claim.attempts == 1
            if claim.attempts <= nacks and (claim.attempts > 1 or first_deliveries % share == 0):
                await claim.nack(delay=0)
                continue
            await claim.ack()
            left -= 1
            if left == 0:
                done.set()

    await load.push(queue, items)
    async with asyncio.TaskGroup() as group:
        consumers = [group.create_task(consume()) for _ in range(load.TASKS)]
        await done.wait()
        for consumer in consumers:
            consumer.cancel()


async def _singly(plan: Plan, sheet: Sheet, meter: load.Meter, group: Servers, clients: int, repetition: int) -> None:
    if clients > 1 and not group.zookeeper:
        sheet.remark("claimed one at a time by several clients: not measured, they need ZooKeeper")
        return
    items, name = plan.items(4_000), f"singly-{clients}-{repetition}"
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(load.open_cluster(group, namespace="singly")) for _ in range(clients)]
        queues = [cluster.queue(name) for cluster in opened]
        await load.push(queues[0], items)
        work = asyncio.gather(*(_claim_singly(queues[loop % clients]) for loop in range(LOOPS)))
        growth.note(sheet, SINGLY, f"{clients:,}", await meter.cost(work), items)


async def _claim_singly(queue: zkrq.Queue[Any]) -> None:
    while claim := await queue.pop_one(timeout=0):
        await claim.ack()
