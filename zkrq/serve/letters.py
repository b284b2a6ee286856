"""Sort items that failed into groups: by their reason, task, key, group, a header, or a field of their payload.

The page of one queue shows its dead letters so, and the page of failures those of all queues, with the items that wait
for their next attempt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.errors import ConfigError
from zkrq.base.meant import nearest
from zkrq.serve.curves import draw
from zkrq.serve.payloads import fields_of

if TYPE_CHECKING:
    from zkrq.client.items import Item
    from zkrq.serve.curves import Curve

BY_REASON = "reason"

UNNAMED = (BY_REASON, "queue", "task", "key", "group")
"""Properties of which an item has one each."""

COLUMNS_MAX = 30
"""Properties by which items can be grouped: those that most of them have."""

GROUPS_SHOWN = 50
"""Groups on a page: the largest."""

VALUE_SHOWN = 200
"""Characters of what the items of a group have in common."""

REASONS_SHOWN = 3
"""Reasons that are counted beside a group that is made by something else."""

SPARK_PARTS = 30
"""Parts of the time of all failures for which the curve of a group has a point each."""

_VARYING = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\d+"
)
"""What differs between reasons of the same kind: addresses, UUIDs, long hexadecimal numbers, numbers."""

_LAST_WORDS = re.compile(r"failed (?:in delivery \d+ of \d+|at an age of \d+ s, of [\d.e+]+): ")
"""What the retry policy writes before the reason of the failure after which an item is dead."""


class Failed(NamedTuple):
    """An item that failed, and its queue."""

    queue: str
    item: Item[Any]

    @property
    def moments(self) -> Sequence[datetime]:
        """When it failed, as far as that is kept, the latest first; else when it died."""
        kept = [each.at for each in self.item.last_failures if each.at]
        return kept or [each for each in (self.item.died_at,) if each]


class Group(NamedTuple):
    """Items that have something in common.  ``value``: what; ``first`` and ``last``: when the first and the last of
    their failures were that are kept, None if that is not known; ``times``: how many there were over the time of all
    that are shown, None: they were all at one moment, or the group is not among the largest."""

    value: str
    failed: Sequence[Failed]
    first: datetime | None
    last: datetime | None
    times: Curve | None = None

    @property
    def reasons(self) -> Sequence[tuple[str, int]]:
        """The most frequent kinds of their reasons, and how many have each."""
        return Counter(value_of(each, BY_REASON) for each in self.failed).most_common(REASONS_SHOWN)


def columns(failed: Sequence[Failed]) -> list[str]:
    """Name the properties by which these can be grouped, the reason first, then the most frequent."""
    found: Counter[str] = Counter()
    for _, item in failed:
        found.update(name for name in ("key", "group", "task") if getattr(item, name))
        found.update(f"header {name}" for name in item.headers)
        found.update(f"field {name}" for name in fields_of(item.payload))
    several = ["queue"] if len({each.queue for each in failed}) > 1 else []
    return [BY_REASON, *several, *(name for name, _ in found.most_common(COLUMNS_MAX))]


NAMED = ("header", "field")
"""Properties that have a name beside."""


def check_by(by: str) -> str:
    """Return a property by which items can be grouped.  Raises ``ConfigError``."""
    kind, _, name = by.partition(" ")
    if (kind in NAMED and name) or by in UNNAMED:
        return by
    raise ConfigError(
        f"{by!r:.100} is no property of items, which are {', '.join(UNNAMED)}, `header NAME` and `field NAME`"
        f"{nearest(by, UNNAMED)}"
    )


def value_of(failed: Failed, by: str) -> str:
    """Return what an item has of a property, empty if nothing."""
    item = failed.item
    kind, _, name = by.partition(" ")
    match kind:
        case "reason":
            return kind_of(item.reason)
        case "queue":
            return failed.queue
        case "key" | "group" | "task":
            return (getattr(item, kind) or "")[:VALUE_SHOWN]
        case "header":
            return item.headers.get(name, "")[:VALUE_SHOWN]
        case _:
            return fields_of(item.payload).get(name, "")[:VALUE_SHOWN]


def kind_of(reason: str | None) -> str:
    """Return the first line of a reason without what differs from item to item: numbers and ids, and how often it was
    delivered until it died of that."""
    line = (reason or "").strip().partition("\n")[0]
    return _VARYING.sub("…", _LAST_WORDS.sub("", line, count=1)).strip()[:VALUE_SHOWN]


def group(failed: Sequence[Failed], by: str = BY_REASON) -> list[Group]:
    """Sort items into groups, the largest first."""
    found: dict[str, list[Failed]] = {}
    for each in failed:
        found.setdefault(value_of(each, by), []).append(each)
    known = [moment for each in failed for moment in each.moments]
    first, last = min(known, default=None), max(known, default=None)
    groups: list[Group] = []
    for value, some in sorted(found.items(), key=lambda each: (-len(each[1]), each[0])):
        moments = [moment for each in some for moment in each.moments]
        is_shown = len(groups) < GROUPS_SHOWN
        times = None if first is None or last is None or not is_shown else _times(moments, first, last)
        groups.append(Group(value, some, min(moments, default=None), max(moments, default=None), times))
    return groups


def in_group(failed: Sequence[Failed], by: str, value: str | None) -> Sequence[Failed]:
    """Return the items of a group, all for None."""
    return failed if value is None else [each for each in failed if value_of(each, by) == value]


def sorted_failed(failed: Sequence[Failed], by: str, value: str | None, most: int) -> dict[str, Any]:
    """Return what a page shows of items that failed: groups, and at most ``most`` items of one of them, or of all."""
    groups = group(failed, by)
    chosen = failed if value is None else next((each.failed for each in groups if each.value == value), ())
    return {
        "columns_of_failed": columns(failed),
        "groups": groups[:GROUPS_SHOWN],
        "more_groups": max(0, len(groups) - GROUPS_SHOWN),
        "chosen": len(chosen),
        "items": chosen[:most],
    }


def _times(moments: Iterable[datetime], first: datetime, last: datetime) -> Curve | None:
    """Draw how many of these moments are in each part of a time, None if that is too short to be divided."""
    part = (last - first) / SPARK_PARTS
    if part < timedelta(milliseconds=1):
        return None
    counts = Counter(min(SPARK_PARTS - 1, (moment - first) // part) for moment in moments)
    return draw(range(SPARK_PARTS), [counts[number] for number in range(SPARK_PARTS)])
