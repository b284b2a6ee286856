"""Record the events of every process: one line per event, with the time by the clock that all processes share.

``time.monotonic`` counts from the start of the machine on Linux, for all processes, so lines of different files
can be put in order.  A line is written with one system call and without a buffer: kill -9 loses none.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CONTROLLER = "controller"
"""Who writes down the faults."""


class Kind(enum.StrEnum):
    """What happened; in brackets what ``detail`` says."""

    PUSHING = "pushing"  # [key]
    PUSHED = "pushed"
    DUPLICATE = "duplicate"  # nothing was pushed, another item has the key [its id]
    PUSH_UNKNOWN = "push-unknown"
    PUSH_REFUSED = "push-refused"  # nothing happened
    ASKED = "asked"  # when the claim request of the next delivery was begun [whether of the small queue]
    DELIVERED = "delivered"  # [owner]
    SETTLING = "settling"  # [verb]
    SETTLED = "settled"  # [verb]
    SETTLE_UNKNOWN = "settle-unknown"  # [verb]
    SETTLE_REFUSED = "settle-refused"  # [verb] nothing happened
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"  # [what it found]
    CANCEL_UNKNOWN = "cancel-unknown"
    CANCEL_REFUSED = "cancel-refused"  # nothing happened
    PAUSING = "pausing"  # the small queue
    PAUSED = "paused"
    RESUMING = "resuming"
    SIZE = "size"  # of the small queue [how many items, how many there may be]
    LOST = "lost"  # the holder learned that its claim does not hold [from where]
    OWNER_ENDED = "owner-ended"  # its session is over, or it was fenced [owner]
    VIEW = "view"  # [epoch, primaries of both queues, members in their lives]
    READ = "read"  # a result [its value, or the state of its item], or all of a flow [how many, how many wrong ones]
    EVENT = "event"  # whatever else the library told [its text]
    STOPPED = "stopped"  # a client process was stopped by a signal [name]
    CONTINUED = "continued"  # [name]
    LOAD_BEGUN = "load-begun"
    LOAD_ENDED = "load-ended"
    DISMISSED = "dismissed"  # the clients are told to end: that sessions end from here on says nothing
    FAULT_BEGUN = "fault-begun"  # [fault and target]
    FAULT_ENDED = "fault-ended"  # [fault and target]


Token = tuple[int, int]
"""The fencing token of a claim: of two claims of one item the later one has the greater token."""


class Entry(NamedTuple):
    """One line: ``who`` is the process, ``id`` the item or empty, ``token`` that of the claim concerned."""

    at: float
    who: str
    kind: Kind
    id: str = ""
    token: Token | None = None
    detail: str = ""


class Recorder:
    """Writes the entries of one process, each at once."""

    def __init__(self, file: Path, who: str) -> None:
        self.who = who
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(
        self, kind: Kind, id: str = "", token: Token | None = None, detail: str = "", at: float | None = None
    ) -> None:
        """``at``: when it happened, None: now."""
        moment = time.monotonic() if at is None else at
        shown = f"{token[0]}.{token[1]}" if token else "-"
        os.write(self._file, f"{moment:.6f} {kind} {id or '-'} {shown} {' '.join(detail.split())}\n".encode())

    def close(self) -> None:
        os.close(self._file)


class Journal:
    """Everything that all processes have written down so far: ``poll`` reads what is new."""

    def __init__(self, directory: Path) -> None:
        self.entries: list[Entry] = []
        self._directory = directory
        self._read_up_to: dict[Path, int] = {}

    def recorder(self, who: str) -> Recorder:
        return Recorder(self.file(who), who)

    def file(self, who: str) -> Path:
        return self._directory / f"{who}.log"

    def poll(self) -> list[Entry]:
        """The entries that have come since the last time, file by file."""
        new = [entry for file in sorted(self._directory.glob("*.log")) for entry in self._read(file)]
        self.entries += new
        return new

    def _read(self, file: Path) -> Iterator[Entry]:
        with file.open("rb") as lines:
            lines.seek(self._read_up_to.get(file, 0))
            text = lines.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_up_to[file] = self._read_up_to.get(file, 0) + len(whole)
        return (parse(file.stem, line) for line in whole.decode().splitlines())


def parse(who: str, line: str) -> Entry:
    """Read a line that ``Recorder`` wrote."""
    at, kind, id, shown, detail = line.split(" ", 4)
    epoch, _, n = shown.partition(".")
    token = (int(epoch), int(n)) if n else None
    return Entry(float(at), who, Kind(kind), "" if id == "-" else id, token, detail)
