"""Decide what follows a failure: delivery after a delay, or the dead letters.  Pure: the random number is an argument.

Handlers state their wish with ``RetryLater`` and ``Reject``.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from zkrq.base.checks import Duration, check_duration
from zkrq.base.errors import ConfigError, leaves_of, message_of, reason_of, text_of
from zkrq.base.meant import names_fields
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

    def __init__(self, delay: Duration | None = None, reason: str | BaseException | None = None) -> None:
        """``reason``: a text, or an exception, whose type and text are kept."""
        self.delay = None if delay is None else check_duration("delay", delay)
        self.reason = None if reason is None else _text_of(reason)
        super().__init__(self.reason or "retry later")


class Snooze(Exception):
    """Raised by a handler to have the item delivered again after ``delay`` seconds, because it is too early for it.

    It counts neither as a failure nor as a delivery, however often; ``Retry(max_age=...)`` bounds it.  In an ordered
    group the item holds its group meanwhile.  ``async with claim`` handles this exception and does not raise it
    further.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = check_duration("delay", delay)
        super().__init__(f"deferred for {self.delay:g} s")


class Reject(Exception):
    """Raised by a handler if the item can never be done; it goes to the dead letters with the reason.

    Inside a ``TaskGroup`` it means the same.  ``async with claim`` handles this exception and does not raise it
    further.
    """

    def __init__(self, reason: str | BaseException = "rejected") -> None:
        """``reason``: a text, or an exception, whose type and text are kept."""
        self.reason = _text_of(reason)
        super().__init__(self.reason)


class NoHandler(Exception):
    """Raised by a worker in the place of a handler: it has none for the task of an item."""


class NotKnown(NoHandler, Snooze):
    """The item goes back for other workers, which may have one."""

    def __init__(self, delay: float, what: str) -> None:
        super().__init__(delay)
        self.args = (f"no handler for {what}",)


class GivenUp(NoHandler, Reject):
    """No worker had one for long."""


def _text_of(reason: object) -> str:
    """Return a reason as a text, whatever it is: an error here would take the place of the handler's wish."""
    text = message_of(reason) if isinstance(reason, BaseException) else text_of(reason)
    return text.replace("\0", " ")


@dataclass(frozen=True, slots=True)
class Failed:
    """What an exception says about an item: its delivery has failed.

    ``delay``: seconds until the next one, None: as the policy says.  ``is_final``: it can never be done.  ``is_wish``:
    the handler said what is to become of it, so the exception is not raised further.  ``is_snooze``: it has not failed,
    and comes again after ``delay``.
    """

    reason: str
    delay: float | None = None
    is_final: bool = False
    is_wish: bool = False
    is_snooze: bool = False


def judge(error: BaseException) -> Failed:
    """Return what an exception that ends the work on an item says about it.

    A group whose leaves are all of one verdict, as ``asyncio.TaskGroup`` raises them, is that verdict: of several
    ``RetryLater`` or of several ``Snooze`` the longest delay.
    """
    leaves = leaves_of(error)
    if all(isinstance(leaf, Reject) for leaf in leaves):
        return Failed(_reasons(leaves, "rejected"), is_final=True, is_wish=True)
    if all(isinstance(leaf, RetryLater) for leaf in leaves):
        return Failed(_reasons(leaves, "RetryLater"), delay=_longest(leaves), is_wish=True)
    if all(isinstance(leaf, Snooze) for leaf in leaves):
        return Failed("Snooze", delay=_longest(leaves), is_wish=True, is_snooze=True)
    return Failed(reason_of(error))


def is_wish(error: BaseException | None) -> bool:
    """Tell whether an exception only says what is to become of the item."""
    return error is not None and judge(error).is_wish


def _reasons(leaves: Sequence[BaseException], usual: str) -> str:
    reasons = [_text_of(reason) for leaf in leaves if (reason := _attribute(leaf, "reason")) is not None]
    return "; ".join(dict.fromkeys(filter(None, reasons))) or usual


def _longest(leaves: Sequence[BaseException]) -> float | None:
    """Return the longest delay that is asked for, None: none is."""
    delays: list[float] = []
    for leaf in leaves:
        if (delay := _attribute(leaf, "delay")) is not None:
            with suppress(ConfigError):
                delays.append(check_duration("delay", delay))
    return max(delays, default=None)


def _attribute(error: BaseException, name: str) -> Any:
    """Return what an exception says, None for nothing: a subclass may leave it out, or make it when it is asked."""
    try:
        return getattr(error, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def interrupts(error: BaseException, *, cancelled: bool) -> bool:
    """Tell whether an exception says nothing about the item, because it ends whatever works on it.

    That is Ctrl-C, the end of a generator, and a cancellation, unless nobody has ``cancelled`` the task: then user code
    has raised ``CancelledError`` by itself, and would do so again in each delivery.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    return cancelled and all(isinstance(leaf, asyncio.CancelledError) for leaf in leaves_of(error))


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


@names_fields("zkrq.Retry")
@dataclass(frozen=True, slots=True)
class Retry:
    """Policy of a queue: at most ``max_attempts`` deliveries (None: no limit), ``backoff`` between them.

    A delivery that its holder released does not count: it did not fail, and the holder is alive.

    ``holds_group``: in a group that keeps the order (``Groups(ordered=True)``), whether later items wait until a failed
    one has succeeded or is a dead letter; if not, they are delivered while it waits for its next attempt.

    ``per_step``: whether what a handler saves (``claim.save``, ``claim.step``) begins the count of deliveries and
    failures anew, so that ``max_attempts`` and ``backoff`` are for each step of the work.

    ``max_age``: seconds since the push (None: no limit) after which an item that fails, or is put off (``Snooze``),
    becomes a dead letter.  Its last delivery is then, whatever delay is asked for.  A consumer that dies is counted by
    ``max_attempts`` alone.
    """

    max_attempts: int | None = 20
    backoff: Backoff = field(default_factory=lambda: exponential(1.0, maximum=300.0))
    holds_group: bool = True
    per_step: bool = False
    max_age: Duration | None = None

    def __post_init__(self) -> None:
        if self.max_age is not None:
            object.__setattr__(self, "max_age", check_duration("max_age", self.max_age, positive=True))
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ConfigError(f"max_attempts is {self.max_attempts}, must be at least 1, or None for no limit")
        _check_backoff(self.backoff)

    def after(
        self, *, attempts: int, failures: int, delay: float | None, chance: float, reason: str, age: float = 0.0
    ) -> Again | GiveUp:
        """Decide about an item that failed in delivery number ``attempts``, and has failed ``failures`` times in total.

        ``delay``: seconds that the handler asked for, None to leave it to the policy.  ``age``: seconds since the push.
        """
        left = self._left(age)
        if left <= 0:
            return GiveUp(f"failed at an age of {age:.0f} s, of {self.max_age:g}: {reason}")
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return GiveUp(f"failed in delivery {attempts} of {self.max_attempts}: {reason}")
        if delay is None:
            delay = check_duration("the result of the backoff", self.backoff(failures, chance))
        return Again(min(delay, left))

    def after_snooze(self, *, age: float, delay: float) -> Again | GiveUp:
        """Decide about an item that did not fail, and is to come again after ``delay`` seconds."""
        left = self._left(age)
        if left <= 0:
            return GiveUp(f"deferred at an age of {age:.0f} s, of {self.max_age:g}")
        return Again(min(delay, left))

    def _left(self, age: float) -> float:
        """Return the seconds until an item of this age is too old."""
        return math.inf if self.max_age is None else cast("float", self.max_age) - age
