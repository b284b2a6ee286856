"""Keep the figures of the last minutes, and draw them.  Pure: times are arguments, in seconds of one clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

HISTORY_SECONDS = 900.0
"""Seconds of the past that a curve shows."""

POINTS_MAX = 600
"""Points that are kept of a queue."""

RATE_SECONDS = 10.0
"""Seconds over which a rate is measured."""

WIDTH, HEIGHT = 240, 48
"""Size of a curve, in units of its own."""


class Point(NamedTuple):
    """How many items a queue had at one moment, dead letters left out."""

    at: float
    depth: int


class Curve(NamedTuple):
    """A drawing: the points of a line, and the values at its upper and lower edge."""

    line: str
    top: float
    bottom: float


class History:
    """The depth of each queue over the last minutes.  Forgets queues that are gone."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}

    def add(self, at: float, depths: Mapping[str, int]) -> None:
        """Note how many items each queue has."""
        for gone in self._points.keys() - depths.keys():
            del self._points[gone]
        for name, depth in depths.items():
            points = self._points.setdefault(name, deque(maxlen=POINTS_MAX))
            points.append(Point(at, depth))
            while points[0].at < at - HISTORY_SECONDS:
                points.popleft()

    def points(self, queue: str) -> Sequence[Point]:
        """Return the points of a queue, the oldest first."""
        return tuple(self._points.get(queue, ()))


def rates(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return by how many items per second a queue grew (negative: shrank) up to each moment, over ``RATE_SECONDS``."""
    found: list[tuple[float, float]] = []
    start = 0
    for now in points:
        while start + 1 < len(points) and points[start + 1].at <= now.at - RATE_SECONDS:
            start += 1
        before = points[start]
        if now.at > before.at:
            found.append((now.at, (now.depth - before.depth) / (now.at - before.at)))
    return found


def draw(values: Sequence[tuple[float, float]]) -> Curve | None:
    """Draw values over time, with zero in sight; None if there are fewer than two."""
    if len(values) < 2:
        return None
    (first, _), (last, _) = values[0], values[-1]
    top, bottom = max(0.0, *(value for _, value in values)), min(0.0, *(value for _, value in values))
    across, up = WIDTH / (last - first or 1.0), HEIGHT / (top - bottom or 1.0)
    line = " ".join(f"{(at - first) * across:.1f},{HEIGHT - (value - bottom) * up:.1f}" for at, value in values)
    return Curve(line, top, bottom)
