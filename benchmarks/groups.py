"""Measure what groups cost, with and without limits of each, and what a claim touches beside groups that rest."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks import load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.client.cluster import Cluster
from zkrq.protocol.keys import key

COST = Topic(
    "groups",
    "Groups",
    f"{load.TASKS} tasks push each item, under an id, so that it is in no bundle, into one of this many groups, then "
    f"{load.LOOPS} loops claim and ack batches of {load.BATCH}. Processor time of one server per item, divided by that "
    "of as many items without groups in the same repetition; the limits are so high that nothing waits for them.",
    "times",
    "groups",
)
RESTING = Topic(
    "groups-resting",
    "A claim beside groups that rest",
    "Commands that the server executes in a request for 100 items that are claimed from 100 other groups, and in the "
    "call that acks them.",
    "commands",
    "beside",
)

FEW, MANY = 10_000, 100_000
"""Items of a row."""

GROUPS: Mapping[str, tuple[int, int, zkrq.Groups | None]] = {
    "none": (FEW, 0, None),
    "1": (FEW, 1, None),
    "1,000": (FEW, 1_000, None),
    "1,000, concurrency": (FEW, 1_000, zkrq.Groups(100)),
    "1,000, rate": (FEW, 1_000, zkrq.Groups(rate=(1_000_000, 1.0))),
    "1,000, ordered": (FEW, 1_000, zkrq.Groups(ordered=True)),
    "1,000, ordered, rate": (FEW, 1_000, zkrq.Groups(ordered=True, rate=(1_000_000, 1.0))),
    "none, 100,000 items": (MANY, 0, None),
    "100,000, of one item each": (MANY, MANY, None),
    "100,000, of one item each, rate": (MANY, MANY, zkrq.Groups(rate=(1_000_000, 1.0))),
}
"""Items, groups and limits of each row."""

NAMESPACE = "groups"
RESTING_GROUPS, ITEMS_OF_EACH = 100_000, 10
AT_ONCE = 100
"""Calls of ``push_many`` at the same time while filling."""


async def run(plan: Plan, sheet: Sheet) -> None:
    async with (
        load.servers(redis=1, config=load.NO_REWRITE) as group,
        load.open_cluster(group, namespace=NAMESPACE) as cluster,
    ):
        async with load.meter(group.redis_urls.values()) as meter:
            for repetition in range(plan.repetitions):
                await _costs(plan, sheet, meter, cluster, repetition)
        async with Redis.from_url(next(iter(group.redis_urls.values()))) as server:  # pyright: ignore[reportUnknownMemberType]
            await _resting(plan, sheet, cluster, server)


async def _costs(plan: Plan, sheet: Sheet, meter: load.Meter, cluster: Cluster, repetition: int) -> None:
    usual: dict[int, float] = {}  # a long queue costs more, with and without groups
    for number, (row, (some, groups, limits)) in enumerate(GROUPS.items()):
        queue = cluster.queue(f"groups-{number}-{repetition}", groups=limits)
        items = plan.items(some)
        await queue.push("warm-up", group="warm-up" if groups else None)
        cost = await meter.cost(_push(queue, items, groups)) + await meter.cost(load.consume_batches(queue))
        each = cost.each(items).servers
        sheet.add(COST, row, processor_time=each / usual.setdefault(items, each))


async def _push(queue: zkrq.Queue[Any], items: int, groups: int) -> None:
    left = iter(range(items))

    async def produce() -> None:
        for number in left:
            group = f"tenant-{number % groups}" if groups else None
            await queue.push(load.ITEM, id=f"item-{number}", group=group)

    await asyncio.gather(*(produce() for _ in range(load.TASKS)))


async def _resting(plan: Plan, sheet: Sheet, cluster: Cluster, server: Redis) -> None:
    """Of each group one claim has begun, and so none may begin for an hour."""
    limits = zkrq.Groups(rate=(1, 3600.0))
    crowded, alone = cluster.queue("resting", groups=limits), cluster.queue("alone", groups=limits)
    groups = plan.items(RESTING_GROUPS)
    left = iter(range(groups))

    async def fill() -> None:
        for number in left:
            await crowded.push_many([number] * ITEMS_OF_EACH, group=f"tenant-{number}")

    await asyncio.gather(*(fill() for _ in range(AT_ONCE)))
    await load.consume_batches(crowded)
    told = await crowded.statistics()
    row = f"{told.sizes.ready:,} items in {told.groups_blocked:,} groups"
    for name, queue in (("nothing", alone), (row, crowded)):
        await asyncio.gather(*(queue.push(number, group=f"free-{number}") for number in range(100)))
        before = await _commands(server)
        claims = await queue.pop_many(100, timeout=0)
        between = await _commands(server)
        lost = await queue.ack_many(claims)
        sheet.add(RESTING, name, claim=between - before, ack=await _commands(server) - between)
        sheet.note(RESTING, name, f"{len(claims)} claimed, {len(lost)} lost")
    stored = await server.memory_usage(key(NAMESPACE, "resting", "groups"), samples=0)  # pyright: ignore
    sheet.note(RESTING, row, f"{(stored or 0) / groups:.0f} bytes in `groups` for each group")


async def _commands(server: Redis) -> int:
    """How many commands scripts have executed; the answer is one of its own."""
    told: Mapping[str, Mapping[str, int]] = await server.info("commandstats")  # pyright: ignore
    return sum(int(each["calls"]) for name, each in told.items() if name not in ("cmdstat_info", "cmdstat_ping"))
