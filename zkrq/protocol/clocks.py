"""Bound how far the clocks of clients and servers may differ: a push carries its client's time, and each server judges
its age by its own clock.  No I/O: the readings are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from zkrq.protocol.view import Life, ServerId

PUT_WINDOW = 300.0
"""Seconds after which a push in flight is refused; tombstones live twice as long.  If the clocks of a client and a
server differ by more, every push is refused."""

PUT_WINDOW_MS = round(PUT_WINDOW * 1000)

CLOCK_WARNING = 5.0
"""Seconds of difference between the clocks of a client and a server that cause a warning."""


class Reading(NamedTuple):
    """A reading of a server process's clock, in microseconds, and when a client asked, by the client's own clock."""

    run_id: str
    clock_us: int
    asked_at: float


class Expected(NamedTuple):
    """The time that a server's clock should show, in microseconds, 0: unknown; and for how many milliseconds the client
    has known that process of the server.  It cannot notice a change of the clock that was made before."""

    clock_us: int
    known_ms: int


UNKNOWN = Expected(0, 0)


class Clocks:
    """Predict what the servers' clocks say now, by this client's monotonic clock since each was last read.

    Readings are kept per queue, so that a change of a clock is noticed in all queues.  For a queue that this client has
    not claimed from yet, the first reading of all is used, which the client makes when it connects.
    """

    def __init__(self) -> None:
        self._read: dict[tuple[str, ServerId], tuple[Life, int, float]] = {}

    def expected(self, queue: str, server: ServerId, life: Life, now: float, first: Reading | None) -> Expected:
        """Return what the clock of this life of the server should say.

        ``now``: seconds, when a call is sent.  ``first``: the first reading of this server's clock.
        """
        if first is None or first.run_id != life.run_id:
            return UNKNOWN
        known, clock_us, read_at = self._read.get((queue, server), (None, 0, 0.0))
        if known != life:
            _, clock_us, read_at = first
        return Expected(clock_us + round((now - read_at) * 1e6), round((now - first.asked_at) * 1e3))

    def note(self, queue: str, server: ServerId, life: Life, clock_us: int, sent_at: float) -> None:
        """Keep the reading of a call that was sent at ``sent_at``; so a connection that is always slow looks like no
        jump."""
        self._read[queue, server] = life, clock_us, sent_at


def find_apart(ahead: Mapping[ServerId, float], bound: float) -> list[str]:
    """List the servers whose clocks differ by more than ``bound`` seconds from this client's, and say which clock is
    wrong.

    ``ahead``: seconds by which each server's clock is ahead of this client's, negative if it is late.
    """
    texts: list[str] = []
    for id, seconds in sorted(ahead.items()):
        if abs(seconds) <= bound:
            continue
        others = [other for key, other in ahead.items() if key != id]
        with_client = sum(abs(other) <= bound for other in others)
        with_server = sum(abs(other - seconds) <= bound for other in others)
        odd = "one of the two clocks is wrong"
        if with_client != with_server:
            odd = f"it is {'this client' if with_server > with_client else id} that differs from the others"
        direction = "ahead of" if seconds > 0 else "behind"
        texts.append(f"the clock of server {id} is {abs(seconds):.1f} s {direction} this client's: {odd}")
    return texts
