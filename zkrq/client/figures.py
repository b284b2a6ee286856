"""Read what handlers did with the items of a queue, minute by minute or hour by hour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base import clock
from zkrq.base.checks import Duration, check_feature
from zkrq.base.errors import Unavailable
from zkrq.base.periods import HOUR, MINUTE, check_period
from zkrq.protocol.calls import ToldFigures
from zkrq.protocol.figures import (
    BEGUN,
    CLASSES,
    DEAD,
    DONE,
    DURATIONS,
    FAILED,
    LONGEST,
    OTHERS,
    PAGE,
    READY,
    WAITS,
    Counts,
    Kind,
    Place,
    add_up,
    decode,
    greatest,
    last_ready,
    quantile,
)
from zkrq.protocol.levels import Feature
from zkrq.protocol.replies import Status

if TYPE_CHECKING:
    from zkrq.client.everywhere import Everywhere
    from zkrq.protocol.view import ServerId
    from zkrq.replication.replicas import Replicas

VIEWS_TRIED = 3
"""Views under which the servers are asked before a call gives up, because none has answered."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many items, counted in classes whose bounds double: ``counts[0]`` took less than a millisecond,
    ``counts[1]`` less than two, ``counts[2]`` less than four, and so on.  ``longest``: of all, to a millisecond; None:
    there are no items."""

    counts: tuple[int, ...] = (0,) * CLASSES
    longest: float | None = None

    @property
    def count(self) -> int:
        """Number of items."""
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """Return the seconds that this part of the items (0 to 1) did not exceed, to within a factor of two; None:
        there are no items."""
        return quantile(self.counts, round((self.longest or 0) * 1000), part)

    @property
    def p50(self) -> float | None:
        """Seconds that half of the items did not exceed."""
        return self.quantile(0.5)

    @property
    def p95(self) -> float | None:
        """Seconds that 95 of 100 items did not exceed."""
        return self.quantile(0.95)


NO_ITEMS = Spread()
"""The seconds of no items."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What handlers did with the items of a queue in a time, over all processes, as far as these have reported it.

    ``at``: when it began; ``seconds``: how long it is; the last one has only begun.  ``begun``: claims that were given
    out.  ``done``: items that were acked.  ``failed``: deliveries after which an item is delivered again, or became a
    dead letter; ``dead``: items that became dead letters, also because no delivery was ever settled.  ``waits``: from
    when an item was due until it was first claimed.  ``durations``: from the claim until it was acked or had failed.
    ``tasks``: the same by task, empty if items name none; ``*`` stands for those beyond the tenth of a minute or hour.
    ``ready``: items that were ready at the last report; None: there was none.
    """

    at: datetime
    seconds: float
    begun: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    waits: Spread = NO_ITEMS
    durations: Spread = NO_ITEMS
    tasks: Mapping[str, Figures] = field(default_factory=dict[str, "Figures"])
    ready: int | None = None

    @property
    def failure_rate(self) -> float | None:
        """Part of the deliveries that failed, 0 to 1; None: none has ended."""
        ended = self.done + self.failed
        return self.failed / ended if ended else None


def total(found: Sequence[Figures]) -> Figures:
    """Add up figures of several times, also by task; ``found``: at least one, the oldest first."""
    tasks = sorted({task for each in found for task in each.tasks})
    by_task = {task: [each.tasks[task] for each in found if task in each.tasks] for task in tasks}
    ready = next((each.ready for each in reversed(found) if each.ready is not None), None)
    return replace(_sum(found), tasks={task: _sum(some) for task, some in by_task.items()}, ready=ready)


def _sum(some: Sequence[Figures]) -> Figures:
    def add(name: str) -> int:
        return sum(getattr(each, name) for each in some)

    def join(name: str) -> Spread:
        spreads: list[Spread] = [getattr(each, name) for each in some]
        longest = max((each.longest for each in spreads if each.longest is not None), default=None)
        return Spread(tuple(map(sum, zip(*(each.counts for each in spreads), strict=True))), longest)

    kinds = (add("begun"), add("done"), add("failed"), add("dead"))
    return Figures(some[0].at, sum(each.seconds for each in some), *kinds, join("waits"), join("durations"))


class Span(NamedTuple):
    """Times to read: ``kind`` of what is added up, its first and last number since 1970, and how many make a record."""

    kind: Kind
    first: int
    last: int
    together: int

    @property
    def unit(self) -> int:
        """Seconds of what is added up."""
        return MINUTE if self.kind == "m" else HOUR


def check_span(since: Duration, step: Duration | None, now: float) -> Span:
    """Return what to read for the last ``since`` seconds before ``now``.  Raises ``ConfigError``."""
    seconds, wanted = check_period(since, step)
    unit = HOUR if wanted % HOUR == 0 else MINUTE
    last = math.floor(now / wanted)
    first = min(last, math.floor((now - seconds) / wanted) + 1)
    together = round(wanted / unit)
    return Span("h" if unit == HOUR else "m", first * together, (last + 1) * together - 1, together)


async def read_figures(
    queue: str, everywhere: Everywhere, since: Duration, step: Duration | None = None
) -> list[Figures]:
    """Return the figures of the last ``since`` seconds, the oldest first, one record for every ``step`` seconds.

    Raises ``ConfigError``, ``Unavailable``.
    """
    span = check_span(since, step, clock.now_ms() / 1000)

    async def read(replicas: Replicas) -> Mapping[Place, Counts]:
        return await _read_shard(queue, span, replicas)

    return _records(span, await everywhere.each(read))


async def _read_shard(queue: str, span: Span, replicas: Replicas) -> Mapping[Place, Counts]:
    """Return what the servers of one shard keep."""
    check_feature(Feature.FIGURES, replicas.level)
    found: dict[ServerId, dict[Place, Counts]] = {}
    for first in range(span.first, span.last + 1, PAGE):
        call = ToldFigures(queue, span.kind, first, min(span.last, first + PAGE - 1))
        for id, told in (await _ask_each(call, replicas)).items():
            some = {place: counts for place, counts in decode(told).items() if call.earliest <= place.at <= call.latest}
            found.setdefault(id, {}).update(some)
    return greatest(found.values())


async def _ask_each(call: ToldFigures, replicas: Replicas) -> Mapping[ServerId, Sequence[bytes]]:
    """Ask every server in sync, because any may have been one of the two that keep the figures.

    Those that do not answer are left out, unless none does.  Raises ``Unavailable``.
    """
    membership, reason = replicas.membership, "no server is in sync"
    for _ in range(VIEWS_TRIED):
        view = membership.seen(membership.view)
        answers = await membership.fleet.ask_in(view, view.members, call)
        if done := {id: call.read(each.body) for id, each in answers.items() if each.status is Status.OK}:
            return done
        reason = "; ".join(f"server {id}: {each.reason}" for id, each in sorted(answers.items())) or reason
        await membership.refresh(view)
    raise Unavailable(f"the figures of queue {call.queue!r} cannot be read: {reason}")


def _records(span: Span, shards: Sequence[Mapping[Place, Counts]]) -> list[Figures]:
    """Add up what the shards keep, in records of one step each."""
    of: dict[int, dict[str, list[Sequence[int]]]] = {}
    for kept in shards:
        for place, counts in kept.items():
            of.setdefault(place.at // span.together, {}).setdefault(place.task, []).append(counts)
    seconds = float(span.unit * span.together)
    found: list[Figures] = []
    for number in range(span.first // span.together, span.last // span.together + 1):
        at = clock.at_ms(round(number * seconds * 1000))
        by_task = {task: add_up(counts) for task, counts in sorted(of.get(number, {}).items())}
        if not _has_work(by_task.get(OTHERS, ())):
            by_task.pop(OTHERS, None)  # it is only there for the ready items
        tasks = {task: _figures(at, seconds, counts) for task, counts in by_task.items()} if any(by_task) else {}
        begin = number * span.together
        known = [last_ready(kept, begin, begin + span.together - 1) for kept in shards]
        ready = sum(each for each in known if each is not None) if any(each is not None for each in known) else None
        found.append(replace(_figures(at, seconds, add_up(by_task.values()), tasks), ready=ready))
    return found


def _has_work(counts: Sequence[int]) -> bool:
    """Tell whether counts say anything beside the number of ready items."""
    return any(count for key, count in enumerate(counts) if key != READY)


def _figures(
    at: datetime, seconds: float, counts: Sequence[int], tasks: Mapping[str, Figures] | None = None
) -> Figures:
    waits, durations = (_spread(counts[first:]) for first in (WAITS, DURATIONS))
    kinds = (counts[BEGUN], counts[DONE], counts[FAILED], counts[DEAD])
    return Figures(at, seconds, *kinds, waits, durations, tasks or {})


def _spread(counts: Sequence[int]) -> Spread:
    classes = tuple(counts[:CLASSES])
    return Spread(classes, counts[LONGEST] / 1000 if any(classes) else None)
