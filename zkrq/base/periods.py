"""Check the times of which figures are asked for."""

from __future__ import annotations

from zkrq.base.checks import Duration, check_duration
from zkrq.base.errors import ConfigError
from zkrq.protocol.figures import HOURS_KEPT, MINUTES_KEPT

MINUTE, HOUR = 60, 3600
"""Seconds of what servers add up."""

PERIOD_MAX = HOURS_KEPT * HOUR
"""How far back figures are told, in seconds."""

USUAL = 3600.0
"""How far back figures are told unless something else is asked for, in seconds."""


def check_step(since: float, step: float | None) -> float:
    """Return the seconds of each record for the last ``since`` seconds.  Raises ``ConfigError``."""
    by_minute = since <= MINUTES_KEPT * MINUTE
    unit = MINUTE if by_minute else HOUR
    wanted = unit if step is None else step
    if wanted % unit:
        kept = "a multiple of 60 s" if by_minute else f"a multiple of 3600 s for more than {MINUTES_KEPT // 60} hours"
        raise ConfigError(f"step is {wanted:g} s: must be {kept}")
    return wanted


def check_period(since: Duration, step: Duration | None) -> tuple[float, float]:
    """Return the seconds to look back, and those of each record.  Raises ``ConfigError``."""
    seconds = check_duration("since", since, positive=True)
    wanted = None if step is None else check_duration("step", step, positive=True)
    if max(seconds, wanted or 0) > PERIOD_MAX:
        raise ConfigError(f"figures are kept for {HOURS_KEPT // 24} days: since and step must be at most that")
    return seconds, check_step(seconds, wanted)
