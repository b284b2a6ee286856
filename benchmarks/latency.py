"""Measure the time of a push, and until a handler has the item: at rest, at several paces, when a server dies.

``curve.py`` measures the same beside SAQ and NATS, each in processes of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks import load
from benchmarks.peers.common import pace
from benchmarks.plan import Plan
from benchmarks.raw import RawRedis
from benchmarks.sheet import Sheet, Topic
from zkrq.local import LocalRedis, Servers

LATENCY = Topic(
    "latency",
    "Latency",
    "Three Redis servers, one client process that pushes and consumes, 100-byte items. Pushes leave at a fixed "
    "pace, whether the ones before have returned or not, and are measured from when they were due; `to handler` "
    "ends when the body of `async with claim` begins. The paces are parts of what the same 32 consumers reached just "
    "before, with pushes in the same process that were never more than 1,000 items ahead of them.",
    "ms",
    "load",
    plot="bars",
    log=True,
)
STALL = Topic(
    "stall",
    "A server is killed in the middle",
    "kill -9 at 500 pushes a second: the slowest push, and the longest time without one that returned, and without "
    "an item that reached its handler.",
    "ms",
    "killed",
)
AT_REST = Topic(
    "at-rest",
    "One caller, nothing else to do",
    "In turn, 5 ms apart, the median of each: a SET of 100 bytes on all three servers in parallel (redis-py, and "
    "hiredis on a bare connection), a push, and the time from the push to a handler that waits.",
    "ms",
    "what",
)
AT_REST_RATIO = Topic(
    "at-rest-ratio",
    "The same as ratios",
    "Medians of one repetition divided by the median of the three SETs in it: those of redis-py, which is how a "
    "Python program sends them, and those of hiredis with nothing around it.",
    "ratio",
    "what",
)

CONSUMERS = 32
"""Of every measurement with a pace, and of the maximum that the paces are parts of."""

AHEAD = 1_000
"""Items by which pushes may be ahead of the consumers when the maximum is measured, so that both work all the time."""

PARTS = (10, 25, 50, 75, 90)
"""Paces in percent of the maximum."""

STALL_RATE = 500


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers() as group, load.open_cluster(group) as cluster:
        await load.push(cluster.queue("warm-up"), 2_000)
        await load.consume(cluster.queue("warm-up"))
        for repetition in range(plan.repetitions):
            await _at_rest(sheet, group, cluster.queue(f"rest-{repetition}"), 200 if plan.quick else 300)
        for repetition in range(plan.repetitions):
            await _paced(sheet, "100/s", cluster.queue(f"slow-{repetition}"), 100, plan.seconds(10))
            fastest = await Load(cluster.queue(f"fast-{repetition}")).maximum(plan.items(40_000))
            for part in plan.rows(PARTS, (10, 50, 90)):
                queue = cluster.queue(f"part-{part}-{repetition}")
                await _paced(sheet, f"{part} % of the maximum", queue, fastest * part / 100, plan.seconds(6))
    for _ in range(plan.repetitions):
        for whom in ("the primary", "a follower"):
            await _killed(sheet, whom, 3.0 if plan.quick else 4.0)


# -- at rest -----------------------------------------------------------------------------------------------------------


async def _at_rest(sheet: Sheet, group: Servers, queue: zkrq.Queue[Any], rounds: int) -> None:
    payload = b"x" * 100
    bare = [await RawRedis.open(server.url) for server in group.redis]
    clients = [Redis(host=server.host, port=server.port) for server in group.redis]
    handled: asyncio.Queue[float] = asyncio.Queue()

    async def handle() -> None:
        async for claim in queue.pop():
            async with claim:
                handled.put_nowait(time.perf_counter())

    consumer = asyncio.create_task(handle())
    times: dict[str, list[float]] = {"3 SETs": [], "3 SETs, bare": [], "push": [], "to handler": []}

    async def set_all() -> None:
        await asyncio.gather(*(client.set("bench", payload) for client in clients))

    async def set_all_bare() -> None:
        for future in [wire.call(("SET", "bench", payload)) for wire in bare]:
            await future

    async def note(what: str, work: Callable[[], Awaitable[object]]) -> float:
        await asyncio.sleep(0.005)
        began = time.perf_counter()
        await work()
        times[what].append(time.perf_counter() - began)
        return began

    for _ in range(rounds):
        await note("3 SETs", set_all)
        await note("3 SETs, bare", set_all_bare)
        began = await note("push", lambda: queue.push(load.ITEM))
        times["to handler"].append(await handled.get() - began)
    consumer.cancel()
    for wire in bare:
        wire.close()
    for client in clients:
        await client.aclose()
    p50 = {what: percentile(some, 50) for what, some in times.items()}
    sheet.add(AT_REST, "p50", **{what: seconds * 1000 for what, seconds in p50.items()})
    sheet.add(AT_REST, "p99", **{what: percentile(some, 99) * 1000 for what, some in times.items()})
    for what in ("push", "to handler"):
        sheet.add(
            AT_REST_RATIO,
            what,
            **{
                "to redis-py": p50[what] / p50["3 SETs"],
                "to hiredis": p50[what] / p50["3 SETs, bare"],
            },
        )


# -- at a pace ---------------------------------------------------------------------------------------------------------


async def _paced(sheet: Sheet, row: str, queue: zkrq.Queue[Any], rate: float, seconds: float) -> None:
    load_ = Load(queue)
    await load_.run(rate, seconds)
    for name, delays in (("push", load_.pushes()), ("to handler", load_.deliveries())):
        sheet.add(
            LATENCY,
            f"{name}, {row}",
            p50=percentile(delays, 50) * 1000,
            p99=percentile(delays, 99) * 1000,
            **{"p99.9": percentile(delays, 99.9) * 1000},
        )
    sheet.note(LATENCY, f"push, {row}", f"{rate:,.0f} pushes a second in the last repetition")


async def _killed(sheet: Sheet, whom: str, seconds: float) -> None:
    async with load.servers() as group, load.open_cluster(group) as cluster:
        queue = cluster.queue("stall")
        await load.push(queue, 1_000)
        await load.consume(queue)
        primary = cluster.view.primary("stall")
        victim = next(server for server in group.redis if (server.name == primary) == (whom == "the primary"))
        load_ = Load(queue)
        await asyncio.gather(load_.run(STALL_RATE, seconds), _kill(victim, seconds / 2))
        sheet.add(
            STALL,
            whom,
            slowest_push=max(load_.pushes()) * 1000,
            no_push_returned=_longest_gap(load_.returned) * 1000,
            no_handler_began=_longest_gap(load_.began) * 1000,
        )


async def _kill(victim: LocalRedis, after: float) -> None:
    await asyncio.sleep(after)
    await victim.kill()


class Load:
    """Push at a pace and consume; record when each push was due and returned, and when its handler started."""

    def __init__(self, queue: zkrq.Queue[Any]) -> None:
        self._queue = queue
        self.due: list[float] = []
        self.returned: dict[int, float] = {}
        self.began: dict[int, float] = {}
        self._room = asyncio.Semaphore(AHEAD)

    async def maximum(self, items: int) -> float:
        """Return the items per second that the consumers reach while pushes keep them busy."""
        left = iter(range(items))

        async def produce() -> None:
            for n in left:
                await self._room.acquire()
                await self._push(n, time.perf_counter())

        async with self._consuming(), asyncio.timeout(120):
            began = time.perf_counter()
            await asyncio.gather(*(produce() for _ in range(load.TASKS)))
            await self._wait_began(items)
        return items / (max(self.began.values()) - began)

    async def run(self, rate: float, seconds: float) -> None:
        """Push at this rate.  Raises ``TimeoutError`` if the items are not all handled soon after the last push."""
        items = int(rate * seconds)
        async with self._consuming():
            async with asyncio.TaskGroup() as pushes:
                await pace(items, rate, lambda n, due: pushes.create_task(self._push(n, due)))
            async with asyncio.timeout(30):
                await self._wait_began(items)

    async def _wait_began(self, items: int) -> None:
        while len(self.began) < items:  # noqa: ASYNC110 - an event each would be measured too
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _consuming(self) -> AsyncGenerator[None]:
        consumers = [asyncio.create_task(self._consume()) for _ in range(CONSUMERS)]
        await asyncio.sleep(0.2)
        try:
            yield
        finally:
            for consumer in consumers:
                consumer.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*consumers)

    def pushes(self) -> list[float]:
        return [at - self.due[n] for n, at in self.returned.items()]

    def deliveries(self) -> list[float]:
        return [at - self.due[n] for n, at in self.began.items()]

    async def _push(self, n: int, due: float) -> None:
        self.due.append(due)
        await self._queue.push({**load.ITEM, "n": n})
        self.returned[n] = time.perf_counter()

    async def _consume(self) -> None:
        async for claim in self._queue.pop():
            async with claim:
                self.began.setdefault(claim.item["n"], time.perf_counter())
            self._room.release()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that this percentage of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _longest_gap(moments: dict[int, float]) -> float:
    ordered = sorted(moments.values())
    return max(after - before for before, after in itertools.pairwise(ordered))
