"""What happens after a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.errors import ConfigError
from zkrq.base.retry import Again, Backoff, GiveUp, Reject, Retry, RetryLater, Snooze, constant, exponential, linear

failures = st.integers(1, 2**32)
chances = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1000)
jitters = st.floats(0, 1)

ENDLESS = 10**400
"""More failures than a float can count."""


@given(seconds, failures, chances)
def test_constant(delay: float, failures: int, chance: float) -> None:
    assert constant(delay)(failures, chance) == delay


@given(seconds, failures, chances, seconds)
def test_linear(delay: float, failures: int, chance: float, maximum: float) -> None:
    assert linear(delay, maximum=maximum)(failures, chance) == min(maximum, delay * failures)


def test_exponential_doubles() -> None:
    backoff = exponential(1.5, maximum=20, jitter=0)
    assert [backoff(failures, 0.9) for failures in range(1, 6)] == [1.5, 3, 6, 12, 20]


@given(seconds, failures, chances, seconds, jitters)
def test_jitter_takes_away_no_more_than_its_part(
    first: float, failures: int, chance: float, maximum: float, jitter: float
) -> None:
    whole = exponential(first, maximum=maximum, jitter=0)(failures, chance)
    assert whole * (1 - jitter) <= exponential(first, maximum=maximum, jitter=jitter)(failures, chance) <= whole
    assert whole <= maximum


def test_jitter_of_half_is_the_default() -> None:
    assert [exponential(8)(1, chance) for chance in (0, 0.5, 1)] == [8, 6, 4]


@given(st.integers(1, 60), chances)
def test_exponential_never_shrinks_by_itself(failures: int, chance: float) -> None:
    backoff = exponential(0.01, maximum=3600)
    assert backoff(failures, chance) <= backoff(failures + 1, chance)


@every("backoff", [constant(1), linear(1), exponential(1), exponential(1, jitter=1)])
@every("failures", [1, 65, 2**32, ENDLESS])
def test_huge_counts_do_not_overflow(backoff: Backoff, failures: int) -> None:
    assert 0 <= backoff(failures, 0.5) <= 3600


@pytest.mark.parametrize("maximum", [linear(10), exponential(10, jitter=0)])
def test_maximum_is_an_hour_unless_said(maximum: Backoff) -> None:
    assert maximum(10_000, 0.5) == 3600


def test_durations_may_be_timedeltas() -> None:
    assert constant(timedelta(minutes=2))(1, 0) == 120
    assert linear(timedelta(seconds=2), maximum=timedelta(seconds=5))(3, 0) == 5
    assert exponential(timedelta(seconds=2), maximum=timedelta(seconds=5))(3, 0) == 5


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), ENDLESS])
def test_bad_durations_are_refused(bad: float) -> None:
    for make in (constant, linear, exponential):
        with pytest.raises(ConfigError):
            make(bad)
    for make in (linear, exponential):
        with pytest.raises(ConfigError):
            make(1, maximum=bad)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_bad_jitter_is_refused(jitter: float) -> None:
    with pytest.raises(ConfigError, match="jitter"):
        exponential(1, jitter=jitter)


# -- the policy ----------------------------------------------------------------------------------------------------


def after(
    retry: Retry, attempts: int, failures: int = 1, delay: float | None = None, age: float = 0.0
) -> Again | GiveUp:
    return retry.after(attempts=attempts, failures=failures, delay=delay, chance=0.5, reason="it burnt", age=age)


def test_again_as_the_backoff_says() -> None:
    assert after(Retry(backoff=linear(3)), attempts=5, failures=2) == Again(6)


@pytest.mark.parametrize("delay", [0.0, 42.0])
def test_handlers_wish_wins(delay: float) -> None:
    assert after(Retry(backoff=constant(3)), attempts=1, delay=delay) == Again(delay)


def test_given_up_in_the_last_delivery() -> None:
    retry = Retry(max_attempts=3)
    assert isinstance(after(retry, attempts=2), Again)
    given_up = after(retry, attempts=3)
    assert given_up == GiveUp("failed in delivery 3 of 3: it burnt")


def test_more_deliveries_than_allowed_are_given_up_too() -> None:
    """Deliveries that ended without a failure count as well: the consumer died of the item."""
    assert isinstance(after(Retry(max_attempts=3), attempts=7), GiveUp)


def test_handlers_wish_does_not_prolong_it() -> None:
    assert isinstance(after(Retry(max_attempts=3), attempts=3, delay=1), GiveUp)


def test_without_a_limit_it_is_never_given_up() -> None:
    assert isinstance(after(Retry(max_attempts=None), attempts=2**32 - 1, failures=2**32 - 1), Again)


@pytest.mark.parametrize("attempts", [0, -1])
def test_bad_limit_is_refused(attempts: int) -> None:
    with pytest.raises(ConfigError, match="max_attempts"):
        Retry(max_attempts=attempts)


class _Short:
    def __call__(self, failures: int, /) -> float:
        return 1.0


def test_bad_backoff_is_refused_where_it_is_given() -> None:
    """And not at the first failure, which would then settle nothing."""
    with pytest.raises(ConfigError, match=r"backoff is 5: must be a function; .* zkrq\.constant\(5\)"):
        Retry(backoff=cast("Backoff", 5))
    with pytest.raises(ConfigError, match=r"backoff takes \(failures: 'int', /\) -> 'float': must take two arguments"):
        Retry(backoff=cast("Backoff", _Short()))
    assert after(Retry(backoff=max), attempts=1, failures=3) == Again(3), "written in C"


def test_retry_later_checks_its_delay() -> None:
    assert RetryLater(delay=timedelta(seconds=3)).delay == 3
    assert RetryLater().delay is None
    with pytest.raises(ConfigError):
        RetryLater(delay=-1)


def test_reject_carries_its_reason() -> None:
    assert (Reject("no such user").reason, str(Reject())) == ("no such user", "rejected")


def test_an_item_that_is_too_old_is_given_up_when_it_fails_or_is_put_off() -> None:
    retry = Retry(max_age=timedelta(minutes=1), backoff=constant(3))
    assert retry.max_age == 60
    assert after(retry, attempts=1, age=59.0) == Again(1), "its last delivery is at that age"
    assert after(retry, attempts=1, age=10.0) == Again(3)
    assert after(retry, attempts=1, age=60.0) == GiveUp("failed at an age of 60 s, of 60: it burnt")
    assert retry.after_snooze(age=10.0, delay=5) == Again(5)
    assert retry.after_snooze(age=10.0, delay=500) == Again(50)
    assert retry.after_snooze(age=61.0, delay=5) == GiveUp("deferred at an age of 61 s, of 60")
    assert Retry().after_snooze(age=10**9, delay=5) == Again(5), "without it, however often and however late"


@pytest.mark.parametrize("age", [0, -1, float("nan"), "x"])
def test_an_age_must_be_a_duration(age: object) -> None:
    with pytest.raises(ConfigError, match="max_age"):
        Retry(max_age=cast("float", age))


@pytest.mark.parametrize("delay", [-1, float("nan"), "x"])
def test_an_item_is_put_off_for_a_duration(delay: object) -> None:
    with pytest.raises(ConfigError, match="delay"):
        Snooze(cast("float", delay))
