"""Measure how long one call holds a server at most, with a million items: until it ends, every other client waits.

Redis' own slow log says how long each call took.  It counts time by the clock, so on a busy machine a call that was
interrupted counts as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from operator import itemgetter
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks import growth, load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.cluster import Cluster
from zkrq.local import Servers
from zkrq.protocol.scripts import SCRIPTS

HELD = Topic(
    "held",
    "How long one call holds a server",
    "The longest of all calls that the operation makes on any of three servers, by Redis' slow log. "
    "The queue has a million items, in bundles of 500, unless the row says otherwise.",
    "ms",
    "operation",
)

MILLION = 1_000_000
AT_ONCE = 500
ROUNDS = 20
"""Calls of an operation that handles ``AT_ONCE`` items."""

SCANNED = 20_000
"""Items that a scan reads: its calls do not get longer towards the end."""

SINGLE = 100_000
"""Items that are pushed with an id, and so are no part of a bundle."""

LAPSE = 2.0
"""Seconds after which claims lapse, items are due, or expire, in the rows about that."""

LOGGED_FROM_US, LOGGED_MOST = 200, 100_000
"""Calls of how many microseconds are logged, and how many calls."""

DURATION_US, WORDS = 2, 3
"""Places of a call's duration and of its words in an entry of the slow log."""

Operation = Callable[[], Awaitable[object]]
Settle = Callable[[zkrq.Claim[Any]], Awaitable[None]]


async def run(plan: Plan, sheet: Sheet) -> None:
    items = plan.items(MILLION)
    if items < MILLION:
        sheet.remark(f"held: with {items:,} items instead of a million")
    async with (
        load.servers(config=load.NO_REWRITE) as group,
        _slow_log(group) as longest,
        load.open_cluster(group) as cluster,
    ):
        for operations in (_life, _at_once, _single, _servers):
            for row, operation in operations(cluster, group, items).items():
                seconds, script = await longest(operation)
                sheet.add(HELD, row, longest_call=1_000 * seconds)
                sheet.note(HELD, row, script)


def _life(cluster: Cluster, group: Servers, items: int) -> Mapping[str, Operation]:
    queue, lapsing = cluster.queue("life"), cluster.queue("life-lapsing", claim_timeout=LAPSE)
    taken: list[zkrq.Claim[Any]] = []

    async def settle(how: Settle) -> None:
        for _ in range(ROUNDS):
            await asyncio.gather(*map(how, await queue.pop_many(AT_ONCE)))

    async def one_by_one() -> None:
        for _ in range(AT_ONCE):
            taken.extend(await queue.pop_many(1))
        await queue.ack_many(taken)

    async def cancel() -> None:
        for item in await queue.peek(100):
            await queue.get(item.id)
            await queue.cancel(item.id)

    async def scan() -> None:
        seen = 0
        async for _ in queue.scan():
            seen += 1
            if seen == SCANNED:
                break

    async def pause() -> None:
        await queue.pause()
        await queue.resume()

    async def lapse() -> None:
        await growth.fill(lapsing, 20 * AT_ONCE)
        for _ in range(ROUNDS):
            await lapsing.pop_many(AT_ONCE)  # and drop the claims
        await asyncio.sleep(LAPSE + 1)
        await lapsing.pop_many(AT_ONCE)

    return {
        "push_many": lambda: growth.fill(queue, items),
        f"claim {AT_ONCE}, ack": lambda: settle(lambda claim: claim.ack()),
        "claim one, ack": one_by_one,
        f"claim {AT_ONCE}, nack": lambda: settle(lambda claim: claim.nack()),
        f"claim {AT_ONCE}, release": lambda: settle(lambda claim: claim.release()),
        f"claim {AT_ONCE}, bury": lambda: settle(lambda claim: claim.bury("a reason")),
        "redrive": queue.redrive,
        f"{ROUNDS * AT_ONCE:,} claims lapse": lapse,
        "peek 500": lambda: queue.peek(500),
        "scan": scan,
        "size": queue.size,
        "statistics": queue.statistics,
        "pause, resume": pause,
        "get, cancel": cancel,
    }


def _at_once(cluster: Cluster, group: Servers, items: int) -> Mapping[str, Operation]:
    """What happens to a million items at the same moment."""
    due, expired, letters = cluster.queue("due"), cluster.queue("expired"), zkrq.DeadLetters(expired=True)
    dead = cluster.queue("dead", dead_letters=letters)

    async def pop_later(queue: zkrq.Queue[Any]) -> None:
        await asyncio.sleep(LAPSE + 1)
        for _ in range(ROUNDS):
            await queue.ack_many(await queue.pop_many(AT_ONCE, timeout=1))

    async def push_with_ttl(queue: zkrq.Queue[Any]) -> None:
        for _ in range(0, items, growth.FILL):
            await queue.push_many([load.ITEM] * growth.FILL, ttl=LAPSE)

    return {
        "push_many, delayed": lambda: growth.fill(due, items, delay=LAPSE),
        "all are due": lambda: pop_later(due),
        "push_many, with a time to live": lambda: push_with_ttl(expired),
        "all have expired": lambda: pop_later(expired),
        "the same into the dead letters": lambda: _in_turn(push_with_ttl(dead), pop_later(dead)),
        "discard the dead letters": dead.discard,
        "clear scheduled items": due.clear,
        "delete the queue": expired.delete,
    }


def _single(cluster: Cluster, group: Servers, items: int) -> Mapping[str, Operation]:
    queue, count = cluster.queue("single"), min(items, SINGLE)

    async def push() -> None:
        left = iter(range(count))

        async def produce() -> None:
            for at in left:
                await queue.push(load.ITEM, id=f"id-{at}")

        await asyncio.gather(*(produce() for _ in range(load.TASKS)))

    async def consume() -> None:
        for _ in range(ROUNDS):
            await queue.ack_many(await queue.pop_many(AT_ONCE))

    return {
        f"push {count:,} with an id": push,
        f"claim {AT_ONCE} of them, ack": consume,
        "clear the others": queue.clear,
    }


def _servers(cluster: Cluster, group: Servers, items: int) -> Mapping[str, Operation]:
    queue, shard = cluster.queue("life"), cluster._client.shard  # pyright: ignore[reportPrivateUsage]

    async def fence() -> None:
        async with load.open_cluster(group) as other:
            claims = [claim for _ in range(ROUNDS) for claim in await other.queue("life").pop_many(AT_ONCE)]
            await shard.replicas.fence("life", claims[0].owner)

    async def come_back() -> None:
        server = group.redis[-1]
        await server.restart(wipe=True)
        while len(cluster.view.members) == len(group.redis):
            await queue.push(load.ITEM)
            await asyncio.sleep(0.1)
        while len(cluster.view.members) < len(group.redis):
            await queue.push(load.ITEM)
            await asyncio.sleep(0.1)

    return {
        f"a consumer dies with {ROUNDS * AT_ONCE:,} claims": fence,
        "compare the servers": shard.repairer.scrub,
        "copy to a server that came back empty": come_back,
        "clear": queue.clear,
    }


async def _in_turn(*work: Awaitable[object]) -> None:
    for each in work:
        await each


@asynccontextmanager
async def _slow_log(group: Servers) -> AsyncGenerator[Callable[[Operation], Awaitable[tuple[float, str]]]]:
    """Return a function that carries out an operation, and returns the seconds and the script of the longest call."""
    names = {script.given(flags).sha: name for name, script in SCRIPTS.items() for flags in (True, False)}
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Redis.from_url(url)) for url in group.redis_urls.values()]  # pyright: ignore[reportUnknownMemberType]

        async def command(*words: object) -> list[Any]:
            return [await server.execute_command(*words) for server in servers]  # pyright: ignore[reportUnknownMemberType]

        async def longest(operation: Operation) -> tuple[float, str]:
            await command("CONFIG", "SET", "slowlog-log-slower-than", LOGGED_FROM_US)
            await command("CONFIG", "SET", "slowlog-max-len", LOGGED_MOST)
            await command("SLOWLOG", "RESET")
            await operation()
            logs: list[list[list[Any]]] = await command("SLOWLOG", "GET", LOGGED_MOST)
            slowest = max((entry for log in logs for entry in log), key=itemgetter(DURATION_US), default=None)
            if slowest is None:
                return LOGGED_FROM_US / 1e6, ""
            words = [str(word, "latin-1") for word in slowest[WORDS][:2]]
            return slowest[DURATION_US] / 1e6, next((names[word] for word in words if word in names), words[0])

        yield longest
