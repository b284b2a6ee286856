"""A queue in figures and curves, as its own page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from zkrq.client.inspection import Sizes, Statistics
from zkrq.serve.curves import Curve, Point, Rate, draw, rates, thin
from zkrq.serve.listing import IDLE, UNTAKEN_SECONDS
from zkrq.serve.texts import show_number

CURVE_POINTS = 240
"""Points of a curve with an axis."""

NO_FIGURES = Statistics(Sizes(0, 0, 0, 0), False, None, 0, 0, 0, 0)
"""What is shown of a queue while nothing is known of it."""


TREND_SECONDS = 60.0
"""Seconds over which it is measured whether a queue shrinks, at least."""

TREND_LEAST = 0.05
"""Items per second below which a queue counts as one that stays as it is."""


class Trend(NamedTuple):
    """Items per second by which a queue grows, negative if it shrinks; then the seconds until none is left."""

    per_second: float
    seconds_left: float | None = None


def trend_of(points: Sequence[Point]) -> Trend | None:
    """Tell whether a queue shrinks; None: it is empty, or was not looked at for ``TREND_SECONDS``."""
    if not points or not points[-1].depth or points[-1].at - points[0].at < TREND_SECONDS:
        return None
    now = points[-1]
    before = next(point for point in reversed(points) if point.at <= now.at - TREND_SECONDS)
    per_second = (now.depth - before.depth) / (now.at - before.at)
    if abs(per_second) < TREND_LEAST:
        return Trend(0.0)
    return Trend(per_second, now.depth / -per_second if per_second < 0 else None)


class Shown(NamedTuple):
    """A queue as its page shows it."""

    name: str
    figures: Statistics
    depth: Curve | None
    flow: Curve | None
    rate: str
    untaken: float = 0.0
    trend: Trend | None = None


def show_queue(name: str, figures: Statistics, points: Sequence[Point], as_of: datetime, untaken: float = 0.0) -> Shown:
    """Draw what is known of a queue.

    ``as_of``: the time of the last point.  ``untaken``: seconds for which no consumer has taken any of its ready items,
    shown if they are many.
    """
    passed = rates(points)
    some, flow = thin(points, CURVE_POINTS), thin(passed, CURVE_POINTS)
    depth = draw([point.at for point in some], [point.depth for point in some], ends=as_of)
    moments, *lines = zip(*flow, strict=True) if flow else ((), (), ())
    return Shown(
        name,
        figures,
        depth,
        draw(moments, *lines, ends=as_of),
        show_rate(passed),
        untaken if untaken >= UNTAKEN_SECONDS else 0.0,
        trend_of(points),
    )


def show_rate(passed: Sequence[Rate]) -> str:
    """Say how many items pass through a queue now."""
    if not passed or max(passed[-1].pushed, passed[-1].removed) < IDLE:
        return "idle"
    return f"{show_number(passed[-1].pushed)} pushed and {show_number(passed[-1].removed)} removed a second"
