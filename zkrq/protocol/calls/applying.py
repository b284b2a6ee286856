"""Install decisions of the primary on the other servers; drop the payloads of removed items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import FROM_NOW, Body, Carrying, Combining, Gone, Rows, Word, from_0


class ApplyReply(NamedTuple):
    """``superseded``: by record, the positions at which a greater version that the server holds says otherwise, a byte
    each.  ``bare``: the records that lack payloads."""

    superseded: Mapping[int, bytes]
    bare: Sequence[int]


_ALL_APPLIED = ApplyReply({}, ())


@dataclass(frozen=True, slots=True)
class Apply(Carrying[ApplyReply], Combining[ApplyReply]):
    """Install decided records that are newer than the stored ones.

    ``fenced``: an owner to refuse from now on, or empty.  ``whole``: payloads follow each record.  ``clock``: the
    moment from which the records' moments count.
    """

    script: ClassVar[str] = "apply"
    queue: str
    items: Rows | Sequence[Sequence[Word]]
    trim: bool = False
    fenced: str = ""
    whole: bool = False
    clock: int = FROM_NOW
    cuts: bytes = b""

    def read(self, body: Body) -> ApplyReply:
        superseded, bare = body
        if not superseded and not bare:
            return _ALL_APPLIED
        return ApplyReply(dict(zip(from_0(superseded[::2]), superseded[1::2], strict=True)), from_0(bare))


@dataclass(frozen=True, slots=True)
class ApplyNew(Apply):
    """``Apply`` for new items, which a full server refuses."""

    script: ClassVar[str] = "apply_new"


@dataclass(frozen=True, slots=True)
class Cut(Combining[None]):
    """Drop the payloads of removed items."""

    script: ClassVar[str] = "cut"
    queue: str
    items: Sequence[Gone]
