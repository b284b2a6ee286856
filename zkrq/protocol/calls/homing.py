"""Bring items of a queue from another shard to its home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Body, Call, Decision, Records, read_rows
from zkrq.protocol.calls.rows import Copied, Copies, Put, item_id, pack_notes, read_notes, read_saved
from zkrq.protocol.payloads import join, payload_at
from zkrq.protocol.records import FIRST, REQUEUED, Bundle, Own, pack, shared_fields, unpack


class MovableReply(NamedTuple):
    """``places``: bundle and position of each item that is queued there; the bundles; the ids of items that were
    adopted there and wait."""

    places: Sequence[tuple[bytes, int]]
    copies: Copies
    adopted: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Movable(Call[MovableReply]):
    """Read the first ``count`` items that are queued, to bring them home, and those that were adopted and wait."""

    script: ClassVar[str] = "movable"
    queue: str
    count: int

    def read(self, body: Body) -> MovableReply:
        places, flat, beyond, adopted = body
        pairs = [(id, position - 1) for id, position in zip(places[::2], places[1::2], strict=True)]
        return MovableReply(pairs, Copies(read_rows(Copied, flat), beyond), adopted)


class Adopted(NamedTuple):
    """An item to be adopted: its id, record and payload, as of a push; and its notes: why it failed, saved state."""

    id: str
    record: bytes
    payload: bytes
    notes: bytes = b""

    @classmethod
    def of(cls, copied: Copied, position: int) -> Adopted | None:
        """Make it of an item as it was read elsewhere; None if its payload is not there yet.

        Raises ``ValueError`` if it is damaged.
        """
        payload = None if copied.payload is None else payload_at(copied.payload, position)
        if payload is None:
            return None
        bundle, since = unpack(copied.record), float(copied.since)
        own = bundle.own.get(position, Own(bundle.due_us))
        due_us = own.moment_us + since
        record = Bundle(
            FIRST,
            REQUEUED,
            attempts=[bundle.attempts[position]],
            priority=bundle.priority,
            pushed_at_ms=bundle.pushed_at_ms,
            due_us=due_us,
            own={0: Own(due_us, own.failures)},
            key=bundle.key,
            expires_us=bundle.expires_us + since if bundle.expires_us else 0,
            ttl_us=bundle.ttl_us,
            group=bundle.group,
            fields=shared_fields(bundle.fields),
        )
        bundle_id = copied.id.decode()
        id = bundle_id if bundle.is_alone else item_id(bundle_id, position)
        failures, saved = read_notes(copied.notes).get(position), read_saved(copied.notes).get(position)
        return cls(id, pack(record), join([payload]), pack_notes(failures, saved))

    @property
    def put(self) -> Put:
        """The same as a push."""
        return Put(self.id, self.record, self.payload)


class AdoptReply(NamedTuple):
    """``outcomes`` by position: ``+`` new, ``K`` it is there, ``D`` it was there and has ended, ``F`` the queue is
    full, ``L`` too late."""

    outcomes: Sequence[bytes]
    records: Records


@dataclass(frozen=True, slots=True)
class Adopt(Decision[AdoptReply]):
    """Adopt items that another shard has queued.  They wait until ``Admit`` says what that shard has decided.

    ``as_of_ms``: when they were read there.
    """

    script: ClassVar[str] = "adopt"
    queue: str
    as_of_ms: int
    items: Sequence[Adopted]

    @property
    def puts(self) -> Sequence[Put]:
        return [each.put for each in self.items]


@dataclass(frozen=True, slots=True)
class Admit(Decision[Records]):
    """End the wait of adopted items: of each its id, and 1 if it is here from now on, 0 if it has ended elsewhere."""

    script: ClassVar[str] = "admit"
    queue: str
    items: Sequence[tuple[str, int]]
