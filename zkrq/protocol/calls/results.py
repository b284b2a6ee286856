"""Ask what became of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Body, Decision, Records


class Told(NamedTuple):
    """What a server says of one item: a letter (``lua/results.lua``), and the result, the reason, or the owner."""

    letter: bytes
    text: bytes = b""

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended, or is not known."""
        return self.letter not in (b"Q", b"C")


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

    def read(self, body: Body) -> ResultsReply:
        flat, records = body
        return ResultsReply([Told(*pair) for pair in zip(flat[::2], flat[1::2], strict=True)], Records(records))
