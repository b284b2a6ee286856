"""``pause`` and ``resume``: no claims, in any process; pushes continue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import are_sizes, is_empty, working
from tests.harness import HANG, settled, take
from zkrq.consuming.core import dispatch

pytestmark = pytest.mark.anyio


async def test_nobody_claims_from_a_paused_queue_and_pushes_go_on(queue: zkrq.Queue[Any], connect: Connect) -> None:
    async with connect() as other:
        there = other.queue(queue.name)
        await queue.push_many(range(3))
        claim = await take(there)
        await queue.pause()
        for consumer in (queue, there):
            assert await consumer.pop_many(5, timeout=0) == []
            assert (await consumer.statistics()).paused
        await queue.push("later", key="k", ttl=60)
        assert await queue.size() == (3, 0, 1, 0)
        await claim.ack()
        assert await queue.size() == (3, 0, 0, 0), "work on what is claimed goes on"
        await there.resume()
        assert not (await queue.statistics()).paused
        assert [claim.item for claim in await queue.pop_many(5)] == [1, 2, "later"]


async def test_resume_wakes_who_waits(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nobody looks again by itself here."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    async with connect() as other:
        await queue.pause()
        waiting = [asyncio.create_task(each.queue(queue.name).pop_one(timeout=HANG)) for each in (other, other)]
        waiting.append(asyncio.create_task(queue.pop_one(timeout=HANG)))
        await queue.push_many(range(3))
        await pass_time(0.2)
        assert not any(task.done() for task in waiting)
        await queue.resume()
        claims = await asyncio.gather(*waiting)
        assert sorted(claim.item for claim in claims if claim) == [0, 1, 2]


async def test_worker_of_a_paused_queue_finishes_and_waits(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    gate, seen = asyncio.Event(), list[int]()

    async def handle(item: int) -> None:
        await gate.wait()
        seen.append(item)

    await queue.push_many(range(10))
    async with working(queue, handle, concurrency=2):
        await settled(lambda: are_sizes(queue, 8, 2))
        await queue.pause()
        gate.set()
        await settled(lambda: are_sizes(queue, 8, 0))
        await pass_time(0.1)
        assert len(seen) == 2
        await queue.resume()
        await settled(lambda: is_empty(queue))
    assert sorted(seen) == list(range(10))


async def test_what_was_handed_back_waits_too(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(2))
    one, two = await queue.pop_many(2)
    await queue.pause()
    await one.release()
    await two.nack(delay=0)
    assert await queue.pop_one(timeout=0) is None
    assert await queue.size() == (2, 0, 0, 0)
    assert await queue.clear() == 2
    assert (await queue.statistics()).paused, "an empty queue is paused as well"


async def test_pausing_again_and_resuming_what_goes_on_changes_nothing(queue: zkrq.Queue[Any]) -> None:
    await queue.resume()
    await queue.push("x")
    for _ in range(2):
        await queue.pause()
    assert await queue.pop_one(timeout=0) is None
    for _ in range(2):
        await queue.resume()
    assert (await take(queue)).item == "x"


async def test_pause_of_one_queue_is_not_another_ones(cluster: zkrq.Cluster, name: str) -> None:
    one, two = cluster.queue(f"{name}-1"), cluster.queue(f"{name}-2")
    await one.pause()
    await two.push("x")
    assert (await take(two)).item == "x"
    assert {queue: told.paused for queue, told in (await cluster.statistics()).items() if queue.startswith(name)} == {
        one.name: True,
        two.name: False,
    }
    assert [item async for item in one.scan()] == [], "what says so is no item"
