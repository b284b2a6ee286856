"""Measure how long one call holds a server at most, with a million items: until it ends, every other client waits.

Redis' own slow log says how long each call took.  It counts time by the clock, so where servers and client share few
cores, a call that was interrupted in the middle counts as long.  So most rows have a single server, and each a second
figure, which a few such calls do not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks import growth, load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic
from zkrq.client.cluster import Cluster
from zkrq.local import Servers
from zkrq.protocol.scripts import SCRIPTS

HELD = Topic(
    "held",
    "How long one call holds a server",
    "The longest of all calls that the operation makes on a server, and how long 19 of 20 take, of those that take "
    "0.2 ms or more, by Redis' slow log. It also counts the time for which other processes interrupted a call. The "
    "queue has a million items, in bundles of 500, unless the row says otherwise. One server, the last rows three.",
    "ms",
    "operation",
)

MILLION = 1_000_000
AT_ONCE = 500
ROUNDS = 20
"""Calls of an operation that handles ``AT_ONCE`` items."""

SCANNED = 20_000
"""Items that a scan reads: its calls do not get longer towards the end."""

SINGLE = 50_000
"""Items with an id, a delay or a time to live, which are no part of a bundle."""

LAPSE = 2.0
"""Seconds after which claims lapse, items are due, or expire, in the rows about that."""

USUAL = 0.95
"""Part of the calls that the second figure is about."""

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
    for servers, parts in ((1, (_life, _at_once, _single)), (3, (_servers,))):
        async with (
            load.servers(redis=servers, config=load.NO_REWRITE) as group,
            load.open_cluster(group) as cluster,
        ):
            for operations in parts:
                for row, operation in operations(cluster, group, items).items():
                    durations, script = await _timed(group, operation)
                    usual = durations[int(USUAL * len(durations))]
                    sheet.add(HELD, row, longest=durations[-1], of_20_calls_19=usual)
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
    """What happens to very many items at the same moment."""
    items = min(items, SINGLE)
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
        f"push_many of {items:,}, delayed": lambda: growth.fill(due, items, delay=LAPSE),
        "all are due": lambda: pop_later(due),
        f"push_many of {items:,}, with a time to live": lambda: push_with_ttl(expired),
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
        "push_many to three servers": lambda: growth.fill(queue, items),
        f"a consumer dies with {ROUNDS * AT_ONCE:,} claims": fence,
        "compare the servers": shard.repairer.scrub,
        "copy to a server that came back empty": come_back,
        "clear": queue.clear,
    }


async def _in_turn(*work: Awaitable[object]) -> None:
    for each in work:
        await each


async def _timed(group: Servers, operation: Operation) -> tuple[Sequence[float], str]:
    """Carry out an operation; return the milliseconds of its calls, sorted, and the script of the longest one."""
    names = {script.function: name for name, script in SCRIPTS.items()}
    await _command(group, "CONFIG", "SET", "slowlog-log-slower-than", LOGGED_FROM_US, "slowlog-max-len", LOGGED_MOST)
    await _command(group, "SLOWLOG", "RESET")
    await operation()
    logs: list[list[list[Any]]] = await _command(group, "SLOWLOG", "GET", LOGGED_MOST)
    entries = sorted((entry for log in logs for entry in log), key=itemgetter(DURATION_US))
    if not entries:
        return [LOGGED_FROM_US / 1_000], ""
    words = [str(word, "latin-1") for word in entries[-1][WORDS][:2]]
    return [entry[DURATION_US] / 1_000 for entry in entries], next((names[w] for w in words if w in names), words[0])


async def _command(group: Servers, *words: object) -> list[Any]:
    """Send a command to every server.  The connections are new ones: a server may have been restarted."""
    replies = list[Any]()
    for url in group.redis_urls.values():
        async with Redis.from_url(url) as redis:  # pyright: ignore[reportUnknownMemberType]
            replies.append(await redis.execute_command(*words))  # pyright: ignore[reportUnknownMemberType]
    return replies
