"""Recurring pushes: once per moment, however many processes declare them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest

import zkrq
from tests import odd
from tests.behaviour.helpers import is_ready
from tests.harness import HANG, in_process, new_namespace, settled, take, until
from zkrq import local
from zkrq.base.tasks import Tasks
from zkrq.client.cluster import Cluster
from zkrq.client.moments import from_ms, read_schedule, to_ms, walk
from zkrq.client.schedules import Schedules, now, terms_of
from zkrq.coordination.memory import Hub
from zkrq.protocol.recurring import decide

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
async def tasks() -> AsyncGenerator[Tasks, None]:
    async with Tasks("test") as opened:
        yield opened


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = now()

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


async def test_three_processes_fire_once_per_moment(servers: local.Servers) -> None:
    """Each as good as alone: its own cluster, session and task; what is acked meanwhile does not come again."""
    namespace, hub = new_namespace(), Hub()
    seen: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(in_process(servers, namespace, hub)) for _ in range(4)]
        tasks = await stack.enter_async_context(Tasks("test"))
        *declaring, consuming = clusters
        handles = [
            Schedules(tasks).declare(read_schedule(0.3), each.queue("reports"), datetime.isoformat, name="report")
            for each in declaring
        ]
        async for claim in consuming.queue("reports").pop():
            async with claim:
                seen[claim.item] += 1
            if len(seen) == 8:
                break
        await until(lambda: all(handle.last for handle in handles))
        for handle in handles:
            handle.cancel()
        queue = consuming.queue("reports")
        while claim := await queue.pop_one(timeout=0):
            async with claim:
                seen[claim.item] += 1
    assert set(seen.values()) == {1}


async def test_a_process_that_comes_late_does_not_repeat_what_is_done(cluster: Cluster, tasks: Tasks) -> None:
    queue, clock = cluster.queue("reports"), Clock()
    first = Schedules(tasks).declare(read_schedule(100), queue, {"kind": "daily"}, clock=clock)
    claim = await take(queue)
    assert claim.item == {"kind": "daily"}
    await claim.ack()
    second = Schedules(tasks).declare(read_schedule(100), queue, {"kind": "daily"}, clock=clock)
    assert second.name == first.name, "without a name, the schedule and the item make one"
    await until(lambda: second.last is not None)
    assert second.last == first.last
    assert await queue.size() == (0, 0, 0, 0)


async def test_after_a_sleep_the_last_moment_fires_and_no_burst(cluster: Cluster, tasks: Tasks) -> None:
    queue, clock = cluster.queue("reports"), Clock()
    handle = Schedules(tasks).declare(read_schedule(1), queue, datetime.isoformat, name="report", clock=clock)
    await until(lambda: handle.last is not None)
    clock.move(100)
    await settled(lambda: is_ready(queue, 2))
    clock.move(1)
    await settled(lambda: is_ready(queue, 3))
    moments = [datetime.fromisoformat((await take(queue)).item) for _ in range(3)]
    assert [later - moments[0] for later in moments] == [timedelta(seconds=n) for n in (0, 100, 101)]


async def test_what_is_too_late_is_left_out(cluster: Cluster, tasks: Tasks) -> None:
    moment, schedule = datetime.fromisoformat("2026-05-01T12:00:00+00:00"), read_schedule(100)
    for late, pushed in ((9, [moment]), (11, [])):
        present = moment + timedelta(seconds=late)
        due, _ = walk(schedule, to_ms(present) - 60_000, to_ms(present), 10)
        assert [from_ms(each) for each in decide(due, to_ms(present), terms_of(10, "last")).pushed] == pushed
    for bad in (0, 604_801):
        with pytest.raises(zkrq.ConfigError, match="catch_up"):
            Schedules(tasks).declare(schedule, cluster.queue("reports"), 1, catch_up=bad)


async def test_a_push_that_fails_is_tried_again(
    cluster: Cluster, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue, clock, push, tries = cluster.queue("reports"), Clock(), cluster.queue("reports").push, [1, 2]

    async def flaky(*args: Any, **options: Any) -> zkrq.Receipt:
        if tries:
            tries.pop()
            raise zkrq.OutcomeUnknown()
        return await push(*args, **options)

    monkeypatch.setattr(queue, "push", flaky)
    handle = Schedules(tasks).declare(read_schedule(100), queue, 1, clock=clock, priority=3)
    assert (await take(queue)).priority == 3
    assert handle.last is None or not tries
    assert caplog.text.count("retrying") == 2


async def test_a_full_queue_delays_a_moment(cluster: Cluster, tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    """The queue has room again within ``catch_up``: the moment is pushed then."""
    queue, clock = cluster.queue("reports", max_size=1), Clock()
    await queue.push("in the way")
    Schedules(tasks).declare(read_schedule(100), queue, "report", clock=clock)
    await until(lambda: "retrying" in caplog.text)
    await (await take(queue)).ack()
    assert (await take(queue)).item == "report"


async def test_a_clock_that_was_a_month_ahead(cluster: Cluster, tasks: Tasks) -> None:
    """Once it is right again, the next moments are pushed, and what was pushed before is there once."""
    queue, clock = cluster.queue("reports"), Clock()
    handle = Schedules(tasks).declare(read_schedule(1), queue, datetime.isoformat, name="report", clock=clock)
    await until(lambda: handle.last is not None)
    before = clock.time
    clock.move(30 * 86_400)
    await until(lambda: handle.last is not None and handle.last > before + timedelta(days=29))
    clock.time = before
    await until(lambda: handle.last is not None and handle.last <= before)
    clock.move(1)
    await settled(lambda: is_ready(queue, 2))


async def test_a_function_that_fails_costs_its_moment_only(
    cluster: Cluster, tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    queue, calls = cluster.queue("reports"), list[datetime]()

    def make(moment: datetime) -> str:
        calls.append(moment)
        if len(calls) == 1:
            raise ZeroDivisionError
        return moment.isoformat()

    with caplog.at_level(logging.ERROR):
        Schedules(tasks).declare(read_schedule(0.2), queue, make, name="report")
        assert (await take(queue)).item == calls[1].isoformat()
    assert "ZeroDivisionError" in caplog.text


async def test_a_function_may_raise_anything(cluster: Cluster, tasks: Tasks, unheard: None) -> None:
    """It costs a moment of its own schedule, which continues, and so do the others."""
    queue, chance = cluster.queue("reports"), random.Random(47)
    errors = [make("text") for make in odd.CLASSES] + [odd.some(chance, odd.CLASSES) for _ in range(10)]
    raised = set[int]()

    def declare(number: int, error: BaseException) -> None:
        def make(moment: datetime) -> int:
            if number not in raised:
                raised.add(number)
                raise error
            return number

        schedules.declare(read_schedule(0.5), queue, make, name=f"report {number}")

    schedules = Schedules(tasks)
    for number, error in enumerate(errors):
        declare(number, error)
    left = set(range(len(errors)))
    async with asyncio.timeout(HANG):
        async for claim in queue.pop():
            left.discard(claim.item)
            await claim.ack()
            if not left:
                break
    assert len(raised) == len(errors)


async def test_closing_the_cluster_ends_it(cluster: Cluster, tasks: Tasks) -> None:
    queue = cluster.queue("reports")
    handle = Schedules(tasks).declare(read_schedule(0.2), queue, 1, name="report")
    await take(queue)
    await cluster.aclose()
    await until(lambda: "cancelled" in repr(handle))
