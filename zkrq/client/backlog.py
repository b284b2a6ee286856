"""Tell whether the ready items of a queue grow or shrink, and when none is left.  Pure.

Ready items also become fewer by a cancel, or because they expire.  That does not go on, so a queue is said to shrink at
most as fast as consumers settle its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from zkrq.client.figures import Figures

TREND_SECONDS = 60.0
"""Seconds over which it is measured whether a queue shrinks, at least."""

TREND_LEAST = 0.05
"""Items per second below which a queue counts as one that stays as it is."""

LOOK_BACK_SECONDS = 600.0
"""Seconds of stored figures from which it is told."""

STORED_SECONDS = 180.0
"""Seconds over which it is measured from stored figures, if there are as many: they are up to ten seconds old."""


class Backlog(NamedTuple):
    """The items of a queue that wait to be claimed.

    ``ready``: how many they are now.  ``per_second``: by how many they grow, negative if they shrink, which is at most
    as fast as consumers settle items, 0: they stay as they are, None: not known, because consumers have not reported
    for a minute.  ``seconds_left``: until none is left if that goes on, 0: there is none, None: they do not shrink, or
    it is not known.
    """

    ready: int
    per_second: float | None = None
    seconds_left: float | None = None


class Seen(NamedTuple):
    """A queue at one moment: its ready items, and how many items consumers had settled by then, from any beginning."""

    at: float
    ready: int
    settled: int


def backlog_of(points: Sequence[Seen], seconds: float = TREND_SECONDS) -> Backlog | None:
    """Tell what ready items do.

    ``points``: the oldest first, the last of which is now.  ``seconds``: over which it is measured, or, if there are
    fewer, over all there are; None is returned for fewer than ``TREND_SECONDS``, and for a queue without ready items.
    """
    if not points or not points[-1].ready or points[-1].at - points[0].at < TREND_SECONDS:
        return None
    now, ready, settled = points[-1]
    before = next((point for point in reversed(points) if point.at <= now - seconds), points[0])
    per_second = max(ready - before.ready, before.settled - settled) / (now - before.at)
    if abs(per_second) < TREND_LEAST:
        return Backlog(ready, 0.0)
    return Backlog(ready, per_second, ready / -per_second if per_second < 0 else None)


def stored_backlog(found: Sequence[Figures], now: float, ready: int) -> Backlog:
    """Tell it from stored figures and the number of items that are ready now.  ``now``: seconds since 1970."""
    points: list[Seen] = []
    settled = 0
    for each in found:
        settled += each.done + each.dead
        end = each.at.timestamp() + each.seconds
        if each.ready is not None and end < now:
            points.append(Seen(end, each.ready, settled))
    points.append(Seen(now, ready, settled))
    return backlog_of(points, STORED_SECONDS) or Backlog(ready, None, None if ready else 0.0)
