"""Push items: apply them on every server, or let the primary decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import Body, Carrying, Combining, Decision, Records, from_0
from zkrq.protocol.calls.rows import Put


class PlainReply(NamedTuple):
    """Positions of the puts that were refused because of their age; and of puts that were known, by position, the ``n``
    of the version, and the positions of the items that are gone: none if the put is of one item, which is there."""

    late: Sequence[int]
    known: Mapping[int, tuple[int, bytes]]


_ALL_PUT = PlainReply((), {})


@dataclass(frozen=True, slots=True)
class PushPlain(Carrying[PlainReply], Combining[PlainReply]):
    """Apply plain pushes of new ids."""

    script: ClassVar[str] = "push_plain"
    queue: str
    items: Sequence[Put]
    cuts: bytes = b""

    def read(self, body: Body) -> PlainReply:
        late, known = body
        if not late and not known:
            return _ALL_PUT
        parts = zip(from_0(known[::3]), known[1::3], known[2::3], strict=True)
        return PlainReply(from_0(late), {at: (n, gone) for at, n, gone in parts})


class DecidedReply(NamedTuple):
    """``outcomes`` by position: ``+`` pushed, ``K`` known: pushed before and still there, ``=`` and the id of the item
    that has the key, ``W`` and the id of the one that began the key's window and is gone, ``D`` pushed before and gone,
    ``F`` the queue is full, ``L`` too late, ``O`` it contradicts the order that the queue keeps.  Behind ``+``, ``K``,
    ``D`` follow the ids of the items in whose place it was put, with a byte 1 between them.  ``why``: see
    ``replies.Why``."""

    outcomes: Sequence[bytes]
    records: Records
    why: bytes


class OfKey(NamedTuple):
    """What a push does about other items with its key.

    ``replacing``: it takes the place of queued ones.  ``key_window_ms``: milliseconds for which it keeps others of its
    key away, whatever becomes of it; 0: while it is queued or claimed.
    """

    replacing: bool = False
    key_window_ms: int = 0


@dataclass(frozen=True, slots=True)
class PushDecided(Decision[DecidedReply], Combining[DecidedReply]):
    """Decide pushes of items that have a key, whose queue keeps an order or has a limit of its size, or whose id is
    gone.

    ``again``: another primary may have decided the same pushes before.  ``in_order``: the client knows that the queue
    may keep an order; without it such a queue refuses the call.  A call that may have been executed continues with it,
    since it was in flight while the order was declared.  ``replacing``, ``key_window_ms``: see
    ``OfKey``.
    """

    script: ClassVar[str] = "push_decided"
    queue: str
    items: Sequence[Put]
    again: bool = False
    replacing: bool = False
    key_window_ms: int = 0
    in_order: bool = False

    @property
    def puts(self) -> Sequence[Put]:
        return self.items

    def under(self, *, trim: bool, again: bool) -> PushDecided:
        return replace(self, again=again, in_order=again or self.in_order) if again != self.again else self

    def read(self, body: Body) -> DecidedReply:
        outcomes, records, why = body
        return DecidedReply(outcomes, Records(records), why)
