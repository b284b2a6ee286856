"""Consumers of a queue over two shards: which shard is asked, and for how much."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import zkrq
from tests.behaviour.two_shards import both
from tests.harness import HANG, until
from zkrq.consuming.core.supply import LATE_SECONDS, PROBE_SECONDS, Order
from zkrq.consuming.requests import Request
from zkrq.consuming.supplier import Supplier
from zkrq.protocol.shards import FIRST, ShardName, shard_of
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 6
SECOND = ShardName("b")


@pytest.fixture
async def cluster(own: Servers) -> AsyncGenerator[TestCluster]:
    async with both(own) as made:
        yield made


@pytest.fixture
async def queue(cluster: TestCluster) -> zkrq.Queue[Any]:
    return cluster.queue("jobs")


def supplier(queue: zkrq.Queue[Any], name: ShardName) -> Supplier[Any]:
    return next(shard.supplier for shard in queue._parts.shards if shard.name == name)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def requests(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The claim requests: to which shard, for how many items.  None of them is late, however slow the machine is."""
    monkeypatch.setattr("zkrq.consuming.supplier.LATE_SECONDS", HANG)
    made = list[tuple[str, int]]()
    for name in (FIRST, SECOND):
        make: Callable[..., Request] = supplier(queue, name)._make  # pyright: ignore[reportPrivateUsage]

        def noted(
            owner: str, order: Order, waiter: str, name: str = name, make: Callable[..., Request] = make
        ) -> Request:
            made.append((name, order.wanted))
            return make(owner, order, waiter)

        monkeypatch.setattr(supplier(queue, name), "_make", noted)
    return made


async def push_to_both(queue: zkrq.Queue[Any], each: int) -> None:
    """Push bundles of one item until both shards have so many."""
    found = Counter[str | None]()
    while min(found[FIRST], found[SECOND]) < each:
        found[shard_of((await queue.push(1)).id)] += 1


async def test_one_consumer_claims_no_more_than_it_takes(
    queue: zkrq.Queue[Any], requests: list[tuple[str, int]], own: Servers
) -> None:
    await push_to_both(queue, 20)
    first = await queue.pop_one()
    assert first
    await own.clock.advance(1)
    assert (await queue.size()).claimed == 1
    requests.clear()
    for taken in range(20):
        assert await queue.pop_one(timeout=0)
        assert (await queue.size()).claimed == taken + 2
    assert requests == [(FIRST, 1), (SECOND, 1)] * 10 or requests == [(SECOND, 1), (FIRST, 1)] * 10


async def test_a_shard_that_does_not_answer_keeps_no_consumer_waiting(
    queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await push_to_both(queue, 20)
    assert await queue.pop_many(4)
    assert await queue.pop_many(4)

    async def hang(call: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(supplier(queue, FIRST)._replicas, "decide", hang)  # pyright: ignore[reportPrivateUsage]
    taken = [await queue.pop_one() for _ in range(10)]
    assert {shard_of(claim.id) for claim in taken if claim} == {SECOND}


async def test_a_request_in_flight_is_late_for_a_shard_that_comes_later(
    own: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(call: object) -> None:
        await asyncio.Event().wait()

    async with own.connect(first=3) as cluster:
        queue = cluster.queue("jobs")
        first = supplier(queue, FIRST)
        monkeypatch.setattr(first._replicas, "decide", hang)  # pyright: ignore[reportPrivateUsage]
        waiting = asyncio.create_task(queue.pop_one())
        await until(lambda: first.supply.asking > 0)
        await cluster.add_shard(SECOND, own.urls("redis-4", "redis-5", "redis-6"))
        await until(lambda: len(queue._parts.shards) == 2)  # pyright: ignore[reportPrivateUsage]
        await own.clock.advance(2 * LATE_SECONDS)
        assert first.supply.is_late
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_slow_consumer_hears_of_a_shard_that_was_empty(
    cluster: TestCluster, queue: zkrq.Queue[Any], own: Servers
) -> None:
    await cluster.drain_shard(SECOND)
    await queue.push_many(range(100))
    async with queue.pop() as claims:
        await (await anext(claims)).ack()
        await cluster.add_shard(SECOND, own.urls("redis-4", "redis-5", "redis-6"))
        while shard_of((await queue.push("new")).id) != SECOND:
            pass
        for _ in range(4):
            await own.clock.advance(PROBE_SECONDS)
            claim = await anext(claims)
            await claim.ack()
            if shard_of(claim.id) == SECOND:
                return
    raise AssertionError("it did not come")


async def test_a_look_finds_what_any_shard_has(queue: zkrq.Queue[Any]) -> None:
    assert await queue.pop_many(5, timeout=0) == []
    for _ in range(8):
        pushed = await queue.push(1)
        assert [claim.id for claim in await queue.pop_many(5, timeout=0)] == [pushed.id]
    assert await queue.pop_many(5, timeout=0) == []


async def test_what_a_cancelled_consumer_was_given_goes_to_the_next_one(queue: zkrq.Queue[Any]) -> None:
    waiting = asyncio.ensure_future(queue.pop_one())
    await asyncio.sleep(0)
    pushed = await queue.push(1)
    while not waiting.done():
        if queue.held:  # it was given the item in this turn of the loop
            waiting.cancel()
            break
        await asyncio.sleep(0)
    await asyncio.wait([waiting])
    claim = None if waiting.cancelled() else waiting.result()
    claim = claim or await queue.pop_one()
    assert claim
    assert (claim.id, claim.attempts) == (pushed.id, 1)
