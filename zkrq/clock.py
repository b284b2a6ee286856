"""The time on the wall, as everything in zkrq reads it: what ids, deadlines and schedules show.

For intervals there is ``loop.time()``.  ``zkrq.testing`` moves both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def machine_us() -> int:
    """What this machine's clock shows."""
    return time.time_ns() // 1_000


_read_us = machine_us


def now_us() -> int:
    """Microseconds since 1970."""
    return _read_us()


def now_ms() -> int:
    """Milliseconds since 1970."""
    return _read_us() // 1_000


def now() -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(microseconds=_read_us())


def go_by(read_us: Callable[[], int]) -> None:
    """Have everything in this process go by another clock.  For tests."""
    global _read_us
    _read_us = read_us
