"""Slack: the rule, and how busy loops, slow servers and better days change what it is given."""

from __future__ import annotations

import math

import pytest

from tests.every import every
from zkrq.base import clock
from zkrq.replication.slack import (
    BUSY_MOST,
    FEW_CALLS,
    LATELY_SECONDS,
    MEAN_OVER,
    STRETCH_MOST,
    WINDOW_SECONDS,
    Slack,
    has_slack,
)

QUICK = 0.5
"""Seconds of a round trip; any number would do."""


@every(
    ("calls", "busy", "round_trip", "expected"),
    [
        (1, 0.0, QUICK, True),
        (FEW_CALLS, BUSY_MOST, STRETCH_MOST * QUICK, True),
        (FEW_CALLS + 1, 0.0, QUICK, False),
        (1, BUSY_MOST + 0.01, QUICK, False),
        (1, 0.0, STRETCH_MOST * QUICK + 0.01, False),
    ],
)
def test_slack_needs_few_calls_an_idle_loop_and_quick_round_trips(
    calls: int, busy: float, round_trip: float, expected: bool
) -> None:
    assert has_slack(calls, busy, round_trip, QUICK) is expected


class Worked:
    """Processor time of this thread."""

    seconds = 100.0


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Worked:
    worked = Worked()
    monkeypatch.setattr(clock, "worked", lambda: worked.seconds)
    return worked


def measured(worked: Worked, *, busy: float = 0.0) -> Slack:
    """Return what has measured a window in which the loop was busy for this share of the time."""
    slack = Slack()
    slack.note(1.0 - QUICK, 1.0)
    worked.seconds += busy
    slack.note(2.0 - QUICK, 2.0)
    return slack


def test_there_is_none_until_a_window_was_measured(worked: Worked) -> None:
    slack = Slack()
    assert not slack.allows(1)
    slack.note(1.0 - QUICK, 1.0)
    assert not slack.allows(1), "how busy the loop was before is not known"
    for part in (1 / 2, 1):
        now = 1.0 + part * WINDOW_SECONDS
        slack.note(now - QUICK, now)
        assert slack.allows(1) is (part == 1)


@every(("busy", "expected"), [(0.0, True), (BUSY_MOST, True), (BUSY_MOST + 0.01, False), (1.0, False)])
def test_a_busy_loop_has_none(worked: Worked, busy: float, expected: bool) -> None:
    slack = measured(worked, busy=busy)
    assert slack.busy == pytest.approx(busy)
    assert slack.allows(1) is expected


def test_how_busy_it_is_counts_from_the_last_window_on(worked: Worked) -> None:
    slack = measured(worked, busy=1.0)
    slack.note(2.5, 3.0)
    assert slack.busy == 0.0
    worked.seconds += 1.0
    slack.note(3.5, 4.0)
    assert slack.busy == 1.0


def test_it_ends_when_round_trips_get_longer_and_not_with_a_single_one(worked: Worked) -> None:
    slack = measured(worked)
    slack.note(0.0, (STRETCH_MOST + 1) * QUICK)
    assert slack.allows(1)
    for _ in range(3 * MEAN_OVER):
        slack.note(0.0, (STRETCH_MOST + 1) * QUICK)
    assert not slack.allows(1)


def test_the_least_round_trip_is_forgotten_in_the_end(worked: Worked) -> None:
    """The way to the servers may have become longer."""
    slack, at = measured(worked), 2.0
    assert slack.least == QUICK
    for _ in range(2):
        at += LATELY_SECONDS - 0.1
        slack.note(at - 10 * QUICK, at)
        assert slack.least == QUICK
    at += LATELY_SECONDS
    slack.note(at - 10 * QUICK, at)
    assert slack.least == 10 * QUICK


def test_a_shorter_round_trip_is_the_least_from_then_on(worked: Worked) -> None:
    slack = measured(worked)
    slack.note(2.0, 2.1)
    assert slack.least == pytest.approx(0.1)


def test_nothing_takes_processor_time_where_another_clock_is_read() -> None:
    """A simulated client would decide otherwise each time."""
    assert 0 < clock.worked() < math.inf
    clock.go_by(lambda: 7)
    try:
        assert clock.worked() == 0.0
    finally:
        clock.go_by(clock.machine_us)
