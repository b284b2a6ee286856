"""What the page of a queue shows of the work of hours and days, and whether a queue shrinks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import zkrq
from zkrq.client.figures import NO_ITEMS
from zkrq.serve.figures import FRESH_SECONDS, PERIODS, READ_MAX, Period, Reading, show_work

BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


def spread(seconds: float, count: int) -> zkrq.Spread:
    counts = [0] * 32
    counts[int(seconds * 1000).bit_length()] = count
    return zkrq.Spread(tuple(counts))


def minute(number: int, done: int = 0, failed: int = 0, **tasks: zkrq.Figures) -> zkrq.Figures:
    at, took = BEGAN + timedelta(minutes=number), spread(1.5, done + failed)
    return zkrq.Figures(at, 60.0, done + failed, done, failed, 0, took, took, tasks)


def test_curves_leave_out_times_of_which_nothing_is_known() -> None:
    found = [minute(0), minute(1, done=60), minute(2), minute(3, done=30, failed=30), minute(4)]
    work = show_work(found, PERIODS["1 h"], None)
    assert work.done
    assert [mark.values for mark in work.done.marks] == [(0, 0), (1, 0), (0, 0), (0.5, 0.5)]
    assert work.failures
    assert [mark.values for mark in work.failures.marks] == [(0,), (50,)]
    assert work.waits
    assert [mark.at for mark in work.waits.marks] == [BEGAN + timedelta(seconds=90), BEGAN + timedelta(seconds=210)]
    (total,) = work.totals
    assert (total.done, total.failed, total.durations.count) == (90, 30, 120)
    assert total.durations.p50 == pytest.approx(1.5, rel=0.5)


def test_all_curves_have_the_axis_of_the_period_and_end_before_the_minute_that_runs() -> None:
    found = [minute(0), minute(1, done=60), minute(2, done=60), minute(3, done=1)]
    work = show_work(found, PERIODS["1 h"], None)
    drawn = [each for each in (work.done, work.failures, work.waits, work.durations) if each]
    assert [(each.begins, each.ends) for each in drawn] == [(BEGAN, BEGAN + timedelta(minutes=3))] * 4
    assert drawn[0].marks[-1].values == (1, 0)
    assert work.totals[0].done == 121


def test_a_time_alone_is_drawn_from_its_beginning_to_its_end() -> None:
    work = show_work([minute(0), minute(1), minute(2, failed=1), minute(3)], PERIODS["1 h"], None)
    assert work.waits
    assert [mark.at for mark in work.waits.marks] == [BEGAN + timedelta(minutes=each) for each in (2, 3)]


def test_the_slowest_task_is_the_first() -> None:
    slow, quick = (zkrq.Figures(BEGAN, 60.0, durations=spread(each, 1)) for each in (9.0, 0.02))
    work = show_work([minute(0, a=quick, b=slow, c=quick, d=minute(0))], PERIODS["1 h"], None)
    assert [each.name for each in work.totals] == ["", "b", "a", "c", "d"]


def test_a_task_has_curves_of_its_own() -> None:
    found = [minute(n, done=10, mail=minute(n, done=7), sms=minute(n, done=3)) for n in range(4)]
    work = show_work(found, PERIODS["1 h"], "mail")
    assert work.done
    assert {mark.values for mark in work.done.marks} == {(7 / 60, 0)}
    assert [(total.name, total.done) for total in work.totals] == [("", 40), ("mail", 28), ("sms", 12)]
    assert show_work(found, PERIODS["1 h"], "fax").done is None


def test_nothing_is_drawn_of_nothing() -> None:
    work = show_work([], PERIODS["1 h"], None)
    assert (work.done, work.waits, [*work.totals]) == (None, None, [])
    assert NO_ITEMS.p95 is None


class Asked:
    def __init__(self, name: str) -> None:
        self.name, self.times = name, 0

    async def figures(self, since: float, step: float) -> list[zkrq.Figures]:
        self.times += 1
        return [minute(self.times)]


@pytest.mark.anyio
async def test_one_reading_serves_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, queue, hour = Reading(), Asked("mail"), PERIODS["1 h"]

    async def read(queue: Asked, period: Period) -> None:
        await reading.read(cast("zkrq.Queue[Any]", queue), period)

    for _ in range(3):
        await read(queue, hour)
    assert queue.times == 1
    await read(queue, PERIODS["6 h"])
    assert queue.times == 2
    for number in range(READ_MAX):
        await read(Asked(f"other-{number}"), hour)
    await read(queue, hour)
    assert queue.times == 3, "as many as are kept have come since"
    monkeypatch.setattr("zkrq.serve.figures.FRESH_SECONDS", 0.0)
    await read(queue, hour)
    assert (queue.times, FRESH_SECONDS) == (4, 10.0)
