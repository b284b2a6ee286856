"""Describe a connection to one Redis server: ``Wire`` is all that the rest needs of it.

``redis_wire`` makes them over the network, and is loaded when the first one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import hiredis

from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.tuples import from_values

if TYPE_CHECKING:
    from zkrq.replication.stream import Receiver

Word = bytes | str | int

# hiredis types the argument as a tuple of one.
pack = cast("Callable[[tuple[Word, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]
"""Encodes a command for the wire."""


class Packed(NamedTuple):
    """Words encoded for the wire, once for several servers."""

    words: int
    body: bytes


def pack_words(words: Sequence[Word]) -> Packed:
    """Encode a part of a command."""
    packed = pack(tuple(words))
    return _packed_of((len(words), packed[packed.index(b"\n") + 1 :]))


_packed_of = from_values(Packed)


class NoConnection(ConnectionError):
    """A connection could not be made, or is broken; ``answer`` says on which side the cause is."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class Wire(Protocol):
    """One connection: made, asked the first questions, and then started."""

    async def prepare(self) -> str:
        """Do what needs nothing but this client's own host, before ``connect``: read the credentials, resolve the name.

        Returns why connecting may fail for want of that, empty if all is there.  Raises ``OSError`` if it would.
        """
        ...

    async def connect(self) -> None:
        """Connect and log in.  Raises ``OSError``.  Leaves nothing behind if it fails or is cancelled."""
        ...

    async def ask(self, *commands: bytes) -> list[object]:
        """Send what ``pack`` made, and return the replies, up to an error reply; before ``start``.  Raises
        ``OSError``."""
        ...

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        """Pass everything that arrives from now on to ``receiver``; return the function that sends bytes.

        It neither waits nor raises: a connection that has ended is reported to the receiver.
        """
        ...

    def close(self) -> None:
        """Close it immediately, and call the receiver no more; idempotent."""
        ...


Dial = Callable[[str, float], Callable[[], Wire]]
"""Makes wires to the server of a URL; the float is the time in seconds that connecting may take."""


def refusing(reason: str) -> Dial:
    """Make wires that are never connected, because this client must not connect, or cannot."""
    return lambda url, timeout: lambda: _Refused(reason)


class _Refused(Wire):
    """A ``Wire`` to nowhere."""

    def __init__(self, reason: str) -> None:
        self._answer = Answer(Status.DENIED, (), reason)

    async def prepare(self) -> str:
        raise NoConnection(self._answer)

    async def connect(self) -> None:
        raise NoConnection(self._answer)

    async def ask(self, *commands: bytes) -> list[object]:
        raise NoConnection(self._answer)

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        raise NoConnection(self._answer)

    def close(self) -> None:
        """There is nothing to close."""
