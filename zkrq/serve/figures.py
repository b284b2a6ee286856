"""What the page of a queue shows of the work on its items in the last hours and days, as curves and as a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.client.figures import total
from zkrq.serve.curves import Curve, draw

if TYPE_CHECKING:
    from zkrq.client.figures import Figures, Spread
    from zkrq.client.queue import Queue

FRESH_SECONDS = 10.0
"""Seconds for which figures that were read serve all open pages: processes report as often."""

READ_MAX = 50
"""Queues and periods of which figures are kept for that time."""


class Period(NamedTuple):
    """A time to look back on: its name, its seconds, and those of each point of the curves."""

    name: str
    since: int
    step: int


PERIODS: Mapping[str, Period] = {
    each.name: each
    for each in (
        Period("1 h", 3600, 60),
        Period("6 h", 6 * 3600, 300),
        Period("24 h", 86_400, 1200),
        Period("30 d", 30 * 86_400, 6 * 3600),
    )
}
"""The periods by name, the first one is usual."""

USUAL = next(iter(PERIODS))


class Total(NamedTuple):
    """A task, or all of them, over a whole period."""

    name: str
    done: int
    failed: int
    dead: int
    waits: Spread
    durations: Spread


class Work(NamedTuple):
    """What handlers did in a period.  ``task``: of which task the curves are, None: of all."""

    period: Period
    task: str | None
    done: Curve | None
    waits: Curve | None
    durations: Curve | None
    failures: Curve | None
    totals: Sequence[Total]


class Reading:
    """Read figures for pages: once for all that show the same."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[float, list[Figures]]] = {}

    async def read(self, queue: Queue[Any], period: Period) -> list[Figures]:
        """Return the figures of a queue, at most ``FRESH_SECONDS`` old.  Raises ``ConfigError``, ``Unavailable``."""
        now, key = asyncio.get_running_loop().time(), (queue.name, period.name)
        known = self._read.get(key)
        if known and now - known[0] < FRESH_SECONDS:
            return known[1]
        found = await queue.figures(period.since, period.step)
        self._read.pop(key, None)
        while len(self._read) >= READ_MAX:
            del self._read[next(iter(self._read))]
        self._read[key] = now, found
        return found


def show_work(found: Sequence[Figures], period: Period, task: str | None) -> Work:
    """Draw figures of a period; ``task``: only those of this task, None: all.

    The curves have one axis of time, the whole period, and end before the last of the figures, whose time has only
    begun: it would look like a fall.  The totals have all, the slowest tasks first.
    """
    whole = total(found) if found else None
    axis = (found[0].at, found[-1].at) if found else None

    def curve(values: Callable[[Figures], Sequence[float] | None]) -> Curve | None:
        of = [each for one in found[:-1] if (each := one if task is None else one.tasks.get(task))]
        return _curve(of, values, axis) if axis else None

    return Work(
        period,
        task,
        curve(lambda each: (each.done / each.seconds, each.failed / each.seconds)),
        curve(lambda each: _quantiles(each.waits)),
        curve(lambda each: _quantiles(each.durations)),
        curve(lambda each: None if each.failure_rate is None else (100 * each.failure_rate,)),
        [_total("", whole), *sorted(starmap(_total, whole.tasks.items()), key=_slowness)] if whole else [],
    )


def _total(name: str, of: Figures) -> Total:
    return Total(name, of.done, of.failed, of.dead, of.waits, of.durations)


def _slowness(total: Total) -> tuple[float, float, str]:
    return -(total.durations.p95 or 0.0), -(total.durations.p50 or 0.0), total.name


def _quantiles(spread: Spread) -> tuple[float, float] | None:
    p50, p95 = spread.p50, spread.p95
    return None if p50 is None or p95 is None else (p50, p95)


def _curve(
    some: Sequence[Figures], values: Callable[[Figures], Sequence[float] | None], axis: tuple[datetime, datetime]
) -> Curve | None:
    """Draw the values of those that have some, each in the middle of its time, or one alone over all of it."""
    told = [(each.at + timedelta(seconds=each.seconds / 2), has) for each in some if (has := values(each)) is not None]
    if not told:
        return None
    if len(told) == 1:
        ((at, has),) = told
        told = [(at + timedelta(seconds=each * some[0].seconds / 2), has) for each in (-1, 1)]
    lines = list(zip(*(has for _, has in told), strict=True))
    begins, ends = axis
    return draw([at.timestamp() for at, _ in told], *lines, ends=ends, axis=(begins.timestamp(), ends.timestamp()))
