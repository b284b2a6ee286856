"""Decide when a server that left the view may come back.

Each eviction doubles its pause, so that a server that comes and goes does not keep all clients busy.  This module reads
no clock: the caller passes the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zkrq.base.pauses import doubled

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId, View

FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0
"""Seconds from an eviction to the next attempt: after the first eviction, and at most.  Each eviction doubles the
pause."""

URGENT_PAUSE = 2.0
"""Seconds; the longest pause while pushes fail because too few servers are in sync."""

STEADY = 120.0
"""Seconds after which a member's earlier evictions no longer count."""


@dataclass(slots=True)
class _History:
    evictions: int = 0
    evicted_at: float = float("-inf")
    pause: float = 0.0
    member_since: float = float("inf")


class Backoff:
    """Remember the evictions of each server.  They are lost when the client ends, so one attempt may come too early."""

    def __init__(self) -> None:
        self._servers: dict[ServerId, _History] = {}

    def note(self, before: View, after: View, now: float) -> None:
        """Note which servers entered the view, and which left it."""
        for id in after.members.keys() - before.members.keys():
            self._of(id).member_since = now
        for id in before.receivers.keys() - after.receivers.keys():
            history = self._of(id)
            if now - history.member_since >= STEADY:
                history.evictions = 0
            history.member_since = float("inf")
            history.evicted_at, history.pause = now, doubled(FIRST_PAUSE, history.evictions, most=MAX_PAUSE)
            history.evictions += 1
        for id in self._servers.keys() - after.servers.keys():
            del self._servers[id]

    def seconds_left(self, server: ServerId, now: float, *, urgent: bool) -> float:
        """Return the rest of this server's pause, 0 if it is over.  ``urgent``: pushes fail until it is back."""
        history = self._of(server)
        pause = min(history.pause, URGENT_PAUSE) if urgent else history.pause
        return max(0.0, history.evicted_at + pause - now)

    def evictions(self, server: ServerId) -> int:
        """Return how often it was evicted, between which it was in sync for a short time only."""
        return self._of(server).evictions

    def _of(self, server: ServerId) -> _History:
        return self._servers.setdefault(server, _History())
