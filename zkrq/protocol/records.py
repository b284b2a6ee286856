"""Define the life of an item as a table, and the record that represents it on every server.

A record contains all that is known of an item except its payload.  Clients carry records unread from the server that
decided them to the others; ``lua/_record.lua`` has the same layout.  The times inside are for people and for order;
expiry goes by each server's own clock.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import NamedTuple

FORMAT = 1
"""First byte of every record."""

PRIORITIES = range(10)
"""Priorities; higher is delivered first."""


class State(enum.StrEnum):
    QUEUED = "Q"  # ready, or scheduled until its due time
    CLAIMED = "C"  # handed to a consumer until a deadline
    DEAD = "D"  # kept for inspection, never delivered
    GONE = "X"  # removed; the tombstone remains for a while
    PAUSED = "P"  # no item: under PAUSE the queue's own record, GONE or missing while claims are allowed


MOVES: Mapping[State, Mapping[str, State]] = {
    # drop: known here only by a claim, and its push can no longer arrive.  exhaust: delivered as often as allowed.
    # expire: it has outlived its time to live, and the queue's settings drop it or keep it.
    State.QUEUED: {
        "claim": State.CLAIMED,
        "clear": State.GONE,
        "cancel": State.GONE,
        "drop": State.GONE,
        "exhaust": State.DEAD,
        "expire": State.GONE,
        "expire and keep": State.DEAD,
    },
    State.CLAIMED: {
        "ack": State.GONE,
        "nack": State.QUEUED,
        "release": State.QUEUED,
        "extend": State.CLAIMED,
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
    """Order the records of one item: by the epoch in which it was decided, then by a count."""

    epoch: int
    n: int


FIRST = Version(0, 1)
"""Version of a plain push on every server; every decision is greater."""


class Record(NamedTuple):
    """What is known of an item.  ``pushed_at``: milliseconds since 1970 by the producer's clock.  ``due_us``:
    microseconds by the clock of the server that decided (for a removed item: when it was removed).  ``lease_ms``:
    length of the claim. ``ttl_ms``: how long the item may live from its push on, None: no limit."""

    version: Version
    state: State
    priority: int = 0
    attempts: int = 0
    failures: int = 0
    pushed_at_ms: float = 0
    due_us: float = 0
    lease_ms: int = 0
    token: str = ""
    key: str = ""
    note: str = ""
    ttl_ms: float | None = None


_HEAD = struct.Struct("<BII1sBIIddIB")
_LENGTH = struct.Struct("<H")
_TTL = struct.Struct("<d")

_EXPIRES, _KEYED = 16, 32
"""Flags in the byte of the priority, so that scripts read the tail of few records only."""


def _marked(priority: int, key: str, ttl_ms: float | None) -> int:
    return priority + (_EXPIRES if ttl_ms is not None else 0) + (_KEYED if key else 0)


def _tail(key: bytes, note: bytes, ttl_ms: float | None) -> bytes:
    ttl = b"" if ttl_ms is None else _TTL.pack(ttl_ms)
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(note)), note, ttl))


def pack(record: Record) -> bytes:
    """Pack the record as servers store it."""
    token, key, note = record.token.encode(), record.key.encode(), record.note.encode()
    head = _HEAD.pack(
        FORMAT,
        *record.version,
        record.state.encode(),
        _marked(record.priority, record.key, record.ttl_ms),
        record.attempts,
        record.failures,
        record.pushed_at_ms,
        record.due_us,
        record.lease_ms,
        len(token),
    )
    return head + token + _tail(key, note, record.ttl_ms)


def unpack(packed: bytes) -> Record:
    """Read what ``pack`` or a script wrote.  Raises ``ValueError`` for a format of another version of zkrq."""
    if packed[:1] != bytes([FORMAT]):
        raise ValueError(f"a record of format {packed[:1]!r}, this version of zkrq reads {FORMAT}")
    _, epoch, n, state, priority, attempts, failures, pushed_at_ms, due_us, lease_ms, length = _HEAD.unpack_from(packed)
    texts: list[str] = []
    at = _HEAD.size
    for _ in range(3):
        texts.append(packed[at : at + length].decode(errors="replace"))
        at += length
        if len(texts) < 3:
            (length,) = _LENGTH.unpack_from(packed, at)
            at += _LENGTH.size
    (ttl_ms,) = _TTL.unpack_from(packed, at) if at < len(packed) else (None,)
    token, key, note = texts
    return Record(
        Version(epoch, n),
        State(state.decode()),
        priority % _EXPIRES,
        attempts,
        failures,
        pushed_at_ms,
        due_us,
        lease_ms,
        token,
        key,
        note,
        ttl_ms,
    )


def fresh(priority: int, pushed_at_ms: int, key: str = "", ttl_ms: float | None = None) -> bytes:
    """Make the record of a push."""
    if not key and ttl_ms is None:
        return _HEAD.pack(FORMAT, 0, 1, b"Q", priority, 0, 0, pushed_at_ms, 0, 0, 0) + _NO_TEXTS
    head = _HEAD.pack(FORMAT, 0, 1, b"Q", _marked(priority, key, ttl_ms), 0, 0, pushed_at_ms, 0, 0, 0)
    return head + _tail(key.encode(), b"", ttl_ms)


def above(record: bytes, n: int) -> bytes:
    """Make the record of a push whose id has tombstones of up to this ``n``: decisions from it are greater."""
    return b"".join((record[: _N_BYTES.start], _N.pack(max(n, version_of(record).n)), record[_N_BYTES.stop :]))


_N = struct.Struct("<I")
_N_BYTES = slice(5, 9)

_NO_TEXTS = bytes(2 * _LENGTH.size)

STATE_AT, GONE_BYTE = 9, ord(State.GONE)
"""Position of the state in a packed record, and its byte for removed items."""

_VERSION = struct.Struct("<xII")
VERSION_BYTES = slice(1, 9)
"""Position of the version in a packed record."""


def version_of(packed: bytes) -> Version:
    """Read only the version of a packed record."""
    return Version(*_VERSION.unpack_from(packed))
