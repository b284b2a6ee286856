"""Each moment of a stored schedule is pushed once, or its loss is told: in virtual time, with several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.every import every
from zkrq.base import clock
from zkrq.client.moment_store import MomentStore
from zkrq.client.timetable import Key
from zkrq.protocol.recurring import Missed, Progress
from zkrq.testing import TestCluster

pytestmark = pytest.mark.anyio


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 3, 1, hour, minute, second, tzinfo=UTC)


async def items(queue: zkrq.Queue[str]) -> list[str | None]:
    """What is queued, in order."""
    return [each.item for each in await queue.peek(100)]


# -- the first deployment ----------------------------------------------------------------------------------------------


async def test_a_schedule_pushes_no_moment_of_before_it_was_declared_first() -> None:
    async with zkrq.testing.cluster(start=at(7, 3)) as cluster, cluster.servers.connect() as other:
        queue = cluster.queue("news")
        for each in (cluster, other):
            each.every("0,5 * * * *", each.queue("news"), datetime.isoformat, name="digest")
        await cluster.clock.advance(60)
        assert await items(queue) == []
        await cluster.clock.advance(60)
        assert await items(queue) == [at(7, 5).isoformat()]


async def test_other_moments_count_from_their_declaration() -> None:
    """Other code with the same moments leaves out none; one with others pushes none of before."""
    async with zkrq.testing.cluster(start=at(6, 59)) as cluster:
        queue = cluster.queue("news")
        cluster.every("0 7 * * *", queue, "first", name="digest").cancel()
        async with cluster.every("0 7 * * *", queue, "never", name="digest"):
            await cluster.clock.advance(1)
        await cluster.clock.advance(2 * 60)
        async with cluster.every("0 7 * * *", queue, "second", name="digest"):
            await cluster.clock.advance(1)
        assert await items(queue) == ["second"]
        async with cluster.every("0-5 7 * * *", queue, "third", name="digest"):
            await cluster.clock.advance(60)
        assert await items(queue) == ["second", "third"]


# -- everything is away ------------------------------------------------------------------------------------------------


def events_of(told: list[zkrq.Event]) -> list[zkrq.MomentsLost]:
    return [event for event in told if isinstance(event, zkrq.MomentsLost)]


def declare(cluster: zkrq.Cluster, **options: Any) -> None:
    """What every process declares: something each five minutes."""
    cluster.every("*/5 * * * *", cluster.queue("jobs"), datetime.isoformat, name="report", **options)


@asynccontextmanager
async def away(minutes: int, **options: Any) -> AsyncGenerator[TestCluster]:
    """A cluster that looks.  A process declared the schedule at 02:51 and was stopped at 02:58; then none was there."""
    async with zkrq.testing.cluster(start=at(2, 51)) as cluster:
        async with cluster.servers.connect() as before:
            declare(before, **options)
            await cluster.clock.advance(7 * 60)
        assert await items(cluster.queue("jobs")) == [at(2, 55).isoformat()]
        await cluster.queue("jobs").clear()
        await cluster.clock.advance(60 * minutes)
        yield cluster


async def listed(cluster: zkrq.Cluster) -> tuple[datetime | None, datetime | None, int]:
    (entry,) = await cluster.schedules().list()
    return entry.last, entry.last_loss, entry.losses


async def test_a_moment_that_nobody_could_push_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Three processes come back at the same time, more than catch_up after it."""
    told = list[zkrq.Event]()
    async with away(6 + 1) as cluster, AsyncExitStack() as stack:
        for _ in range(3):
            other = await stack.enter_async_context(cluster.servers.connect(on_event=told.append))
            declare(other, catch_up=90)
        await cluster.clock.advance(60)
        assert await items(cluster.queue("jobs")) == [at(3, 5).isoformat()]
        (event,) = events_of(told)
        assert (event.queue, event.name, event.count, event.moments) == ("jobs", "report", 1, (at(3),))
        assert (event.first, event.last) == (at(3), at(3))
        assert await listed(cluster) == (at(3, 5), at(3), 1)
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "MomentsLost"]
    assert (record.levelname, vars(record)["queue"]) == ("WARNING", "jobs")
    assert "schedule report of queue jobs were not pushed, 2026-03-01T03:00:00+00:00" in record.getMessage()


@every(
    ("missed", "pushed", "lost"),
    [
        ("all", [(2, 55), (3, 0), (3, 5), (3, 10), (3, 15), (3, 20)], 0),
        ("last", [(3, 20)], 5),
        ("none", [], 6),
    ],
)
def test_what_was_missed_is_pushed_late(missed: Missed, pushed: list[tuple[int, int]], lost: int) -> None:
    """Under a key, by whichever of two processes: beyond the time after which an id of the moment is refused."""
    asyncio.run(_miss(missed, [at(*each).isoformat() for each in pushed], lost))


async def _miss(missed: Missed, pushed: list[str], lost: int) -> None:
    async with zkrq.testing.cluster(start=at(2, 51)) as cluster:
        async with cluster.servers.connect() as before:
            declare(before, catch_up=1_800, missed=missed)
            await cluster.clock.advance(60)
        await cluster.clock.advance(29 * 60)
        async with cluster.servers.connect() as one, cluster.servers.connect() as two:
            for each in (one, two):
                declare(each, catch_up=1_800, missed=missed)
            await cluster.clock.advance(60)
        queue = cluster.queue("jobs")
        assert sorted(str(item) for item in await items(queue)) == pushed
        assert (await listed(cluster))[2] == lost
        while claim := await queue.pop_one(timeout=0):
            await claim.ack()
        async with cluster.servers.connect() as third:
            declare(third, catch_up=1_800, missed=missed)
            await cluster.clock.advance(1)
        assert await items(queue) == [], "nothing comes twice, although it is done"


# -- a process that dies -----------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Keep processes from storing what they have pushed; call it to end that."""

    async def fail(self: MomentStore, news: object) -> Mapping[Key, Progress]:
        raise zkrq.Unavailable("not now")

    monkeypatch.setattr(MomentStore, "advance", fail)
    return monkeypatch.undo


async def test_what_was_pushed_by_a_process_that_died_is_not_told_as_lost(forgetful: Callable[[], None]) -> None:
    """The next one finds the item, which is queued yet, or was done within ten minutes."""
    told = list[zkrq.Event]()
    async with zkrq.testing.cluster(start=at(2, 54)) as cluster:
        queue = cluster.queue("jobs")
        async with cluster.servers.connect() as before:
            declare(before)
            await cluster.clock.advance(2 * 60)
        forgetful()
        async for claim in queue.pop(limit=1):
            await claim.ack()
        await cluster.clock.advance(7 * 60)
        async with cluster.servers.connect(on_event=told.append) as after:
            declare(after)
            await cluster.clock.advance(60)
        assert [event.moments for event in events_of(told)] == [], "the last one, 03:00, is pushed late"
        assert await items(queue) == [at(3).isoformat()]
        assert (await listed(cluster))[0] == at(3)


async def test_what_was_pushed_by_a_process_that_died_is_not_pushed_again(forgetful: Callable[[], None]) -> None:
    """Long after the servers have forgotten the item's id: its key keeps its window."""
    async with zkrq.testing.cluster(start=at(2, 54)) as cluster:
        queue = cluster.queue("jobs")
        async with cluster.servers.connect() as before:
            declare(before, catch_up=3_600, missed="all")
            await cluster.clock.advance(2 * 60)
        forgetful()
        async for claim in queue.pop(limit=1):
            await claim.ack()
        await cluster.clock.advance(25 * 60)
        async with cluster.servers.connect() as after:
            declare(after, catch_up=3_600, missed="all")
            await cluster.clock.advance(60)
        late = [at(3, minute).isoformat() for minute in range(0, 25, 5)]
        assert [item for item in await items(queue) if item] == late, "all but 02:55"
        assert await listed(cluster) == (at(3, 20), None, 0)


# -- a server that dies, shards ----------------------------------------------------------------------------------------


async def test_a_server_dies_around_the_moment() -> None:
    async with zkrq.testing.cluster(start=at(2, 58)) as cluster, cluster.servers.connect() as other:
        for each in (cluster, other):
            declare(each, catch_up=3_600)
        await cluster.clock.advance(119)
        cluster.servers.kill(cluster.view.primary("jobs"))
        await cluster.clock.advance(60)
        assert await items(cluster.queue("jobs")) == [at(3).isoformat()]


async def test_with_two_shards() -> None:
    async with zkrq.testing.servers(6, start=at(2, 51)) as servers, servers.connect(first=3) as cluster:
        await cluster.add_shard("b", servers.urls("redis-4", "redis-5", "redis-6"))
        async with servers.connect(first=3) as before:
            declare(before, catch_up=3_600, missed="all")
            await cluster.clock.advance(60)
        await cluster.clock.advance(10 * 60)
        told = list[zkrq.Event]()
        async with servers.connect(first=3, on_event=told.append) as one, servers.connect(first=3) as two:
            for each in (one, two):
                declare(each, catch_up=3_600, missed="all")
            await cluster.clock.advance(60)
        assert sorted(map(str, await items(cluster.queue("jobs")))) == [at(2, 55).isoformat(), at(3).isoformat()]
        assert events_of(told) == []


# -- a clock that was wrong --------------------------------------------------------------------------------------------


async def test_a_clock_that_was_an_hour_ahead_loses_no_moment() -> None:
    """It finds an hour of moments lost, and does not tell: once it is right, they are pushed when they come."""
    told = list[zkrq.Event]()
    async with zkrq.testing.cluster(start=at(2, 53), on_event=told.append) as cluster:
        declare(cluster)
        await cluster.clock.advance(60)
        clock.go_by(lambda: cluster.clock.now_us() + 3_600_000_000)
        try:
            await cluster.clock.advance(180)
        finally:
            clock.go_by(cluster.clock.now_us)
        await cluster.clock.advance(240)
        assert sorted(map(str, await items(cluster.queue("jobs")))) == [at(2, 55).isoformat(), at(3).isoformat()]
        assert events_of(told) == []
        assert await listed(cluster) == (at(3), None, 0)


# -- what is added at run time -----------------------------------------------------------------------------------------


async def test_what_was_added_is_pushed_late_by_what_runs_schedules() -> None:
    async with zkrq.testing.cluster(start=at(2, 51)) as cluster:
        schedules, queue = cluster.schedules(), cluster.queue("jobs")
        await schedules.add(queue, "report", "*/5 * * * *", "added", catch_up=3_600, missed="all")
        await cluster.clock.advance(20 * 60)
        async with schedules.run():
            await cluster.clock.advance(60)
        assert await items(queue) == ["added"] * 4
        assert await listed(cluster) == (at(3, 10), None, 0)
        await schedules.remove(queue, "report")
        await schedules.add(queue, "report", "*/5 * * * *", "added")
        assert await listed(cluster) == (None, None, 0), "one of the same name that was removed counts no more"


async def test_without_a_name_it_tells_what_was_missed_while_it_ran() -> None:
    told = list[zkrq.Event]()
    async with zkrq.testing.cluster(start=at(2, 51), on_event=told.append) as cluster:
        queue = cluster.queue("jobs", max_size=1)
        await queue.push("in the way")
        cluster.every("* * * * *", queue, "report", catch_up=30)
        await cluster.clock.advance(200)
        events = events_of(told)
        assert {moment for event in events for moment in event.moments} >= {at(2, 52), at(2, 53)}
        assert await cluster.schedules().list() == []
