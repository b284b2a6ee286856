"""Items that were pushed together, and go different ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import bury
from tests.harness import HANG, take
from zkrq.protocol.records import BUNDLE_MAX

pytestmark = pytest.mark.anyio


async def take_all(queue: zkrq.Queue[Any], count: int) -> list[zkrq.Claim[Any]]:
    """Claims of this many items, which must come."""
    claims: list[zkrq.Claim[Any]] = []
    while len(claims) < count:
        more = await queue.pop_many(count - len(claims), timeout=HANG)
        assert more
        claims += more
    return claims


async def test_items_pushed_together_have_ids_of_their_own(queue: zkrq.Queue[Any]) -> None:
    receipts = await asyncio.gather(*(queue.push(n) for n in range(2 * BUNDLE_MAX + 1)))
    ids = [receipt.id for receipt in receipts]
    assert len(set(ids)) == len(ids)
    assert [item.id for item in await queue.peek(len(ids))] == ids
    claims = await take_all(queue, len(ids))
    assert [(claim.id, claim.item) for claim in claims] == [(id, n) for n, id in enumerate(ids)]


DELAY = 2.0
"""Seconds that a delayed item stays delayed while a busy machine looks at the others."""


async def test_each_item_goes_its_own_way(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    receipts = await queue.push_many(range(10))
    claims = await take_all(queue, 8)
    acked, delayed, buried, released, held = claims[0], claims[1], claims[2], claims[3], claims[4]
    await asyncio.gather(acked.ack(), delayed.nack(delay=DELAY), buried.bury("bad"), released.release())
    assert await queue.cancel(claims[5].id) is zkrq.Cancellation.SIGNALLED
    assert await queue.cancel(receipts[9].id) is zkrq.Cancellation.REMOVED
    await asyncio.gather(claims[6].ack(), claims[7].ack())
    assert await queue.size() == (2, 1, 1, 1)
    assert [item.item for item in await queue.peek()] == [3, 8]
    assert [(item.item, item.reason) for item in await queue.dead_letters()] == [(2, "bad")]
    assert [item.item for item in await queue.peek(state="claimed")] == [4]
    assert {item.item async for item in queue.scan()} == {1, 2, 3, 4, 8}
    await pass_time(DELAY)
    assert await queue.redrive([buried.id]) == 1
    again = await take_all(queue, 4)
    assert {claim.item: (claim.attempts, claim.failures) for claim in again} == {
        3: (1, 0),
        8: (1, 0),
        1: (2, 1),
        2: (1, 0),
    }
    assert await queue.ack_many([*again, held]) == []
    assert await queue.size() == (0, 0, 0, 0)


async def test_several_consumers_share_a_bundle(queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime) -> None:
    await queue.push_many(range(9))
    async with connect() as one, connect() as two:
        mine = await take_all(queue, 3)
        first = await take_all(one.queue(queue.name), 3)
        second = await take_all(two.queue(queue.name), 3)
        assert [claim.item for claim in (*mine, *first, *second)] == list(range(9))
        assert len({claim.owner for claim in (*mine, *first, *second)}) == 3
        await asyncio.gather(mine[0].ack(), first[1].nack(delay=0), second[2].ack())
        await mine[1].extend(500)
        for claim in (*first[::2], *second[:2]):
            await claim.ack()
        assert (await take(queue)).item == 4
        await asyncio.gather(mine[1].ack(), mine[2].ack())


async def test_claims_that_expire_take_none_of_their_siblings_along(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, claim_timeout=DELAY)  # extended with a second to spare
    await queue.push_many(range(3))
    held = await take_all(queue, 2)
    del held[1]  # nobody extends it any more
    await pass_time(2.2 * DELAY)
    again = await take_all(queue, 2)
    assert sorted(claim.item for claim in again) == [1, 2]
    assert held[0].holds
    assert await queue.ack_many([*held, *again]) == []
    assert await queue.size() == (0, 0, 0, 0)


async def test_an_item_of_a_bundle_may_be_pushed_again(queue: zkrq.Queue[Any]) -> None:
    """As after ``OutcomeUnknown``: it is there once, whatever has become of it."""
    receipts = await queue.push_many(["a", "b", "c"])
    assert await queue.push("b", id=receipts[1].id) == (receipts[1].id, 3, False, False, False, ())
    claims = await take_all(queue, 3)
    assert [claim.item for claim in claims] == ["a", "b", "c"]
    await claims[1].ack()
    assert (await queue.push("b", id=receipts[1].id)).done
    assert await queue.ack_many(claims) == []
    assert await queue.size() == (0, 0, 0, 0)


async def test_items_of_a_bundle_that_never_arrived_may_be_pushed_again(queue: zkrq.Queue[Any]) -> None:
    (one,) = await queue.push_many(["x"])
    bundle = one.id[:-1] + "f0"  # made at the same time, of a push that nobody knows
    for position in (2, 0, 5):
        receipt = await queue.push(position, id=f"{bundle}~{position:02x}")
        assert (receipt.duplicate, receipt.done) == (False, False)
    assert await queue.size() == (4, 0, 0, 0)
    claims = await take_all(queue, 4)
    assert sorted(claim.item for claim in claims if claim.item != "x") == [0, 2, 5]
    assert await queue.ack_many(claims) == []


async def test_letters_among_removed_items(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """What is left of many bundles is found, and each payload is the right one."""
    await queue.push_many(f"item {n}" for n in range(300))
    claims = await take_all(queue, 300)
    await asyncio.gather(*(claim.bury("x") if n % 37 == 5 else claim.ack() for n, claim in enumerate(claims)))
    await pass_time(0.5)  # the payloads of the others are dropped
    wanted = [f"item {n}" for n in range(300) if n % 37 == 5]
    assert sorted(str(item.item) for item in await queue.dead_letters()) == sorted(wanted)
    assert await queue.redrive() == len(wanted)
    assert sorted(claim.item for claim in await take_all(queue, len(wanted))) == sorted(wanted)


async def test_headers(queue: zkrq.Queue[Any]) -> None:
    headers = {"traceparent": "00-1-2-01", "größe": "ü" * 100, "empty": ""}
    await asyncio.gather(queue.push(1, headers=headers), queue.push(2), queue.push(3, headers={"a": "b"}))
    await queue.push_many([4, 5], headers={"c": "d"})
    await queue.push(6, id="own", headers={"e": "f"})
    told = [headers, {}, {"a": "b"}, {"c": "d"}, {"c": "d"}, {"e": "f"}]
    assert [item.headers for item in await queue.peek()] == told
    claims = await take_all(queue, 6)
    assert [claim.headers for claim in claims] == told
    assert [claim.item for claim in claims] == [1, 2, 3, 4, 5, 6]
    await claims[0].nack(delay=0)
    assert (await take(queue)).headers == headers


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, ["a"], {"a": "x" * 5000}, {"a": "\udc80"}])
async def test_bad_headers(queue: zkrq.Queue[Any], headers: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="headers"):
        await queue.push(1, headers=headers)
    with pytest.raises(zkrq.ConfigError, match="headers"):
        await queue.push_many([1], headers=headers)
    assert await queue.size() == (0, 0, 0, 0)


async def test_items_of_one_bundle_of_many_priorities(queue: zkrq.Queue[Any]) -> None:
    await asyncio.gather(*(queue.push(n, priority=n % 10) for n in range(100)))
    claims = await take_all(queue, 100)
    assert [claim.priority for claim in claims] == sorted((n % 10 for n in range(100)), reverse=True)
    assert [claim.item for claim in claims if claim.priority == 3] == list(range(3, 100, 10))


async def test_clear_and_discard_with_what_is_held(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(150))
    claims = await take_all(queue, 20)
    await asyncio.gather(*(claim.bury("x") for claim in claims[:5]))
    assert await queue.clear() == 130
    assert await queue.size() == (0, 0, 15, 5)
    assert await queue.discard() == 5
    assert await queue.ack_many(claims[5:]) == []
    assert await queue.size() == (0, 0, 0, 0)


async def test_dead_letters_of_many_bundles_in_the_order_in_which_they_died(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 250)
    assert len(await queue.dead_letters(500)) == 250
    assert {letter.id for letter in await queue.dead_letters(500)} == set(ids)
