"""A plain socket to a Redis server, and what it hears of: no layer is between a test and the script."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, cast

import hiredis

ANSWER_TIMEOUT = 20.0

Argument = bytes | str | int | float

_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class ScriptFailed(Exception):
    """The server answered with an error."""


class Refused(Exception):
    """A script answered with another status than OK."""

    def __init__(self, status: str, body: Sequence[object]) -> None:
        super().__init__(status)
        self.status = status
        self.body = tuple(body)


class Connection:
    """A plain connection: commands out, replies in."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), ANSWER_TIMEOUT)
        self._reader: Any = hiredis.Reader()

    def send(self, *commands: tuple[Argument, ...]) -> None:
        self._socket.sendall(b"".join(map(_pack, commands)))

    def receive(self) -> object:
        """The next reply, or message of a subscription."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        return cast("object", reply)

    def pipeline(self, *commands: tuple[Argument, ...]) -> list[object]:
        self.send(*commands)
        return [_checked(self.receive()) for _ in commands]

    def command(self, *command: Argument) -> object:
        return self.pipeline(command)[0]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Listener(Connection):
    """A consumer that waits to be told."""

    def __init__(self, host: str, port: int, channel: str) -> None:
        super().__init__(host, port)
        self.channel = channel
        self.command("SUBSCRIBE", channel)

    def heard(self) -> str:
        """What was published, waited for."""
        _, _, message = cast("tuple[bytes, bytes, bytes]", self.receive())
        return message.decode()

    def told_nothing(self) -> bool:
        """Whether nothing was published so far: a PING comes back behind whatever was."""
        self.send(("PING", "end"))
        return cast("list[bytes]", self.receive())[0] == b"pong"


def _checked(reply: object) -> object:
    if isinstance(reply, hiredis.HiredisError):
        raise ScriptFailed(str(reply))
    return reply
