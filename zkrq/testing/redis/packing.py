"""Implement the library ``struct`` of Redis scripts: numbers and strings in bytes, by a format of letters.

Nothing is aligned, which is the default there too.  Left out: zero-terminated strings, and integers of odd sizes.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import Any, NamedTuple, cast

from zkrq.testing.redis.replies import number_text


class ScriptFault(Exception):
    """A fault of the script, found on the Python side."""


_OPTION = re.compile(rb"([<>=xdf]|[bBhHlLiIcs])(\d*)")
_DEFAULT_SIZE = {b"b": 1, b"h": 2, b"i": 4, b"l": 8}
_CODE = {1: "b", 2: "h", 4: "i", 8: "q"}


class _Field(NamedTuple):
    """One value: a number of this many ``bits``, a double (0 bits), or a string of ``length``."""

    bits: int
    length: int


class _Segment(NamedTuple):
    """Fields of fixed size; ``strings``: positions of the strings among them; ``open_end``: a string follows, whose
    length is the last number unpacked."""

    layout: struct.Struct
    fields: tuple[_Field, ...]
    strings: tuple[int, ...]
    open_end: bool


@lru_cache(1000)
def _segments(format: bytes) -> tuple[_Segment, ...]:
    """Parse a format string of the Lua library ``struct``; nothing is aligned, which is the default there too."""
    order, codes, at = "<", "", 0
    fields: list[_Field] = []
    segments: list[_Segment] = []

    def close(open_end: bool) -> None:
        nonlocal codes
        strings = tuple(i for i, field in enumerate(fields) if field.length >= 0)
        segments.append(_Segment(struct.Struct(order + codes), tuple(fields), strings, open_end))
        codes = ""
        fields.clear()

    while at < len(format):
        match = _OPTION.match(format, at)
        if match is None or match[1] == b"s":
            raise ScriptFault(f"invalid format option {format[at:]!r}, or one that is lacking here")
        at = match.end()
        option, digits = match[1].decode(), match[2]
        if option in "<>=":
            if codes:
                close(False)
            order = "<" if option == "=" else option
        elif option in "xdf":
            codes += option
            fields += [_Field(0, -1)] if option != "x" else []
        elif option == "c" and digits == b"0":
            close(True)
        elif option == "c":
            codes += f"{int(digits or 1)}s"
            fields.append(_Field(0, int(digits or 1)))
        else:
            size = int(digits or _DEFAULT_SIZE[match[1].lower()])
            if size not in _CODE:
                raise ScriptFault(f"integral size {size} is one that is lacking here")
            codes += _CODE[size].upper() if option.isupper() else _CODE[size]
            fields.append(_Field(8 * size if option.isupper() else -8 * size, -1))
    close(False)
    return tuple(segments)


def _number(value: object, position: int) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        return float(cast("bytes", value))
    except (TypeError, ValueError):
        raise ScriptFault(f"bad argument #{position} to 'pack' (number expected)") from None


def _text(value: object, position: int, length: int) -> bytes:
    text = value if isinstance(value, bytes) else number_text(_number(value, position))
    if len(text) < length:
        raise ScriptFault(f"bad argument #{position} to 'pack' (string too short)")
    return text


def _packable(field: _Field, value: object, position: int) -> float | bytes:
    if field.length >= 0:
        return _text(value, position, field.length)
    number = _number(value, position)
    if not field.bits:
        return number
    kept = int(number) & ((1 << abs(field.bits)) - 1)
    return kept - (1 << -field.bits) if field.bits < 0 and kept >> (-field.bits - 1) else kept


def pack(format: bytes, *values: Any) -> bytes:
    at = 0
    packed: list[bytes] = []
    for layout, fields, strings, open_end in _segments(format):
        begin, at = at, at + len(fields)
        given = values[begin:at]
        try:
            if any(len(given[i]) < fields[i].length for i in strings):
                raise TypeError
            packed.append(layout.pack(*given))
        except (struct.error, TypeError, IndexError):  # numbers that are cut off or given as strings; faults
            if len(given) < len(fields):
                raise ScriptFault(f"bad argument #{begin + len(given) + 2} to 'pack' (got no value)") from None
            packed.append(layout.pack(*map(_packable, fields, given, range(begin + 2, at + 2))))
        if open_end:
            if at >= len(values):
                raise ScriptFault(f"bad argument #{at + 2} to 'pack' (got no value)")
            packed.append(_text(values[at], at + 2, 0))
            at += 1
    return b"".join(packed)


def unpack(format: bytes, packed: bytes, start: int = 1) -> tuple[object, ...]:
    """Unpack the values; return them and the position after them."""
    at = start - 1
    values: list[object] = []
    try:
        for layout, _, _, open_end in _segments(format):
            values += layout.unpack_from(packed, at)
            at += layout.size
            if open_end:
                length = values.pop() if values else None
                if not isinstance(length, int):
                    raise ScriptFault("format 'c0' needs a previous size")
                if at + length > len(packed):
                    raise ScriptFault("bad argument #2 to 'unpack' (data string too short)")
                values.append(packed[at : at + length])
                at += length
    except struct.error:
        raise ScriptFault("bad argument #2 to 'unpack' (data string too short)") from None
    return (*values, at + 1)


def size(format: bytes) -> int:
    segments = _segments(format)
    if any(segment.open_end for segment in segments):
        raise ScriptFault("bad argument #1 to 'size' (variable-size format in 'size')")
    return sum(segment.layout.size for segment in segments)
