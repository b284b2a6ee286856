"""Hold what a handler has saved of its work on an item: a state, and the values of its steps.

Servers keep it as one text: a format byte, then entries, each with the length of its name (a byte), its name, the
length of its value (2 bytes) and the value.  The state has an empty name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

from zkrq.base.errors import CodecError, PayloadTooLarge

SAVED_BYTES = 32768
"""Most bytes of all that is saved of one item."""

_FORMAT = b"\x01"
_LENGTH = struct.Struct(">H")


class Saved(NamedTuple):
    """``state``: encoded, None if none was saved; ``steps``: encoded values of steps that are done, by name."""

    state: bytes | None = None
    steps: Mapping[str, bytes] = MappingProxyType({})

    def encode(self) -> bytes:
        """Return it as one text.  Raises ``PayloadTooLarge``."""
        values = {} if self.state is None else {"": self.state}
        parts = [_entry(name, value) for name, value in (values | dict(self.steps)).items()]
        size = len(_FORMAT) + sum(map(len, parts))
        if size > SAVED_BYTES:
            said = f"what is saved of the item has {size} bytes, at most {SAVED_BYTES} are kept; nothing was saved"
            raise PayloadTooLarge(size, SAVED_BYTES, said)
        return b"".join((_FORMAT, *parts))


def decode(text: bytes) -> Saved:
    """Read what ``encode`` made.  Raises ``CodecError``."""
    values, at = dict[str, bytes](), len(_FORMAT)
    if not text.startswith(_FORMAT):
        raise CodecError("what is saved of the item is of another version of zkrq, or damaged")
    try:
        while at < len(text):
            name, at = text[at + 1 : at + 1 + text[at]], at + 1 + text[at]
            (length,) = _LENGTH.unpack_from(text, at)
            at += _LENGTH.size + length
            values[name.decode()] = text[at - length : at]
    except (struct.error, UnicodeDecodeError) as error:
        raise CodecError("what is saved of the item is damaged") from error
    if at != len(text):
        raise CodecError("what is saved of the item is damaged")
    return Saved(values.pop("", None), values)


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
