"""Hold what a handler has saved of its work on an item: a state, and the values of its steps.

Servers keep it as one text: a format byte, then entries, each with the length of its name (a byte), its name, the
length of its value (2 bytes) and the value.  The state has an empty name.

Before the entries may stand another content of the item, which an operator has given a dead letter: its length (2
bytes), when that was (8 bytes), who did it (a byte, and as many bytes), the content.  ``lua/_notes.lua`` puts it there.
Of what was saved before the item was pushed, which its payload has, the servers know nothing: a format byte of its own
says that these entries follow (``joined``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

from zkrq.base.errors import CodecError, PayloadTooLarge

SAVED_BYTES = 32768
"""Most bytes of all that is saved of one item."""

EDIT_BYTES = 16384
"""Most bytes of a content that an operator gives an item; what is saved of the item has so much less room."""

EDITOR_MAX = 100
"""Bytes that are kept of who has edited an item."""

_FORMAT = b"\x01"
_EDITED = b"\x02"
_ONLY_EDITED = b"\x03"
_EDIT_HEAD = struct.Struct(">qB")
_LENGTH = struct.Struct(">H")


class Edit(NamedTuple):
    """Another content of an item: when it was given (milliseconds since 1970), by whom, and its bytes."""

    at_ms: int
    by: str
    content: bytes

    def encode(self) -> bytes:
        """Return it as ``calls.Edit`` carries it.  Raises ``PayloadTooLarge``."""
        if len(self.content) > EDIT_BYTES:
            said = f"the content has {len(self.content)} bytes, at most {EDIT_BYTES} can be edited; nothing was changed"
            raise PayloadTooLarge(len(self.content), EDIT_BYTES, said)
        by = self.by.encode(errors="replace")[:EDITOR_MAX].decode(errors="ignore").encode()
        return _EDIT_HEAD.pack(self.at_ms, len(by)) + by + self.content


class Saved(NamedTuple):
    """``state``: encoded, None if none was saved; ``steps``: encoded values of steps that are done, by name; ``edit``:
    the content that the item has instead of the one that was pushed, None: that one."""

    state: bytes | None = None
    steps: Mapping[str, bytes] = MappingProxyType({})
    edit: Edit | None = None

    def encode(self) -> bytes:
        """Return it as one text.  Raises ``PayloadTooLarge``."""
        values = {} if self.state is None else {"": self.state}
        parts = [_entry(name, value) for name, value in (values | dict(self.steps)).items()]
        head = _FORMAT
        if self.edit:
            edit = self.edit.encode()
            head = _EDITED + _LENGTH.pack(len(edit)) + edit
        size = len(head) + sum(map(len, parts))
        if size > SAVED_BYTES:
            said = f"what is saved of the item has {size} bytes, at most {SAVED_BYTES} are kept; nothing was saved"
            raise PayloadTooLarge(size, SAVED_BYTES, said)
        return b"".join((head, *parts))


def joined(text: bytes | None, begun: bytes | None) -> bytes | None:
    """Return all that is saved of an item, None: nothing.

    ``text``: what servers keep beside its record; ``begun``: what was saved before it was pushed.
    """
    if text is None or not text.startswith(_ONLY_EDITED):
        return begun if text is None else text
    return _EDITED + text[1:] + (begun or b"")[1:]


def edit_in(text: bytes) -> Edit | None:
    """Return the content that servers keep with what is saved, None if there is none, or none that can be read."""
    if not text.startswith((_EDITED, _ONLY_EDITED)):
        return None
    try:
        return _edit_at(text)[0]
    except (CodecError, struct.error):
        return None


def _edit_at(text: bytes) -> tuple[Edit, int]:
    """Read a content, and where it ends.  Raises ``CodecError``, ``struct.error``."""
    begin = 1 + _LENGTH.size
    end = begin + _LENGTH.unpack_from(text, 1)[0]
    at_ms, length = _EDIT_HEAD.unpack_from(text, begin)
    at = begin + _EDIT_HEAD.size + length
    if not at <= end <= len(text):
        raise CodecError("what is saved of the item is damaged")
    by = text[at - length : at].decode(errors="replace")
    return Edit(at_ms, by, text[at:end]), end


def decode(text: bytes) -> Saved:
    """Read what ``encode`` made.  Raises ``CodecError``."""
    values, at, edit = dict[str, bytes](), len(_FORMAT), None
    if not text.startswith((_FORMAT, _EDITED, _ONLY_EDITED)):
        raise CodecError("what is saved of the item is of another version of zkrq, or damaged")
    try:
        if not text.startswith(_FORMAT):
            edit, at = _edit_at(text)
        while at < len(text):
            name, at = text[at + 1 : at + 1 + text[at]], at + 1 + text[at]
            (length,) = _LENGTH.unpack_from(text, at)
            at += _LENGTH.size + length
            values[name.decode()] = text[at - length : at]
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError("what is saved of the item is damaged") from error
    if at != len(text):
        raise CodecError("what is saved of the item is damaged")
    return Saved(values.pop("", None), values, edit)


def shown(value: object) -> object:
    """Return what was saved as programs show it to people: as it is, None if it is nested too deeply, or too
    large, for JSON."""
    inner = [value]
    for _ in range(100):  # lists and dicts within one another
        inner = [each for one in inner for each in _within(one)]
        if not inner:
            return value
        if len(inner) > SAVED_BYTES:
            break
    return None


def _within(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _entry(name: str, value: bytes) -> bytes:
    if len(value) > SAVED_BYTES:
        raise PayloadTooLarge(len(value), SAVED_BYTES, _too_large(name, len(value)))
    encoded = name.encode()
    return b"".join((bytes([len(encoded)]), encoded, _LENGTH.pack(len(value)), value))


def _too_large(name: str, size: int) -> str:
    what = f"the value of step {name!r}" if name else "the state"
    return f"{what} has {size} bytes, at most {SAVED_BYTES} are kept of an item; nothing was saved"
