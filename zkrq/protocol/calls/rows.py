"""Hold values of items as they are on the wire, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zkrq.protocol.records import GONE_BYTE, STATE_AT, above

Word = bytes | str | int
"""Parts of a command."""


class Rows:
    """Values of many items in one flat list, as on the wire: no object per item."""

    __slots__ = ("flat",)

    def __init__(self, flat: Sequence[Any] = ()) -> None:
        self.flat = flat


class Records(Rows):
    """Decided records: id, record, left_ms of each item; an empty record is the same as the one before it.

    ``left_ms``: time until the item is due, or until its claim ends; negative for the past.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.flat) // 3

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        parts = iter(self.flat)
        return zip(parts, parts, parts, strict=True)

    def __add__(self, others: Records) -> Records:
        return Records([*self.flat, *others.flat])

    @property
    def ids(self) -> Sequence[bytes]:
        return self.flat[::3]

    def gone(self) -> list[bytes]:
        """Return the ids of the items that were removed."""
        ids: list[bytes] = []
        is_gone = False
        for id, record, _ in self:
            if record:
                is_gone = record[STATE_AT] == GONE_BYTE
            if is_gone:
                ids.append(id)
        return ids

    def with_payloads(self, payloads: Mapping[bytes, bytes]) -> Rows:
        """Return the rows with a payload each, empty for an item without one here."""
        flat: list[Word] = []
        for id, record, left_ms in self:
            flat += (id, record, left_ms, payloads.get(id, b""))
        return Rows(flat)


class Put(NamedTuple):
    """One push: the record that the producer made, the milliseconds until the item is due (or a text of these and,
    after a space, those until it expires), and the encoded item."""

    id: str
    record: bytes
    delay_ms: int | str
    payload: bytes

    def above(self, n: int) -> Put:
        """Return the same push, for an id that has tombstones of up to this ``n``."""
        return self._replace(record=above(self.record, n))


class Copied(NamedTuple):
    """One item as one server holds it.  ``payload`` is None if that server has none."""

    id: bytes
    record: bytes
    left_ms: bytes
    payload: bytes | None


class Copies(NamedTuple):
    """Items, and the ids of those that did not fit into the reply."""

    items: Sequence[Copied]
    beyond: Sequence[bytes]


def read_copied(flat: Sequence[Any]) -> list[Copied]:
    """Read the items of a reply that lists their values in one flat list."""
    parts = iter(flat)
    return [Copied(*item) for item in zip(parts, parts, parts, parts, strict=True)]
