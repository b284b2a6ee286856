"""``Limits``: of items claimed at once and of claims begun in a time, over all workers and processes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import is_empty, working
from tests.harness import HANG, take
from zkrq.consuming.core import dispatch

pytestmark = pytest.mark.anyio


# -- declaring -------------------------------------------------------------------------------------------------------


async def test_whoever_has_the_option_declares_it_before_its_first_call(cluster: zkrq.Cluster, name: str) -> None:
    limits = zkrq.Limits(concurrency=2, rate=(50, timedelta(seconds=1)))
    queue = cluster.queue(name, limits=limits)
    assert await queue.limits() == zkrq.Limits(), "looking declares nothing"
    await queue.push("a")
    assert await queue.limits() == limits == zkrq.Limits(2, (50, 1.0))
    statistics = await queue.statistics()
    assert (statistics.limits, statistics.claimable_in) == (limits, 0.0)


async def test_a_consumer_declares_it_too(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, limits=zkrq.Limits(concurrency=3))
    assert await queue.pop_many(1, timeout=0) == []
    assert await queue.limits() == zkrq.Limits(3)


async def test_the_last_declaration_holds_for_all_and_a_change_is_reported(
    cluster: zkrq.Cluster, name: str, connect: Connect
) -> None:
    told = list[zkrq.Event]()
    await cluster.queue(name, limits=zkrq.Limits(concurrency=2)).push_many(range(6))
    async with connect(on_event=told.append) as other, connect() as third:
        await other.queue(name, limits=zkrq.Limits(concurrency=4)).push(6)
        changes = [event for event in told if isinstance(event, zkrq.LimitsChanged)]
        assert [(event.queue, event.before, event.after) for event in changes] == [(name, "2 at once", "4 at once")]
        assert await cluster.queue(name).limits() == zkrq.Limits(4)
        assert len(await third.queue(name).pop_many(10)) == 4, "one that declares nothing keeps it, too"


async def test_a_queue_is_declared_once_by_each_process(cluster: zkrq.Cluster, name: str) -> None:
    """Another one that was started later has the last word."""
    queue = cluster.queue(name, limits=zkrq.Limits(concurrency=2))
    await queue.push("a")
    await queue.set_limits(zkrq.Limits(rate=(5, 10)))
    await queue.push("b")
    await take(queue)
    assert await queue.limits() == zkrq.Limits(None, (5, 10.0))
    await queue.set_limits(zkrq.Limits())
    assert await queue.limits() == zkrq.Limits()


async def test_no_option_leaves_what_is_there(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    await cluster.queue(name, limits=zkrq.Limits(concurrency=2)).push("a")
    async with connect() as other:
        await other.queue(name, limits=None).push("b")
        assert await other.queue(name).limits() == zkrq.Limits(2)


async def test_a_deleted_queue_has_none(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name)
    await queue.push("a")
    await queue.set_limits(zkrq.Limits(concurrency=1))
    await queue.delete()
    assert await queue.limits() == zkrq.Limits()
    assert name not in await cluster.statistics()


# -- at once ---------------------------------------------------------------------------------------------------------


async def test_no_more_are_worked_on_than_the_limit_over_all_processes(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime
) -> None:
    now = most = 0

    async def handle(item: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    await queue.set_limits(zkrq.Limits(concurrency=3))
    await queue.push_many(range(60))
    async with AsyncExitStack() as stack:
        for _ in range(3):
            other = await stack.enter_async_context(connect())
            await stack.enter_async_context(working(other.queue(queue.name), handle, concurrency=5))
        while not await is_empty(queue):
            await pass_time(0.05)
    assert most == 3, "no more, and all slots are used"


async def test_nothing_is_claimed_ahead(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """It would hold a slot while others wait."""
    await queue.set_limits(zkrq.Limits(concurrency=5))
    await queue.push_many(range(20))
    async with queue.pop(prefetch=10) as claims:
        first = await anext(claims)
        while (await queue.size()).claimed > 1:
            await pass_time(0.1)
        await first.ack()
        async for claim in claims:
            assert (await queue.size()).claimed == 1
            await claim.ack()
            if (await queue.size()).ready < 15:
                break


async def test_one_that_waits_for_a_slot_is_woken_at_once(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks again by itself here."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    await queue.set_limits(zkrq.Limits(concurrency=1))
    await queue.push_many(range(12))
    async with connect() as other:
        there = other.queue(queue.name)
        for end, arguments in (("ack", ()), ("release", ()), ("nack", ()), ("bury", ("why",))):
            claim = await take(queue)
            waiting = asyncio.create_task(there.pop_one(timeout=HANG))
            await pass_time(0.2)
            assert not waiting.done()
            await getattr(claim, end)(*arguments)
            got = await waiting
            assert got
            await got.ack()


async def test_statistics_say_what_stops_an_item(queue: zkrq.Queue[Any]) -> None:
    await queue.set_limits(zkrq.Limits(concurrency=1))
    await queue.push_many(range(3))
    await take(queue)
    assert (await queue.statistics()).claimable_in is None
    await queue.set_limits(zkrq.Limits(rate=(1, 3600)))
    await take(queue)
    left = (await queue.statistics()).claimable_in
    assert left is not None
    assert 3600 <= left <= 3960


# -- in a time -------------------------------------------------------------------------------------------------------


async def test_no_more_claims_begin_than_the_rate_and_they_go_on_by_themselves(
    queue: zkrq.Queue[Any], pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer asks when the rate allows it, without a push that wakes it."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    await queue.set_limits(zkrq.Limits(rate=(5, 1.0)))
    await queue.push_many(range(12))
    seen = list[int]()

    async def handle(item: int) -> None:
        seen.append(item)

    async with working(queue, handle, concurrency=10):
        while len(seen) < 12:
            await pass_time(0.1)
    assert seen == list(range(12))


async def test_a_loop_that_does_not_wait_ends_when_the_limit_is_reached(queue: zkrq.Queue[Any]) -> None:
    await queue.set_limits(zkrq.Limits(rate=(3, 3600)))
    await queue.push_many(range(5))
    seen = list[int]()
    async for claim in queue.pop(wait=False):
        seen.append(claim.item)
        await claim.ack()
    assert seen == [0, 1, 2]
    assert await queue.size() == (2, 0, 0, 0)
