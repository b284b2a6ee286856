"""A queue in figures and curves, as its own page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.texts import show_number
from zkrq.serve.curves import Curve, Point, Rate, draw, rates, thin
from zkrq.serve.listing import IDLE, UNTAKEN_SECONDS

if TYPE_CHECKING:
    from zkrq.client.backlog import Backlog

CURVE_POINTS = 240
"""Points of a curve with an axis."""

NO_FIGURES = Statistics(Sizes(0, 0, 0, 0), False, None, 0, 0, 0, 0)
"""What is shown of a queue while nothing is known of it."""


class Shown(NamedTuple):
    """A queue as its page shows it."""

    name: str
    figures: Statistics
    depth: Curve | None
    flow: Curve | None
    rate: str
    untaken: float = 0.0
    trend: Backlog | None = None


def show_queue(
    name: str,
    figures: Statistics,
    points: Sequence[Point],
    as_of: datetime,
    untaken: float = 0.0,
    trend: Backlog | None = None,
) -> Shown:
    """Draw what is known of a queue.

    ``as_of``: the time of the last point.  ``untaken``: seconds for which no consumer has taken any of its ready items,
    shown if they are many.  ``trend``: whether these grow.
    """
    passed = rates(points)
    some, flow = thin(points, CURVE_POINTS), thin(passed, CURVE_POINTS)
    axis = (points[0].at, points[-1].at) if points else None
    depth = draw([point.at for point in some], [point.depth for point in some], ends=as_of, axis=axis)
    moments, *lines = zip(*flow, strict=True) if flow else ((), (), ())
    return Shown(
        name,
        figures,
        depth,
        draw(moments, *lines, ends=as_of, axis=axis),
        show_rate(passed),
        untaken if untaken >= UNTAKEN_SECONDS else 0.0,
        trend,
    )


def show_rate(passed: Sequence[Rate]) -> str:
    """Say how many items pass through a queue now."""
    if not passed or max(passed[-1].pushed, passed[-1].removed) < IDLE:
        return "idle"
    return f"{show_number(passed[-1].pushed)} pushed and {show_number(passed[-1].removed)} removed a second"
