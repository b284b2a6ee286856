"""How far the clocks of clients and servers may be apart: a push carries its client's time, and each server judges its
age by its own.  No I/O: what the clocks show is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkrq.protocol.view import Life, ServerId

PUT_WINDOW = 300.0
"""Seconds after which a push that is still on its way is refused; tombstones live twice as long.  Of a client and a
server whose clocks are further apart every push is refused."""

PUT_WINDOW_MS = round(PUT_WINDOW * 1000)

CLOCK_WARNING = 5.0
"""Seconds between the clocks of a client and a server that are worth a warning."""


class Reading(NamedTuple):
    """What the clock of a server's process said, in microseconds, and when by its own clock a client asked."""

    run_id: str
    clock_us: int
    asked_at: float


class Clocks:
    """What the servers' clocks should say by now, by this client's monotonic clock since each was last read.

    For each queue by itself, so that a clock that was set is noticed in all of them.  What counts for a queue that this
    client has not claimed from yet is the first reading of all, which it makes when it connects.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[str, ServerId], tuple[Life, int, float]] = {}

    def expected(self, queue: str, server: ServerId, life: Life, now: float, first: Reading | None = None) -> int:
        """Microseconds, 0 where this life of the server was not read.

        ``now``: seconds, when a call is sent.  ``first``: the first reading of this server's clock.
        """
        known, clock_us, read_at = self._read.get((queue, server), (None, 0, 0.0))
        if known != life:
            if first is None or first.run_id != life.run_id:
                return 0
            _, clock_us, read_at = first
        return clock_us + round((now - read_at) * 1e6)

    def note(self, queue: str, server: ServerId, life: Life, clock_us: int, sent_at: float) -> None:
        """Keep what a call that was sent at ``sent_at`` has read; so a line that is always slow looks like no jump."""
        self._read[queue, server] = life, clock_us, sent_at


def find_apart(ahead: Mapping[ServerId, float], bound: float) -> list[str]:
    """Which servers' clocks are more than ``bound`` seconds from this client's, as texts that say whose is the odd one.

    ``ahead``: seconds by which each server's clock is ahead of this client's, negative: behind.
    """
    texts: list[str] = []
    for id, seconds in sorted(ahead.items()):
        if abs(seconds) <= bound:
            continue
        others = [other for key, other in ahead.items() if key != id]
        with_client = sum(abs(other) <= bound for other in others)
        with_server = sum(abs(other - seconds) <= bound for other in others)
        odd = "one of the two is wrong"
        if with_client != with_server:
            odd = f"it is {'this client' if with_server > with_client else id} that differs from the others"
        direction = "ahead of" if seconds > 0 else "behind"
        texts.append(f"the clock of server {id} is {abs(seconds):.1f} s {direction} this client's: {odd}")
    return texts
