"""Sort dead letters into groups: by their reason, by a header, a key, or a field of their payload."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.serve.payloads import fields_of

if TYPE_CHECKING:
    from zkrq.client.items import Item

BY_REASON = "reason"

COLUMNS_MAX = 30
"""Properties by which letters can be grouped: those that most of them have."""

GROUPS_SHOWN = 50
"""Groups on a page: the largest."""

VALUE_SHOWN = 200
"""Characters of what the letters of a group have in common."""

_VARYING = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\d+"
)
"""What differs between reasons of the same kind: addresses, UUIDs, long hexadecimal numbers, numbers."""


class Group(NamedTuple):
    """Dead letters that have something in common.  ``value``: what; ``first`` and ``last``: when the first and the
    last of them died, None if that is not known."""

    value: str
    letters: Sequence[Item[Any]]
    first: datetime | None
    last: datetime | None


def columns(letters: Sequence[Item[Any]]) -> list[str]:
    """Name the properties by which these letters can be grouped, the reason first, then the most frequent."""
    found: Counter[str] = Counter()
    for letter in letters:
        if letter.key:
            found["key"] += 1
        found.update(f"header {name}" for name in letter.headers)
        found.update(f"field {name}" for name in fields_of(letter.payload))
    return [BY_REASON, *(name for name, _ in found.most_common(COLUMNS_MAX))]


def value_of(letter: Item[Any], by: str) -> str:
    """Return what a letter has of a property, empty if nothing."""
    kind, _, name = by.partition(" ")
    match kind:
        case "reason":
            return kind_of(letter.reason)
        case "key":
            return (letter.key or "")[:VALUE_SHOWN]
        case "header":
            return letter.headers.get(name, "")[:VALUE_SHOWN]
        case _:
            return fields_of(letter.payload).get(name, "")[:VALUE_SHOWN]


def kind_of(reason: str | None) -> str:
    """Return the first line of a reason without what differs from letter to letter: numbers and ids."""
    line = (reason or "").strip().partition("\n")[0]
    return _VARYING.sub("…", line).strip()[:VALUE_SHOWN]


def group(letters: Sequence[Item[Any]], by: str = BY_REASON) -> list[Group]:
    """Sort letters into groups, the largest first."""
    found: dict[str, list[Item[Any]]] = {}
    for letter in letters:
        found.setdefault(value_of(letter, by), []).append(letter)
    groups: list[Group] = []
    for value, some in found.items():
        died = [letter.died_at for letter in some if letter.died_at]
        groups.append(Group(value, some, min(died, default=None), max(died, default=None)))
    return sorted(groups, key=lambda each: (-len(each.letters), each.value))
