"""The network: a ``Wire`` whose messages travel in virtual time and get lost the way TCP loses them.

Within a connection nothing overtakes anything.  A sent command may be executed even if the client has long
continued: closing a connection takes nothing back.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable
from typing import cast

import hiredis

from tests.simulation.code import LOADED, PRESENT, Code
from tests.simulation.loop import WORLD, Loop, Process
from tests.simulation.servers import ProcessState, SimServer
from tests.simulation.trace import Trace
from zkrq.replication.stream import ErrorReply, Inbox, Receiver
from zkrq.replication.wire import Wire


class Break(enum.Enum):
    """How a connection breaks at a call."""

    REQUEST_LOST = "break, request lost"
    REPLY_LOST = "break, reply lost"
    EXECUTED_LATER = "break, executed later"


CONNECTING_TURNS = 12
"""Turns of an event loop that making a connection takes, with TLS and a login; only a slow loop needs time for them."""

LONGEST_LOOKUP = 3.0
"""Seconds, at most, until a client learns that a name cannot be resolved."""

SHORTEST = 0.0001
"""Seconds that a message takes at least."""

LATE_SECONDS = 6.0
"""Up to so much later a request may be executed whose connection broke."""


class Path:
    """What is between one client and one server."""

    def __init__(self) -> None:
        self.slow = 0.0
        """Seconds, at most, that a message takes longer than usual."""
        self.cut = False
        """Nothing gets through; what is sent is held back."""
        self.refuses = False
        """While cut, a new connection is refused; otherwise it hangs."""
        self.drops = False
        """When the cut is mended, what was held back is lost with its connection; otherwise it arrives late."""
        self.denies = ""
        """The error with which the server refuses a new connection of this client, empty: none."""
        self.forbids = ""
        """The error with which it refuses this client's scripts, empty: none."""
        self.nameless = False
        """The client cannot resolve the server's name, and finds that out late or early."""
        self.breaking: Break | None = None
        """The next call breaks its connection."""
        self.wires: dict[SimWire, None] = {}


class Network:
    """All paths, and how long messages take."""

    def __init__(self, loop: Loop, chance: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self._paths: dict[tuple[str, str], Path] = {}
        self.fast = chance.choice((0.0005, 0.003, 0.02))

    @property
    def slowest(self) -> float:
        """Seconds that a message takes at most, where nothing is wrong."""
        return SHORTEST + self.fast

    def path(self, client: str, server: str) -> Path:
        return self._paths.setdefault((client, server), Path())

    def delay(self, path: Path) -> float:
        """Seconds that the next message takes: mostly little."""
        chance = self.chance.random
        usual = SHORTEST + self.fast * chance() ** 3
        return usual + path.slow * chance() if path.slow else usual

    def mend(self, path: Path) -> None:
        """End a cut: what was held back arrives now, or is gone."""
        if path.cut:
            path.cut = False
            for wire in tuple(path.wires):
                wire.path_mended(lost=path.drops)

    def dial(
        self, servers: dict[str, SimServer], process: Process, code: Code = PRESENT
    ) -> Callable[[str, float], Callable[[], Wire]]:
        """What makes wires for this process, which runs this code."""

        def dial(url: str, timeout: float) -> Callable[[], Wire]:
            server = servers[url.removeprefix("redis://")]
            return lambda: SimWire(self, server, process, code)

        return dial


class SimWire:
    """Both ends of one connection."""

    def __init__(self, network: Network, server: SimServer, process: Process, code: Code) -> None:
        self._code = code
        self._network = network
        self._loop = network.loop
        self._server = server
        self._process = process
        self._path = network.path(process.name, server.name)
        self._life = 0
        self._parser = hiredis.Reader()
        # The client's end.
        self._inbox = Inbox()
        self._receiver: Receiver = self._inbox
        self._open = False
        # In between.
        self._sent_until = 0.0
        self._replied_until = 0.0
        self._held_requests: list[list[bytes]] = []
        self._held_replies: list[object] = []
        self._loses_requests = False
        self._loses_replies = False
        self._resets_held = False
        # The server's end.
        self._ended = False
        self._at_end: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<SimWire {self._process.name}-{self._server.name}>"

    # -- the client's end --------------------------------------------------------------------------------------------

    async def prepare(self) -> str:
        if self._path.nameless:
            await asyncio.sleep(self._network.chance.random() * LONGEST_LOOKUP)
            replies = self._code.module("protocol.replies")
            answer = replies.Answer(replies.Status.HINDERED, (), "its name could not be resolved")
            raise self._code.module("replication.wire").NoConnection(answer)
        return ""

    async def connect(self) -> None:
        network, path = self._network, self._path
        await asyncio.sleep(network.delay(path) * 2)
        for _ in range(CONNECTING_TURNS if self._process.turn else 0):
            await asyncio.sleep(0)
        if path.cut or (self._server.status is ProcessState.STOPPED and network.chance.random() < 0.5):
            if not path.refuses:
                await self._loop.create_future()
            raise ConnectionRefusedError("no route to host")
        if self._server.status is ProcessState.DOWN:
            raise ConnectionRefusedError("connection refused")
        if refusal := path.denies or self._server.closed:
            answer = self._code.module("protocol.replies").read_error(refusal)
            raise self._code.module("replication.wire").NoConnection(answer)
        self._life = self._server.lives
        self._server.accept(self)
        path.wires[self] = None
        self._open = True

    async def ask(self, *commands: bytes) -> list[object]:
        self._write(b"".join(commands))
        return await self._inbox.take(len(commands))

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        self._receiver = receiver
        self._inbox.pass_on(receiver)
        return self._write

    def _write(self, data: bytes) -> None:
        if not self._open:
            return
        self._parser.feed(data)
        while (command := self._parser.gets()) is not False:
            self._send(cast("list[bytes]", command))
        if self._network.chance.random() < 0.01:  # the buffer is full
            self._receiver.pause_writing()
            at = self._loop.now + self._network.delay(self._path)
            self._loop.arrive_at(at, self._resume, context=self._process.context)

    def _resume(self) -> None:
        if self._open:
            self._receiver.resume_writing()

    def _send(self, command: list[bytes]) -> None:
        at = max(self._sent_until, self._loop.now + self._network.delay(self._path))
        at += sum(map(len, command)) * self._server.pace.seconds_a_byte
        if self._path.breaking is not None:
            at = self._break(command, at)
        self._sent_until = at
        self._loop.call_at(at, self._reach, command, context=WORLD)

    def _break(self, command: list[bytes], at: float) -> float:
        kind, self._path.breaking = self._path.breaking, None
        assert kind is not None
        self._network.trace.count(kind.value, f"{self!r} at {_name(command)}")
        self._loses_replies = True
        match kind:
            case Break.REQUEST_LOST:
                self._loses_requests = True
            case Break.REPLY_LOST:
                pass
            case Break.EXECUTED_LATER:
                at += self._network.chance.random() * LATE_SECONDS
        seen_at = self._loop.now + self._network.delay(self._path) * 2
        self._loop.arrive_at(seen_at, self._end_client, "connection reset", context=self._process.context)
        return at

    def close(self) -> None:
        """Close the client's end; what was sent goes on its way, and the end behind it."""
        if self._open:
            self._open = False
            at = max(self._sent_until, self._loop.now + self._network.delay(self._path))
            self._loop.call_at(at, self._end_server, context=WORLD)

    def fall_silent(self) -> None:
        """What is between the two forgets this connection, and tells neither."""
        self._loses_requests = self._loses_replies = True

    def shut(self, why: str) -> None:
        """The network ends the connection."""
        if self._open:
            self.close()
            ended, error = self._receiver.ended, ConnectionResetError(why)
            self._loop.arrive_at(self._loop.now, ended, error, context=self._process.context)

    def _arrive(self, reply: object) -> None:
        if self._open:
            self._receiver.heard(reply)

    def _end_client(self, why: str) -> None:
        if self._open:
            self._open = False
            self._receiver.ended(ConnectionResetError(why))

    # -- in between --------------------------------------------------------------------------------------------------

    def _reach(self, command: list[bytes]) -> None:
        """A request is at the server's door."""
        if self._loses_requests or self._server.lives != self._life:
            return
        if self._path.cut:
            self._held_requests.append(command)
            self._network.trace.counts["request held back"] += 1
            return
        trace = self._network.trace
        trace.bytes(
            f"{self._process.name} > {self._server.name} {_describe(command)}" if trace.lines is not None else "",
            b"".join(command),
        )
        self._server.take(self, command)

    def refusal(self, command: list[bytes]) -> ErrorReply | None:
        """What the server says to a command for which this client has no right."""
        forbids = self._path.forbids
        return ErrorReply(forbids) if forbids and command[0] in (b"FCALL", b"FUNCTION") else None

    def reply(self, reply: object) -> None:
        if self._loses_replies or not self._open:
            return
        trace = self._network.trace
        if trace.lines is not None:
            trace.lines.append(f"{self._loop.now:10.6f}    {self._server.name} says {reply!r:.150}")
        if self._path.cut:
            self._held_replies.append(reply)
            return
        at = max(self._replied_until, self._loop.now + self._network.delay(self._path))
        if self._server.pace.costs:
            at += _size(reply) * self._server.pace.seconds_a_byte
        self._replied_until = at
        self._loop.arrive_at(at, self._arrive, reply, context=self._process.context)

    def reset(self) -> None:
        self._loses_replies = True
        self._end_server()
        if self._path.cut:
            self._resets_held = True
        else:
            at = max(self._replied_until, self._loop.now + self._network.delay(self._path))
            self._loop.arrive_at(at, self._end_client, "connection reset by peer", context=self._process.context)

    def path_mended(self, *, lost: bool) -> None:
        """What a cut has held back comes through, or the connection is found to be broken."""
        requests, self._held_requests = self._held_requests, []
        replies, self._held_replies = self._held_replies, []
        if lost and (requests or replies):
            self._loses_requests = self._loses_replies = True
            self.shut("connection timed out")
            self._end_server()
            return
        for command in requests:
            self._network.trace.counts["request late after a cut"] += 1
            self._reach(command)
        for reply in replies:
            self.reply(reply)
        if self._resets_held:
            self.reset()

    # -- the server's end --------------------------------------------------------------------------------------------

    def on_end(self, call: Callable[[], None]) -> None:
        if self._ended:
            call()
        else:
            self._at_end.append(call)

    def _end_server(self) -> None:
        if self._path.cut and self._server.status is not ProcessState.DOWN:
            return  # nobody has told the server
        self._ended = True
        self._server.forget(self)
        self._path.wires.pop(self, None)
        for call in self._at_end:
            call()
        self._at_end.clear()


def _size(reply: object) -> int:
    """Bytes of a reply, roughly."""
    if isinstance(reply, list):
        return sum(map(_size, cast("list[object]", reply)))
    return len(reply) if isinstance(reply, bytes) else 10


def _name(command: list[bytes]) -> str:
    return (scripts_by_function().get(command[1]) if command[0] == b"FCALL" else None) or command[0].decode()


def _describe(command: list[bytes]) -> str:
    if command[0] != b"FCALL":
        return b" ".join(command).decode(errors="replace")[:200]
    words = command[3 + int(command[2]) :]
    text = " ".join(repr(word)[2:-1][:90] for word in words)
    return f"{_name(command)} {text[:600]}"


def scripts_by_function() -> dict[bytes, str]:
    """The names of the scripts by those of their functions."""
    scripts = [code.module("protocol.scripts").SCRIPTS for code in LOADED]
    every = [(name, script) for each in scripts for name, script in each.items()]
    # In the release before, clients that only look call what all call.
    return {
        function.encode(): name
        for name, script in every
        for function in (script.function, getattr(script, "looking", ""))
    }
