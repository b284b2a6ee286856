"""Keep the figures of the last minutes, and draw them.  Pure: times are arguments, in seconds of one clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from zkrq.client.backlog import TREND_SECONDS, Backlog, Seen, backlog_of
from zkrq.client.throughput import NO_THROUGHPUT, Passed

if TYPE_CHECKING:
    from zkrq.client.inspection import Statistics

P = TypeVar("P")

HISTORY_SECONDS = 900.0
"""Seconds of the past that a curve shows."""

POINTS_MAX = 600
"""Points that are kept of a queue."""

RATE_SECONDS = 10.0
"""Seconds over which a rate is measured."""

ROW_POINTS = 60
"""Points of a small curve, as in the table of queues."""

MARKS = 48
"""Places of a curve with an axis at which its value can be asked for."""

STILL_SECONDS = 1.0
"""Seconds by which the wait of an item may seem to grow faster or slower than time; a look takes a while."""

WIDTH, HEIGHT = 240, 48
"""Size of a curve, in units of its own."""

NOTHING = Passed(0, 0)
"""What is noted where it is not known what has passed, as between the looks at two primaries."""


class Point(NamedTuple):
    """How many items a queue had at one moment, dead letters left out, how many came and left since the first, how many
    of them were ready, and how many consumers have settled since the first, as far as that can be seen."""

    at: float
    depth: int
    pushed: int = 0
    removed: int = 0
    ready: int = 0
    settled: int = 0


class Still(NamedTuple):
    """What was seen of a queue last, at one moment, and since when no item of it was taken, as far as looks tell."""

    at: float
    seen: Statistics
    since: float


class Rate(NamedTuple):
    """Items per second that came and that left, up to one moment."""

    at: float
    pushed: float
    removed: float


class Mark(NamedTuple):
    """A strip of a curve that tells its value: its left edge, its width, the moment, and the value of each line."""

    left: float
    width: float
    at: datetime
    values: tuple[float, ...]


class Curve(NamedTuple):
    """A drawing: the points of its lines, and the value at its upper edge; the lower one is zero.

    ``marks``: what is told to those who point at it, the oldest first; () for a small curve without an axis.
    ``begins``, ``ends``: the time at the left and at the right edge, None without an axis.
    """

    lines: Sequence[str]
    top: float
    marks: Sequence[Mark] = ()
    begins: datetime | None = None
    ends: datetime | None = None


class History:
    """The depth of each queue over the last minutes, and what passed through it; since when nobody takes its items.

    Forgets queues that are gone.
    """

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._still: dict[str, Still] = {}

    def add(self, at: float, queues: Mapping[str, Statistics]) -> None:
        """Note what was seen of all queues."""
        for gone in self._points.keys() - queues.keys():
            del self._points[gone]
            del self._still[gone]
        for name, seen in queues.items():
            points = self._points.setdefault(name, deque(maxlen=POINTS_MAX))
            still = self._still.get(name)
            passed = seen.flow.since(still.seen.flow if still else NO_THROUGHPUT) or NOTHING
            last = points[-1] if points else Point(at, 0)
            depth = sum(seen.sizes) - seen.sizes.dead
            pushed, removed = last.pushed + passed.pushed, last.removed + passed.removed
            settled = last.settled + (_settled(still.seen, seen, passed) if still else 0)
            points.append(Point(at, depth, pushed, removed, seen.sizes.ready, settled))
            while points[0].at < at - HISTORY_SECONDS:
                points.popleft()
            self._still[name] = Still(at, seen, still.since if still and is_still(still, at, seen) else at)

    def points(self, queue: str) -> Sequence[Point]:
        """Return the points of a queue, the oldest first."""
        return tuple(self._points.get(queue, ()))

    def backlog(self, queue: str) -> Backlog | None:
        """Tell whether the ready items of a queue grow or shrink; None: there is none, or it is not known yet."""
        recent: list[Seen] = []
        for point in reversed(self._points.get(queue, ())):
            recent.append(Seen(point.at, point.ready, point.settled))
            if point.at <= recent[0].at - TREND_SECONDS:
                break
        return backlog_of(recent[::-1])

    def untaken(self, queue: str) -> float:
        """Return for how many seconds no consumer has taken an item though some are ready; 0 if that is not so."""
        still = self._still.get(queue)
        return still.at - still.since if still else 0.0


def _settled(before: Statistics, now: Statistics, passed: Passed) -> int:
    """Count what consumers may have settled between two looks: nothing, unless one of these saw a claim, or a limit at
    which claims wait.

    Cancelled and expired items count only then, because a server does not count apart what removes an item.  While some
    are ready, a consumer nearly always has claims.
    """
    if not any(each.sizes.claimed or each.limited for each in (before, now)):
        return 0
    return passed.removed + max(0, now.sizes.dead - before.sizes.dead)


def is_still(before: Still, at: float, seen: Statistics) -> bool:
    """Tell whether items could be claimed at two moments and none was between these.

    An item that was claimed and went back counts from then on, or the one behind it is the oldest: so the moment since
    which the oldest one waits tells of claims that no look has seen.
    """
    oldest, now = before.seen.oldest_ready, seen.oldest_ready
    passed = seen.flow.since(before.seen.flow)
    if oldest is None or now is None or passed is None or passed.removed:
        return False
    held_up = (each.sizes.claimed or each.paused or each.limited or each.groups_blocked for each in (before.seen, seen))
    return not any(held_up) and abs((now - oldest) - (at - before.at)) < STILL_SECONDS


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


def latest_rate(points: Sequence[Point]) -> Rate | None:
    """Return what came and left per second in the last ``RATE_SECONDS``, None if that is not known yet."""
    if not points:
        return None
    now = points[-1]
    start = len(points) - 1
    while start and points[start].at > now.at - RATE_SECONDS:
        start -= 1
    return next(iter(rates([points[start], now])[-1:]), None)


def thin(points: Sequence[P], most: int) -> Sequence[P]:
    """Leave out points, evenly, until there are at most so many; the first and the last one stay."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(number * step)] for number in range(most)]


def draw(
    at: Sequence[float],
    *lines: Sequence[float],
    ends: datetime | None = None,
    axis: tuple[float, float] | None = None,
) -> Curve | None:
    """Draw values over time, above zero and on the same scale; None if there are fewer than two moments.

    ``axis``: the moments at the left and at the right edge, None: the first and the last one of ``at``.  ``ends``: the
    time at the right edge; None: the curve has no marks.
    """
    if len(at) < 2:
        return None
    left, right = axis or (at[0], at[-1])
    top = max(map(max, lines))
    across, up = WIDTH / (right - left or 1.0), HEIGHT / (top or 1.0)
    drawn = [
        " ".join(
            f"{(moment - left) * across:.1f},{HEIGHT - value * up:.1f}" for moment, value in zip(at, line, strict=True)
        )
        for line in lines
    ]
    if ends is None:
        return Curve(drawn, top)
    marks = [
        Mark(begin, end - begin, ends - timedelta(seconds=right - at[number]), tuple(line[number] for line in lines))
        for number, begin, end in _strips([(moment - left) * across for moment in at])
    ]
    return Curve(drawn, top, marks, ends - timedelta(seconds=right - left), ends)


def _strips(places: Sequence[float]) -> Iterator[tuple[int, float, float]]:
    """Divide a curve into strips, each of which reaches half-way to the next moment that is told; yield the number of
    its moment, and its edges."""
    told = thin(range(len(places)), MARKS)
    middles = [(places[one] + places[other]) / 2 for one, other in pairwise(told)]
    first, last = 2 * places[0] - middles[0], 2 * places[-1] - middles[-1]
    edges = [max(0.0, first), *middles, min(float(WIDTH), last)]
    return ((number, left, right) for number, (left, right) in zip(told, pairwise(edges), strict=True))
