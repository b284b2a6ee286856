"""Read and write what is kept of the failures of an item; the layout stands in ``lua/_failures.lua``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

KEPT = 5
"""Failures that are kept of an item: the last ones."""

WHERE_MAX = 120
"""Bytes of a consumer's description that are kept with a failure; the rest is cut off."""

EARLIER_MAX = 200
"""Bytes that are kept of the reason of a failure before the last one; ``lua/_failures.lua`` has the same limit."""

_LIST = b"\xff"
"""Begins a list, and a failure as a client sends it.  A reason is text in UTF-8, which never has this byte."""

_HEAD_BYTES = 9
_ENTRY = struct.Struct("<dIBH")
_UNKNOWN_MS = 2**32 - 1
_MOMENT_MAX_US = 250_000_000_000 * 1_000_000
"""Microseconds since 1970: in the year 9892.  A later moment is of no server, and taken for unknown."""


class FailureNote(NamedTuple):
    """One failure.  ``at_us``: by the clock of the server that decided it, None: not known; ``where``: empty: not
    known; ``took_ms``: None: not known.  ``reason`` is followed by a summary of the traceback
    (``zkrq.base.errors.split``)."""

    at_us: float | None
    where: str
    took_ms: int | None
    reason: str


def read_failures(text: bytes) -> Sequence[FailureNote]:
    """Read what is kept of an item's failures, the latest first; of what is damaged as far as it can be read."""
    if not text.startswith(_LIST):
        return [FailureNote(None, "", None, text.decode(errors="replace"))] if text else []
    return list(_entries(text))


def last_reason(text: bytes) -> str:
    """Return the reason of the last failure, empty if there is none."""
    return next((each.reason for each in read_failures(text)), "")


def sent(where: bytes, reason: str) -> bytes:
    """Write a failure as a client sends it; ``where``: its description, at most ``WHERE_MAX`` bytes."""
    return b"%b%c%b%b" % (_LIST, len(where), where, reason.encode())


def place_of(description: str) -> bytes:
    """Return what is kept of a consumer's description."""
    return description.encode(errors="replace")[:WHERE_MAX].decode(errors="ignore").encode()


def _entries(text: bytes) -> Iterator[FailureNote]:
    at = _HEAD_BYTES
    for _ in range(KEPT):
        where_at = at + _ENTRY.size
        if where_at > len(text):
            return
        at_us, took_ms, where_bytes, reason_bytes = _ENTRY.unpack_from(text, at)
        reason_at = where_at + where_bytes
        at = reason_at + reason_bytes
        if at > len(text):
            return
        yield FailureNote(
            at_us if 0 < at_us < _MOMENT_MAX_US else None,
            text[where_at:reason_at].decode(errors="replace"),
            None if took_ms == _UNKNOWN_MS else took_ms,
            text[reason_at:at].decode(errors="replace"),
        )
