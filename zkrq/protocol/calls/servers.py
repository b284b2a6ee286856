"""Call a server about itself: its life, its room, the queues that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zkrq.protocol.calls.call import START, Call, Names, Paging


@dataclass(frozen=True, slots=True)
class Seal(Call[None]):
    """Make the server adopt the epoch; the answer also shows that it is in sync."""

    script: ClassVar[str] = "seal"
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Broadcast(Call[int]):
    """Publish a message to the present listeners of a topic; return their number, -1 if this user may not publish.

    ``topic``: deployment, colon, topic.
    """

    script: ClassVar[str] = "broadcast"
    topic: str
    body: bytes
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Room(Call[None]):
    """Ask whether the server accepts calls that need memory."""

    script: ClassVar[str] = "room"
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Enrol(Call[None]):
    """Give the server a new generation if it still has the ``expected`` one and ``clock`` is at most ``window_ms`` ago.

    ``deployment`` is the nonce of the namespace's founding.  ``holding``: whether it may hold queues.
    """

    script: ClassVar[str] = "enrol"
    expected: str
    name: str
    deployment: str
    clock: int
    window_ms: int
    holding: bool
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Reserve(Call[None]):
    """Take, or keep, the right to repair the server for ``hold_ms``."""

    script: ClassVar[str] = "reserve"
    repairer: str
    hold_ms: int
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Queues(Paging[Names]):
    """List a page of the queues that ever had an item or a consumer."""

    script: ClassVar[str] = "queues"
    cursor: bytes = START
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Forget(Call[bool]):
    """Forget a queue on a server that has, and remembers, nothing of it; read whether it did."""

    script: ClassVar[str] = "forget"
    queue: str
