"""Which moments of a schedule are pushed, and which are lost: no clock, no servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.errors import ConfigError
from zkrq.client.moment_store import decode, encode
from zkrq.client.moments import EPOCH, check_span, from_ms, key_of, read_schedule, to_ms, walk
from zkrq.client.timetable import Key
from zkrq.protocol.recurring import LOSSES_MAX, MISSED, ON_TIME_MS, Course, Loss, Missed, Progress, Row, Terms, decide

needs_cron = pytest.mark.skipif(find_spec("cronsim") is None, reason="cronsim is not installed")

REPORT_MS = 30_000
"""Milliseconds from when a loss is found until it is reported."""

LAST = Terms(240_000)
DUE = (1_000, 2_000, 3_000)

rows = st.lists(st.integers(0, 10**6), unique=True, max_size=30).map(sorted)
terms = st.builds(Terms, st.integers(1_000, 10**6), st.sampled_from(MISSED))


# -- one decision ------------------------------------------------------------------------------------------------------


@every(
    ("missed", "late", "pushed"),
    [
        ("all", 0, DUE),
        ("all", 238_500, DUE[1:]),
        ("last", 0, DUE[-1:]),
        ("last", 238_500, DUE[-1:]),
        ("last", 240_000, ()),
        ("none", 0, DUE),
        ("none", ON_TIME_MS - 500, DUE[2:]),
        ("none", ON_TIME_MS, ()),
    ],
)
def test_which_of_three_are_pushed(missed: Missed, late: int, pushed: Sequence[int]) -> None:
    assert tuple(decide(DUE, DUE[-1] + late, Terms(240_000, missed)).pushed) == pushed


def test_the_last_one_is_the_last_of_all_that_are_due() -> None:
    decided = decide(DUE, 3_000, LAST, more=True)
    assert decided == ([], dict.fromkeys(DUE, Loss.LEFT_OUT))


@given(rows, st.integers(0, 2 * 10**6), terms, st.booleans())
def test_each_moment_is_pushed_or_lost(due: list[int], present: int, terms: Terms, more: bool) -> None:
    decided = decide(due, present, terms, more=more)
    assert sorted([*decided.pushed, *decided.lost]) == due
    assert all(present - moment < terms.latest for moment in decided.pushed)
    late = {moment for moment, loss in decided.lost.items() if loss is Loss.LATE}
    assert late == {moment for moment in due if present - moment >= terms.latest}
    if terms.missed != "last":
        assert len(late) == len(decided.lost)


# -- several processes, which die --------------------------------------------------------------------------------------


class World:
    """What is stored, what the servers have, and what was reported; processes of one schedule walk its moments."""

    def __init__(self, terms: Terms, period: int) -> None:
        self.terms, self.period, self.present = terms, period, 0
        self.progress = Progress(0)
        self.there, self.reported, self.pushes = set[int](), set[int](), list[int]()

    def course(self) -> Course:
        course = Course(self.progress.done)
        course.learn(self.progress, self.present)
        return course

    def look(self, course: Course, fails: bool) -> None:
        """A look at the clock: what is due is pushed, or the push fails and is not retried before the next look."""
        first = course.walked // self.period + 1
        due = [number * self.period for number in range(first, self.present // self.period + 1)]
        again = sorted(course.in_flight)
        for moment in [*again, *course.take(due, self.present, self.terms, now=self.present)]:
            if moment in again and (loss := course.overdue(moment, self.present, self.terms)):
                course.lose(moment, loss, self.present)
            elif moment in again and moment <= course.known:
                course.drop(moment)
            elif not fails:
                if moment not in self.there:
                    self.pushes.append(moment)
                self.there.add(moment)
                course.pushed(moment)

    def flush(self, course: Course, *, dies: bool) -> None:
        """Report and store; a process that dies has reported, and stores nothing."""
        course.learn(self.progress, self.present)
        for moment in [moment for moment in course.losses if moment in self.there]:
            course.forgive(moment)
        for row, some in course.report(self.present - REPORT_MS).values():
            assert row.size == len(some)
            self.reported.update(some)
        if (news := course.news) and not dies:
            self.progress = self.progress.merged(news)
            course.stored(news)
            course.learn(self.progress, self.present)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["look", "look", "fail", "flush", "die", "die in flush"]), st.integers(0, 40)
    ),
    max_size=60,
)


@given(STEPS, terms, st.integers(1, 12))
def test_no_moment_is_lost_in_silence_whatever_dies(
    steps: list[tuple[int, str, int]], terms: Terms, period: int
) -> None:
    """Three processes look, push, fail to push, report and die at any time; time passes meanwhile."""
    world = World(terms, period * 1_000)
    courses = [world.course() for _ in range(3)]
    for number, what, seconds in steps:
        world.present += seconds * 1_000
        match what:
            case "look" | "fail":
                world.look(courses[number], fails=what == "fail")
            case "flush":
                world.flush(courses[number], dies=False)
            case _:
                if what == "die in flush":
                    world.flush(courses[number], dies=True)
                courses[number] = world.course()
        done = set(range(world.period, world.progress.done + 1, world.period))
        assert done <= world.there | world.reported
    last = world.course()
    world.look(last, fails=False)
    every_moment = set(range(world.period, world.present + 1, world.period))
    world.present += REPORT_MS
    world.flush(last, dies=False)
    assert world.progress.done >= max(every_moment, default=0)
    assert every_moment <= world.there | world.reported
    assert len(world.pushes) == len(set(world.pushes))


def test_losses_beyond_what_is_kept_are_counted() -> None:
    course, terms = Course(0), Terms(1_000)
    due = [moment * 10 for moment in range(1, 2 * LOSSES_MAX + 1)]
    course.take(due, due[-1] + 5_000, terms, now=1.0)
    assert (len(course.losses), course.done) == (LOSSES_MAX, due[0] - 1)
    assert course.report(0.5) == {}, "not yet"
    ((loss, (row, some)),) = course.report(1.0).items()
    assert (loss, row, len(some)) == (Loss.LATE, Row(due[0], due[-1], len(due)), LOSSES_MAX)
    news = course.news
    assert news
    assert news == Progress(due[-1], None, due[-1], len(due))
    course.stored(news)
    assert course.unstored is None


def test_what_two_processes_report_is_counted_once() -> None:
    stored = Progress(0).merged(Progress(3_000, 1_000, 3_000, 2))
    assert stored.merged(Progress(3_000, 1_000, 3_000, 2)) == stored
    assert stored.merged(Progress(4_000, None, 4_000, 1)) == Progress(4_000, 1_000, 4_000, 3)


def test_a_clock_that_was_ahead_leaves_nothing_out() -> None:
    """It leaves out a month of moments, which is not reported, because it is wrong; set right, it begins again."""
    course, terms, month = Course(0), Terms(500_000, "all"), 30 * 86_400_000
    course.take([60_000], 60_000, terms, now=1.0)
    course.pushed(60_000)
    course.skip(Row(120_000, month, 43_199), 2.0)
    course.go_back(300_000, 240_000)
    assert course.done == course.walked == 60_000
    assert course.take([120_000, 180_000, 240_000], 300_000, terms, now=3.0) == [120_000, 180_000, 240_000]


def test_what_a_wrong_clock_has_stored_is_not_followed() -> None:
    course = Course(0)
    course.learn(Progress(10**9), latest=10**6)
    assert course.walked == 0


# -- moments -----------------------------------------------------------------------------------------------------------


@given(st.integers(100, 10**6), st.floats(0, 0.99), st.integers(0, 10**12), st.integers(0, 10**7))
def test_a_row_is_what_a_walk_finds(period_ms: int, part: float, after: int, span: int) -> None:
    schedule = read_schedule(period_ms / 1000, offset=period_ms * part / 1000)
    span = min(span, 50 * period_ms)
    moments, more = walk(schedule, after, after + span, 100)
    row = schedule.row(after, after + span)
    assert not more
    assert row == (Row(moments[0], moments[-1], len(moments)) if moments else None)


@needs_cron
def test_how_long_a_span_the_servers_remember() -> None:
    week = timedelta(days=7).total_seconds()
    for when in (60, "* * * * *", "0 3 * * *"):
        check_span(read_schedule(when), week)
    for when in (59, "*/30 * * * * *"):
        with pytest.raises(ConfigError, match="give at most"):
            check_span(read_schedule(when), week)
    check_span(read_schedule(0.1), 240)


def test_moments_and_milliseconds() -> None:
    assert from_ms(to_ms(EPOCH + timedelta(milliseconds=1_234))) == EPOCH + timedelta(milliseconds=1_234)
    assert key_of("report", EPOCH) == "schedule:report:1970-01-01T00:00:00+00:00"
    assert len(key_of("ü" * 64, EPOCH).encode()) <= 128


# -- what is stored ----------------------------------------------------------------------------------------------------

PROGRESS = st.builds(
    Progress,
    st.integers(0, 10**13),
    st.none() | st.integers(0, 10**13),
    st.none() | st.integers(0, 10**13),
    st.integers(0, 10**9),
)


@given(st.dictionaries(st.builds(Key, st.just("q"), st.sampled_from(["a", "ü b", 'c"d'])), PROGRESS))
def test_what_is_stored_is_read_again(known: dict[Key, Progress]) -> None:
    assert decode(encode(known, "n")) == known


@every(
    "row",
    ["x", [], ["q", "n"], ["q", "n", -1, None, None, 0], ["q", "n", 10**18, None, None, 0], ["q", "n", 1, "", 2, 0]],
)
def test_what_cannot_be_read_of_one_schedule_hides_no_other(row: object) -> None:
    good = encode({Key("q", "good"): Progress(1)}, "n").decode()
    content = json.loads(good)
    content["moments"].append(row)
    assert decode(json.dumps(content).encode()) == {Key("q", "good"): Progress(1)}


@every("data", [b"", b"x", b"[]", b"{}", b'{"format": 9}', b'{"format": 1, "moments": 5}'])
def test_what_cannot_be_read_at_all(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"delete it|upgrade"):
        decode(data)
