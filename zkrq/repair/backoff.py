"""When a server that fell out of the view may come back: later each time, so that one that comes and goes does not keep
everybody busy.  Plain values, no clock: whoever asks says what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from zkrq.protocol.view import ServerId, View

FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0
"""Seconds between an eviction and the first try; doubled with each eviction, from the one to the other."""

STEADY = 120.0
"""A server that was a member for so many seconds has earned the first pause again."""

MAX_DOUBLINGS = 10


@dataclass(slots=True)
class _Standing:
    evictions: int = 0
    not_before: float = float("-inf")
    member_since: float = float("inf")


class Backoff:
    """What is remembered of each server, by one client; lost with it, which costs no more than a try too early."""

    def __init__(self) -> None:
        self._servers: dict[ServerId, _Standing] = {}

    def note(self, before: View, after: View, now: float) -> None:
        """The view has changed."""
        for id in after.members.keys() - before.members.keys():
            self._of(id).member_since = now
        for id in before.receivers.keys() - after.receivers.keys():
            standing = self._of(id)
            if now - standing.member_since >= STEADY:
                standing.evictions = 0
            standing.member_since = float("inf")
            standing.not_before = now + min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(standing.evictions, MAX_DOUBLINGS))
            standing.evictions += 1
        for id in self._servers.keys() - after.servers.keys():
            del self._servers[id]

    def may_try(self, server: ServerId, now: float) -> bool:
        """Whether this server has waited long enough."""
        return now >= self._of(server).not_before

    def _of(self, server: ServerId) -> _Standing:
        return self._servers.setdefault(server, _Standing())
