"""The scrub's table: the decision about an item that a follower knows and the primary does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.protocol.calls import Copied
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.records import FIRST, Bundle, State, Version, pack, unpack
from zkrq.protocol.scrubbing import Finding, judge, tombstone_for

NOW = 1_800_000_000_000.0
OLD = NOW - 2 * PUT_WINDOW_MS
"""Pushed then, or before: the push is certainly over, whichever of both clocks is behind."""

NO_FLOOR = 0.0
LIVING = [State.QUEUED, State.CLAIMED, State.DEAD]

states = st.sampled_from(list(State))
moments = st.floats(0, 2 * NOW)


def verdict(
    state: State = State.QUEUED,
    pushed_at_ms: float = OLD,
    *,
    has_payload: bool = True,
    floor_ms: float = NO_FLOOR,
    version: Version = FIRST,
) -> Finding:
    record = Bundle(version, state.value, pushed_at_ms=pushed_at_ms)
    return judge(record, has_payload, now_ms=NOW, floor_ms=floor_ms)


@pytest.mark.parametrize("has_payload", [True, False])
@pytest.mark.parametrize("floor_ms", [NO_FLOOR, NOW])
def test_tombstone_waits(has_payload: bool, floor_ms: float) -> None:
    """Each server drops its tombstones when they are old enough; one does not say when its item was pushed."""
    assert verdict(State.GONE, 0, has_payload=has_payload, floor_ms=floor_ms) is Finding.WAIT


@every("state", LIVING)
@every("pushed_at_ms", [OLD + 1, NOW - PUT_WINDOW_MS, NOW, NOW + PUT_WINDOW_MS])
@every("has_payload", [True, False])
@every("floor_ms", [NO_FLOOR, NOW + 2 * PUT_WINDOW_MS])
def test_young_item_waits(state: State, pushed_at_ms: float, has_payload: bool, floor_ms: float) -> None:
    """Its push may still be under way, whatever else is known of it."""
    assert verdict(state, pushed_at_ms, has_payload=has_payload, floor_ms=floor_ms) is Finding.WAIT


@pytest.mark.parametrize("state", LIVING)
def test_item_is_old_after_twice_the_put_window(state: State) -> None:
    assert verdict(state, OLD + 1) is Finding.WAIT
    assert verdict(state, OLD) is Finding.FORWARD


@every("state", LIVING)
@every("floor_ms", [NO_FLOOR, OLD, NOW])
def test_old_item_without_payload_is_forgotten(state: State, floor_ms: float) -> None:
    """A decision came here and its push never did: there is nothing to carry on."""
    assert verdict(state, has_payload=False, floor_ms=floor_ms) is Finding.FORGET


@pytest.mark.parametrize("state", LIVING)
def test_item_from_before_the_floor_is_forgotten(state: State) -> None:
    """The primary may have known its removal and have dropped the tombstone."""
    assert verdict(state, floor_ms=OLD + 1) is Finding.FORGET


@every("state", LIVING)
@every("floor_ms", [NO_FLOOR, OLD - 1, OLD])
def test_old_item_that_was_never_removed_is_carried_on(state: State, floor_ms: float) -> None:
    """The floor is the first moment from which the primary still knows every removal."""
    assert verdict(state, floor_ms=floor_ms) is Finding.FORWARD


@given(states, moments, st.booleans(), moments, moments, st.integers(0, 2**31), st.integers(1, 2**31))
def test_every_case_is_in_the_table(
    state: State, pushed_at_ms: float, has_payload: bool, now_ms: float, floor_ms: float, epoch: int, n: int
) -> None:
    """Version, owner and the like have no say."""
    record = Bundle(Version(epoch, n), state.value, pushed_at_ms=pushed_at_ms)
    old = now_ms - pushed_at_ms >= 2 * PUT_WINDOW_MS
    expected = {
        (True, True, True): Finding.FORWARD,
        (True, True, False): Finding.FORGET,
        (True, False, True): Finding.FORGET,
        (True, False, False): Finding.FORGET,
    }.get((state is not State.GONE and old, has_payload, pushed_at_ms >= floor_ms), Finding.WAIT)
    assert judge(record, has_payload, now_ms=now_ms, floor_ms=floor_ms) is expected


@given(states, moments, st.booleans(), moments, st.floats(0, NOW))
def test_time_only_ends_the_waiting(
    state: State, pushed_at_ms: float, has_payload: bool, floor_ms: float, later: float
) -> None:
    """Nothing that was decided is decided otherwise later."""
    record = Bundle(FIRST, state.value, pushed_at_ms=pushed_at_ms)
    before = judge(record, has_payload, now_ms=NOW, floor_ms=floor_ms)
    after = judge(record, has_payload, now_ms=NOW + later, floor_ms=floor_ms)
    assert after is before or before is Finding.WAIT


def test_pause_of_which_only_a_follower_knows_is_forgotten_when_it_is_old() -> None:
    """It was decided, but never done; it has no payload, as what is left over of an item."""
    assert verdict(State.PAUSED, OLD + 1, has_payload=False) is Finding.WAIT
    assert verdict(State.PAUSED, OLD, has_payload=False) is Finding.FORGET


def test_what_is_forgotten_leaves_the_indexes_of_keys_and_times_to_live() -> None:
    """The server finds them by the record: it needs no other one to know that the item had them."""
    bundle = Bundle(Version(3, 4), "Q", pushed_at_ms=OLD, key="k", expires_us=9, ttl_us=5)
    copied = Copied(b"a", pack(bundle), b"", b"-1", None)
    removed = unpack(tombstone_for(copied, int(NOW)).record)
    assert (removed.states, removed.version) == ("X", Version(3, 5))
    assert (removed.key, removed.expires_us > 0) == ("k", True)
