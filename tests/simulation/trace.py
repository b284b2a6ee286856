"""Trace a run: always as one number, and as text on request."""

from __future__ import annotations

import zlib
from collections import Counter

from tests.simulation.loop import Loop


class Trace:
    """Notes everything that crosses a boundary; two runs that have the same ``digest`` were the same."""

    def __init__(self, loop: Loop, *, keep: bool = False) -> None:
        self._loop = loop
        self.lines: list[str] | None = [] if keep else None
        self.digest = 0
        self.counts: Counter[str] = Counter()
        """How often each kind of fault took effect, and other things that are counted."""

    def bytes(self, what: str, data: bytes) -> None:
        """Something that travels."""
        self.digest = zlib.crc32(data, zlib.crc32(b"%r" % self._loop.now, self.digest))
        if self.lines is not None:
            self.lines.append(f"{self._loop.now:10.6f}  {what}")

    def note(self, text: str) -> None:
        """Something that happens."""
        self.digest = zlib.crc32(text.encode(), zlib.crc32(b"%r" % self._loop.now, self.digest))
        if self.lines is not None:
            self.lines.append(f"{self._loop.now:10.6f}  {text}")

    def count(self, kind: str, text: str = "") -> None:
        """A fault that took effect."""
        self.counts[kind] += 1
        self.note(f"!! {kind} {text}")
