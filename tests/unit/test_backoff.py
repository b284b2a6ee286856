"""When an evicted server may come back: later each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkrq.protocol.view import Life, ServerId, View, admit, evict, extend, promote, recover, remove
from zkrq.repair.backoff import FIRST_PAUSE, MAX_PAUSE, STEADY, URGENT_PAUSE, Backoff

A, B, C = (ServerId(name) for name in "abc")
MOMENT = 1e-6
SHORT = 0.01
"""How long a server is a member that comes and goes."""

LOADING = 5.0
"""How long a server is being caught up."""


def life_of(server: ServerId) -> Life:
    return Life(f"run-{server}", f"generation-{server}")


class Story:
    """A view that changes, and what is remembered of it; time goes on where it is told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.backoff = Backoff()
        self.now = now
        self.view = View(1, {id: life_of(id) for id in (A, B, C)}, {}, {}, dict.fromkeys((A, B, C), ""), 1, "me")

    def change(self, after: View) -> None:
        self.backoff.note(self.view, after, self.now)
        self.view = after

    def evict(self, *servers: ServerId) -> None:
        self.change(evict(self.view, servers, by="me", now_ms=7))

    def admit(self, server: ServerId) -> None:
        self.change(admit(self.view, server, life_of(server), by="me"))

    def promote(self, server: ServerId) -> None:
        self.change(promote(self.view, server, life_of(server), by="me"))

    def bring_back(self, server: ServerId, seconds: float = LOADING) -> None:
        self.admit(server)
        self.now += seconds
        self.promote(server)

    def come_and_go(self, server: ServerId, times: int) -> None:
        """Be evicted, and come back as soon as may be, again and again; the last time it stays outside."""
        for _ in range(times - 1):
            self.evict(server)
            self.now += self.pause(server)
            self.bring_back(server)
            self.now += SHORT
        self.evict(server)

    def pause(self, server: ServerId) -> float:
        """Seconds until it may be tried."""
        return self.backoff.seconds_left(server, self.now, urgent=False)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=2 * MOMENT)


def test_unknown_server_may_be_tried_at_once() -> None:
    assert Backoff().seconds_left(A, 0, urgent=False) == 0
    assert Story().pause(A) == 0


@pytest.mark.parametrize("now", [0.0, -50.0, 1e9])
def test_first_pause(now: float) -> None:
    """The clock is the loop's: it may begin anywhere."""
    story = Story(now)
    story.evict(A)
    assert story.pause(A) == about(FIRST_PAUSE)
    story.now += FIRST_PAUSE
    assert story.pause(A) == 0


def test_pause_doubles_with_each_eviction_up_to_the_maximum() -> None:
    pauses: list[float] = []
    for times in range(1, 10):
        story = Story()
        story.come_and_go(A, times)
        pauses.append(story.pause(A))
    assert pauses == [about(seconds) for seconds in (0.5, 1, 2, 4, 8, 16, 32, 60, 60)]


@given(st.integers(1, 200))
def test_pause_is_never_longer_than_the_maximum(times: int) -> None:
    story = Story()
    story.come_and_go(A, times)
    assert story.pause(A) <= MAX_PAUSE + MOMENT


def test_pause_is_short_while_pushes_fail() -> None:
    story = Story()
    story.come_and_go(A, 8)
    assert (story.pause(A), story.backoff.evictions(A)) == (about(MAX_PAUSE), 8)
    assert story.backoff.seconds_left(A, story.now, urgent=True) == about(URGENT_PAUSE)
    story.evict(B)
    assert story.backoff.seconds_left(B, story.now, urgent=True) == about(FIRST_PAUSE)


def test_each_server_has_its_own_pause() -> None:
    story = Story()
    story.come_and_go(A, 4)
    story.evict(B)
    assert story.pause(A) == about(8 * FIRST_PAUSE)
    assert story.pause(B) == about(FIRST_PAUSE)
    assert story.pause(C) == 0


def test_servers_that_fall_out_together_wait_together() -> None:
    story = Story()
    story.evict(A, B)
    assert story.pause(A) == story.pause(B) == about(FIRST_PAUSE)


def test_learner_that_falls_out_waits_longer_too() -> None:
    story = Story()
    story.evict(A)
    story.admit(A)
    story.now += LOADING
    story.evict(A)
    assert story.pause(A) == about(2 * FIRST_PAUSE)


def test_promotion_by_itself_resets_nothing() -> None:
    """A server that comes and goes is a member now and then."""
    story = Story()
    story.come_and_go(A, 3)
    story.bring_back(A)
    story.evict(A)
    assert story.pause(A) == about(8 * FIRST_PAUSE)


@pytest.mark.parametrize(("seconds", "evictions"), [(STEADY - 1, 4), (STEADY, 1), (10 * STEADY, 1)])
def test_steady_member_has_earned_the_first_pause_again(seconds: float, evictions: int) -> None:
    story = Story()
    story.come_and_go(A, 3)
    story.bring_back(A)
    story.now += seconds
    story.evict(A)
    assert story.pause(A) == about(FIRST_PAUSE * 2 ** (evictions - 1))


def test_pause_doubles_again_after_a_steady_time() -> None:
    story = Story()
    story.come_and_go(A, 5)
    story.bring_back(A)
    story.now += STEADY
    story.come_and_go(A, 3)
    assert story.pause(A) == about(4 * FIRST_PAUSE)


def test_time_as_a_learner_earns_nothing() -> None:
    story = Story()
    story.evict(A)
    story.admit(A)
    story.now += 10 * STEADY
    story.evict(A)
    assert story.pause(A) == about(2 * FIRST_PAUSE)


def test_time_outside_earns_nothing() -> None:
    story = Story()
    story.evict(A)
    story.now += 10 * STEADY
    story.bring_back(A)
    story.evict(A)
    assert story.pause(A) == about(2 * FIRST_PAUSE)


def test_changes_of_others_do_not_interrupt_a_steady_time() -> None:
    story = Story()
    story.come_and_go(A, 3)
    story.bring_back(A)
    story.now += STEADY / 2
    story.come_and_go(B, 2)
    story.now += STEADY / 2
    story.evict(A)
    assert story.pause(A) == about(FIRST_PAUSE)


def test_changes_of_others_do_not_make_a_pause_longer() -> None:
    story = Story()
    story.evict(A)
    story.now += FIRST_PAUSE / 2
    story.evict(B)
    assert story.pause(A) == about(FIRST_PAUSE / 2)


def test_whoever_did_not_come_back_from_a_recovery_waits() -> None:
    story = Story()
    story.change(recover(story.view, {A: life_of(A), B: life_of(B)}, by="me", now_ms=7))
    assert story.pause(C) == about(FIRST_PAUSE)
    assert story.pause(A) == story.pause(B) == 0


def test_removed_server_is_forgotten() -> None:
    """Whoever is added under the same name begins anew."""
    story = Story()
    story.come_and_go(A, 5)
    story.change(remove(story.view, A, by="me"))
    assert story.pause(A) == 0
    story.change(extend(story.view, A, "", by="me"))
    story.bring_back(A)
    story.evict(A)
    assert story.pause(A) == about(FIRST_PAUSE)


def test_member_that_is_removed_is_forgotten() -> None:
    story = Story()
    story.change(remove(story.view, A, by="me"))
    assert story.pause(A) == 0
    story.change(extend(story.view, A, "", by="me"))
    assert story.pause(A) == 0


def test_only_the_removed_server_is_forgotten() -> None:
    story = Story()
    story.come_and_go(A, 3)
    story.change(remove(story.view, C, by="me"))
    assert story.pause(A) == about(4 * FIRST_PAUSE)
