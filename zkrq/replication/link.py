"""One connection to a Redis server: who is at its other end, and the calls that are under way on it.

Calls are pipelined over the wire (wire.py).  What several queues send in one turn of the event loop goes out in one
system call, and what one operation asks of several servers is waited for as one ``Round``.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from zkrq.protocol.replies import Answer, Status, ends_connection, read_error, read_reply
from zkrq.protocol.server_info import ServerInfo
from zkrq.replication.wire import ErrorReply, Wire, Word, pack

READ_FIRST_SECONDS = 0.001
"""How long what has arrived may take from the socket to who waits for it, before it counts as missing."""

FIRST_VERSION_WITH_FLAGS = (7, 0)


Identity = ServerInfo


class ServerError(Exception):
    """A server could not be used; never leaves the replication package."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.answer = Answer(status, (), reason)


@asynccontextmanager
async def deadline(at: float) -> AsyncGenerator[None]:
    """``asyncio.timeout_at``, but what has arrived by then is read first: where this process was late, its event loop
    finds the time over and the answer in the socket at once."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []
    async with asyncio.timeout(None) as limit:

        def look() -> None:
            timers.append(loop.call_later(READ_FIRST_SECONDS, expire))

        def expire() -> None:
            limit.reschedule(loop.time())

        timers.append(loop.call_at(at, look))
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


class Round:
    """Calls that are begun in one turn of the event loop on several servers, and waited for together: one future and
    one timer for each of them would be a large part of what a small batch costs.

    It has landed when all have their replies, or as soon as one of them did not come as usual.  Rounds of the same
    servers land in the order in which they were begun, because the replies of each link do: so that what follows, as
    the same call once more where a server has lost its scripts, keeps their order as well.
    """

    __slots__ = ("_landed", "_left")

    def __init__(self) -> None:
        self._left = 0
        self._landed = asyncio.get_running_loop().create_future()

    def add(self) -> None:
        self._left += 1

    def land(self, *, as_usual: bool) -> None:
        """One of its calls is over."""
        self._left -= 1
        if not (self._left and as_usual) and not self._landed.done():
            self._landed.set_result(None)

    async def landed(self) -> None:
        if self._left:
            await self._landed


class Begun:
    """A call of a round, under way on a connection that was there, until ``due`` by ``loop.time()``.  To the link it is
    what a future would be."""

    __slots__ = ("_error", "_late", "_reply", "_round", "due", "link")

    def __init__(self, link: Link, due: float, round: Round) -> None:
        self.link = link
        self.due = due
        self._reply: object = None
        self._error: Exception | None = None
        self._round: Round | None = round
        self._late: asyncio.Future[None] | None = None
        round.add()

    def done(self) -> bool:
        return self._round is None

    def set_result(self, reply: object) -> None:
        self._reply = reply
        self._land(as_usual=not isinstance(reply, ErrorReply))

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._land(as_usual=False)

    def _land(self, *, as_usual: bool) -> None:
        round, self._round = self._round, None
        if round:
            round.land(as_usual=as_usual)
        if self._late and not self._late.done():
            self._late.set_result(None)

    def exception(self) -> Exception | None:
        return self._error

    @property
    def has_reply(self) -> bool:
        return not (self._round or self._error)

    async def reply(self) -> object:
        """Raises ``ServerError``, ``TimeoutError``."""
        if self._round:  # still to come, when something else has made the round land
            self._late = asyncio.get_running_loop().create_future()
            await self._late
        if self._error:
            raise self._error.with_traceback(None)  # one error may be that of many calls
        return self._reply

    def answer(self, script: str) -> Answer | None:
        """The answer to this script, where it has come as usual; None leaves it to ``Server.call``."""
        usual = self.has_reply and not isinstance(self._reply, ErrorReply)
        return read_reply(self._reply, script) if usual else None


class Link:
    """One connection, with the calls that are under way on it.  ``identity`` is what the server said at its begin."""

    identity: ServerInfo

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lost: ServerError | None = None
        self._waiting: deque[tuple[_Waiter, float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._outgoing: list[bytes] = []
        self._something_to_write = asyncio.Event()

    @property
    def takes_flags(self) -> bool:
        """Whether the server knows the first line of a script."""
        return self.identity.version >= FIRST_VERSION_WITH_FLAGS

    async def call(self, *command: Word) -> object:
        """Send one command; return its reply, or the error that it replied with.  Raises ``ServerError``."""
        return await self.send(pack(command))

    def send(self, packed: bytes) -> asyncio.Future[object]:
        """Have a command sent with all that the same turn of the event loop adds; what is returned gets its reply.

        Raises ``ServerError``.
        """
        if self.lost:
            raise self.lost
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._send(packed, future, math.inf)
        return future

    def begin(self, packed: bytes, due: float, round: Round) -> Begun:
        """The same as a part of a round; after ``due`` it gets a ``TimeoutError``.  Not on a link that is lost."""
        begun = Begun(self, due, round)
        self._send(packed, begun, due)
        if self._watch is None:
            self._watch_for(due)
        return begun

    def _watch_for(self, due: float) -> None:
        """One timer for all calls that were begun: those that are due stand first."""
        self._watch = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """Somebody's time is over; but what has arrived is read first, for the reason that ``deadline`` has."""
        loop = asyncio.get_running_loop()
        self._watch = loop.call_later(READ_FIRST_SECONDS, self._expire, loop.time())

    def _send(self, packed: bytes, waiter: _Waiter, due: float) -> None:
        self._waiting.append((waiter, due))
        self._outgoing.append(packed)
        self._something_to_write.set()

    async def write(self) -> None:
        """Send what there is, until the connection ends: many queues share the price of one system call."""
        try:
            while True:
                await self._something_to_write.wait()
                if self.lost:
                    return  # redis-py would connect anew by itself
                self._something_to_write.clear()
                commands, self._outgoing = self._outgoing, []
                await self.wire.send(commands)
        except OSError as error:
            self.give_up(ServerError(Status.UNREACHABLE, str(error)))
        finally:
            self.give_up(ServerError(Status.UNREACHABLE, "connection closed"))

    async def read(self) -> None:
        """Hand each reply to who waits for it, until the connection ends."""
        try:
            while True:
                reply = await self.wire.receive()
                if self.lost:
                    return  # given up meanwhile: nobody waits for this reply any more
                if isinstance(reply, ErrorReply) and (not self._waiting or ends_connection(reply.text)):
                    self.give_up(ServerError(read_error(reply.text).status, reply.text))
                    return
                waiter, _ = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_result(reply)
        except OSError as error:
            self.give_up(ServerError(Status.UNREACHABLE, str(error)))
        finally:
            self.give_up(ServerError(Status.UNREACHABLE, "connection closed"))
            await self.wire.close()

    def give_up(self, error: ServerError) -> None:
        """Tell everybody who waits that no answer will come."""
        self.lost = self.lost or error
        self._something_to_write.set()
        if self._watch:
            self._watch.cancel()
        while self._waiting:
            _fail(self._waiting.popleft()[0], self.lost)

    def _expire(self, seen_at: float) -> None:
        self._watch = None
        for waiter, due in self._waiting:
            if seen_at < due < math.inf:
                self._watch_for(due)
                break
            if due <= seen_at:
                _fail(waiter, TimeoutError())


_Waiter = asyncio.Future[object] | Begun


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        waiter.exception()  # a caller that went away leaves nothing unretrieved
