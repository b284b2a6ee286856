"""Consumers in several processes: none waits for an item that another one keeps without working on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.harness import A_WHILE, HANG, settled, take, until
from zkrq.consuming.core import dispatch
from zkrq.consuming.core.supply import Order
from zkrq.consuming.requests import Request

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer looks again by itself: what comes, comes by a wake-up."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)


@pytest.fixture
async def queue(cluster: zkrq.Cluster, name: str) -> zkrq.Queue[Any]:
    """One whose claims do not end by themselves."""
    return cluster.queue(name, claim_timeout=10 * HANG)


async def start_waiting(queue: zkrq.Queue[Any]) -> asyncio.Task[zkrq.Claim[Any]]:
    """A consumer that has looked in vain, and waits."""
    own = queue._parts.shards[0].supplier  # pyright: ignore[reportPrivateUsage]
    looks = own.looks  # pyright: ignore[reportPrivateUsage]
    task = asyncio.create_task(take(queue))
    await until(lambda: own.looks > looks)  # pyright: ignore[reportPrivateUsage]
    return task


@pytest.fixture
def claim_requests(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each claim request of the queue's own process was for."""
    counts = list[int]()
    _watch_requests(queue, monkeypatch, counts.append)
    return counts


def _watch_requests(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch, see: Callable[[int], None]) -> None:
    """Show each claim request of the queue's own process before it is sent; an error that this raises is its end."""
    supplier = queue._parts.shards[0].supplier  # pyright: ignore[reportPrivateUsage]
    make: Callable[..., Request] = supplier._make  # pyright: ignore[reportPrivateUsage]

    def seen(owner: str, order: Order, waiter: str) -> Request:
        see(order.wanted)
        return make(owner, order, waiter)

    monkeypatch.setattr(supplier, "_make", seen)


async def test_a_process_that_no_longer_waits_passes_its_wake_up_on(queue: zkrq.Queue[Any], connect: Connect) -> None:
    assert await queue.pop_one(timeout=A_WHILE) is None
    async with connect() as other:
        waiting = await start_waiting(other.queue(queue.name))
        await queue.push("x")
        assert (await waiting).item == "x"


async def test_a_wake_up_is_passed_on_though_the_first_try_fails(
    queue: zkrq.Queue[Any], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await queue.pop_one(timeout=A_WHILE) is None
    counts = list[int]()

    def fail_first(count: int) -> None:
        counts.append(count)
        if len(counts) == 1:
            raise zkrq.Unavailable("the view is changing")

    _watch_requests(queue, monkeypatch, fail_first)
    async with connect() as other:
        waiting = await start_waiting(other.queue(queue.name))
        await queue.push("x")
        assert (await waiting).item == "x"
    assert counts == [0, 0]


async def test_a_process_that_closes_passes_its_wake_up_on(queue: zkrq.Queue[Any], connect: Connect) -> None:
    """It waited first, so what it hands back wakes itself."""
    async with connect() as other, connect() as closing:
        await queue.push_many(range(2))
        stream = closing.queue(queue.name, claim_timeout=10 * HANG).pop(prefetch=2)
        await (await anext(stream)).ack()
        waiting = await start_waiting(other.queue(queue.name))
        await closing.aclose()
        claim = await waiting
        assert (claim.item, claim.attempts) == (1, 1), "it was not delivered before"


async def test_what_a_slow_handler_has_claimed_ahead_goes_to_others(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime, claim_requests: list[int]
) -> None:
    """The handler may even wait for it.  Then nothing is claimed ahead until it takes something again."""
    await queue.push_many(range(100))
    ahead = 0
    async with connect() as other, queue.pop() as stream:
        for _ in range(60):
            await (await anext(stream)).ack()
            ahead = max(ahead, queue.held)
        assert ahead > 0, "else this shows nothing"
        others = [await take(other.queue(queue.name)) for _ in range(40)]
        assert {each.item: each.attempts for each in others} == dict.fromkeys(range(60, 100), 1)
        for each in others:
            await each.release()
        claim_requests.clear()
        await pass_time(3)
        assert not any(claim_requests)
        assert (await anext(stream)).item == 60


async def test_a_loop_with_a_limit_gives_back_what_it_does_not_take(queue: zkrq.Queue[Any], connect: Connect) -> None:
    await queue.push_many(range(10))
    async with connect() as other:
        async for claim in queue.pop(limit=10):
            assert claim.item == 0
            assert [(await take(other.queue(queue.name))).item for _ in range(9)] == [*range(1, 10)]
            break


async def test_a_prefetch_that_was_asked_for_is_kept(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push_many(range(10))
    async with queue.pop(prefetch=3) as stream:
        await anext(stream)
        await settled(lambda: _is_claimed(queue, 4))
        await pass_time(3)
        assert (await queue.size()).claimed == 4


async def _is_claimed(queue: zkrq.Queue[Any], count: int) -> bool:
    return (await queue.size()).claimed == count
