"""``push_many``, ``pop_many``, ``ack_many``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import HANG, take
from zkrq.consuming.claims import lease_of
from zkrq.replication.batching import MAX_BATCH, MAX_IN_FLIGHT

pytestmark = pytest.mark.anyio


@pytest.fixture
def many(backend: str) -> int:
    """So many that they do not go in one call, or in a few."""
    return 3_000 if backend == "testing" else 20_000


async def each_claim(queue: zkrq.Queue[Any]) -> AsyncGenerator[zkrq.Claim[Any]]:
    """What is ready, in order; acked at once."""
    while claims := await queue.pop_many(1000, timeout=0):
        assert await queue.ack_many(claims) == []
        for claim in claims:
            yield claim


# -- push_many -----------------------------------------------------------------------------------------------------


async def test_generator_of_many_items_is_pushed_in_order(queue: zkrq.Queue[Any], many: int) -> None:
    taken = most_ahead = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for taken in range(1, many + 1):
            yield taken - 1

    async def watch() -> None:
        nonlocal most_ahead
        while taken < many:
            most_ahead = max(most_ahead, taken - sum((await queue.size())[:1]))

    watching = asyncio.create_task(watch())
    receipts = await queue.push_many(items())
    await watching
    assert most_ahead < (MAX_IN_FLIGHT + 2) * MAX_BATCH, "taken as they are written"
    assert await queue.size() == (many, 0, 0, 0)
    assert len(receipts) == many
    assert {receipt.replicas for receipt in receipts} == {3}
    delivered = [(claim.id, claim.item) async for claim in each_claim(queue)]
    assert delivered == [(receipt.id, number) for number, receipt in enumerate(receipts)]
    assert receipts[-1] == receipts[many - 1] == receipts[many - 5 :][4]


async def test_options_are_those_of_every_item(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push_many(["low"], priority=1)
    await queue.push_many(["high", "higher"], priority=7, delay=0.1)
    assert await queue.size() == (1, 2, 0, 0)
    await pass_time(0.12)
    assert [claim.item async for claim in each_claim(queue)] == ["high", "higher", "low"]


async def test_nothing_is_pushed_for_nothing(queue: zkrq.Queue[Any]) -> None:
    assert list(await queue.push_many([])) == []
    assert list(await queue.push_many(iter(()))) == []
    assert await queue.size() == (0, 0, 0, 0)


async def test_bad_item_in_a_list_and_nothing_is_written(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, max_payload_bytes=100)
    for bad, error in ((object(), zkrq.CodecError), ("x" * 200, zkrq.PayloadTooLarge)):
        with pytest.raises(error) as raised:
            await queue.push_many([*range(1200), bad, "more"])
        assert raised.value.outcomes is None
    assert await queue.size() == (0, 0, 0, 0)


@pytest.mark.parametrize("at", [0, 3, 1200])
async def test_bad_item_in_the_middle_of_a_generator_is_where_it_ends(queue: zkrq.Queue[Any], at: int) -> None:
    """What came before is pushed, and ``outcomes`` tells how far that was."""
    items: list[Any] = [*range(at), object(), "never"]
    with pytest.raises(zkrq.CodecError) as raised:
        await queue.push_many(item for item in items)
    receipts = raised.value.outcomes
    assert receipts is not None
    assert (len(receipts), receipts.errors) == (at, [])
    assert await queue.size() == (at, 0, 0, 0)
    delivered = [(claim.id, claim.item) async for claim in each_claim(queue)]
    assert delivered == [(receipt.id, number) for number, receipt in enumerate(receipts)]


async def test_generator_that_fails_is_where_it_ends(queue: zkrq.Queue[Any]) -> None:
    def items() -> Iterator[int]:
        yield from range(700)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await queue.push_many(items())
    assert await queue.size() == (700, 0, 0, 0), "all that it gave is there when its error comes out"


async def test_cancelled_in_the_middle_the_first_ones_are_there(queue: zkrq.Queue[Any], many: int) -> None:
    many = max(many, 3 * MAX_IN_FLIGHT * MAX_BATCH)
    pushing = asyncio.create_task(queue.push_many(iter(range(many))))
    while not (await queue.size()).ready:
        await asyncio.sleep(0)
    pushing.cancel()
    await asyncio.wait([pushing])
    delivered = [claim.item async for claim in each_claim(queue)]
    assert delivered == list(range(len(delivered)))
    if pushing.cancelled():
        assert len(delivered) < many


# -- pop_many ------------------------------------------------------------------------------------------------------


async def test_pop_many_waits_for_the_first(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    waiting = asyncio.create_task(queue.pop_many(10, timeout=HANG))
    await pass_time(0.05)
    assert not waiting.done()
    await queue.push_many(range(3))
    claims = await waiting
    claims += await queue.pop_many(10, timeout=0)
    assert [claim.item for claim in claims] == [0, 1, 2]


# -- ack_many ------------------------------------------------------------------------------------------------------


async def test_ack_many_returns_those_that_were_lost(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(1200))
    claims = await queue.pop_many(1000)
    claims += await queue.pop_many(1000)
    while len(claims) < 1200:
        claims += await queue.pop_many(1000)
    cancelled, nacked, acked = claims[3], claims[700], claims[5]
    await queue.cancel(cancelled.id)
    await nacked.nack(delay=60)
    await acked.ack()
    assert await queue.ack_many([*claims, claims[0]]) == [cancelled, nacked]
    assert await queue.size() == (0, 1, 0, 0)
    assert await queue.ack_many(claims) == [cancelled, nacked], "again: those that are acked are passed over"
    assert await queue.ack_many([]) == []


async def test_ack_many_of_what_somebody_else_has_by_now(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, claim_timeout=0.5)
    await queue.push_many(["kept", "dropped"])
    claims = await queue.pop_many(2)
    lease_of(claims[1]).stop_extending()
    await pass_time(0.5)
    again = await take(queue)
    assert again.item == "dropped"
    assert await queue.ack_many(claims) == [claims[1]]
    assert claims[1].lost
    await again.ack()
    assert await queue.size() == (0, 0, 0, 0)
