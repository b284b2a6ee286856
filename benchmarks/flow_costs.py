"""Measure what flows cost zkrq: calls of a flow's life, the time to what continues, members, and saved states."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks import load
from benchmarks.latency import percentile
from benchmarks.plan import Plan
from benchmarks.recording import Recording, ScriptCall
from benchmarks.sheet import Sheet, Topic
from zkrq.client.cluster import Cluster
from zkrq.local import Servers
from zkrq.protocol.keys import key

CALLS = Topic(
    "flow-calls",
    "Script calls of a flow",
    "On three servers together, in one queue: all calls that are about the flow itself, from its begin until what "
    "continues is ready. Not counted: pushes, claims and acks of members and of what continues.",
    "calls",
    "part",
)
CONTINUES = Topic(
    "flow-continues",
    "From the last ack to what continues",
    "Three servers, one process, in turn, at rest: a lone item, from its push to its handler; a flow of one member, "
    "from the end of the member's handler, and from the return of its ack, to the handler of what continues.",
    "ms",
    "what",
)
MEMBERS = Topic(
    "flow-members",
    "A member beside a lone item",
    f"{load.TASKS} tasks push one item at a time, then as many consume them: processor time of client and servers "
    "together, for members of a flow and for items of none, in turn.",
    "µs per item",
    "items",
)
MEMBER_RATIO = Topic(
    "flow-member-ratio", "A member beside a lone item, as ratios", "A member / a lone item.", "ratio", "part"
)
INDEX = Topic(
    "flow-index",
    "Memory of members in the index",
    "Growth of the index in which members are found, by `MEMORY USAGE`, on one server, after one `push_many`.",
    "bytes per member",
    "members",
)
SAVES = Topic(
    "flow-saves",
    "A saved state beside an ack",
    "One caller at rest, in turn: `claim.save` of 100 bytes and of 1 KiB, and `claim.ack`.",
    "ms",
    "call",
)

MANY = 100_000
STATES = {"save, 100 bytes": "x" * 98, "save, 1 KiB": "x" * 1022}
"""What is saved: its length as JSON."""
PAUSE = 0.005
DELAY = 0.1
"""Seconds after which a lone member is ready, so that the flow is sealed before."""
NOT_OF_THE_FLOW = frozenset({"push_plain", "push_decided", "claim", "turn", "settle"})
"""Scripts that members and lone items are carried by."""


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers(config=load.NO_REWRITE) as group:
        await _calls(sheet, group)
        async with load.open_cluster(group) as cluster, load.meter(group.redis_urls.values()) as meter:
            await load.push(cluster.queue("warm-up"), 2_000)
            await load.consume(cluster.queue("warm-up"))
            for repetition in range(plan.repetitions):
                await _continues(sheet, cluster, repetition, 50 if plan.quick else 200)
                await _saves(sheet, cluster.queue(f"saves-{repetition}"), 100 if plan.quick else 300)
                await _members(sheet, meter, cluster, repetition, plan.items(20_000))
            await _index(sheet, group, cluster, MANY if not plan.quick else MANY // 10)


async def _calls(sheet: Sheet, group: Servers) -> None:
    recording = Recording()
    async with load.open_cluster(group, namespace="flow-calls", dial=recording.dial) as cluster:
        queue, began = cluster.queue("calls"), asyncio.Event()
        await _one_flow(queue, "warm-up", began)
        recording.take()
        parts = await _one_flow(queue, "counted", began, recording)
        await asyncio.sleep(1.0)  # calls that follow the end
        parts["end"] += _of_flow(recording.take())
    sheet.add(CALLS, "in all", calls=sum(parts.values()))
    for part, calls in parts.items():
        sheet.add(CALLS, part, calls=calls)


async def _one_flow(
    queue: zkrq.Queue[Any], name: str, began: asyncio.Event, recording: Recording | None = None
) -> dict[str, int]:
    """Make a flow of two members, and work until what continues has begun; count the calls of each part."""
    began.clear()
    parts = dict[str, int]()

    def note(part: str) -> None:
        parts[part] = _of_flow(recording.take()) if recording else 0

    async with queue.flow(name) as flow:
        note("begin")
        await flow.then("continue")
        await flow.push_many(["member", "member"])
        note("then, members")
    note("seal")

    async def handle(item: str) -> None:
        if item == "continue":
            began.set()

    async with zkrq.Worker(concurrency=1).add(queue, handle):
        await began.wait()
        note("end")
    return parts


def _of_flow(calls: Sequence[ScriptCall]) -> int:
    """Count the calls that are about a flow itself: scripts of flows, and records of flows that are applied."""
    return sum(_is_of_flow(call) for call in calls)


def _is_of_flow(call: ScriptCall) -> bool:
    if call.script.startswith("flow"):
        return True
    return call.script not in NOT_OF_THE_FLOW and any(word.startswith(b"\x01flow ") for word in call.words)


async def _continues(sheet: Sheet, cluster: Cluster, repetition: int, rounds: int) -> None:
    queue, lone = cluster.queue(f"continues-{repetition}"), cluster.queue(f"lone-{repetition}")
    handled: asyncio.Queue[float] = asyncio.Queue()
    acked = 0.0

    async def handle_lone(item: object) -> None:
        handled.put_nowait(time.perf_counter())

    async def consume() -> None:
        nonlocal acked
        async for claim in queue.pop():
            began = time.perf_counter()
            handled.put_nowait(began)
            await claim.ack()
            if claim.item == "member":
                acked = time.perf_counter()

    times: dict[str, list[float]] = {"a lone item": [], "from the handler's end": [], "from the ack's return": []}
    async with zkrq.Worker(concurrency=1).add(lone, handle_lone):
        consuming = asyncio.create_task(consume())
        for number in range(rounds):
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await lone.push("lone")
            times["a lone item"].append(await handled.get() - began)
            async with queue.flow(f"at-rest-{repetition}-{number}") as flow:
                await flow.then("continue")
                await flow.push("member", delay=DELAY)
            ended, continued = await handled.get(), await handled.get()
            times["from the handler's end"].append(continued - ended)
            times["from the ack's return"].append(continued - acked)
        consuming.cancel()
    for what, some in times.items():
        sheet.add(CONTINUES, what, p50=percentile(some, 50) * 1000, p99=percentile(some, 99) * 1000)


async def _saves(sheet: Sheet, queue: zkrq.Queue[Any], rounds: int) -> None:
    times: dict[str, list[float]] = {what: [] for what in (*STATES, "ack")}
    for _ in range(rounds):
        for what in times:
            await queue.push("item")
            claim = await queue.pop_one()
            assert claim
            await asyncio.sleep(PAUSE)
            if what in STATES:
                times[what].append(await load.timed(claim.save(STATES[what])))
                await claim.ack()
            else:
                times[what].append(await load.timed(claim.ack()))
    for what, some in times.items():
        sheet.add(SAVES, what, p50=median(some) * 1000, p99=percentile(some, 99) * 1000)


async def _members(sheet: Sheet, meter: load.Meter, cluster: Cluster, repetition: int, items: int) -> None:
    """In turn, so that a machine that gets slower does so for both."""
    queue, lone = cluster.queue(f"members-{repetition}"), cluster.queue(f"no-members-{repetition}")
    async with queue.flow(f"members-{repetition}") as flow:
        pushes = [
            (await meter.cost(load.push(lone, items))).each(items),
            (await meter.cost(_push_members(flow, items))).each(items),
        ]
    acks = [(await meter.cost(load.consume(each))).each(items) for each in (lone, queue)]
    total = dict[str, list[float]]()
    for part, (of_lone, of_member) in (("push", pushes), ("claim and ack", acks)):
        spent = [each.client + each.servers for each in (of_lone, of_member)]
        total[part] = spent
        sheet.add(MEMBERS, "lone", **{part: spent[0]})
        sheet.add(MEMBERS, "member", **{part: spent[1]})
        sheet.add(MEMBER_RATIO, part, ratio=spent[1] / spent[0])
    both = [sum(each) for each in zip(*total.values(), strict=True)]
    sheet.add(MEMBER_RATIO, "push, claim and ack", ratio=both[1] / both[0])


async def _push_members(flow: zkrq.Flow, items: int) -> None:
    left = iter(range(items))

    async def produce() -> None:
        for _ in left:
            await flow.push(load.ITEM)

    await asyncio.gather(*(produce() for _ in range(load.TASKS)))


async def _index(sheet: Sheet, group: Servers, cluster: Cluster, members: int) -> None:
    queue = cluster.queue("index")
    async with Redis.from_url(group.redis[0].url) as redis:  # pyright: ignore[reportUnknownMemberType]

        async def used() -> int:
            name = key("bench", "index", "members")
            return await redis.memory_usage(name, samples=0) or 0  # pyright: ignore[reportUnknownMemberType]

        async with queue.flow("index") as flow:
            before = await used()
            await flow.push_many([load.ITEM] * members)
            sheet.add(INDEX, f"{members:,}", bytes=(await used() - before) / members)
