"""What the tasks of these tests did, in a file that all of their processes write to, and what it means."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A task, ``number``, began or ended (``what``) in a process at a moment of the machine's monotonic clock."""

    what: str
    number: int
    process: int
    at: float


def note(what: str, number: int) -> None:
    """Write an entry into the file that the environment names."""
    line = f"{what} {number} {os.getpid()} {time.monotonic()}\n"
    descriptor = os.open(os.environ["DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())  # one call, so lines of several processes do not mix
    finally:
        os.close(descriptor)


class Diary:
    """Read the entries."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, what: str) -> list[Entry]:
        """Return the entries of one kind so far."""
        if not self.path.exists():
            return []
        lines = (line.split() for line in self.path.read_text().splitlines())
        return [
            Entry(kind, int(number), int(process), float(at)) for kind, number, process, at in lines if kind == what
        ]

    def ended(self) -> set[int]:
        """Return the tasks that have ended."""
        return {entry.number for entry in self.entries("end")}

    def started_by(self) -> Mapping[int, list[Entry]]:
        """Return the starts of each task, in their order."""
        starts: dict[int, list[Entry]] = {}
        for entry in self.entries("start"):
            starts.setdefault(entry.number, []).append(entry)
        return starts

    def started_twice(self, died: Mapping[int, float]) -> list[tuple[Entry, Entry]]:
        """Return the starts of a task whose former worker was alive; ``died``: processes and when they were killed."""
        return [
            (former, later)
            for starts in self.started_by().values()
            for former, later in pairwise(starts)
            if died.get(former.process, later.at) >= later.at
        ]

    def counts_of(self, what: str) -> Counter[int]:
        """Count the entries of one kind of each task."""
        return Counter(entry.number for entry in self.entries(what))

    def counts(self) -> Counter[int]:
        """Count the tasks that each process has ended."""
        return Counter(entry.process for entry in self.entries("end"))
