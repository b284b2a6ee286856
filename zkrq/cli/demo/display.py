"""Define what the demo shows, and show it line by line; live.py has the table for terminals."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TextIO

PLAIN_INTERVAL = 2.0
"""Seconds between two lines of figures if there is no live table."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The present state.  ``figures``: name -> figure; ``cast``: for each kind of process, name -> state, None for a
    killed one."""

    figures: Mapping[str, str]
    cast: Mapping[str, Mapping[str, str | None]]


class Display(Protocol):
    """Show the demo's progress."""

    def say(self, text: str, *, deed: bool = False) -> None:
        """Report an event; ``deed``: the demo itself caused it."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show the present state."""
        ...


class Plain:
    """Print line by line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._next_figures = 0.0

    def say(self, text: str, *, deed: bool = False) -> None:
        self._stream.write(stamped(self._began, text, deed) + "\n")
        self._stream.flush()

    def show(self, snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now >= self._next_figures:
            self._next_figures = now + PLAIN_INTERVAL
            self.say(", ".join(f"{name} {figure}" for name, figure in snapshot.figures.items()))


def stamped(began: float, text: str, deed: bool) -> str:
    """Format a line with its time; the demo's own deeds stand out."""
    return f"{time.monotonic() - began:5.1f} s  {'>>> ' if deed else ''}{text}"
