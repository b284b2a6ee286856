"""Limit what a queue keeps, and share it between groups."""

from __future__ import annotations

from dataclasses import dataclass

from zkrq.base.checks import Duration, check_count, check_duration

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


@dataclass(frozen=True, slots=True)
class Groups:
    """Declare that all items of a queue are in groups: those that are pushed without a ``group`` are one of their own.

    Without this option such items stand in line one by one, and each counts as much as a whole group.  Give all
    producers of the queue the same option.
    """
