"""Redis servers behind wires in memory, which answer, complain, stay silent or break on request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hiredis

from zkrq.protocol.calls import Call, Install, Rows, Seal
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.view import Life, ServerId
from zkrq.replication.fleet import Fleet
from zkrq.replication.server import Server
from zkrq.replication.stream import ErrorReply, Inbox, Receiver
from zkrq.replication.wire import Dial, NoConnection, Wire

INFO = b"redis_version:7.2.0\r\nrun_id:r1\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
ABOUT = {b"INFO": INFO, b"HMGET": [b"g1", b"1", b"a", b"d"], b"SCARD": 0, b"TIME": [b"1", b"0"]}
LIFE = Life("r1", "g1")
"""The life in which every server is found."""

SEAL = Seal()
COUNTED = Install("q", 0, Rows())
"""A call whose answer tells a number."""

OK = [b"OK"]
LACKING = ErrorReply("ERR Function not found")
BUSY = ErrorReply("BUSY Redis is busy running a script.")
BROKEN = ConnectionResetError("cut")


@dataclass(frozen=True)
class Replies:
    """What the server sends when it is asked, in place of one reply: none, or those that it owed as well."""

    replies: tuple[object, ...] = ()


SILENCE = Replies()


@dataclass
class Redis:
    """Says who it is, then gives these answers to scripts, the last one again and again.  Exceptions break the wire."""

    answers: list[object] = field(default_factory=lambda: [OK])
    asked: list[bytes] = field(default_factory=list[bytes])
    """The scripts' commands."""
    loaded: object = b"zkrq"
    """The reply when a library is loaded."""
    silent: bool = False
    pace: float = 0.0
    """Seconds that each reply takes after the one before."""
    hindered: float = 0.0
    """Seconds after which the client's host has still not brought what a connection needs; 0: it brings it."""
    wires: list[FakeWire] = field(default_factory=list["FakeWire"])

    def answer(self, command: Sequence[bytes]) -> object:
        if self.silent:
            return SILENCE
        if command[0] in ABOUT:
            return ABOUT[command[0]]
        self.asked.append(command[0])
        if command[0] == b"FUNCTION":
            return self.loaded
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def make_wire(self) -> Wire:
        self.wires.append(FakeWire(self))
        return self.wires[-1]


class FakeWire:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._reader = hiredis.Reader()
        self._inbox = Inbox()
        self._receiver: Receiver = self._inbox
        self._busy_until = 0.0
        self.closed = False

    async def prepare(self) -> str:
        if self._redis.hindered:
            await asyncio.sleep(self._redis.hindered)
            raise NoConnection(Answer(Status.HINDERED, (), "its name could not be resolved"))
        return ""

    async def connect(self) -> None: ...

    async def ask(self, *commands: bytes) -> list[object]:
        self.write(b"".join(commands))
        return await self._inbox.take(len(commands))

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        self._receiver = receiver
        return self.write

    def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            answer = self._redis.answer(command)
            for reply in answer.replies if isinstance(answer, Replies) else (answer,):
                if self._redis.pace:
                    self._busy_until = max(self._busy_until, loop.time()) + self._redis.pace
                    loop.call_at(self._busy_until, self._arrive, reply)
                else:
                    loop.call_soon(self._arrive, reply)

    def _arrive(self, reply: object) -> None:
        if self.closed:
            return
        if isinstance(reply, OSError):
            self._receiver.ended(reply)
        else:
            self._receiver.heard(reply)

    def close(self) -> None:
        self.closed = True


def fleet_of(servers: Mapping[str, Redis], *, command_timeout: float, scheme: str = "redis") -> Fleet:
    """A client's fleet of these servers; other servers that it comes to know answer everything."""

    def make_server(id: ServerId, url: str, dial: Dial | None = None) -> Server:
        redis = servers.get(id) or Redis()
        dial = dial or (lambda url, timeout: redis.make_wire)
        return Server(id, url, namespace="n", command_timeout=command_timeout, dial=dial)

    return Fleet({ServerId(id): f"{scheme}://{id}" for id in servers}, make_server, namespace="n")


async def ask(
    fleet: Fleet, *ids: str, call: Call[Any] = SEAL, life: Life = LIFE, once: bool = False
) -> dict[str, Answer]:
    """The answers to the same call on several servers."""
    lives = {ServerId(id): life for id in ids}
    return {**await fleet.ask(1, lives, call, once=once)}
