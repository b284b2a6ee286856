"""Define the calls about the figures of handlers: what they did, minute by minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from zkrq.protocol.calls.call import Body, Call


@dataclass(frozen=True, slots=True)
class Figure(Call[None]):
    """Add what handlers did to a minute, since 1970; of each task its counts (``protocol/figures.py``).

    A server adds it again if it is sent again.
    """

    script: ClassVar[str] = "figure"
    queue: str
    minute: int
    items: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class ToldFigures(Call[Sequence[bytes]]):
    """Read what one server keeps of some minutes (``m``) or hours (``h``), since 1970: fields, as they are stored.

    There may be others in them.  Of more than a page it reads the first ones.
    """

    script: ClassVar[str] = "figures"
    queue: str
    kind: Literal["m", "h"]
    earliest: int
    latest: int

    def read(self, body: Body) -> Sequence[bytes]:
        (fields,) = body
        return fields


@dataclass(frozen=True, slots=True)
class DropFigures(Call[None]):
    """Drop the figures of a queue."""

    script: ClassVar[str] = "drop_figures"
    queue: str
