"""Hold bundles as they are on the wire, in both directions, and the ids of their items."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from zkrq.protocol.failures import last_reason
from zkrq.protocol.payloads import join, payload_at, split
from zkrq.protocol.records import (
    FIRST,
    SAVED_FIELD,
    Bundle,
    Version,
    above,
    fresh,
    is_alone,
    pack,
    shared_fields,
    states_of,
    unpack,
    version_of,
    with_fields,
)


def pack_gone(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return ids of bundles, and positions, as a call carries them along (``lua/_cutting.lua``)."""
    return b"".join([
        b"%b%b%c%b" % (_LENGTH.pack(len(id)), id, len(positions), positions) for id, positions in items
    ])  # fmt: skip


_LENGTH = struct.Struct("<H")


class Put(NamedTuple):
    """One push: the id of the bundle, the record that the producer made, and its payloads (payloads.py)."""

    id: str
    record: bytes
    payload: bytes

    def above(self, n: int) -> Put:
        """Return the same push, for an id that has tombstones of up to this ``n``."""
        return self._replace(record=above(self.record, n))

    @property
    def size(self) -> int:
        """Number of its items."""
        return len(states_of(self.record))

    @property
    def has_name(self) -> bool:
        """Whether the caller may have made its id: that of one item, or of a bundle that has a name in its flow."""
        return self.size == 1 or _NAMED.fullmatch(self.id) is not None

    def item_id(self, position: int) -> str:
        """Return the id of one of its items."""
        return self.id if is_alone(self.record) else item_id(self.id, position)

    def single(self, position: int) -> Put:
        """Return the push of one of its items alone."""
        if is_alone(self.record):
            return self
        bundle = unpack(self.record)
        record = with_fields(fresh(bundle.priority, int(bundle.pushed_at_ms), group=bundle.group), bundle.fields)
        return Put(self.item_id(position), record, join([payload_at(self.payload, position) or b""]))


def item_id(bundle: str, position: int) -> str:
    """Return the id of the item at this position of a bundle."""
    return f"{bundle}~{position:02x}"


def position_in(id: str) -> int:
    """Return the position that the id of an item of a bundle ends with."""
    return int(id[-2:], 16)


_ITEM_ID = re.compile(
    r"((zkrq-)?(?:[0-9a-f]+-[0-9a-f]+-[0-9a-f]+(?:@[a-z0-9_-]+)?|(?<=zkrq-)[A-Za-z0-9_.:-]+\.[0-9]+))~([0-6][0-9a-f])"
)

_NAMED = re.compile(r"zkrq-[A-Za-z0-9_.:-]+\.[0-9]+")
"""The id of a bundle that has a name in its flow."""


def bundle_and_position(id: str) -> tuple[str, int]:
    """Read the id of an item: its bundle, and its position there."""
    match = _ITEM_ID.fullmatch(id)
    return (match[1], int(match[3], 16)) if match and match[2] else (id, 0)


def stored_at(id: str) -> Mapping[str, int]:
    """Return the bundles that may have the item of an id, and its position in each.

    Bundles were not marked in the past, so an id without a mark may be a caller's, or name an item of such a bundle.
    """
    match = _ITEM_ID.fullmatch(id)
    if match and match[2]:
        return {match[1]: int(match[3], 16)}
    return {id: 0} | ({match[1]: int(match[3], 16)} if match else {})


def only_of(group: str | None) -> str:
    """Return the argument that restricts a call to the items of a group; None: to none."""
    return "" if group is None else f"={group}"


def is_text(name: bytes) -> bool:
    """Tell whether a name can be one: clients store texts only, so anything else is damaged."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def texts_of(names: Iterable[bytes]) -> list[str]:
    """Return the names as texts, sorted, without those that are damaged: nothing is stored under these."""
    return sorted(name.decode() for name in names if is_text(name))


class Copied(NamedTuple):
    """One bundle as one server holds it; see ``lua/_copies.lua``.  ``payload`` is None if that server has none."""

    id: bytes
    record: bytes
    notes: bytes
    since: bytes
    payload: bytes | None

    @property
    def version(self) -> Version:
        return version_of(self.record)

    @property
    def has_items(self) -> bool:
        """Whether any item is left, which needs its payload."""
        return bool(states_of(self.record).translate(None, b"XFP"))

    def has_not_ended(self, position: int) -> bool:
        """Whether an item is queued or claimed."""
        return states_of(self.record)[position : position + 1] in (b"Q", b"R", b"C")


def record_anew(record: bytes, payload: bytes, notes: bytes, pushed_at_ms: int) -> tuple[bytes, bytes, int]:
    """Make a record by which what is left of damaged items begins anew; return it with its notes, and how many items
    there are.

    Those whose payloads are there are ready, with what was saved of them; priority, group and key are those of the
    former record if that can be read, and items that it says to be gone stay so.  Raises ``ValueError`` if the payloads
    cannot be read.
    """
    states = "".join("X" if each is None else "Q" for each in split(payload))
    bundle = Bundle(FIRST, states, is_alone=len(states) == 1, pushed_at_ms=pushed_at_ms)
    try:
        known = unpack(record)
    except ValueError:
        return _with_saved(bundle, notes)
    if len(known.states) == len(states):
        states = "".join("X" if was in "XF" else state for was, state in zip(known.states, states, strict=True))
    is_alone = known.is_alone and len(states) == 1
    key = known.key if is_alone else ""
    bundle = bundle._replace(states=states, is_alone=is_alone, priority=known.priority, group=known.group, key=key)
    return _with_saved(bundle._replace(fields=shared_fields(known.fields)), notes)


def _with_saved(bundle: Bundle, notes: bytes) -> tuple[bytes, bytes, int]:
    """Return a record, the states that are saved of its items, as they are stored, and how many items are ready."""
    saved = {
        at: text
        for at, text in sorted(_texts(notes))
        if at >= _SAVED and bundle.states[at - _SAVED : at - _SAVED + 1] == "Q" and len(text) > _SAVED_VERSION.size
    }
    if saved:
        positions = b"".join(_SAVE.pack(at - _SAVED + 1, 0) for at in saved)
        bundle = bundle._replace(fields={**bundle.fields, SAVED_FIELD: positions})
    kept = b"".join(_NOTE.pack(at + 1, len(text)) + text for at, text in saved.items())
    return pack(bundle), kept, bundle.states.count("Q")


class Copies(NamedTuple):
    """Bundles, and the ids of those that did not fit into the reply."""

    items: Sequence[Copied]
    beyond: Sequence[bytes]


def read_notes(notes: bytes) -> dict[int, bytes]:
    """Read what is kept of the failures of items (``protocol/failures.py``), or their results, by position; of what is
    damaged, as far as it can be read."""
    return {at: text for at, text in _texts(notes) if at < _SAVED}


def read_saved(notes: bytes) -> dict[int, bytes]:
    """Read the saved states of items, by position; of what is damaged, as far as it can be read."""
    return {at - _SAVED: text[_SAVED_VERSION.size :] for at, text in _texts(notes) if at >= _SAVED}


def pack_notes(failures: bytes | None, saved: bytes | None) -> bytes:
    """Return the notes of an item alone: its failures, and its saved state, of no version; None: without."""
    texts = {} if failures is None else {1: failures}
    if saved is not None:
        texts[1 + _SAVED] = _SAVED_VERSION.pack(0, 0) + saved
    return b"".join([_NOTE.pack(at, len(text)) + text for at, text in texts.items()])


def _texts(notes: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at + _NOTE.size <= len(notes):
        position, length = _NOTE.unpack_from(notes, at)
        at += _NOTE.size + length
        yield position - 1, notes[at - length : at]


_SAVED = 128
"""Added to the position of an item whose saved state a text is (``lua/_notes.lua``)."""

_SAVE = struct.Struct("<BI")
"""What a record says of an item with a saved state: its position, and the number of the last save of a claim."""

_SAVED_VERSION = struct.Struct("<II")
"""How the text of a saved state begins."""


def given_up(records: Iterable[tuple[bytes, bytes, bytes]]) -> list[str]:
    """Return the ids of the items that a claim request has buried, because they were delivered too often.

    ``records``: id, record and notes of each bundle that it decided about.
    """
    ids: list[str] = []
    for id, record, notes in records:
        if _NEVER_SETTLED in notes:
            bundle, alone = id.decode(), is_alone(record)
            ids += [
                bundle if alone else item_id(bundle, position)
                for position, text in read_notes(notes).items()
                if _GIVEN_UP.fullmatch(last_reason(text))
            ]
    return ids


_NEVER_SETTLED = b", and settled by none of those consumers"
_GIVEN_UP = re.compile(rf"delivered \d+ times{_NEVER_SETTLED.decode()}")
"""The reason that ``lua/_claiming.lua`` gives."""

_NOTE = struct.Struct("<BH")
