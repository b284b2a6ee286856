"""What handlers did, minute by minute: reported by processes, kept by two servers, read by anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.harness import settled, take
from zkrq.consuming import figures
from zkrq.protocol.figures import OTHERS, TASKS_MAX

pytestmark = pytest.mark.anyio

HALF_HOUR = 1800


@pytest.fixture(autouse=True)
def reports_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "REPORT_SECONDS", 0.2)


def added(found: Sequence[zkrq.Figures]) -> tuple[int, int, int, int]:
    return (
        sum(each.begun for each in found),
        sum(each.done for each in found),
        sum(each.failed for each in found),
        sum(each.dead for each in found),
    )


async def reported(queue: zkrq.Queue[Any], wanted: tuple[int, int, int, int], pass_time: PassTime) -> None:
    await pass_time(figures.REPORT_SECONDS)

    async def are_there() -> bool:
        return added(await queue.figures(HALF_HOUR)) == wanted

    await settled(are_there)


async def test_what_handlers_did_is_told(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push_many(["good", "good", "bad", "hopeless"])

    async def handle(item: str) -> None:
        if item == "bad":
            raise zkrq.RetryLater(3600)
        if item == "hopeless":
            raise zkrq.Reject("never")

    worker = zkrq.Worker(concurrency=2).add(queue, handle)
    await worker.run(burst=True)
    await reported(queue, (4, 2, 2, 1), pass_time)
    found = await queue.figures(HALF_HOUR)
    assert len(found) in (30, 31)
    assert {each.seconds for each in found} == {60.0}
    assert {(b.at - a.at) for a, b in pairwise(found)} == {timedelta(seconds=60)}
    assert sum(each.waits.count for each in found) == 4
    assert sum(each.durations.count for each in found) == 4
    busy = [each for each in found if each.durations.count]
    for took in (each.durations for each in busy):
        assert took.p50 is not None
        assert took.p95 is not None
        assert took.longest is not None
        assert took.p50 <= took.p95 <= max(took.longest, 0.001)
    assert [each.tasks for each in found if not each.tasks] == [{}] * len(found)
    assert added(await queue.figures(HALF_HOUR, step=600)) == (4, 2, 2, 1)
    assert added(await queue.figures(timedelta(days=30))) == (4, 2, 2, 1)
    assert [each.failure_rate for each in await queue.figures(timedelta(days=1), step=timedelta(days=1))][-1] == 0.5


async def test_claims_of_loops_count_too_and_those_handed_back_do_not_end(
    queue: zkrq.Queue[Any], pass_time: PassTime
) -> None:
    await queue.push_many([1, 2, 3])
    claims = [await take(queue) for _ in range(3)]
    await claims[0].release()
    await claims[1].nack(3600)
    await claims[2].ack()
    await reported(queue, (3, 1, 1, 0), pass_time)


async def test_tasks_are_told_apart_as_far_as_there_is_room(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    count = TASKS_MAX + 5
    for number in range(count):
        await queue.push(number, task=f"task-{number:02}")
    await queue.push("of none")
    claims = await queue.pop_many(count + 1, timeout=0)
    assert await queue.ack_many(claims) == []
    await reported(queue, (count + 1, count + 1, 0, 0), pass_time)
    tasks: dict[str, int] = {}
    for each in await queue.figures(HALF_HOUR):
        for task, of in each.tasks.items():
            tasks[task] = tasks.get(task, 0) + of.done
    assert sum(tasks.values()) == count + 1
    assert tasks["task-00"] == 1
    assert tasks[OTHERS] >= 5


async def test_nothing_is_reported_while_nothing_happens(
    queue: zkrq.Queue[Any], pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[str]()
    make = figures.Figure

    def note(queue: str, minute: int, items: Any) -> Any:
        sent.append(queue)
        return make(queue, minute, items)

    monkeypatch.setattr(figures, "Figure", note)
    await queue.push("one")
    await (await take(queue)).ack()
    await reported(queue, (1, 1, 0, 0), pass_time)
    for _ in range(3):
        await pass_time(figures.REPORT_SECONDS)
        await asyncio.sleep(0)
    assert sent == [queue.name]


async def test_a_deleted_queue_has_no_figures(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("one")
    await (await take(queue)).ack()
    await reported(queue, (1, 1, 0, 0), pass_time)
    await queue.delete()
    assert added(await queue.figures()) == (0, 0, 0, 0)


async def test_a_closing_client_reports_what_is_left(queue: zkrq.Queue[Any], connect: Connect, name: str) -> None:
    await queue.push("one")
    async with connect(description="other") as other:
        await (await take(other.queue(name))).ack()
    assert added(await queue.figures()) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("since", "step"),
    [(0, None), (36 * 86_400, None), (3600, 90), (3600, 0), (86_400 * 3, 60), (86_400 * 3, 5400), (-1, 60)],
)
async def test_times_that_are_not_kept_are_refused(queue: zkrq.Queue[Any], since: float, step: float | None) -> None:
    with pytest.raises(zkrq.ConfigError):
        await queue.figures(since, step)


async def test_the_ready_items_are_told_with_each_report(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push_many([1, 2, 3])
    await queue.push(4, delay=HALF_HOUR)
    assert await queue.backlog() == zkrq.Backlog(3)
    await (await take(queue)).ack()
    await reported(queue, (1, 1, 0, 0), pass_time)
    told = [each.ready for each in await queue.figures(HALF_HOUR) if each.ready is not None]
    assert told[-1] == 2
    assert all(each.tasks == {} for each in await queue.figures(HALF_HOUR))
    assert (await queue.figures(timedelta(days=2)))[-1].ready == 2
    await queue.clear()
    assert await queue.backlog() == zkrq.Backlog(0, None, 0.0)


async def test_a_backlog_that_shrinks_says_when_it_is_gone() -> None:
    async with zkrq.testing.servers(2) as own, own.connect() as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(200))
        for _ in range(6):
            for claim in await queue.pop_many(15, timeout=0):
                await claim.ack()
            await own.clock.advance(60)
        ready, per_second, seconds_left = await queue.backlog()
        assert ready == 110
        assert per_second is not None
        assert -0.4 < per_second < -0.15, "15 in a minute, measured over three"
        assert seconds_left == pytest.approx(ready / -per_second)
        await own.clock.advance(240)
        await queue.cancel_many([item.id for item in await queue.peek(60)])
        assert await queue.backlog() == zkrq.Backlog(50, 0.0), "no item was settled for three minutes"
