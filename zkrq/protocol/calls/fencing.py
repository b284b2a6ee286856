"""Give back the claims of dead owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Body, Call, Clocked, Decision, Names, Paging, Records

if TYPE_CHECKING:
    from zkrq.protocol.clocks import Expected


class FenceReply(NamedTuple):
    """The cursor to continue from, the number of requeued claims, and the bundles."""

    cursor: bytes
    requeued: int
    records: Records


@dataclass(frozen=True, slots=True)
class Fence(Decision[FenceReply]):
    """Refuse a dead owner from now on and requeue a page of its claims."""

    script: ClassVar[str] = "fence"
    queue: str
    owner: str
    cursor: bytes = START

    @property
    def fenced(self) -> str:
        return self.owner


class OwnersReply(NamedTuple):
    """A page of owners, the cursor to continue from, and the server's clock."""

    cursor: bytes
    names: Sequence[bytes]
    clock: int


@dataclass(frozen=True, slots=True)
class Owners(Paging[OwnersReply], Clocked[OwnersReply]):
    """List a page of the owners that have claimed and were not retired.  ``clock``: what the server's clock should
    show."""

    script: ClassVar[str] = "owners"
    queue: str
    cursor: bytes = START
    clock: int = 0

    def at_clock(self, expected: Expected) -> Owners:
        return replace(self, clock=expected.clock_us)

    def clock_of(self, body: Body) -> int:
        return body[2]


@dataclass(frozen=True, slots=True)
class Claims(Paging[Names]):
    """List a page of the items that an owner holds."""

    script: ClassVar[str] = "claims"
    queue: str
    owner: str
    cursor: bytes = START


@dataclass(frozen=True, slots=True)
class Retire(Call[None]):
    """Forget an owner whose claims were all requeued."""

    script: ClassVar[str] = "retire"
    queue: str
    owner: str
