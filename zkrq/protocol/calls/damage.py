"""Mend damaged entries from good copies, and keep those aside of which no server has one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Call, Decision, Paging, Records
from zkrq.protocol.calls.rows import Copied


@dataclass(frozen=True, slots=True)
class Mend(Decision[Records]):
    """Decide entries again, from good copies, that are damaged on the primary or set aside there."""

    script: ClassVar[str] = "mend"
    queue: str
    items: Sequence[Copied]


class Kept(NamedTuple):
    """An entry that is set aside, as it is stored; of a page only its head (``lua/_damage.lua``)."""

    id: bytes
    bytes: bytes


class SetAsideReply(NamedTuple):
    """What the server keeps now, and the number of entries for which it had no room."""

    kept: Sequence[Kept]
    full: int


@dataclass(frozen=True, slots=True)
class SetAside(Call[SetAsideReply]):
    """Keep damaged entries aside; each with what another server keeps of it, for one that is unknown here."""

    script: ClassVar[str] = "set_aside"
    queue: str
    at_ms: int
    reason: str
    items: Sequence[Kept]


class AsidePage(NamedTuple):
    """A page of what is set aside, and the cursor to continue from."""

    cursor: bytes
    kept: Sequence[Kept]


@dataclass(frozen=True, slots=True)
class Aside(Paging[AsidePage]):
    """Read the heads of what is set aside, page by page; or all of the one that ``items`` names."""

    script: ClassVar[str] = "aside"
    queue: str
    cursor: bytes = START
    items: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class DropAside(Call[None]):
    """Drop what is set aside: these entries, or all of the queue if none is named."""

    script: ClassVar[str] = "drop_aside"
    queue: str
    items: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class DropName(Call[None]):
    """Drop names of queues that are no texts."""

    script: ClassVar[str] = "drop_name"
    items: Sequence[bytes]
    queue: str = ""


class Remains(NamedTuple):
    """What is left of an entry that was set aside: when (milliseconds since 1970 by a client's clock), why, and what
    was stored: the record without its shift, the payloads and the notes, each empty if there was none, or if only the
    head was read."""

    at_ms: int
    reason: str
    record_bytes: int
    payload_bytes: int
    record: bytes
    payload: bytes
    notes: bytes


_HEAD = struct.Struct("<dIIIH")
_SHIFT_BYTES = 8
_LAST_MS = 253_402_300_799_000  # Python knows no later moment


def read_remains(kept: bytes) -> Remains:
    """Read what ``lua/_damage.lua`` has packed, or its head; nothing of what is damaged itself."""
    if len(kept) < _HEAD.size:
        return Remains(0, "what was kept of it is damaged", 0, 0, b"", b"", b"")
    at_ms, record_bytes, payload_bytes, notes_bytes, reason_bytes = _HEAD.unpack_from(kept)
    parts: list[bytes] = []
    at = _HEAD.size
    for length in (reason_bytes, record_bytes, payload_bytes, notes_bytes):
        parts.append(kept[at : at + length])
        at += length
    reason, record, payload, notes = parts
    moment = int(at_ms) if 0 <= at_ms < _LAST_MS else 0
    text = reason.decode(errors="replace")
    return Remains(moment, text, record_bytes, payload_bytes, record[_SHIFT_BYTES:], payload, notes)
