"""Write an item's payload for people: as indented JSON, as text, or as bytes in hexadecimal."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from zkrq.base.errors import ConfigError

LINE_SHOWN = 160
"""Characters of a payload in a list of items."""

PAYLOAD_SHOWN = 64 << 10
"""Characters of a payload on the page of its item."""

HEX_SHOWN = 4 << 10
"""Bytes of a payload that are shown in hexadecimal."""

PLACE_SHOWN = 30
"""Characters on each side of the place at which a text is no JSON."""

HEX_ROW = 16
"""Bytes in a line of hexadecimal."""


class Written(NamedTuple):
    """A payload as text.  ``form``: json, text or hex; ``cut``: whether it has more than is shown."""

    form: str
    text: str
    cut: bool


def write(payload: bytes, form: str = "") -> Written:
    """Write a payload.  ``form``: hex, if it is to be so; otherwise it is JSON, text or hex, whichever fits first."""
    if form != "hex" and (text := _text_of(payload)) is not None:
        found, text = "text", text
        if (pretty := _indent(text)) is not None:
            found, text = "json", pretty
        return Written(found, text[:PAYLOAD_SHOWN], len(text) > PAYLOAD_SHOWN)
    return Written("hex", _hex(payload[:HEX_SHOWN]), len(payload) > HEX_SHOWN)


def compact(text: str) -> str:
    """Return a text that is JSON without the space between its parts; numbers and escapes stay as they are.

    Raises ``ConfigError`` for any other text.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"this is not JSON: {error}; nothing was changed") from error
    return "".join(_PART.findall(text))


def place_of(error: Exception) -> str:
    """Return the line at which a text is no JSON, and a mark below its column; empty for any other error.

    ``error``: as ``compact`` raises it.
    """
    found = error.__cause__
    if not isinstance(found, json.JSONDecodeError):
        return ""
    line, column = found.doc.split("\n")[found.lineno - 1].rstrip(), found.colno - 1
    before, after = line[max(0, column - PLACE_SHOWN) : column], line[column : column + PLACE_SHOWN]
    return f"{before}{after}\n{'-' * len(before)}^"


def begin(payload: bytes) -> str:
    """Write the beginning of a payload on one line."""
    text = " ".join(payload[: 4 * LINE_SHOWN].decode(errors="replace").split())
    return text if len(text) <= LINE_SHOWN and len(payload) <= 4 * LINE_SHOWN else f"{text[:LINE_SHOWN]}…"


def fields_of(payload: bytes) -> dict[str, str]:
    """Return the plain fields of a payload that is a JSON object, as texts; nothing of any other.

    A lone surrogate, which JSON can escape and no page can show, is written as its escape.
    """
    try:
        read: object = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(read, dict):
        return {}
    plain: dict[str, object] = {name: value for name, value in read.items() if isinstance(value, str | int | bool)}  # pyright: ignore[reportUnknownVariableType]
    return {
        showable(name): showable(value) if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
    }


def showable(text: str) -> str:
    """Return a text with each lone surrogate written as its escape: ``\\ud800``."""
    return text.encode(errors="backslashreplace").decode()


def _text_of(payload: bytes) -> str | None:
    """Return the text of a payload, None for bytes that are none."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return None
    return None if any(ord(each) < 32 and each not in "\t\r\n" for each in text) else text


def _indent(text: str) -> str | None:
    """Indent a text that is JSON, None for any other.

    Only the space between its parts changes, so numbers and escapes are seen as they were pushed.  It ends when there
    is more than is shown: indenting what is nested deeply would fill the memory.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    length, depth, before = 0, 0, ""
    for part in _PART.findall(text):
        depth -= part in "]}"
        is_empty = before in ("[", "{") and part in "]}"
        if (before in ("[", "{", ",") or part in "]}") and before and not is_empty:
            parts.append("\n" + "  " * depth)
        depth += part in "[{"
        parts.append(": " if part == ":" else part)
        length += len(part) + len(parts[-2] if len(parts) > 1 else "")
        before = part
        if length > PAYLOAD_SHOWN:
            break
    return "".join(parts)


_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
"""A string, a sign or a word of JSON."""


def _hex(payload: bytes) -> str:
    rows = (payload[start : start + HEX_ROW] for start in range(0, len(payload), HEX_ROW))
    return "\n".join(
        f"{number * HEX_ROW:06x}  {row.hex(' '):{3 * HEX_ROW - 1}}  "
        + "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        for number, row in enumerate(rows)
    )
