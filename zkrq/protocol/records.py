"""Define the life of an item as a table, and the record that represents it on every server.

A record contains all that is known of a bundle, the items that one call pushed together, except their payloads and the
reasons of failures.  Clients carry records unread from the server that decided them to the others; ``lua/_record.lua``
has the same layout.  An item belongs to one record for its whole life.

=========== =====================================================================================================
head        format, version, priority and marks, number of items (0: one, whose id has no position), moment of the
            push, moment at which the items are due, the deciding server's clock, no claim ends before this moment
columns     of each item: state (1 byte), row of its last claim (1 byte), attempts (2 bytes)
owners      the texts that rows refer to
rows        of claims: owner, number of the request, lease, deadline; of one that was extended also its beginning, in
            another one without a lease
own         what an item does not share with its bundle: position, moment (due, or died), failures
fields      only of format 4: their length in all (2 bytes), then of each its kind (a letter), length (2 bytes), bytes;
            ordered by kind; those of unknown kinds are kept
tail        only of one item that has a key or a time to live: key, moment at which it expires (0: never), time to live;
            of the queue's limits their text (``lua/_limits.lua``)
group       only of items in a group: its name, and the order in it (8 bytes; 0: by the moment of the push;
            negative: the item does not hold its group while it waits)
=========== =====================================================================================================

Moments are by the clock of the server that decided, in microseconds; those of a plain push count from its arrival.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

FORMAT = 2
"""First byte of a record."""

GROUPED_FORMAT = 3
"""First byte of the record of items in a group, so that clients that know no groups fail loudly."""

FIELDS_FORMAT = 4
"""First byte of a record that has fields, in a group or not: the same."""

PRIORITIES = range(10)
"""Priorities; higher is delivered first."""


BUNDLE_MAX = 100
"""Greatest number of items in a bundle."""


class State(enum.StrEnum):
    QUEUED = "Q"  # ready, or scheduled until its due time
    CLAIMED = "C"  # handed to a consumer until a deadline
    DEAD = "D"  # kept for inspection, never delivered
    GONE = "X"  # removed; the tombstone remains for a while
    # No item: under PAUSE a record of the queue itself, GONE or missing while claims are allowed; that of LIMITS is in
    # this state, too, while there are some.
    PAUSED = "P"


MOVES: Mapping[State, Mapping[str, State]] = {
    # drop: known here only by a claim, and its push can no longer arrive.  exhaust: delivered as often as allowed.
    # expire: it has outlived its time to live, and the queue's settings drop it or keep it.
    State.QUEUED: {
        "claim": State.CLAIMED,
        "clear": State.GONE,
        "cancel": State.GONE,
        "replace": State.GONE,
        "drop": State.GONE,
        "exhaust": State.DEAD,
        "expire": State.GONE,
        "expire and keep": State.DEAD,
    },
    State.CLAIMED: {
        "ack": State.GONE,
        "nack": State.QUEUED,
        "pass": State.QUEUED,
        "release": State.QUEUED,
        "snooze": State.QUEUED,
        "extend": State.CLAIMED,
        "save": State.CLAIMED,
        "bury": State.DEAD,
        "cancel": State.GONE,
        "fence": State.QUEUED,
        "expire": State.QUEUED,
    },
    State.DEAD: {"redrive": State.QUEUED, "cancel": State.GONE, "drop": State.GONE},
    # push: only if the tombstone has expired, or belongs to a refused push.
    State.GONE: {"pause": State.PAUSED, "push": State.QUEUED},
    State.PAUSED: {"resume": State.GONE},
}
"""What may happen to an item in each state, and its next state; the verbs are those of the scripts."""


class Version(NamedTuple):
    """Order the records of one bundle: by the epoch in which it was decided, then by a count."""

    epoch: int
    n: int


FIRST = Version(0, 1)
"""Version of a plain push on every server; every decision is greater."""


class Row(NamedTuple):
    """A claim request that was given items of the bundle.  ``seq`` is 0 for a call that is not a claim.

    A claim request without a lease says when the claims of that request began, in the place of the deadline: they were
    extended since (``note_beginning`` in ``lua/_bundle.lua``).  No column names such a row.
    """

    owner: str
    seq: int
    lease_ms: int = 0
    deadline_us: float = 0

    @property
    def token(self) -> str:
        """Name of the request."""
        return f"{self.owner}/{self.seq}" if self.seq else self.owner


class Own(NamedTuple):
    """What an item does not share with its bundle: when it is due, or died, and how often it failed.

    Of a removed item that has a result: when it was removed, and the milliseconds for which the result is kept.
    """

    moment_us: float
    failures: int = 0


class ItemRecord(NamedTuple):
    """What is known of one item.  ``pushed_at_ms``: milliseconds since 1970 by the producer's clock.  ``due_us``: when
    it is due, or died, and ``expires_us``: when its time to live ends (0: never), by the clock of the server that
    decided.  ``token``: the last request that claimed it.  ``order``: its place in the order of its group, None unless
    that keeps one."""

    version: Version
    state: State
    priority: int = 0
    attempts: int = 0
    failures: int = 0
    pushed_at_ms: float = 0
    due_us: float = 0
    deadline_us: float = 0
    token: str = ""
    key: str = ""
    expires_us: float = 0
    group: str | None = None
    order: float | None = None


def was_put_back(claimed: ItemRecord, now: ItemRecord, *, failed: bool) -> bool:
    """Tell whether a claim certainly ended by its nack (``failed``) or release, from what is known of the item later.

    ``claimed``: the item as the claim was decided.  False: it did not, or that cannot be told.

    A claim adds an attempt.  Then a nack adds a failure, a release takes the attempt back, and an expiry or a fence
    does neither.  So the failures less the attempts grow by one where this claim was put back, stay as they are with a
    later claim that was, and fall by one with a later claim that has expired, and with the one that holds now.  Only a
    dead letter that was redriven begins anew, with none of both, so ask this only about the time of one call.
    """
    if now.state not in (State.QUEUED, State.CLAIMED) or (failed and now.failures <= claimed.failures):
        return False
    grown = (now.failures - now.attempts) - (claimed.failures - claimed.attempts)
    return grown + (now.state is State.CLAIMED) == 1


_NO_FIELDS: Mapping[str, bytes] = MappingProxyType({})

SAVED_FIELD = "S"
"""Kind of the field that names the items with a saved state: of each its position (from 1), and the number of the last
save of its present claim, 0 if there was none."""


def shared_fields(fields: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the fields that are not of single items of the bundle."""
    return {kind: value for kind, value in fields.items() if kind != SAVED_FIELD}


class Bundle(NamedTuple):
    """A record, unpacked.  ``states``, ``rows_of`` (0: none) and ``attempts`` have one element per item.  ``text``: of
    the record of the queue's limits.  ``claim_n``: number of the last claim, None unless the group keeps the order."""

    version: Version
    states: str
    rows_of: Sequence[int] = ()
    attempts: Sequence[int] = ()
    priority: int = 0
    is_alone: bool = True
    pushed_at_ms: float = 0
    due_us: float = 0
    clock_us: float = 0
    soonest_us: float = 0
    rows: Sequence[Row] = ()
    own: Mapping[int, Own] = MappingProxyType({})
    key: str = ""
    expires_us: float = 0
    ttl_us: float = 0
    text: str = ""
    group: str | None = None
    order: float = 0
    claim_n: int | None = None
    fields: Mapping[str, bytes] = _NO_FIELDS

    @property
    def is_alive(self) -> bool:
        """Whether any item is left."""
        return any(state in "QRCDP" for state in self.states)

    def item(self, position: int) -> ItemRecord:
        """Return what is known of one item."""
        state = _STATES[self.states[position]]
        own = self.own.get(position)
        row = self.rows[self.rows_of[position] - 1] if self.rows_of[position] else None
        return ItemRecord(
            self.version,
            state,
            self.priority,
            self.attempts[position],
            own.failures if own else 0,
            self.pushed_at_ms,
            own.moment_us if own else self.due_us,
            row.deadline_us if row else 0,
            row.token if row else "",
            self.key,
            self.expires_us,
            self.group,
            None if self.claim_n is None else self.order,
        )

    def claimed_us(self, position: int) -> float | None:
        """Return when the last claim of an item began, by the clock of the server that decided; None: none is known."""
        row = self.rows[self.rows_of[position] - 1] if self.rows_of[position] else None
        if row is None or not row.seq:
            return None
        begun = (each.deadline_us for each in self.rows if each.token == row.token and not each.lease_ms)
        return next(begun, row.deadline_us - 1000 * row.lease_ms)

    def done_by(self, token: str, states: str) -> int:
        """Count the items in one of these states that the request of this name put there."""
        return sum(
            state in states and row > 0 and self.rows[row - 1].token == token
            for state, row in zip(self.states, self.rows_of, strict=True)
        )


NEVER_US = 2.0**51
"""Microseconds until an adopted item is due, at least; no push is delayed for as long (``lua/adopt.lua``)."""

REQUEUED, REFUSED = "R", "F"
"""Stored states of an item that is queued at a moment of its own, and of one that was never accepted."""

MEMBER, HELD, DELAY, LEGS, OUTER = "F", "W", "Y", "L", "O"
"""Kinds of fields: the flow of which the items are members, the flow for whose end an item is held, and in how many
milliseconds from then it is due; of a flow itself its legs, once it is closed, and the flow of which it is a member."""


class Opens(enum.StrEnum):
    """When an item that is held for a flow is opened: letters before the flow, in its record."""

    THEN = "T"
    FAILURE = "F"
    ALWAYS = "A"
    NESTED = "I"  # never: it stands for that flow in another one, and ends with it


WAITING = "N"
"""Instead of these letters, before the names of members for which another one waits."""


def held_for(flow: bytes, opens: Opens) -> bytes:
    """Return the field of an item that is held for a flow."""
    return opens.encode() + flow


def nested_in(bundle: Bundle) -> str:
    """Return the inner flow for which an item stands, empty: it is one like others."""
    field = bundle.fields.get(HELD, b"").decode(errors="replace")
    return field[1:] if field.startswith(Opens.NESTED) else ""


def waiting_for(names: Sequence[str]) -> bytes:
    """Return the field of a member that waits for others; ``names``: as of ``flow_names.named``."""
    return WAITING.encode() + " ".join(names).encode()


_STATES: Mapping[str, State] = {
    **{state.value: state for state in State},
    REQUEUED: State.QUEUED,
    REFUSED: State.GONE,
}

_KNOWN_STATES = "".join(_STATES)

_HEAD = struct.Struct("<BIIBBdddd")
_ROW = struct.Struct("<BIId")
_OWN = struct.Struct("<BdI")
_LIFE = struct.Struct("<dd")
_ORDER = _CLAIM_N = struct.Struct("<d")
_NO_ROW = 127
_FIELDS_LENGTH, _FIELD = struct.Struct("<H"), struct.Struct("<cH")
_FORMATS = tuple(bytes([each]) for each in (FORMAT, GROUPED_FORMAT, FIELDS_FORMAT))

_EXPIRES, _KEYED, _GROUPED, _ORDERED = 16, 32, 64, 128
"""Flags in the byte of the priority, so that scripts read the tail of few records only."""


def pack(bundle: Bundle) -> bytes:
    """Pack the record as servers store it."""
    size = len(bundle.states)
    owners = list(dict.fromkeys(row.owner for row in bundle.rows))
    marks = (_EXPIRES if bundle.expires_us else 0) + (_KEYED if bundle.key else 0)
    is_grouped = bundle.group is not None
    parts = [
        _HEAD.pack(
            FIELDS_FORMAT if bundle.fields else GROUPED_FORMAT if is_grouped else FORMAT,
            *bundle.version,
            bundle.priority + marks + (_GROUPED if is_grouped else 0) + (_ORDERED if bundle.claim_n is not None else 0),
            0 if bundle.is_alone else size,
            bundle.pushed_at_ms,
            bundle.due_us,
            bundle.clock_us,
            bundle.soonest_us,
        ),
        bundle.states.encode(),
        bytes(_NO_ROW + row for row in bundle.rows_of or [0] * size),
        struct.pack(f"<{size}H", *(bundle.attempts or [0] * size)),
        bytes([len(owners)]),
        *(_text(owner) for owner in owners),
        bytes([len(bundle.rows)]),
        *(_ROW.pack(owners.index(row.owner) + 1, row.seq, row.lease_ms, row.deadline_us) for row in bundle.rows),
        bytes([len(bundle.own)]),
        *(_OWN.pack(position + 1, own.moment_us, own.failures) for position, own in sorted(bundle.own.items())),
    ]
    if bundle.fields:
        parts.append(_pack_fields(bundle.fields))
    if marks:
        parts += (_text(bundle.key), _LIFE.pack(bundle.expires_us, bundle.ttl_us))
    else:
        parts.append(bundle.text.encode())
    if bundle.group is not None:
        parts += (_text(bundle.group), _ORDER.pack(bundle.order))
    if bundle.claim_n is not None:
        parts.append(_CLAIM_N.pack(bundle.claim_n))
    return b"".join(parts)


def _pack_fields(fields: Mapping[str, bytes]) -> bytes:
    packed = b"".join([
        _FIELD.pack(kind.encode("latin-1"), len(value)) + value for kind, value in sorted(fields.items())
    ])  # fmt: skip
    return _FIELDS_LENGTH.pack(len(packed)) + packed


def _fields_at(packed: bytes, at: int) -> tuple[Mapping[str, bytes], int]:
    """Read the fields of a record, and where they end."""
    (length,) = _FIELDS_LENGTH.unpack_from(packed, at)
    at += _FIELDS_LENGTH.size
    ending, before, fields = at + length, b"", dict[str, bytes]()
    while at < ending:
        kind, length = _FIELD.unpack_from(packed, at)
        if kind <= before:
            raise ValueError("fields that are out of order")
        at, before = at + _FIELD.size + length, kind
        fields[kind.decode("latin-1")] = packed[at - length : at]
    if at != ending or ending > len(packed):
        raise ValueError("fields that do not fill their place")
    return fields, at


def _text(text: str) -> bytes:
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


class DamagedRecord(ValueError):
    """A stored record that cannot be read, or that is of another version of zkrq."""


def unpack(packed: bytes) -> Bundle:
    """Read what ``pack`` or a script wrote.  Raises ``DamagedRecord`` for anything else."""
    try:
        return _unpack(packed)
    except (IndexError, OverflowError, ValueError, struct.error) as error:
        raise DamagedRecord(f"a record that cannot be read: {error}") from error


def _unpack(packed: bytes) -> Bundle:
    if packed[:1] not in _FORMATS:
        raise ValueError(f"a record of format {packed[:1]!r}, this version of zkrq reads {FORMAT} to {FIELDS_FORMAT}")
    _, epoch, n, marked, count, pushed_at_ms, due_us, clock_us, soonest_us = _HEAD.unpack_from(packed)
    size, at = count or 1, _HEAD.size
    states = packed[at : at + size].decode("ascii")
    if states.strip(_KNOWN_STATES):
        raise ValueError("an unknown state")
    rows_of = [byte - _NO_ROW for byte in packed[at + size : at + 2 * size]]
    attempts = struct.unpack_from(f"<{size}H", packed, at + 2 * size)
    at += 4 * size
    owners: list[str] = []
    owner_count, at = packed[at], at + 1
    for _ in range(owner_count):
        owner, at = _text_at(packed, at)
        owners.append(owner)
    rows_end = at + 1 + packed[at] * _ROW.size
    rows = [
        Row(owners[owner - 1], seq, lease_ms, deadline_us)
        for owner, seq, lease_ms, deadline_us in _ROW.iter_unpack(packed[at + 1 : rows_end])
    ]
    own_end = rows_end + 1 + packed[rows_end] * _OWN.size
    own = {
        position - 1: Own(moment_us, failures)
        for position, moment_us, failures in _OWN.iter_unpack(packed[rows_end + 1 : own_end])
    }
    if (rows_of and not 0 <= min(rows_of) <= max(rows_of) <= len(rows)) or len(rows_of) < size:
        raise ValueError("an item whose claim is missing")
    fields, tail_at = _fields_at(packed, own_end) if packed[0] == FIELDS_FORMAT else (_NO_FIELDS, own_end)
    return Bundle(
        Version(epoch, n),
        states,
        rows_of,
        attempts,
        marked % _EXPIRES,
        count == 0,
        pushed_at_ms,
        due_us,
        clock_us,
        soonest_us,
        rows,
        own,
        *_tail_at(packed, tail_at, marked),
        fields,
    )


def _tail_at(packed: bytes, at: int, marked: int) -> tuple[str, float, float, str, str | None, float, int | None]:
    """Read what only marked records have: key, end and length of the time to live, text, group, order, and, where the
    group keeps it, the number of the last claim."""
    key, expires_us, ttl_us = "", 0.0, 0.0
    if marked & (_EXPIRES | _KEYED):
        key, at = _text_at(packed, at)
        expires_us, ttl_us = _LIFE.unpack_from(packed, at)
        at += _LIFE.size
    if marked & _GROUPED:
        group, at = _text_at(packed, at)
        (order,) = _ORDER.unpack_from(packed, at)
        claim_n = _claim_n_of(packed) if marked & _ORDERED else None
        return key, expires_us, ttl_us, "", group, order, claim_n
    return key, expires_us, ttl_us, packed[at:].decode(errors="replace"), None, 0.0, None


def _claim_n_of(packed: bytes) -> int:
    return int(_CLAIM_N.unpack_from(packed, len(packed) - _CLAIM_N.size)[0])


def _text_at(packed: bytes, at: int) -> tuple[str, int]:
    behind = at + 1 + packed[at]
    return packed[at + 1 : behind].decode(errors="replace"), behind


def fresh(
    priority: int,
    pushed_at_ms: int,
    *,
    size: int | None = None,
    delay_ms: int = 0,
    key: str = "",
    ttl_ms: float = 0,
    group: str | None = None,
) -> bytes:
    """Make the record of a push: of ``size`` items, None: of one whose id has no position.

    ``delay_ms`` and ``ttl_ms`` (0: none) count from its arrival.
    """
    if not key and not ttl_ms:
        queued = _QUEUED_ALONE if size is None else _queued(size)
        if group is None:
            return _HEAD.pack(FORMAT, 0, 1, priority, size or 0, pushed_at_ms, delay_ms * 1000, 0, 0) + queued
        marked = priority + _GROUPED
        head = _HEAD.pack(GROUPED_FORMAT, 0, 1, marked, size or 0, pushed_at_ms, delay_ms * 1000, 0, 0)
        return b"".join((head, queued, _text(group), _NO_ORDER))
    bundle = Bundle(FIRST, "Q", priority=priority, pushed_at_ms=pushed_at_ms, due_us=delay_ms * 1000, group=group)
    return pack(bundle._replace(key=key, expires_us=ttl_ms * 1000, ttl_us=ttl_ms * 1000))


@cache
def _queued(size: int) -> bytes:
    return b"".join((b"Q" * size, bytes([_NO_ROW]) * size, bytes(2 * size), bytes(3)))


def in_order(record: bytes) -> bytes:
    """Make the record of a push of one item into a group that keeps the order."""
    marked = bytes([record[_MARKED_AT] | _ORDERED])
    return b"".join((record[:_MARKED_AT], marked, record[_MARKED_AT + 1 :], _NO_CLAIM))


def with_fields(record: bytes, fields: Mapping[str, bytes]) -> bytes:
    """Make the record of the same push with these fields."""
    return pack(unpack(record)._replace(fields=fields)) if fields else record


REPLACED = "="
"""How the owner of the row begins that names the items in whose place one was pushed (``lua/push_decided.lua``)."""


def with_end(record: bytes, at_latest_ms: int) -> bytes:
    """Make the record of the same push, which is due after as many milliseconds at the latest, also what takes its
    place."""
    return pack(unpack(record)._replace(rows=[Row(REPLACED, 0, at_latest_ms, at_latest_ms * 1000.0)]))


_MARKED_AT = 9

_QUEUED_ALONE = _queued(1)
_NO_ORDER = _NO_CLAIM = _ORDER.pack(0)


def above(record: bytes, n: int) -> bytes:
    """Make the record of a push whose id has tombstones of up to this ``n``: decisions from it are greater."""
    return b"".join((record[: _N_BYTES.start], _N.pack(max(n, version_of(record).n)), record[_N_BYTES.stop :]))


_N = struct.Struct("<I")
_N_BYTES = slice(5, 9)

_VERSION = struct.Struct("<xII")
VERSION_BYTES = slice(1, 9)
"""Position of the version in a packed record."""

_COUNT_AT, _STATES_AT = 10, _HEAD.size
_CLOCK = struct.Struct("<d")
_DUE_AT, _CLOCK_AT = 19, 27
_ONE = struct.pack("<H", 1)


def version_of(packed: bytes) -> Version:
    """Read only the version of a packed record."""
    return Version(*_VERSION.unpack_from(packed))


def token_of(packed: bytes) -> tuple[int, int]:
    """Read the fencing token of a claim: it grows from claim to claim of an item, and of a group that keeps the order.

    The version of a record grows within its item only.  So claims in such groups are numbered; the numbers of a primary
    that lost its place may come again, under a later epoch.
    """
    version = version_of(packed)
    return (version.epoch, _claim_n_of(packed)) if packed[_MARKED_AT] & _ORDERED else version


def clock_of(packed: bytes) -> float:
    """Read only the clock of the server that decided, in microseconds."""
    return _CLOCK.unpack_from(packed, _CLOCK_AT)[0]


def first_due(items: Iterable[tuple[bytes, int]]) -> list[float]:
    """Return when items were due that are delivered for the first time, by the clock of the server that decided; 0 for
    one that was delivered before.

    ``items``: the record and the position of each.  Reads nothing else, and is one call, because it is asked of every
    claim.
    """
    found: list[float] = []
    for packed, position in items:
        at = _STATES_AT + 2 * ((packed[_COUNT_AT] or 1) + position)
        found.append(_CLOCK.unpack_from(packed, _DUE_AT)[0] if packed[at : at + 2] == _ONE else 0.0)
    return found


def is_alone(packed: bytes) -> bool:
    """Tell whether the record is of one item whose id has no position."""
    return packed[_COUNT_AT] == 0


def attempts_of(packed: bytes) -> tuple[int, ...]:
    """Read only the attempts of each item of a packed record."""
    size = packed[_COUNT_AT] or 1
    return struct.unpack_from(f"<{size}H", packed, _STATES_AT + 2 * size)


def states_of(packed: bytes) -> bytes:
    """Read only the states of the items of a packed record."""
    return packed[_STATES_AT : _STATES_AT + (packed[_COUNT_AT] or 1)]
