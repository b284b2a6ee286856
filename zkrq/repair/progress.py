"""Measure the progress and the speed of a catch-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PROGRESS_SECONDS = 2.0
"""Seconds between two reports of progress."""


class Progress(NamedTuple):
    """The progress of a catch-up: items copied, of about ``total`` (tombstones included), items per second, and the
    seconds left at that rate, None while it is unknown."""

    copied: int
    total: int
    rate: float
    seconds_left: float | None


class Meter:
    """Turn counts of copied items into reports of progress."""

    def __init__(self, now: Callable[[], float], report: Callable[[Progress], None], before: int = 0) -> None:
        """Begin to measure.  ``now``: returns seconds, monotonic.  ``before``: items that an earlier try has copied."""
        self._now = now
        self._report = report
        self._before = before
        self._began = self._reported = now()

    def note(self, copied: int, total: int) -> None:
        """Report, unless the last report is recent and copying continues."""
        now = self._now()
        if now - self._reported < PROGRESS_SECONDS and copied < total:
            return
        self._reported = now
        elapsed = now - self._began
        rate = max(0, copied - self._before) / elapsed if elapsed > 0 else 0.0
        left = max(0, total - copied) / rate if rate > 0 else None
        self._report(Progress(copied, total, rate, left))
