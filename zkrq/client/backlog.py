"""Tell whether the ready items of a queue grow or shrink, and when none is left.  Pure."""

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

    ``ready``: how many they are now.  ``per_second``: by how many they grow, negative if they shrink, 0: they stay as
    they are, None: not known, because consumers have not reported for a minute.  ``seconds_left``: until none is left
    if that goes on, 0: there is none, None: they do not shrink, or it is not known.
    """

    ready: int
    per_second: float | None = None
    seconds_left: float | None = None


def backlog_of(points: Sequence[tuple[float, int]], seconds: float = TREND_SECONDS) -> Backlog | None:
    """Tell what ready items do.

    ``points``: seconds and the number of ready items then, the oldest first, the last of which is now.  ``seconds``:
    over which it is measured, or, if there are fewer, over all there are; None is returned for fewer than
    ``TREND_SECONDS``, and for a queue without ready items.
    """
    if not points or not points[-1][1] or points[-1][0] - points[0][0] < TREND_SECONDS:
        return None
    now, ready = points[-1]
    at, before = next((point for point in reversed(points) if point[0] <= now - seconds), points[0])
    per_second = (ready - before) / (now - at)
    if abs(per_second) < TREND_LEAST:
        return Backlog(ready, 0.0)
    return Backlog(ready, per_second, ready / -per_second if per_second < 0 else None)


def stored_backlog(found: Sequence[Figures], now: float, ready: int) -> Backlog:
    """Tell it from stored figures and the number of items that are ready now.  ``now``: seconds since 1970."""
    ends = ((each.at.timestamp() + each.seconds, each.ready) for each in found)
    points = [(at, count) for at, count in ends if count is not None and at < now]
    return backlog_of([*points, (now, ready)], STORED_SECONDS) or Backlog(ready, None, None if ready else 0.0)
