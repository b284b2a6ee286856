"""Claim items, and settle the claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from zkrq.protocol.calls.call import Body, Carrying, Clocked, Combining, Records, Trimming

if TYPE_CHECKING:
    from zkrq.protocol.clocks import Expected

R = TypeVar("R")


class ClaimReply(NamedTuple):
    """``next_ms``: time until an item becomes ready by itself, 0: ask again immediately, -1: none will.

    ``clock``: the server's.  ``limited``: 1 if the queue has limits.
    """

    next_ms: int
    dropped_letters: int
    handed: Sequence[Any]
    """Runs of items handed out, flat: bundle, position of the first one (from 1), number, payloads
    (payloads.py)."""
    clock: int
    limited: int
    records: Records


@dataclass(frozen=True, slots=True)
class _Request(Trimming[R], Clocked[R], Combining[R]):
    """Claim up to ``count`` items for ``lease_ms``; a request that is repeated under its ``seq`` gets the same items.

    ``waiter``: channel to wake when an item becomes ready, empty: none.  An item that was delivered ``max_attempts``
    times is a dead letter, 0: no limit.  ``expired``: the state of an item that outlived its time to live.
    ``dead_max`` dead letters are kept for ``dead_age_ms``, 0: no limit.  The settings of the queue come before these
    three.  ``clock``: what the server's clock should say now; ``known_ms``: how long the client has known that clock.
    ``elsewhere``: another shard is the home of the queue, as far as is known: then nothing is handed out if limits or
    an order need the home.
    """

    needs_settings: ClassVar[bool] = True
    queue: str
    owner: str
    seq: int
    count: int
    lease_ms: int
    waiter: str
    max_attempts: int
    expired: str
    dead_max: int
    dead_age_ms: int
    clock: int = 0
    known_ms: int = 0
    trim: bool = False
    elsewhere: bool = False

    @property
    def weight(self) -> int:
        return self.count

    def at_clock(self, expected: Expected) -> Self:
        return self.changed(clock=expected.clock_us, known_ms=expected.known_ms)

    def clock_of(self, body: Body) -> int:
        return body[3]


@dataclass(frozen=True, slots=True)
class Claim(_Request[ClaimReply]):
    """Make a claim request by itself."""

    script: ClassVar[str] = "claim"
    always_told: ClassVar[bool] = False  # made very often, mostly without a decision

    def read(self, body: Body) -> ClaimReply:
        next_ms, dropped, handed, clock, limited, records = body
        return ClaimReply(next_ms, dropped, handed, clock, limited, Records(records))


Settlement = tuple[str, bytes, bytes, str, str | bytes]
"""The settlement of claims of one bundle by one request: id, items, version, token, how.

``items``: runs of positions, two bytes each: the first and the last.  ``version`` is the record's, ``token`` identifies
the claim request; ``how`` is a verb, followed by milliseconds and a text, separated by spaces; of an ack without a
result only the verb."""


class SettleReply(NamedTuple):
    """``lost``: by settlement, the positions of the items whose claims are lost, a byte each.  ``due``: flows about
    which something may be decided now, because members of them have ended."""

    dropped_letters: int
    lost: Sequence[bytes]
    records: Records
    due: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Settle(Trimming[SettleReply], Carrying[SettleReply], Combining[SettleReply]):
    """Settle claims; ``dead_max`` and ``dead_age_ms`` as for ``Claim``."""

    script: ClassVar[str] = "settle"
    queue: str
    dead_max: int
    dead_age_ms: int
    items: Sequence[Settlement]
    trim: bool = False
    cuts: bytes = b""

    def read(self, body: Body) -> SettleReply:
        dropped, lost, records, due = body
        return SettleReply(dropped, lost, Records(records), due)


class TurnReply(NamedTuple):
    """The reply to a claim request with settlements: as to ``Claim``, and ``lost`` and ``due`` as to ``Settle``."""

    next_ms: int
    dropped_letters: int
    handed: Sequence[Any]
    clock: int
    limited: int
    records: Records
    verdict: bytes
    """``CLAIMED``, or why nothing was handed out: ``FENCED``, ``OUTDATED``."""
    lost: Sequence[bytes]
    due: Sequence[bytes] = ()


CLAIMED = b"OK"
FENCED = b"FENCED"
"""The request's owner was declared dead."""


@dataclass(frozen=True, slots=True)
class Turn(_Request[TurnReply], Carrying[TurnReply]):
    """Settle what a consumer has done, then claim what it does next, in one decision.

    ``items`` are the settlements.  Each part has a verdict of its own.
    """

    script: ClassVar[str] = "turn"
    items: Sequence[Settlement] = ()
    cuts: bytes = b""

    @classmethod
    def of(cls, request: Claim, settlements: Sequence[Settlement]) -> Turn:
        """Put settlements before a claim request."""
        return cls(*_parts_of(request), items=settlements)

    @property
    def weight(self) -> int:
        return self.count + 1

    def read(self, body: Body) -> TurnReply:
        next_ms, dropped, handed, clock, limited, records, verdict, lost, due = body
        return TurnReply(next_ms, dropped, handed, clock, limited, Records(records), verdict, lost, due)


_parts_of = attrgetter(*(each.name for each in fields(Claim)))


def runs(positions: Iterable[int]) -> bytes:
    """Return positions as runs: the first and the last of neighbours, a byte each."""
    ends = bytearray()
    last = -2
    for position in sorted(positions):
        if position == last + 1:
            ends[-1] = position
        else:
            ends += bytes((position, position))
        last = position
    return bytes(ends)
