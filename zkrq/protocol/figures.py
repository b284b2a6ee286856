"""Count what handlers do, and read such counts of several servers.  Pure.

A process reports what its handlers did in the last seconds, as counts of each task: how many deliveries began, were
done, failed, or left a dead letter, and two histograms: for how long items waited, and for how long they were held.
Two servers add the reports up, by minutes and by hours (``lua/figure.lua``).

A histogram has classes whose bounds double: below a millisecond, below 2, below 4, and so on up to 24 days.  So it is
small, needs no settings, and is added up by adding its classes; a percentile of it is right to within a factor of two,
mostly better.

What two servers keep of the same minute differs only where a report has reached one of them alone, so of each number
the greater one is taken.  Taking the sum would count every report twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from zkrq.protocol.view import first_of

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId, View

BEGUN, DONE, FAILED, DEAD = range(4)
"""Keys of the counts."""

CLASSES = 32
"""Classes of a histogram: the first one is below a millisecond, each other one reaches twice as far as the one before,
and the last one has no end."""

WAITS, DURATIONS = 10, 50
"""Keys of the first class of each histogram."""

COUNTS = 100
"""Keys of counts that there may be."""

KEEPERS = 2
"""Servers that keep the figures of a queue: one may die."""

TASKS_MAX = 20
"""Names of tasks that one report tells; further ones are told together, as ``OTHERS``."""

TASK_BYTES = 100
"""Bytes of the longest name of a task that is told apart."""

OTHERS = "*"
"""Stands for the tasks that are not told apart."""

MINUTES_KEPT, HOURS_KEPT = 26 * 60, 35 * 24
"""Minutes and hours that servers keep."""

PAGE = 400
"""Minutes, or hours, that one call reads."""

Counts: TypeAlias = list[int]
"""Counts by their keys, ``COUNTS`` of them."""

Kind: TypeAlias = Literal["m", "h"]
"""Whether something is by the minute or by the hour, in the words of scripts."""

_LINE = re.compile(r"(\d{1,12})\t([^\t\n]*)\t([^\t\n]*)\n")
_COUNT = re.compile(r"(\d{1,2}):(\d{1,15})")


class Place(NamedTuple):
    """What counts are of: a minute or an hour since 1970, and a task."""

    at: int
    task: str


def keepers(view: View, queue: str) -> Sequence[ServerId]:
    """Return the members that keep the figures of a queue."""
    return first_of(view.members, queue, KEEPERS)


def encode(counts: Sequence[int]) -> str:
    """Write counts as a report has them."""
    return " ".join([f"{key}:{number}" for key, number in enumerate(counts) if number])


def decode(text: str) -> Mapping[Place, Counts]:
    """Read the lines of one server; those that are damaged are left out, alone."""
    found: dict[Place, Counts] = {}
    for at, task, told in _LINE.findall(text):
        counts = found.setdefault(Place(int(at), task), [0] * COUNTS)
        for key, number in _COUNT.findall(told):
            counts[int(key)] = max(counts[int(key)], int(number))
    return found


def greatest(servers: Iterable[Mapping[Place, Counts]]) -> dict[Place, Counts]:
    """Return what servers of one shard keep together: of each number the greatest."""
    found: dict[Place, Counts] = {}
    for kept in servers:
        for place, counts in kept.items():
            known = found.get(place)
            found[place] = counts if known is None else list(map(max, known, counts))
    return found


def add_up(counts: Iterable[Sequence[int]]) -> Counts:
    """Return the sum of counts."""
    return [sum(column) for column in zip([0] * COUNTS, *counts, strict=True)]


def quantile(classes: Sequence[int], part: float) -> float | None:
    """Return the seconds that this part of the values does not exceed, None if there are none.

    Within a class the values are taken to be spread evenly.
    """
    wanted = part * sum(classes)
    if not wanted:
        return None
    before = 0
    for number, count in enumerate(classes):
        if count and before + count >= wanted:
            low, high = (2 ** (number - 1) if number else 0), 2**number
            return (low + (high - low) * (wanted - before) / count) / 1000
        before += count
    raise AssertionError("more values than there are")
