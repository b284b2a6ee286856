"""Compare zkrq with its own script calls sent bare, in turn, on the same servers: the cost of the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zkrq
from benchmarks import bare, load
from benchmarks.plan import Plan
from benchmarks.recording import Recording, ScriptCall
from benchmarks.sheet import Sheet, Topic

LIMIT = Topic(
    "limit",
    "Against the physical limit",
    "The library's script calls, recorded in the same batch sizes as it uses under this load, and sent again by "
    "hiredis alone: three servers in parallel, two operations of each kind in flight. zkrq and the bare calls take "
    "turns.",
    "items/s",
    "what",
)
RATIO = Topic("limit-ratio", "zkrq / bare", "By repetition, from the table above.", "ratio", "what")
LIMIT_COST = Topic(
    "limit-cost",
    "What they cost",
    "Processor time of the same runs. What all cores together can give, divided by this, bounds the rate.",
    "µs per item",
    "what",
)
BATCHES = Topic(
    "batches",
    "The bare calls by batch size",
    "Put, claim and settle in batches of one size.",
    "items/s",
    "batch",
    plot="lines",
    log=True,
)
CALLS = Topic(
    "calls",
    "What goes over the wire",
    f"{load.TASKS} tasks push, then consume; all servers together.",
    "",
    "script",
)

TURNS = 5
OURS, BARE = "zkrq, 256 tasks", "bare scripts"


async def run(plan: Plan, sheet: Sheet) -> None:
    items = plan.items(20_000)
    async with load.servers() as group, load.meter(group.redis_urls.values()) as meter:
        recording = Recording()
        async with load.open_cluster(group, namespace="recorded", dial=recording.dial) as cluster:
            queue = cluster.queue("limit")
            await _cycle(queue, 2_000)
            recording.take()
            await _cycle(queue, items)
            calls = recording.take()
        _note_calls(sheet, calls, items)
        tape = await bare.capture(group, _sizes(calls, items), items)
        async with load.open_cluster(group, namespace="limit") as cluster:
            queue = cluster.queue("limit")
            await _cycle(queue, 2_000)
            for _ in range(1 if plan.quick else TURNS):
                pushing = await meter.cost(load.push(queue, items))
                ours = bare.rates(items, pushing, await meter.cost(load.consume(queue)))
                limit = await bare.replay(group, tape, meter)
                _note_turn(sheet, ours, limit)
        for size in plan.rows((1, 10, 100, 500), (10, 100)):
            tape = await bare.capture(group, bare.Sizes(size, size, size), min(items, size * 400))
            for _ in range(plan.repetitions):
                rates = await bare.replay(group, tape, meter)
                sheet.add(BATCHES, str(size), push=rates.push, claim_and_ack=rates.consume, whole_cycle=rates.cycle)


async def _cycle(queue: zkrq.Queue[Any], items: int) -> None:
    await load.push(queue, items)
    await load.consume(queue)


def _sizes(calls: Sequence[ScriptCall], items: int) -> bare.Sizes:
    """Return the mean batch sizes of a recorded run."""

    def size(script: str) -> int:
        of_it = [call.url for call in calls if call.script == script]
        return max(1, round(items * len(set(of_it)) / len(of_it)))

    return bare.Sizes(size("push_plain"), size("claim"), size("settle"))


def _note_calls(sheet: Sheet, calls: Sequence[ScriptCall], items: int) -> None:
    for script in dict.fromkeys(call.script for call in calls):
        of_it = [call for call in calls if call.script == script]
        sheet.add(
            CALLS,
            script,
            calls_per_item=len(of_it) / items,
            items_in_a_call=sum(call.items for call in of_it) / len(of_it) or items / len(of_it),
            bytes_per_item=sum(call.bytes for call in of_it) / items,
        )


def _note_turn(sheet: Sheet, ours: bare.Rates, limit: bare.Rates) -> None:
    for row, rates in ((OURS, ours), (BARE, limit)):
        sheet.add(LIMIT, row, push=rates.push, claim_and_ack=rates.consume, whole_cycle=rates.cycle)
        sheet.add(LIMIT_COST, row, client=rates.cost.client, all_servers=rates.cost.servers)
    sheet.add(
        RATIO,
        "zkrq / bare",
        push=ours.push / limit.push,
        claim_and_ack=ours.consume / limit.consume,
        whole_cycle=ours.cycle / limit.cycle,
    )
