"""What a schedule moves: clients under way, their messages, and the faults that may happen to them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from tests.model.content import Token
    from tests.model.membership import Steps
    from tests.model.server import Request
    from zkrq.protocol.replies import Answer


T = TypeVar("T")


class Fault(enum.Enum):
    """What may happen to a server, a client, or a message."""

    WIPED = "restarted empty"
    FLUSHED = "flushed, its process going on"
    ROLLED_BACK = "restarted from an old dump"
    POWER_CUT = "all restarted at once, with what was on their disks"
    OLD_DISK = "one of those with an old dump"
    CLIENT_DIED = "client died in the middle"
    PAUSED = "paused"
    RESUMED = "resumed"
    DELAYED = "answered late or never"
    DROPPED = "message lost"
    DOUBLED = "message doubled"
    LATE = "message came after its sender had given up"


class Client(Protocol):
    """Anybody who acts; ``tokens`` are those of its claims."""

    @property
    def tokens(self) -> list[Token]: ...

    @property
    def speaks(self) -> int:
        """The latest level that it speaks."""
        ...

    def work(self) -> Steps[None]: ...


class Actor:
    """A client under way: ready for its next step, or waiting for answers."""

    __slots__ = ("answers", "client", "messages", "name", "steps", "waiting_for")

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self.client = client
        self.steps = client.work()
        self.answers: list[Answer | None] = []
        self.messages: list[Message] = []
        self.waiting_for = 0


class Message:
    """A request on its way.  It may arrive after its sender has stopped waiting, and it may arrive again."""

    __slots__ = ("answers", "dropped", "position", "request", "sender")

    def __init__(self, sender: Actor, answers: list[Answer | None], position: int, request: Request) -> None:
        self.sender = sender
        self.answers = answers
        self.position = position
        self.request = request
        self.dropped = False


def take(things: list[T], at: int) -> T:
    """Remove one of things whose order does not matter."""
    last = things.pop()
    if at == len(things):
        return last
    taken, things[at] = things[at], last
    return taken
