"""Every operation on items, while the primary of its queue dies."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import pytest

import zkrq
from tests.behaviour.helpers import bury, is_empty
from tests.harness import HANG, settled, take, until
from zkrq import local
from zkrq.client.bulk import Bulk

T = TypeVar("T")

AT_ONCE = 8
"""Calls under way together."""


class Stage:
    """A queue whose primary is about to be killed."""

    def __init__(self, cluster: zkrq.Cluster, servers: local.Servers, **options: Any) -> None:
        self.cluster = cluster
        self.queue: zkrq.Queue[Any] = cluster.queue("jobs", **options)
        self.primary = next(server for server in servers.redis if server.name == cluster.view.primary("jobs"))

    async def amid(self, call: Awaitable[T]) -> T:
        """What a call returns while the primary dies."""
        result, _ = await asyncio.gather(call, self.primary.kill())
        return result

    async def each(self, calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
        """What these return in order, some at once; the primary dies when a third of them are done."""
        waiting, results = deque(enumerate(calls)), dict[int, T]()
        kill_at = len(waiting) // 3
        killing: list[asyncio.Task[None]] = []

        async def work() -> None:
            while waiting:
                at, call = waiting.popleft()
                results[at] = await call()
                if len(results) == kill_at:
                    killing.append(asyncio.create_task(self.primary.kill()))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        await killing[0]
        return [results[at] for at in sorted(results)]

    async def claim(self, count: int) -> list[zkrq.Claim[Any]]:
        """So many claims, of items pushed for that."""
        await self.queue.push_many(range(count))
        return await self.take(count)

    async def take(self, count: int) -> list[zkrq.Claim[Any]]:
        claims: list[zkrq.Claim[Any]] = []
        while len(claims) < count:
            claims += await self.queue.pop_many(count - len(claims), timeout=HANG)
        return claims

    async def ids(self, state: Any = None) -> list[str]:
        return [item.id async for item in self.queue.scan(state)]


# -- pushing -------------------------------------------------------------------------------------------------------


async def push(stage: Stage) -> None:
    receipts = await stage.each([partial(stage.queue.push, number) for number in range(200)])
    assert sorted(await stage.ids()) == sorted(receipt.id for receipt in receipts)


async def push_with_an_id(stage: Stage) -> None:
    """Repeated, as after ``OutcomeUnknown``."""
    pushes = [partial(stage.queue.push, "x", id=f"id {n % 50}") for n in range(200)]
    receipts = await stage.each(pushes)
    assert not any(receipt.duplicate for receipt in receipts)
    assert sorted(await stage.ids()) == sorted(f"id {n}" for n in range(50))


async def push_with_a_key(stage: Stage) -> None:
    keys = [f"key {n % 50}" for n in range(300)]
    pushes = [partial(stage.queue.push, n, key=key) for n, key in enumerate(keys)]
    receipts = await stage.each(pushes)
    items = {item.id: item.key async for item in stage.queue.scan()}
    assert Counter(items.values()) == Counter(set(keys)), "one live item of each key"
    assert [items[receipt.id] for receipt in receipts] == keys, "which every receipt names"
    first = [receipt.id for receipt in receipts if not receipt.duplicate]
    assert sorted(first) == sorted(items)


async def push_with_a_time_to_live(stage: Stage) -> None:
    receipts = await stage.each([partial(stage.queue.push, number, ttl=HANG) for number in range(200)])
    short = await stage.queue.push_many(range(5), ttl=0.1)
    for receipt in receipts:
        item = await stage.queue.get(receipt.id)
        assert item is not None
        assert item.expires_in is not None
        assert 0 < item.expires_in <= HANG
    await asyncio.sleep(0.1)
    claims = await stage.take(200)
    assert {claim.id for claim in claims}.isdisjoint(receipt.id for receipt in short)
    assert await stage.queue.pop_one(timeout=0) is None
    await stage.queue.ack_many(claims)
    assert await stage.queue.size() == (0, 0, 0, 0)


async def push_into_a_limited_queue(stage: Stage) -> None:
    """No more than the limit, and what was said to be refused is not there."""

    async def try_push(number: int) -> str | None:
        try:
            return (await stage.queue.push(number)).id
        except zkrq.QueueFull:
            return None

    ids = await stage.each([partial(try_push, number) for number in range(200)])
    assert sorted(await stage.ids()) == sorted(filter(None, ids))
    assert await stage.queue.size() == (100, 0, 0, 0)


async def push_many(stage: Stage) -> None:
    killing: list[asyncio.Task[None]] = []

    def items() -> Iterable[int]:
        for number in range(4000):
            if number == 1500:
                killing.append(asyncio.create_task(stage.primary.kill()))
            yield number

    receipts = await stage.queue.push_many(items())
    await killing[0]
    assert len(receipts) == 4000
    assert sorted(await stage.ids()) == sorted(receipt.id for receipt in receipts)
    delivered: list[int] = []
    while claims := await stage.queue.pop_many(1000, timeout=0):
        delivered += [claim.item for claim in claims]
    assert sorted(delivered) == list(range(4000))


async def every(stage: Stage) -> None:
    """Every moment once, and it goes on."""
    async with stage.cluster.every(0.1, stage.queue, datetime.isoformat, name="tick") as schedule:
        await until(lambda: schedule.last is not None)
        await stage.primary.kill()
        killed_at = schedule.last
        await until(lambda: schedule.last != killed_at)
    claims = await stage.take((await stage.queue.size()).ready)
    moments = [claim.item for claim in claims]
    assert len(moments) == len(set(moments)) >= 2


# -- claiming and settling -----------------------------------------------------------------------------------------


async def pop(stage: Stage) -> None:
    receipts = await stage.queue.push_many(range(200))
    claims = await stage.each([partial(take, stage.queue)] * 200)
    assert sorted(claim.id for claim in claims) == sorted(receipt.id for receipt in receipts), "nobody has two"
    assert await stage.queue.ack_many(claims) == []
    assert await stage.queue.size() == (0, 0, 0, 0)


async def ack(stage: Stage) -> None:
    claims = await stage.claim(200)
    await stage.each([claim.ack for claim in claims])
    assert await stage.queue.size() == (0, 0, 0, 0)


async def ack_many(stage: Stage) -> None:
    claims = await stage.claim(400)
    await stage.queue.cancel(claims[7].id)
    assert await stage.amid(stage.queue.ack_many(claims)) == [claims[7]]
    assert await stage.queue.size() == (0, 0, 0, 0)


async def nack(stage: Stage) -> None:
    claims = await stage.claim(200)
    await stage.each([partial(claim.nack, delay=0, reason="busy") for claim in claims])
    assert await stage.queue.size() == (200, 0, 0, 0)
    again = await stage.take(200)
    assert {(claim.attempts, claim.failures) for claim in again} == {(2, 1)}


async def retry(stage: Stage) -> None:
    """By the policy: the second failure is the last."""

    async def fail(claim: zkrq.Claim[Any]) -> None:
        with pytest.raises(ZeroDivisionError):
            async with claim:
                raise ZeroDivisionError

    for claim in await stage.claim(200):
        await claim.nack(delay=0)
    await stage.each([partial(fail, claim) for claim in await stage.take(200)])
    assert await stage.queue.size() == (0, 0, 0, 200)
    letters = await stage.queue.dead_letters(200)
    assert {(letter.attempts, letter.failures) for letter in letters} == {(2, 2)}
    assert all(letter.reason and "ZeroDivisionError" in letter.reason for letter in letters)


async def release(stage: Stage) -> None:
    claims = await stage.claim(200)
    await stage.each([claim.release for claim in claims])
    assert await stage.queue.size() == (200, 0, 0, 0)
    assert {item.failures async for item in stage.queue.scan()} == {0}


async def bury_them(stage: Stage) -> None:
    claims = await stage.claim(200)
    await stage.each([partial(claim.bury, "bad") for claim in claims])
    assert await stage.queue.size() == (0, 0, 0, 200)
    assert {letter.reason for letter in await stage.queue.dead_letters(200)} == {"bad"}


async def extend(stage: Stage) -> None:
    claims = await stage.claim(200)
    await stage.each([partial(claim.extend, 10 * HANG) for claim in claims])
    items = await stage.queue.peek(200, "claimed")
    assert {item.id for item in items} == {claim.id for claim in claims}
    assert all(item.seconds_left and item.seconds_left > HANG for item in items)
    assert await stage.queue.ack_many(claims) == []


async def work(stage: Stage) -> None:
    """Every item is done, and none is begun again that was."""
    seen: Counter[int] = Counter()
    await stage.queue.push_many(range(300))

    async def handle(number: int) -> None:
        seen[number] += 1
        if len(seen) == 100:
            await stage.primary.kill()

    async with zkrq.Worker().add(stage.queue, handle):
        await settled(partial(is_empty, stage.queue))
    assert seen == Counter(range(300))


async def dead_letter_caps(stage: Stage) -> None:
    await bury(stage.queue, 300)
    await stage.amid(settled(partial(_has_letters, stage.queue, 50)))
    await settled(partial(_has_letters, stage.queue, 50))


async def _has_letters(queue: zkrq.Queue[Any], count: int) -> bool:
    """Whoever claims looks after them."""
    assert await queue.pop_one(timeout=0) is None
    return await queue.size() == (0, 0, 0, count)


# -- administering -------------------------------------------------------------------------------------------------


async def cancel(stage: Stage) -> None:
    """Waiting ones, dead letters, and those of a holder, who learns of it."""
    ids = await bury(stage.queue, 100)
    claims = await stage.claim(100)
    ids += [claim.id for claim in claims]
    ids += [receipt.id for receipt in await stage.queue.push_many(range(100), delay=HANG)]
    assert all(await stage.each([partial(stage.queue.cancel, id) for id in ids]))
    assert await stage.queue.size() == (0, 0, 0, 0)
    assert not await stage.queue.cancel(ids[0])
    assert await stage.queue.ack_many(claims) == claims
    assert await stage.queue.size() == (0, 0, 0, 0)


async def cancel_many(stage: Stage) -> None:
    ids = await bury(stage.queue, 400)
    claims = await stage.claim(400)
    ids += [claim.id for claim in claims]
    ids += [receipt.id for receipt in await stage.queue.push_many(range(800), delay=HANG)]
    outcomes = await stage.amid(stage.queue.cancel_many([*ids, "nobody"]))
    assert outcomes.pop() is zkrq.Cancellation.NOT_FOUND
    assert all(outcomes)
    assert await stage.queue.size() == (0, 0, 0, 0)
    assert await stage.queue.ack_many(claims) == claims


async def clear(stage: Stage) -> None:
    (claim,) = await stage.claim(1)
    await stage.queue.push_many(range(2000))
    await stage.queue.push_many(range(500), delay=HANG)
    assert await stage.amid(stage.queue.clear()) == 2500
    assert await stage.queue.size() == (0, 0, 1, 0)
    await claim.ack()


async def delete(stage: Stage) -> None:
    """All of it, dead letters, claims and a pause too; what is pushed afterwards stays."""
    await bury(stage.queue, 20)
    (claim,) = await stage.claim(1)
    await stage.queue.push_many(range(2000))
    await stage.queue.pause()
    removed = await stage.amid(stage.queue.delete())
    assert removed == 2021
    assert not (await stage.queue.statistics()).paused
    assert await stage.queue.ack_many([claim]) == [claim]
    assert "jobs" not in await stage.cluster.statistics()
    await stage.queue.push("x")
    assert await stage.queue.size() == (1, 0, 0, 0)


async def pause(stage: Stage) -> None:
    await stage.queue.push("x")
    await stage.amid(stage.queue.pause())
    assert (await stage.queue.statistics()).paused
    assert await stage.queue.pop_one(timeout=0) is None
    await stage.queue.resume()
    assert (await take(stage.queue)).item == "x"


async def paused_before(stage: Stage) -> None:
    """It stays so."""
    await stage.queue.push("x")
    await stage.queue.pause()
    await stage.primary.kill()
    assert await stage.queue.pop_one(timeout=0) is None
    await stage.queue.push("y")
    assert await stage.queue.size() == (2, 0, 0, 0)
    assert (await stage.queue.statistics()).paused
    await stage.queue.resume()
    assert (await take(stage.queue)).item == "x"


async def resume(stage: Stage) -> None:
    """Whoever waits is woken, by the new primary if need be."""
    await stage.queue.pause()
    await stage.queue.push("x")
    waiting = asyncio.create_task(take(stage.queue))
    await stage.amid(stage.queue.resume())
    assert (await waiting).item == "x"
    assert not (await stage.queue.statistics()).paused


async def edit(stage: Stage) -> None:
    ids = await bury(stage.queue, 12)
    assert all(await stage.each([partial(stage.queue.edit, id, f"edited {id}", by="ann") for id in ids]))
    claims = await stage.take(12)
    assert {claim.id: claim.item for claim in claims} == {id: f"edited {id}" for id in ids}


async def redrive(stage: Stage) -> None:
    await bury(stage.queue, 400)
    assert await stage.amid(stage.queue.redrive(rate=4000)) == 400
    assert await stage.queue.size() == (400, 0, 0, 0)


async def redrive_some(stage: Stage) -> None:
    """The one whose key is in use by now stays."""
    letter = await stage.queue.push("first", key="k")
    await (await take(stage.queue)).bury("bad")
    ids = await bury(stage.queue, 100)
    await stage.queue.push("second", key="k")
    assert await stage.each([partial(stage.queue.redrive, [id]) for id in (letter.id, *ids)]) == [0] + [1] * 100
    assert await stage.ids("dead") == [letter.id]
    assert await stage.queue.size() == (101, 0, 0, 1)


async def discard(stage: Stage) -> None:
    await bury(stage.queue, 400)
    assert await stage.amid(stage.queue.discard()) == 400
    assert await stage.queue.size() == (0, 0, 0, 0)


async def redrive_all_found(stage: Stage) -> None:
    """However many pages: none is missed, and none is passed over for those that are ready again."""
    await bury(stage.queue, 400)
    work = Bulk(stage.queue, "redrive", {"error": "bad"}, rate=4000)
    await stage.amid(work.run())
    assert await stage.queue.size() == (400, 0, 0, 0)


async def cancel_all_found(stage: Stage) -> None:
    await stage.queue.push_many(range(2500), headers={"campaign": "spring"})
    await stage.queue.push_many(range(100))
    work = Bulk(stage.queue, "cancel", {"header": ("campaign", "spring")})
    await stage.amid(work.run())
    assert await stage.queue.size() == (100, 0, 0, 0)


# -- looking -------------------------------------------------------------------------------------------------------


async def look(stage: Stage) -> None:
    """One item, the first ones, how many there are."""
    ids = [receipt.id for receipt in await stage.queue.push_many(range(100))]
    found = await stage.each([partial(stage.queue.get, id) for id in ids])
    assert [item and item.id for item in found] == ids
    assert [item.id for item in await stage.queue.peek(100)] == ids
    assert await stage.queue.size() == (100, 0, 0, 0)


async def size(stage: Stage) -> None:
    await stage.queue.push_many(range(100))
    assert set(await stage.each([stage.queue.size] * 200)) == {(100, 0, 0, 0)}


async def peek(stage: Stage) -> None:
    ids = [receipt.id for receipt in await stage.queue.push_many(range(20))]
    for items in await stage.each([partial(stage.queue.peek, 20)] * 200):
        assert [item.id for item in items] == ids


async def scan(stage: Stage) -> None:
    pushes = (stage.queue.push(n, id=f"item-{n}") for n in range(2000))  # none in a bundle, so there are many pages
    ids = [receipt.id for receipt in await asyncio.gather(*pushes)]
    seen: set[str] = set()
    async for item in stage.queue.scan():
        seen.add(item.id)
        if len(seen) == 700:
            await stage.primary.kill()
    assert seen == set(ids)


async def push_a_campaign(stage: Stage) -> set[str]:
    """Items that a search finds among as many others, none in a bundle."""
    kinds = ({"headers": {"campaign": "spring"}, "delay": HANG}, {"delay": HANG})
    receipts = await asyncio.gather(*(stage.queue.push(n, id=f"item-{n}", **kinds[n % 2]) for n in range(2000)))  # pyright: ignore[reportArgumentType]
    return {receipt.id for receipt in receipts[::2]}


async def find(stage: Stage) -> None:
    ids, seen = await push_a_campaign(stage), set[str]()
    async for item in stage.queue.find(header=("campaign", "spring")):
        seen.add(item.id)
        if len(seen) == 350:
            await stage.primary.kill()
    assert seen == ids


async def find_page(stage: Stage) -> None:
    """The cursor of the dead primary is no longer valid: the search begins again, and says so."""
    ids, seen, restarted, after = await push_a_campaign(stage), set[str](), 0, None
    while True:
        page = await stage.queue.find_page(header=("campaign", "spring"), limit=80, after=after)
        seen.update(item.id for item in page.items)
        restarted += page.restarted
        if len(seen) >= 350 and not restarted:
            await stage.primary.kill()
            await until(lambda: stage.primary.name not in stage.cluster.view.members)
        if page.next is None:
            break
        after = page.next
    assert seen == ids
    assert restarted == 1


async def find_key_and_letters(stage: Stage) -> None:
    letters = await bury(stage.queue, 300)
    keyed = await stage.queue.push("x", key="user-42")
    found = await stage.each(
        [partial(_found, stage, key="user-42"), partial(_found, stage, error="bad", state="dead")] * 30
    )
    assert all(set(ids) == ({keyed.id}, {*letters})[n % 2] for n, ids in enumerate(found))


async def _found(stage: Stage, **conditions: Any) -> list[str]:
    return [item.id async for item in stage.queue.find(**conditions)]


async def statistics(stage: Stage) -> None:
    await stage.queue.push("x", key="k", ttl=HANG)
    await stage.queue.push_many(range(10), delay=HANG)
    await take(stage.queue)
    for told in await stage.each([stage.queue.statistics] * 200):
        assert told._replace(held=0, tombstones=0)[:7] == (zkrq.Sizes(0, 10, 1, 0), False, None, 1, 1, 0, 0)
        assert (told.flow.pushed, told.flow.removed) == (11, 0)
    assert (await stage.cluster.statistics()).keys() == {"jobs"}


async def consumers(stage: Stage) -> None:
    claims = await stage.claim(900)
    for told in await stage.each([stage.cluster.consumers] * 20):
        assert {owner: consumer.claims for owner, consumer in told.items()} == {claims[0].owner: {"jobs": 900}}


# -- all of them ---------------------------------------------------------------------------------------------------

Scene = Callable[[Stage], Awaitable[None]]
