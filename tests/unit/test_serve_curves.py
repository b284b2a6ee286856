"""What the page makes of figures: curves and rates."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.every import every
from tests.unit.page_values import NOON
from zkrq.base.limits import Limits
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.throughput import Throughput
from zkrq.serve import curves
from zkrq.serve.curves import HEIGHT, MARKS, WIDTH, Curve, History, Point, draw, latest_rate, rates, thin
from zkrq.serve.shown import NO_FIGURES


def test_history_keeps_the_last_minutes_of_the_queues_that_are_there() -> None:
    history = History()
    for at in range(0, 1000, 100):
        history.add(at, {"a": seen(at), "b": seen(1)} if at < 500 else {"a": seen(at)})
    assert history.points("a") == tuple(Point(at, at, at, ready=at) for at in range(0, 1000, 100))
    assert history.points("b") == ()
    history.add(950 + curves.HISTORY_SECONDS, {"a": seen(0, removed=900)})
    assert history.points("a") == (Point(950 + curves.HISTORY_SECONDS, 0, 900, 900),)
    for at in range(curves.POINTS_MAX + 10):
        history.add(2000 + at / 10, {"a": seen(1)})
    assert len(history.points("a")) == curves.POINTS_MAX


def seen(ready: int, *, removed: int = 0, dead: int = 0, claimed: int = 0, server: str = "redis-1") -> Statistics:
    """A queue as its primary counts it."""
    flow = Throughput(ready + dead + claimed + removed, removed, server)
    return NO_FIGURES._replace(sizes=Sizes(ready, 0, claimed, dead), flow=flow)


def test_what_passes_is_added_up_whoever_counts() -> None:
    """Between the looks at two primaries, and of a queue that began anew, it is not known."""
    history = History()
    looks = [seen(5), seen(8, removed=2), seen(50, server="redis-2"), seen(49, removed=1, server="redis-2"), seen(3)]
    for at, look in enumerate([*looks, seen(2, removed=2, dead=1)]):
        history.add(at, {"a": look})
    passed = [(0, 0), (5, 2), (5, 2), (5, 3), (5, 3), (7, 5)]
    assert [point[2:4] for point in history.points("a")] == passed


def waits(seconds: float | None, **changes: Any) -> Statistics:
    return seen(5)._replace(oldest_ready=seconds, **changes)


def test_it_is_known_for_how_long_nobody_takes_an_item() -> None:
    history = History()
    for at in range(0, 50, 2):
        history.add(at, {"a": waits(100 + at + at % 3 / 10)})
    assert history.untaken("a") == 48
    assert history.untaken("b") == 0
    history.add(50, {})
    history.add(52, {"a": waits(152)})
    assert history.untaken("a") == 0


def test_whether_a_queue_grows_is_measured_over_its_last_minute() -> None:
    history = History()
    for at in range(0, 200, 10):
        gone = 0 if at < 100 else at
        history.add(at, {"a": seen(1000 - gone, removed=gone, claimed=1), "c": seen(1000 - gone, removed=gone)})
        if at < 60:
            assert history.backlog("a") is None
    assert history.backlog("a") == (810, -1.0, 810.0)
    assert history.backlog("b") is None
    assert history.backlog("c") == (810, 0.0, None), "they were cancelled: no consumer has any"


@every(
    "then",
    [
        waits(102.0, sizes=Sizes(4, 0, 1, 0)),
        waits(102.0, flow=Throughput(6, 1, "redis-1")),
        waits(102.0, flow=Throughput(5, 0, "redis-2")),
        waits(102.0, paused=True),
        waits(102.0, limits=Limits(concurrency=1), claimable_in=None),
        waits(102.0, groups_blocked=1),
        waits(90.0),
        waits(None),
    ],
)
def test_what_may_have_another_reason_is_no_lack_of_consumers(then: Statistics) -> None:
    """A claim that no look saw, which failed and went back: then another item is the oldest."""
    history = History()
    for at, look in ((0, waits(98.0)), (2, waits(100.0)), (4, then), (6, waits(104.0))):
        history.add(at, {"a": look})
    assert history.untaken("a") == 0


def test_a_rate_is_of_the_last_seconds() -> None:
    passed = ((0, 0, 0), (5, 10, 0), (10, 20, 5), (20, 120, 5), (30, 120, 25))
    points = [Point(at, 0, pushed, removed) for at, pushed, removed in passed]
    assert rates(points) == [(5, 2.0, 0.0), (10, 2.0, 0.5), (20, 10.0, 0.0), (30, 0.0, 2.0)]
    assert rates(points[:1]) == rates([]) == []


@every("seconds", range(0, 31, 3))
def test_the_latest_rate_is_the_last_of_all(seconds: int) -> None:
    points = [Point(at, 0, at * at, at) for at in range(0, seconds, 2)]
    assert latest_rate(points) == next(iter(rates(points)[-1:]), None)


def test_a_curve_has_zero_in_sight_and_stays_within_its_edges() -> None:
    assert draw([0], [5.0]) is draw([], [], []) is None
    assert draw([0, 10], [5.0, 10.0]) == Curve([f"0.0,{HEIGHT / 2} {WIDTH}.0,0.0"], 10.0)
    assert draw([0, 10], [0.0, 5.0], [10.0, 0.0]) == Curve(
        [f"0.0,{HEIGHT}.0 {WIDTH}.0,{HEIGHT / 2}", f"0.0,0.0 {WIDTH}.0,{HEIGHT}.0"], 10.0
    )
    assert draw([3, 3], [0.0, 0.0]) == Curve([f"0.0,{HEIGHT}.0 0.0,{HEIGHT}.0"], 0.0)


def test_a_curve_may_be_a_part_of_its_axis() -> None:
    """So the curves of a page have one axis, whatever is known of each."""
    drawn = draw([40, 50, 60], [0.0, 1.0, 0.0], ends=NOON, axis=(0, 120))
    assert drawn
    assert drawn.lines == [f"80.0,{HEIGHT}.0 100.0,0.0 120.0,{HEIGHT}.0"]
    assert [(mark.left, mark.width) for mark in drawn.marks] == [(70, 20), (90, 20), (110, 20)]
    assert [mark.at for mark in drawn.marks] == [NOON - timedelta(seconds=back) for back in (80, 70, 60)]
    assert (drawn.begins, drawn.ends) == (NOON - timedelta(seconds=120), NOON)


@every("count", [2, 3, MARKS, 500])
def test_every_place_of_a_curve_tells_a_moment_that_was_looked_at(count: int) -> None:
    moments = [100.0 + 2 * number for number in range(count)]
    drawn = draw(moments, moments, [0.0] * count, ends=NOON)
    assert drawn
    assert len(drawn.marks) == min(count, MARKS)
    assert drawn.marks[0].left == 0.0
    assert abs(sum(mark.width for mark in drawn.marks) - WIDTH) < 0.01
    for mark in drawn.marks:
        assert mark.at == NOON - timedelta(seconds=moments[-1] - mark.values[0])
        place = (mark.values[0] - moments[0]) * WIDTH / (moments[-1] - moments[0])
        assert mark.left - 0.01 <= place <= mark.left + mark.width + 0.01


@every("most", [2, 3, 10, 100])
def test_thin_keeps_the_first_and_the_last(most: int) -> None:
    left = thin(range(57), most)
    assert (left[0], left[-1], len(left)) == (0, 56, min(57, most))
    assert list(left) == sorted(set(left))
