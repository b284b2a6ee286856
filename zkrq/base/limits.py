"""Limit what a queue keeps, and how much of it is worked on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zkrq.base.checks import Duration, check_count, check_duration, check_rate_in, in_seconds

DEAD_LETTERS_MAX = 100_000
"""Dead letters that a queue keeps by default."""


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Limits of a queue's dead letters: their number, and their age in seconds; None: no limit.  The oldest are removed
    first.

    ``expired``: items that outlive their ``ttl`` become dead letters too, with the reason "expired"; otherwise they are
    dropped.  The calls that bury and those that claim enforce the limits, so give all consumers the same ones.
    """

    max_count: int | None = DEAD_LETTERS_MAX
    max_age: Duration | None = None
    expired: bool = False

    def __post_init__(self) -> None:
        if self.max_count is not None:
            check_count("max_count", self.max_count, least=1)
        if self.max_age is not None:
            check_duration("max_age", self.max_age, positive=True)

    @property
    def max_age_ms(self) -> int:
        """``max_age`` in milliseconds, 0 if it is None."""
        return 0 if self.max_age is None else max(1, round(check_duration("max_age", self.max_age) * 1000))


CONCURRENCY_MAX = 1_000_000
"""Greatest limit of items claimed at once; whoever needs more needs no limit."""

RATE_MAX = 1_000_000
"""Greatest number of claims in a rate."""

RATE_SECONDS = 0.1, 3600.0
"""Shortest and longest time of a rate, in seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a queue over all workers and processes.  ``Limits()`` has none: it takes those away that a queue has.

    ``concurrency``: items claimed at once, at most; None: no limit.  ``rate``: claims begun within a time, at most: a
    number and seconds (0.1 to 3600) or a ``timedelta``, as in ``(50, 1.0)``; None: no limit.

    The queue's primary keeps them exactly, and the next one after a failover never allows more.  Nothing is claimed
    ahead from a queue that has limits.  Raises ``ConfigError`` for bad values.
    """

    concurrency: int | None = None
    rate: tuple[int, Duration] | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, least=1, most=CONCURRENCY_MAX)
        if self.rate is not None:
            object.__setattr__(self, "rate", check_rate_in("rate", self.rate, most=RATE_MAX, within=RATE_SECONDS))

    def __str__(self) -> str:
        said = [] if self.concurrency is None else [f"{self.concurrency:,} at once"]
        if self.rate is not None:
            count, seconds = self.rate
            said.append(f"{count:,} in {in_seconds(seconds):g} s")
        return ", ".join(said) or "no limits"

    @property
    def settings(self) -> str:
        """As they are stored (``lua/_limits.lua``)."""
        words = [] if self.concurrency is None else [f"concurrency={self.concurrency}"]
        if self.rate is not None:
            count, seconds = self.rate
            words.append(f"rate={count}/{round(in_seconds(seconds) * 1000)}")
        return ",".join(words)

    @staticmethod
    def read(text: str) -> Limits:
        """Read the limits in a queue's record, or in their part of it; what another version has added is left out."""
        own = re.search(r"(?:^| )limits:(\S*)", text)
        return Limits.of(own[1] if own else "")

    @staticmethod
    def of(settings: str) -> Limits:
        """Read limits as they are stored."""
        concurrency = re.search(r"(?:^|,)concurrency=(\d+)", settings)
        rate = re.search(r"(?:^|,)rate=(\d+)/(\d+)", settings)
        return Limits(
            int(concurrency[1]) if concurrency else None, (int(rate[1]), int(rate[2]) / 1000) if rate else None
        )
