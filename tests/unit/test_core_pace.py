"""The number of items claimed ahead, derived from the pace of the consumers."""

from __future__ import annotations

import pytest

from zkrq.consuming.core.pace import AHEAD_BYTES, AHEAD_MAX, AHEAD_SECONDS, PREFETCH_SECONDS, Pace, PrefetchLimit

BY_PACE = PrefetchLimit(None)


@pytest.fixture
def pace() -> Pace:
    started = Pace()
    started.begin(0.0)
    return started


def target(pace: Pace, now: float, *, is_certain: bool = True) -> int:
    pace.adapt(now, is_certain=is_certain)
    return pace.target


def test_a_stream_without_a_wish_gets_what_it_takes_in_a_moment(pace: Pace) -> None:
    pace.join(BY_PACE)
    assert target(pace, 1.0) == 0
    pace.taken += 101
    assert target(pace, 2.0) == pytest.approx(100 * PREFETCH_SECONDS, rel=0.5)


def test_the_first_item_tells_no_pace(pace: Pace) -> None:
    pace.join(BY_PACE)
    pace.taken += 1
    assert target(pace, 0.001) == 0


@pytest.mark.parametrize("limit", [PrefetchLimit(5, fixed=True), PrefetchLimit(5)])
def test_a_wish_is_met_before_anything_was_taken(pace: Pace, limit: PrefetchLimit) -> None:
    pace.join(limit)
    pace.join(limit)
    assert target(pace, 0.0) == 10
    pace.leave(limit)
    assert target(pace, 0.0) == 5


def test_nothing_is_claimed_ahead_while_the_session_is_not_certain(pace: Pace) -> None:
    pace.join(PrefetchLimit(5, fixed=True))
    assert target(pace, 0.0, is_certain=False) == 0


def test_large_items_and_many_wishes_are_bounded(pace: Pace) -> None:
    pace.join(PrefetchLimit(10_000, fixed=True))
    assert target(pace, 0.0) == AHEAD_MAX
    pace.note_claimed(0.0, items=2, size=AHEAD_BYTES, buffer_was_empty=True)
    assert target(pace, 0.0) == 2


def test_for_batches_whole_ones_are_claimed_ahead(pace: Pace) -> None:
    """Part of one would save its consumer no request."""
    pace.join(PrefetchLimit(None, at_once=100))
    pace.taken += 901
    assert target(pace, 1.0) == 0, "90 in a moment"
    pace.taken += 3_000
    assert target(pace, 2.0) == 200


def test_the_largest_batch_counts_while_its_stream_is_there(pace: Pace) -> None:
    batches = PrefetchLimit(None, at_once=100)
    pace.join(BY_PACE)
    pace.join(batches)
    assert (pace.at_once, pace.eager) == (100, 101)
    pace.join(batches)
    pace.leave(batches)
    assert (pace.at_once, pace.eager) == (100, 101)
    pace.leave(batches)
    assert (pace.at_once, pace.eager) == (1, 1)


def test_what_is_not_taken_goes_back_except_what_a_stream_asked_for(pace: Pace) -> None:
    pace.join(PrefetchLimit(3, fixed=True))
    pace.join(PrefetchLimit(20))
    assert target(pace, 0.0) == 23
    pace.note_claimed(0.0, items=23, size=23, buffer_was_empty=True)
    assert pace.surplus(AHEAD_SECONDS / 2, 23) == 0, "it is not yet time to look"
    assert pace.surplus(AHEAD_SECONDS, 23) == 20
    assert target(pace, AHEAD_SECONDS) == 3, "a stalled stream has nothing claimed ahead"
    pace.join(BY_PACE)
    assert target(pace, AHEAD_SECONDS) == 23, "a new stream begins without that"


def test_what_the_pace_will_take_by_the_next_look_stays(pace: Pace) -> None:
    pace.join(BY_PACE)
    pace.note_claimed(0.0, items=30, size=30, buffer_was_empty=True)
    pace.taken += 10
    assert pace.surplus(AHEAD_SECONDS, 20) == 10
