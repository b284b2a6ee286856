"""``pause`` and ``resume``: no claims, in any process; pushes continue."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import are_sizes, is_empty, working
from tests.every import every
from tests.harness import HANG, settled, take
from zkrq.base import clock
from zkrq.client.inner import client_of
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


async def test_a_pause_ends_by_itself_in_every_process(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for those who waited before it began; nobody looks again by itself here."""
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 10 * HANG)
    async with connect() as other:
        waiting = asyncio.create_task(other.queue(queue.name).pop_one(timeout=HANG))
        await pass_time(0.2)
        until = clock.after(1.5)
        await queue.pause(until=until)
        await queue.push("later")
        figures = await other.queue(queue.name).statistics()
        assert figures.paused_until
        assert abs(figures.paused_until - until) < timedelta(milliseconds=1)
        assert figures.pause.startswith("paused until 2")
        assert not waiting.done()
        await pass_time(1.6)
        claim = await waiting
        assert claim
        assert claim.item == "later"
        figures = await queue.statistics()
        assert (figures.paused, figures.paused_until, figures.pause) == (False, None, "")


async def test_the_last_pause_holds(queue: zkrq.Queue[Any]) -> None:
    await queue.pause(seconds=timedelta(hours=1))
    told = await queue.statistics()
    assert told.paused_until
    assert timedelta(minutes=59) < told.paused_until - clock.now() <= timedelta(hours=1)
    await queue.pause()
    assert ((await queue.statistics()).paused, (await queue.statistics()).paused_until) == (True, None)
    await queue.pause(seconds=3600)
    await queue.resume()
    assert not (await queue.statistics()).paused


@every(
    ("options", "says"),
    [
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "until is 2020-01-01T00:00:00+00:00, which has passed"),
        ({"until": datetime(2040, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"until": datetime(9999, 1, 1, tzinfo=UTC)}, "until is"),
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": -1}, "seconds is -1"),
        ({"seconds": "1"}, "seconds must be"),
        ({"seconds": 1, "until": datetime(2040, 1, 1, tzinfo=UTC)}, "exclude each other"),
    ],
)
async def test_an_end_that_is_none_is_refused(queue: zkrq.Queue[Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=re.escape(says)):
        await queue.pause(**options)
    assert not (await queue.statistics()).paused


async def test_at_a_level_without_it_no_pause_ends_by_itself(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.pause(seconds=600)
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    with pytest.raises(zkrq.ConfigError, match=r"pauses that end by themselves: this needs level 2.*`zkrq upgrade`"):
        await queue.pause(seconds=600)
    await queue.pause()
    assert (await queue.statistics()).pause == "paused"
