"""Ask what became of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Decision, Records, Trimming


class Told(NamedTuple):
    """What a server says of one item: a letter (``lua/results.lua``), and the result, the reason, or the owner."""

    letter: bytes
    text: bytes = b""

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended, or is not known."""
        return self.letter not in (b"Q", b"C", b"P")


class ResultsReply(NamedTuple):
    """``told``: of each item, in the order of the call."""

    told: Sequence[Told]
    records: Records


@dataclass(frozen=True, slots=True)
class Results(Decision[ResultsReply]):
    """Ask what became of items: every server knows what the reply tells of those that have ended.

    ``waiter``: channel to notify when one of the others ends, empty: none.
    """

    script: ClassVar[str] = "results"
    queue: str
    waiter: str
    items: Sequence[str]


class StoredRow(NamedTuple):
    """One result to keep, to count, or to forget.

    ``call``: id of this call, the same in a repetition.  ``how``, ``text``: see ``lua/store.lua``.
    """

    id: str
    call: str
    how: str
    text: bytes = b""


class StoreReply(NamedTuple):
    """``counted``: the value of the counter of each, 0 without one; of one to keep whether it is; -1: of an item."""

    counted: Sequence[int]
    records: Records


@dataclass(frozen=True, slots=True)
class Store(Trimming[StoreReply]):
    """Keep results under ids of the caller's, which belong to no item."""

    script: ClassVar[str] = "store"
    has_payloads: ClassVar[bool] = False
    queue: str
    items: Sequence[StoredRow]
    trim: bool = False


@dataclass(frozen=True, slots=True)
class Stored(Results):
    """Ask for results that are kept under ids of the caller's.

    ``waiter``: channel to notify of the next result of those whose last one is not there; empty: none.
    """

    script: ClassVar[str] = "stored"
    has_payloads: ClassVar[bool] = False
