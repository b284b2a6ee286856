"""Keep the figures of the last minutes, and draw them.  Pure: times are arguments, in seconds of one clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zkrq.client.flow import NO_FLOW, Flow, Passed

if TYPE_CHECKING:
    from zkrq.client.inspection import Statistics

HISTORY_SECONDS = 900.0
"""Seconds of the past that a curve shows."""

POINTS_MAX = 600
"""Points that are kept of a queue."""

RATE_SECONDS = 10.0
"""Seconds over which a rate is measured."""

WIDTH, HEIGHT = 240, 48
"""Size of a curve, in units of its own."""

NOTHING = Passed(0, 0)
"""What is noted where it is not known what has passed, as between the looks at two primaries."""


class Point(NamedTuple):
    """How many items a queue had at one moment, dead letters left out, and how many came and left since the first."""

    at: float
    depth: int
    pushed: int = 0
    removed: int = 0


class Rate(NamedTuple):
    """Items per second that came and that left, up to one moment."""

    at: float
    pushed: float
    removed: float


class Curve(NamedTuple):
    """A drawing: the points of its lines, and the value at its upper edge; the lower one is zero."""

    lines: Sequence[str]
    top: float


class History:
    """The depth of each queue over the last minutes, and what passed through it.  Forgets queues that are gone."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._flows: Mapping[str, Flow] = {}

    def add(self, at: float, queues: Mapping[str, Statistics]) -> None:
        """Note what was seen of all queues."""
        for gone in self._points.keys() - queues.keys():
            del self._points[gone]
        for name, seen in queues.items():
            points = self._points.setdefault(name, deque(maxlen=POINTS_MAX))
            passed = seen.flow.since(self._flows.get(name, NO_FLOW)) or NOTHING
            pushed, removed = points[-1][2:] if points else (0, 0)
            depth = sum(seen.sizes) - seen.sizes.dead
            points.append(Point(at, depth, pushed + passed.pushed, removed + passed.removed))
            while points[0].at < at - HISTORY_SECONDS:
                points.popleft()
        self._flows = {name: seen.flow for name, seen in queues.items()}

    def points(self, queue: str) -> Sequence[Point]:
        """Return the points of a queue, the oldest first."""
        return tuple(self._points.get(queue, ()))


def rates(points: Sequence[Point]) -> list[Rate]:
    """Return what came and left per second up to each moment, over ``RATE_SECONDS``."""
    found: list[Rate] = []
    start = 0
    for now in points:
        while start + 1 < len(points) and points[start + 1].at <= now.at - RATE_SECONDS:
            start += 1
        before = points[start]
        if seconds := max(0.0, now.at - before.at):
            pushed, removed = now.pushed - before.pushed, now.removed - before.removed
            found.append(Rate(now.at, pushed / seconds, removed / seconds))
    return found


def draw(at: Sequence[float], *lines: Sequence[float]) -> Curve | None:
    """Draw values over time, above zero and on the same scale; None if there are fewer than two moments."""
    if len(at) < 2:
        return None
    top = max(map(max, lines))
    across, up = WIDTH / (at[-1] - at[0] or 1.0), HEIGHT / (top or 1.0)
    return Curve(
        [
            " ".join(
                f"{(moment - at[0]) * across:.1f},{HEIGHT - value * up:.1f}"
                for moment, value in zip(at, line, strict=True)
            )
            for line in lines
        ],
        top,
    )
