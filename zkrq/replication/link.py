"""Run one connection to a Redis server: the identity of the server, and the calls in flight.

Calls are pipelined: everything sent in one turn of the event loop goes out in one system call, calls of a script for
several queues as one command (``command.py``), and replies come in the order of the commands.  So a reply belongs to
the command that has waited longest, and to it alone.  One that comes while nothing is in flight ends the connection:
nothing says any more which command a later one belongs to.  A call that finds nothing in flight does not wait for the
end of the turn if the last ``ALONE_CALLS`` have left alone, too: where items come one at a time, no other joins it.

**Time-outs belong to the connection.**  One timer serves all calls in flight.  When it fires, replies that have arrived
are read first.  A process whose event loop was blocked finds the time over and the replies in the socket; a time-out
that counted then would blame the server for the process's own delay.  So a call that is due has ``READ_TURNS`` more
turns of the event loop, which is more than it takes to send it and to receive its reply.

**Silence is counted from the last reply.**  Replies come in the order of the calls, so a call that waits behind others
has not been silent towards anybody while these are answered: behind a few large batches on a slow line, the time of a
call would be over before the server could begin with it.  ``LONGEST`` bounds what such a call may take in all.

**A connection on which a call timed out is abandoned**, with every call in flight (``Server.shun``).  The late reply
may still come, and nothing in it says which call it answers, so the next caller would get it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from zkrq.protocol.replies import Answer, Status, ends_connection, read_error
from zkrq.replication.command import COMBINED_CALLS, Command, ScriptCall
from zkrq.replication.exchange import PENDING, Complaint, Exchange, Round, TimedOut
from zkrq.replication.stream import ErrorReply, Receiver
from zkrq.replication.wire import NoConnection, Wire, pack

if TYPE_CHECKING:
    from zkrq.protocol.server_info import ServerInfo

READ_TURNS = 5
"""Turns of the event loop that a call has after its time, in case it was this process that was slow."""

READ_TURN_SECONDS = 0.001
"""Seconds between two of these turns; a turn that takes longer is waited for."""

ALONE_CALLS = 10
"""Calls that must have left alone, one after the other, before the next one does not wait for company."""

LONGEST = 4
"""Time-outs for which a call waits, at most, while the server answers the calls before it."""


class ServerError(Exception):
    """A server could not be used; never leaves the replication package."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.answer = Answer(status, (), reason)


def refusal(message: str) -> ServerError:
    """Return the error for a server that replies with an error of this text."""
    answer = read_error(message)
    return ServerError(answer.status, answer.reason)


def failure(error: OSError, also: str = "") -> ServerError:
    """Return the error that says why there is no connection; ``also``: what may be a cause of that."""
    answer = error.answer if isinstance(error, NoConnection) else Answer(Status.UNREACHABLE, (), str(error))
    return ServerError(answer.status, f"{answer.reason} ({also})" if also else answer.reason)


class Link(Receiver):
    """One connection and its calls in flight."""

    identity: ServerInfo
    """Identity that the server reported last."""
    loading: Exchange | None
    """The last sending of a library over this connection; what is sent later is executed later."""

    def __init__(self, wire: Wire, timeout: float) -> None:
        """``wire``: one that is connected.  ``timeout``: seconds of silence after which a call in flight times out."""
        self.lost: ServerError | None = None
        self.loading = None
        self._timeout = timeout
        self._answered_at = -math.inf
        self._waiting: deque[Command] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._watched = math.inf
        self._outgoing: list[Command] = []
        self._paused = False
        self._alone = 0
        """Calls that have left one at a time, with nothing else in flight, since the last one that had company."""
        self._wire = wire
        self._write = wire.start(self)

    async def ask(self, *commands: bytes) -> list[object]:
        """Send commands and return their replies.  Raises ``ServerError``, for an error reply as well."""
        round = Round()
        exchanges = [Exchange() for _ in commands]
        for command, exchange in zip(commands, exchanges, strict=True):
            self._send(command, exchange, round)
        await round.landed
        try:
            return [await exchange.reply() for exchange in exchanges]
        except Complaint as complaint:
            raise refusal(str(complaint)) from None

    def call(self, call: ScriptCall, exchange: Exchange, round: Round, due: float = math.inf) -> None:
        """Call a script together with everything else of this turn of the event loop.

        The outcome is the reply, a ``Complaint`` if the server replies with an error, a ``ServerError`` if the
        connection ends, ``TimedOut`` after ``due`` by ``loop.time()``.  Raises ``ServerError`` on a connection
        that has ended.
        """
        if self._outgoing and not self.lost:
            for command in islice(reversed(self._outgoing), COMBINED_CALLS):
                if command.takes(call):
                    command.add(call, exchange)
                    exchange.outcome, exchange.round = PENDING, round
                    round.left += 1
                    return
                # Calls for one queue keep their order, because a script reads the clock once and later calls rely on
                # earlier ones.
                if command.must_precede(call):
                    break
        self._send(call, exchange, round, due)

    def load(self, library: str) -> None:
        """Send the text of a library, without waiting for the reply."""
        self.loading = Exchange()
        self._send(pack(("FUNCTION", "LOAD", library)), self.loading, Round())

    def refusal_of(self, loading: Exchange | None) -> str:
        """Return why the server did not take a library, empty if it has it or has not answered."""
        outcome = loading.outcome if loading else None
        text = str(outcome) if isinstance(outcome, Complaint) else ""
        # Two clients that find a server without the library both load it, and one of them is told so.
        return "" if "already exists" in text or text.startswith("BUSY ") else text

    def _send(self, content: bytes | ScriptCall, exchange: Exchange, round: Round, due: float = math.inf) -> None:
        if self.lost:
            raise self.lost
        exchange.outcome, exchange.round = PENDING, round
        round.left += 1
        command = Command(content, exchange, due)
        is_first = not self._waiting
        self._waiting.append(command)
        if is_first and self._alone >= ALONE_CALLS and not self._paused:
            self._write(command.packed())
        else:
            if not self._outgoing:
                round.flush_soon(self._flush)
            self._outgoing.append(command)
        # One timer for all calls: it is set to the earliest, and set again when it fires.
        if due < self._watched:
            self._watch_until(due)

    def _watch_until(self, due: float) -> None:
        """Set the single timer of all calls in flight."""
        if self._watch:
            self._watch.cancel()
        self._watched = due
        self._watch = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        silent_at = self._answered_at + self._timeout
        if any(self._due_at(command, silent_at) <= now for command in self._waiting):
            self._read_on(now, READ_TURNS)
        else:
            self._expire(now)

    def _read_on(self, seen_at: float, turns: int) -> None:
        """Leave replies that have arrived these turns of the event loop, then time out the calls that were due."""
        if turns:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(READ_TURN_SECONDS, self._read_on, seen_at, turns - 1)
        else:
            self._expire(seen_at)

    def _expire(self, seen_at: float) -> None:
        """Time out the calls that are due, and set the timer for the next one."""
        silent_at = self._answered_at + self._timeout
        for command in self._waiting:
            if (due := self._due_at(command, silent_at)) <= seen_at:
                command.land(TimedOut(seen_at - due))
                command.forget()  # a late reply belongs to no other call
        self._watch, self._watched = None, math.inf
        next_due = min((self._due_at(command, silent_at) for command in self._waiting), default=math.inf)
        if next_due < math.inf:
            self._watch_until(next_due)

    def _due_at(self, command: Command, silent_at: float) -> float:
        """Return when a call in flight times out, unless there is another reply before."""
        return max(command.due, min(silent_at, command.due + (LONGEST - 1) * self._timeout))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send what this turn of the event loop has brought: many queues share the cost of one system call."""
        # While writing is paused, commands stay here, where more calls may join them.  Their number is bounded by the
        # batches in flight, and their time-outs count.
        if not self._paused and self._outgoing and not self.lost:
            commands, self._outgoing = self._outgoing, []
            self._alone = self._alone + 1 if len(self._waiting) == 1 and not commands[0].is_combined else 0
            self._write(b"".join(map(Command.packed, commands)))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        asyncio.get_running_loop().call_soon(self._flush)  # the transport, which calls this, is not ready yet

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - What has not left is the end of what waits, in the same order: replies are told apart by their place alone.
        - A connection that has ended has told every call, or its caller would wait forever.
        - A timer runs while a call may time out, or a server that hangs would never be noticed.
        """
        unsent = len(self._waiting) - len(self._outgoing)
        if self.lost:
            assert not self._waiting, "calls wait on a connection that has ended"
            return
        assert [*islice(self._waiting, max(0, unsent), None)] == self._outgoing, "not in the order of their replies"
        may_time_out = any(command.due < math.inf for command in self._waiting)
        assert self._watch or not may_time_out, "nothing times out the calls in flight"
        for command in self._waiting:
            command.check_invariants()

    # -- reading -------------------------------------------------------------------------------------------------------

    def heard(self, reply: object) -> None:
        """Pass a reply to the call that waits for it."""
        waiting, outgoing = self._waiting, self._outgoing
        # What has not left stands behind all that has: if it comes first, everything that was sent is answered.  This
        # reply is nobody's then, and the call would return something that its server never did.
        is_unasked = not waiting or (outgoing and outgoing[0] is waiting[0])
        if isinstance(reply, ErrorReply) and (is_unasked or ends_connection(reply.text)):
            self.give_up(refusal(reply.text))
        elif is_unasked:
            self.give_up(ServerError(Status.UNREACHABLE, f"a reply that nobody asked for: {reply!r:.200}"))
        else:
            waiting.popleft().answer(reply)
            if waiting:  # a call alone needs no more than its own time
                self._answered_at = asyncio.get_running_loop().time()

    def ended(self, error: OSError) -> None:
        self.give_up(failure(error))

    def give_up(self, error: ServerError) -> None:
        """Close the connection: fail every call in flight.  Does nothing if it has ended."""
        if self.lost:
            return
        self.lost = error
        self._wire.close()
        if self._watch:
            self._watch.cancel()
        while self._waiting:
            self._waiting.popleft().land(error)
