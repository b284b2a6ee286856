"""Claim items, and settle the claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Body, Clocked
from zkrq.protocol.calls.decision import Trimming
from zkrq.protocol.calls.rows import Records, Word
from zkrq.protocol.clocks import Expected
from zkrq.protocol.records import Record, State, Version, pack


class ClaimReply(NamedTuple):
    """``next_ms``: time until an item becomes ready by itself, 0: ask again immediately, -1: none will.

    ``payloads``: of the first records, None for a record that was decided and not handed out.  ``clock``: the server's.
    """

    next_ms: int
    dropped_letters: int
    payloads: Sequence[bytes | None]
    clock: int
    records: Records


@dataclass(frozen=True, slots=True)
class Claim(Trimming[ClaimReply], Clocked[ClaimReply]):
    """Claim up to ``count`` items for ``lease_ms``; a request that is repeated under its ``seq`` gets the same items.

    ``waiter``: channel to wake when an item becomes ready, empty: none.  An item that was delivered ``max_attempts``
    times is a dead letter, 0: no limit.  ``expired``: the state of an item that outlived its time to live.
    ``dead_max`` dead letters are kept for ``dead_age_ms``, 0: no limit.  ``clock``: what the server's clock should say
    now; ``known_ms``: how long the client has known that clock.
    """

    script: ClassVar[str] = "claim"
    always_told: ClassVar[bool] = False  # made very often, mostly without a decision
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

    def at_clock(self, expected: Expected) -> Claim:
        return replace(self, clock=expected.clock_us, known_ms=expected.known_ms)

    def clock_of(self, body: Body) -> int:
        return body[3]

    def read(self, body: Body) -> ClaimReply:
        next_ms, dropped, payloads, clock, records = body
        return ClaimReply(next_ms, dropped, payloads, clock, Records(records))


Settlement = tuple[str, bytes, str, str]
"""The settlement of one claim: id, version, token, how.  ``version`` is the record's, ``token`` identifies the claim
request; ``how`` is a verb, for all but ``ack`` followed by milliseconds and a text, separated by spaces.  A plain
tuple, because one is made for every settled item."""


class SettleReply(NamedTuple):
    """``outcomes`` by position: 0 the claim is lost, 1 done, more: acked, and the ``n`` of the item's version now.

    ``records`` has everything except those acks; ``buried_us`` is the time in their tombstones.
    """

    dropped_letters: int
    buried_us: int
    outcomes: Sequence[int]
    records: Records


@dataclass(frozen=True, slots=True)
class Settle(Trimming[SettleReply]):
    """Settle claims; ``dead_max`` and ``dead_age_ms`` as for ``Claim``."""

    script: ClassVar[str] = "settle"
    queue: str
    dead_max: int
    dead_age_ms: int
    items: Sequence[Settlement]
    trim: bool = False

    def read(self, body: Body) -> SettleReply:
        dropped, buried_us, outcomes, records = body
        return SettleReply(dropped, buried_us, outcomes, Records(records))

    def decided(self, reply: SettleReply, epoch: int) -> Records:
        """Make the records of the plain acks, which the reply leaves out to save bytes."""
        flat: list[Word] = []
        known: tuple[int, str] | None = None
        record = b""
        for (id, _, token, _), n in zip(self.items, reply.outcomes, strict=True):
            if n > 1:
                if known != (n, token):
                    known = n, token
                    record = pack(_tombstone(epoch, n, token, reply.buried_us))
                flat += (id.encode(), record, 0)
                record = b""  # the following ones are the same
        return Records([*reply.records.flat, *flat]) if flat else reply.records


def _tombstone(epoch: int, n: int, token: str, buried_us: int) -> Record:
    return Record(Version(epoch, n), State.GONE, due_us=buried_us, token=token)
