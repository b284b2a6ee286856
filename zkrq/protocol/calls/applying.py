"""Install decisions of the primary on the other servers; drop the payloads of removed items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import FROM_NOW, Body, Call, from_0
from zkrq.protocol.calls.rows import Rows, Word

NO_PAYLOADS, ALL_PAYLOADS, SOME_PAYLOADS = 0, 1, 2
"""Whether the items of ``Apply`` have a payload each; with ``SOME_PAYLOADS`` an empty one means none."""


class ApplyReply(NamedTuple):
    """Positions of the items of which the server holds a greater version, and of those that lack their payload."""

    superseded: Sequence[int]
    bare: Sequence[int]


_ALL_APPLIED = ApplyReply((), ())


@dataclass(frozen=True, slots=True)
class Apply(Call[ApplyReply]):
    """Install decided records that are newer than the stored ones.

    ``fenced``: an owner to refuse from now on, or empty.  ``clock``: the moment from which durations count.
    """

    script: ClassVar[str] = "apply"
    queue: str
    items: Rows | Sequence[Sequence[Word]]
    trim: bool = False
    fenced: str = ""
    payloads_given: int = NO_PAYLOADS
    clock: int = FROM_NOW

    def read(self, body: Body) -> ApplyReply:
        superseded, bare = body
        if not superseded and not bare:
            return _ALL_APPLIED
        return ApplyReply(from_0(superseded), from_0(bare))


@dataclass(frozen=True, slots=True)
class ApplyNew(Apply):
    """``Apply`` for new items, which a full server refuses."""

    script: ClassVar[str] = "apply_new"


@dataclass(frozen=True, slots=True)
class Cut(Call[None]):
    """Drop the payloads of removed items."""

    script: ClassVar[str] = "cut"
    queue: str
    items: Sequence[bytes]

    def read(self, body: Body) -> None:
        return None
