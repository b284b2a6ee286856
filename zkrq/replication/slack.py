"""Tell whether there is slack, so that a small batch leaves at once instead of waiting for the one in flight.

Group commit saves processor time, here and on the servers, and costs a call up to one round trip of waiting.  That is
worth it where time is scarce, and only there.  ``has_slack`` is the rule; ``Slack`` measures what it asks for:

- Few calls wait or are in flight.  By Little's law their number is the rate of calls times the time that each takes,
  so it tells a moderate load from a crowd before anything else is measured.
- The event loop is mostly idle.  A few callers that call again as soon as they are answered are few calls as well, but
  they keep the loop busy: together they pay for one batch, apart for one each.
- Round trips take about as long as the least one lately (BBR's measure of a queue on the way: Cardwell et al., 2016).
  Otherwise calls queue up somewhere, here or on the servers, by this program or by others.
"""

from __future__ import annotations

import math

from zkrq.base import clock

FEW_CALLS = 4
"""Calls, waiting and in flight together, up to which none waits for another."""

BUSY_MOST = 0.5
"""Share of the time that the event loop's thread may be busy."""

STRETCH_MOST = 3.0
"""Mean round trip, in terms of the least one lately, beyond which calls queue up somewhere."""

MEAN_OVER = 4
"""Approximate number of round trips over which the mean is taken: a single late one tells nothing."""

WINDOW_SECONDS = 0.02
"""Seconds, at least, over which the share is measured."""

LATELY_SECONDS = 10.0
"""Seconds for which the least round trip counts: it is forgotten after this time to twice as much."""


def has_slack(calls: int, busy: float, round_trip: float, least: float) -> bool:
    """Tell whether a call is to leave beside the batches in flight.

    ``calls``: that wait or are in flight, this one included.  ``busy``: share of the time that the event loop is.
    ``round_trip``: mean seconds of the last ones; ``least``: of the shortest one lately.
    """
    return calls <= FEW_CALLS and busy <= BUSY_MOST and round_trip <= STRETCH_MOST * least


class Slack:
    """Measure the share of the time that the event loop is busy, and round trips.  At first there is no slack."""

    __slots__ = ("_former", "_since", "_this", "_turned_at", "_worked", "busy", "round_trip")

    def __init__(self) -> None:
        self.busy = 1.0
        """Share of the time that the event loop was busy, over the last ``WINDOW_SECONDS`` or more."""
        self.round_trip = math.inf
        """Mean seconds of the last round trips."""
        self._since = -math.inf
        self._worked = 0.0
        self._former = self._this = math.inf  # the least round trips of the last and of this ``LATELY_SECONDS``
        self._turned_at = -math.inf

    @property
    def least(self) -> float:
        """Seconds of the shortest round trip lately."""
        return min(self._former, self._this)

    def note(self, began: float, now: float) -> None:
        """Note a round trip from its beginning until now, by ``loop.time()``."""
        seconds = now - began
        mean = self.round_trip
        self.round_trip = seconds if mean == math.inf else mean + (seconds - mean) / MEAN_OVER
        if now - self._turned_at >= LATELY_SECONDS:
            self._former, self._this, self._turned_at = self._this, seconds, now
        elif seconds < self._this:
            self._this = seconds
        elapsed = now - self._since
        if elapsed >= WINDOW_SECONDS:
            worked = clock.worked()
            self.busy = (worked - self._worked) / elapsed if elapsed < math.inf else 1.0
            self._since, self._worked = now, worked

    def allows(self, calls: int) -> bool:
        """Tell whether a call is to leave beside the batches in flight; see ``has_slack``."""
        return has_slack(calls, self.busy, self.round_trip, self.least)
