"""Read the wall-clock time for all of zkrq: ids, deadlines and schedules.

For intervals there is ``loop.time()``.  ``zkrq.testing`` moves both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def machine_us() -> int:
    """Return the time of this machine's clock, in microseconds since 1970."""
    return time.time_ns() // 1_000


_read_us = machine_us


def now_us() -> int:
    """Return the time in microseconds since 1970."""
    return _read_us()


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return _read_us() // 1_000


def now() -> datetime:
    """Return the present moment, in UTC."""
    return _EPOCH + timedelta(microseconds=_read_us())


def at_ms(ms: float) -> datetime:
    """Return the moment that is these milliseconds after 1970 began, in UTC."""
    return datetime.fromtimestamp(min(max(ms, _FIRST_MS), _LAST_MS) / 1000, UTC)


def after(seconds: float) -> datetime:
    """Return the moment that is these seconds after the present one, in UTC."""
    return at_ms(_read_us() / 1_000 + seconds * 1_000)


_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_000
"""The first and the last moment that Python knows; what was stored of a moment may be damaged."""


def worked() -> float:
    """Return the seconds of processor time that this thread has taken; none is taken where another clock is read."""
    return time.thread_time() if _read_us is machine_us else 0.0


def go_by(read_us: Callable[[], int]) -> None:
    """Make everything in this process read another clock.  For tests."""
    global _read_us
    _read_us = read_us
