"""Count what handlers do, and read such counts of several servers.  Pure.

A process reports what its handlers did in the last seconds, as counts of each task: how many deliveries began, were
done, failed, or left a dead letter, and two histograms: for how long items waited, and for how long they were held,
with the longest of these times.
Two servers add the reports up, by minutes and by hours (``lua/figure.lua``), and note with each how many items of the
queue are ready on them.

A histogram has classes whose bounds double: below a millisecond, below 2, below 4, and so on up to 24 days.  So it is
small, needs no settings, and is added up by adding its classes; a percentile of it is right to within a factor of two,
mostly better, and not above the longest time.

What two servers keep of the same minute differs only where a report has reached one of them alone, so of each number
the greater one is taken.  Taking the sum would count every report twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from zkrq.protocol.view import first_of

if TYPE_CHECKING:
    from zkrq.protocol.view import ServerId, View

BEGUN, DONE, FAILED, DEAD = range(4)
"""Keys of the counts."""

CLASSES = 32
"""Classes of a histogram: the first one is below a millisecond, each other one reaches twice as far as the one before,
and the last one has no end."""

READY = 4
"""Key of the number of ready items at the last report of a time, which servers write with ``OTHERS``."""

WAITS, DURATIONS = 10, 50
"""Keys of the first class of each histogram."""

LONGEST = CLASSES
"""Place of the longest time of a histogram, in milliseconds, behind its classes; of several the greatest is taken."""

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

PER_FIELD = 10
"""Minutes, or hours, that stand in one field (``lua/_figures.lua``)."""

NUMBER_BYTES = 8
"""Bytes of the longest number: it has fifteen digits."""

_LINE = re.compile(rb"(\d{1,12})((?:\t[^\t\n]*)*)\n")


class Place(NamedTuple):
    """What counts are of: a minute or an hour since 1970, and a task."""

    at: int
    task: str


def keepers(view: View, queue: str) -> Sequence[ServerId]:
    """Return the members that keep the figures of a queue."""
    return first_of(view.members, queue, KEEPERS)


def encode(counts: Sequence[int]) -> bytes:
    """Write counts as a report has them: numbers in the order of their keys; a zero stands, with the number after it,
    for that many zeros."""
    written, zeros = bytearray(), 0
    for number in counts:
        if not number:
            zeros += 1
            continue
        if zeros:
            written += bytes((0, zeros))
            zeros = 0
        while number >= 128:
            written.append(128 + number % 128)
            number //= 128
        written.append(number)
    return bytes(written)


def decode(fields: Iterable[bytes]) -> Mapping[Place, Counts]:
    """Read the fields of one server; of one that is damaged, what stands before the damage."""
    found: dict[Place, Counts] = {}
    for packed in fields:
        if line := _LINE.match(packed):
            names = [name.decode(errors="replace") for name in line[2].split(b"\t")[1:]]
            try:
                for unit, name, counts in _entries(packed, line.end()):
                    place = Place(int(line[1]) * PER_FIELD + unit, names[name])
                    found[place] = list(map(max, found[place], counts)) if place in found else counts
            except (IndexError, OverflowError):
                continue
    return found


def _entries(packed: bytes, at: int) -> Iterator[tuple[int, int, Counts]]:
    """Read the entries of a field: the place of each among its minutes or hours, that of its name, and its counts.

    Raises ``IndexError`` and ``OverflowError`` if they are damaged.
    """
    while at < len(packed):
        unit, at = _number(packed, at)
        name, at = _number(packed, at)
        length, at = _number(packed, at)
        end, key, counts = at + length, 0, [0] * COUNTS
        while at < end:
            counts[key], at = _number(packed, at)
            if counts[key]:
                key += 1
            else:
                zeros, at = _number(packed, at)
                key += zeros
        yield unit, name, counts


def _number(packed: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place after it.

    Raises ``IndexError`` where there is none, ``OverflowError`` if it is too long.
    """
    number = 0
    for place in range(NUMBER_BYTES):
        byte = packed[at + place]
        number += (byte & 127) << 7 * place
        if byte < 128:
            return number, at + place + 1
    raise OverflowError


def greatest(servers: Iterable[Mapping[Place, Counts]]) -> dict[Place, Counts]:
    """Return what servers of one shard keep together: of each number the greatest."""
    found: dict[Place, Counts] = {}
    for kept in servers:
        for place, counts in kept.items():
            known = found.get(place)
            found[place] = counts if known is None else list(map(max, known, counts))
    return found


def last_ready(kept: Mapping[Place, Counts], first: int, last: int) -> int | None:
    """Return the number of ready items at the last report from ``first`` to ``last``; None: there was none."""
    for at in range(last, first - 1, -1):
        if counts := kept.get(Place(at, OTHERS)):
            return counts[READY]
    return None


def add_up(counts: Iterable[Sequence[int]]) -> Counts:
    """Return the sum of counts."""
    given = [[0] * COUNTS, *counts]
    found = [sum(column) for column in zip(*given, strict=True)]
    for key in (WAITS + LONGEST, DURATIONS + LONGEST):
        found[key] = max(each[key] for each in given)
    return found


def quantile(classes: Sequence[int], longest: int, part: float) -> float | None:
    """Return the seconds that this part of the values does not exceed, None if there are none.

    Within a class the values are taken to be spread evenly.  ``longest``: of the values, in milliseconds, 0: not known.
    """
    wanted = part * sum(classes)
    if not wanted:
        return None
    before = 0
    for number, count in enumerate(classes):
        if count and before + count >= wanted:
            low, high = (2 ** (number - 1) if number else 0), 2**number
            if low <= longest < high:
                high = max(longest, 1)
            return (low + (high - low) * (wanted - before) / count) / 1000
        before += count
    raise AssertionError("more values than there are")
