"""Measure items per second through the public API: by tasks, batch, payload, servers and client processes."""

from __future__ import annotations

import asyncio
from typing import Any

import zkrq
from benchmarks import load, processes
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.local import Servers

TASKS = Topic(
    "tasks",
    "One item awaited at a time, by number of tasks",
    "Three Redis servers, 100-byte items, one client process. Each task awaits `push` for one item after the other; "
    "then each runs `async for claim in queue.pop()` with `async with claim`. The whole cycle is both phases, one "
    "after the other.",
    "items/s",
    "tasks",
    plot="bars",
)
COST = Topic(
    "cost",
    "Processor time",
    "The same runs: the client's and all three servers' processor time for each item of a whole cycle. Other load "
    "on the machine disturbs this less than it does the rates.",
    "µs per item",
    "tasks",
)
MANY = Topic(
    "many",
    "Many at a time",
    "Three Redis servers, 100-byte items. `push_many` of this many items, one call after the other; `pop_many` of as "
    "many, then all of them acked together.",
    "items/s",
    "items in a call",
    plot="bars",
)
BATCHES = Topic(
    "consumer-batches",
    "Consumers that take batches",
    f"Three Redis servers, 100-byte items that {load.TASKS} tasks push one at a time. Then as many tasks claim and ack "
    f"one at a time, or {load.LOOPS} loops run `async for batch in queue.pop_batches({load.BATCH})` with "
    "`async with batch`. The two take turns.",
    "items/s",
    "consumers",
    plot="bars",
)
PAYLOADS = Topic(
    "payloads", "By payload", f"Three Redis servers, {load.TASKS} tasks, `zkrq.RAW`.", "items/s", "payload", plot="bars"
)
SERVERS = Topic(
    "servers",
    "By number of Redis servers",
    f"100-byte items, {load.TASKS} tasks. All servers share this machine's cores.",
    "items/s",
    "servers",
    plot="bars",
)
PROCESSES = Topic(
    "processes",
    "By number of client processes",
    f"Three Redis servers, 100-byte items, {load.TASKS} tasks in each process, one queue. From the start of the first "
    "process to the end of the last one.",
    "items/s",
    "processes",
    plot="bars",
)

ONE_AT_A_TIME, IN_BATCHES = "one at a time", f"batches of {load.BATCH}"

ITEMS_OF_TASKS = {1: 1_500, 16: 10_000, 64: 20_000, 256: 20_000}
PAYLOAD_SIZES = {"100 B": (100, 20_000), "1 KiB": (1 << 10, 10_000), "64 KiB": (1 << 16, 1_000)}


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers() as group, load.meter(group.redis_urls.values()) as meter:
        async with load.open_cluster(group) as cluster:
            await _warm_up(cluster)
            for repetition in range(plan.repetitions):
                for tasks, items in ITEMS_OF_TASKS.items():
                    queue = cluster.queue(f"tasks-{tasks}-{repetition}")
                    await _by_tasks(plan, sheet, meter, queue, tasks, plan.items(items))
                for size in plan.rows((10, 100, 500), (100, 500)):
                    await _many(sheet, cluster.queue(f"many-{size}-{repetition}"), size, plan.items(20_000))
                await _by_batches(sheet, cluster, repetition, plan.items(20_000))
                for name, (size, items) in PAYLOAD_SIZES.items():
                    queue = cluster.queue(f"payload-{size}-{repetition}", codec=zkrq.RAW)
                    await _cycle(sheet, PAYLOADS, name, queue, plan.items(items), b"x" * size)
        await _by_processes(plan, sheet, group)
    for count in plan.rows((1, 2, 3, 5), (1, 3)):
        async with load.servers(count) as group, load.open_cluster(group) as cluster:
            await _warm_up(cluster)
            for repetition in range(plan.repetitions):
                queue = cluster.queue(f"servers-{repetition}")
                await _cycle(sheet, SERVERS, str(count), queue, plan.items(20_000), load.ITEM)


async def _warm_up(cluster: zkrq.Cluster) -> None:
    queue = cluster.queue("warm-up")
    await load.push(queue, 2_000)
    await load.consume(queue)


async def _by_tasks(
    plan: Plan, sheet: Sheet, meter: load.Meter, queue: zkrq.Queue[Any], tasks: int, items: int
) -> None:
    pushing = await meter.cost(load.push(queue, items, tasks))
    consuming = await meter.cost(load.consume(queue, tasks))
    _note_rates(sheet, TASKS, str(tasks), items, pushing.wall, consuming.wall)
    both = (pushing + consuming).each(items)
    sheet.add(COST, str(tasks), client=both.client, all_servers=both.servers)


async def _cycle(sheet: Sheet, topic: Topic, row: str, queue: zkrq.Queue[Any], items: int, item: object) -> None:
    pushing = await load.timed(load.push(queue, items, item=item))
    consuming = await load.timed(load.consume(queue))
    _note_rates(sheet, topic, row, items, pushing, consuming)


async def _many(sheet: Sheet, queue: zkrq.Queue[Any], size: int, items: int) -> None:
    async def push() -> None:
        for _ in range(0, items, size):
            await queue.push_many([load.ITEM] * size)

    async def consume() -> None:
        while claims := await queue.pop_many(size, timeout=0):
            await asyncio.gather(*(claim.ack() for claim in claims))

    pushing, consuming = await load.timed(push()), await load.timed(consume())
    _note_rates(sheet, MANY, str(size), -(-items // size) * size, pushing, consuming)


async def _by_batches(sheet: Sheet, cluster: zkrq.Cluster, repetition: int, items: int) -> None:
    for row, consume in ((ONE_AT_A_TIME, load.consume), (IN_BATCHES, load.consume_batches)):
        queue = cluster.queue(f"consumers-{row.replace(' ', '-')}-{repetition}")
        pushing = await load.timed(load.push(queue, items))
        _note_rates(sheet, BATCHES, row, items, pushing, await load.timed(consume(queue)))


async def _by_processes(plan: Plan, sheet: Sheet, group: Servers) -> None:
    if not group.zookeeper:
        sheet.remark("several client processes: not measured, they need ZooKeeper")
        return
    items = plan.items(24_000)
    for _ in range(plan.repetitions):
        for count in (1, 2, 3):
            rates = await processes.together(group, count, items)
            sheet.add(PROCESSES, str(count), push=rates.push, claim_and_ack=rates.consume, whole_cycle=rates.cycle)


def _note_rates(sheet: Sheet, topic: Topic, row: str, items: int, pushing: float, consuming: float) -> None:
    sheet.add(
        topic,
        row,
        push=items / pushing,
        claim_and_ack=items / consuming,
        whole_cycle=items / (pushing + consuming),
    )
