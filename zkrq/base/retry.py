"""Decide what follows a failure: delivery after a delay, or the dead letters.  Pure: the random number is an argument.

Handlers state their wish with ``RetryLater`` and ``Reject``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from zkrq.base.checks import Duration, check_duration
from zkrq.base.errors import ConfigError
from zkrq.base.pauses import doubled

Backoff = Callable[[int, float], float]
"""Takes the number of failures (1 for the first) and a random number in [0, 1); returns the seconds until the next
attempt."""

MAX_COUNT = 2**32
"""Failures that a record can count."""


class RetryLater(Exception):
    """Raised by a handler to have the item delivered again after ``delay`` seconds (None: as the policy says).

    It counts as a failure, so after the policy's ``max_attempts`` deliveries the item is a dead letter.  A handler that
    polls for a long time needs a queue with ``Retry(max_attempts=None)``.  ``async with claim`` handles this exception
    and does not raise it further.
    """

    def __init__(self, delay: Duration | None = None, reason: str | None = None) -> None:
        super().__init__(reason or "retry later")
        self.delay = None if delay is None else check_duration("delay", delay)
        self.reason = reason


class Reject(Exception):
    """Raised by a handler if the item can never be done; it goes to the dead letters with the reason.

    ``async with claim`` handles this exception and does not raise it further.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Constant:
    seconds: float

    def __call__(self, failures: int, chance: float, /) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class _Linear:
    step: float
    maximum: float

    def __call__(self, failures: int, chance: float, /) -> float:
        return min(self.maximum, self.step * min(failures, MAX_COUNT))


@dataclass(frozen=True, slots=True)
class _Exponential:
    first: float
    maximum: float
    jitter: float

    def __call__(self, failures: int, chance: float, /) -> float:
        whole = doubled(self.first, failures - 1, most=self.maximum)
        return whole * (1 - self.jitter * chance)


def constant(seconds: Duration) -> Backoff:
    """Return a backoff of ``seconds`` after every failure."""
    return _Constant(check_duration("seconds", seconds))


def linear(seconds: Duration, *, maximum: Duration = timedelta(hours=1)) -> Backoff:
    """Return a backoff of ``seconds`` after the first failure, twice that after the second, and so on, up to
    ``maximum``."""
    return _Linear(check_duration("seconds", seconds), check_duration("maximum", maximum))


def exponential(seconds: Duration, *, maximum: Duration = timedelta(hours=1), jitter: float = 0.5) -> Backoff:
    """Return a backoff of ``seconds`` after the first failure, doubled with each further one, up to ``maximum``.

    ``jitter`` is the random part of each delay, 0 to 1, so that items that failed together do not come back together
    ("equal jitter": Brooker, Exponential Backoff And Jitter, 2015).
    """
    if not 0 <= jitter <= 1:
        raise ConfigError(f"jitter is {jitter}, must be between 0 and 1")
    return _Exponential(check_duration("seconds", seconds), check_duration("maximum", maximum), jitter)


def _check_backoff(backoff: Backoff) -> None:
    """Raise ``ConfigError`` for what cannot be called with a number of failures and a random number."""
    if not callable(backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"backoff is {backoff!r}: must be a function; for a fixed delay zkrq.constant({backoff!r})")
    try:
        signature = inspect.signature(backoff)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(1, 0.5)
    except TypeError:
        wanted = "the number of failures and a random number"
        raise ConfigError(f"backoff takes {signature}: must take two arguments, {wanted}") from None


@dataclass(frozen=True, slots=True)
class Again:
    """Deliver the item again after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Move the item to the dead letters."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Policy of a queue: at most ``max_attempts`` deliveries (None: no limit), ``backoff`` between them.

    A delivery that its holder released does not count: it did not fail, and the holder is alive.

    ``holds_group``: in a group that keeps the order (``Groups(ordered=True)``), whether later items wait until a failed
    one has succeeded or is a dead letter; if not, they are delivered while it waits for its next attempt.
    """

    max_attempts: int | None = 20
    backoff: Backoff = field(default_factory=lambda: exponential(1.0, maximum=300.0))
    holds_group: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(f"max_attempts is {self.max_attempts}, must be at least 1, or None for no limit")
        _check_backoff(self.backoff)

    def after(self, *, attempts: int, failures: int, delay: float | None, chance: float, reason: str) -> Again | GiveUp:
        """Decide about an item that failed in delivery number ``attempts``, and has failed ``failures`` times in total.

        ``delay``: seconds that the handler asked for, None to leave it to the policy.
        """
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return GiveUp(f"failed in delivery {attempts} of {self.max_attempts}: {reason}")
        if delay is None:
            delay = check_duration("the result of the backoff", self.backoff(failures, chance))
        return Again(delay)
