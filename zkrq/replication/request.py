"""Make one call of one script on one server: one object from its first try to its answer.

If the server is connected, making the request sends it, and nothing else is needed: no task, no timer and no future of
its own.  All requests of one fan-out are awaited as one ``Round``, and the connection keeps the time.
``asyncio.gather`` over a future for each request would cost the event loop one more callback per server and call;
measured, that is a third of the client's cost of a call to three servers.

Rounds land in the order in which they were begun, because the replies of each connection come in the order of its
calls.  A round also lands as soon as one outcome is unusual.  So calls that must be repeated because a server lacks the
library are repeated in their order, and a complaint of one server is handled while another one is silent.

Every script may be executed twice: by id, token or version it knows what it did before.  So a call whose connection
breaks is repeated once over a new connection.  The answer to a second try says nothing about the first one, which may
have been executed; ``Answer.repeated`` reports that to the operation.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.keys import script_keys
from zkrq.protocol.replies import LACKS_LIBRARY, Answer, Status, read_error, read_reply
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.tuples import from_values
from zkrq.replication.command import Opening, ScriptCall, opening
from zkrq.replication.exchange import PENDING, Complaint, Exchange, Round, TimedOut
from zkrq.replication.link import Link, ServerError

if TYPE_CHECKING:
    from zkrq.protocol.view import Life
    from zkrq.replication.server import Server
    from zkrq.replication.wire import Packed

LATE_SECONDS = 0.1
"""Seconds after which a time-out was noticed late: the event loop was blocked, and the call is repeated."""

BUSY_PAUSE = 0.05
"""Seconds before a call is retried on a server that is busy with a long script."""

LOADS = 3
"""How often one call loads the library: more than once only if something drops it again between load and call."""

OPENINGS_KEPT = 10_000
"""Openings of script calls that are kept, a KiB each and more with long names; others are packed again."""


class Asked(NamedTuple):
    """What is asked of every server of a fan-out: a script's call, encoded once."""

    script: str
    queue: str
    epoch: int
    arguments: Packed
    weight: int | None
    """How many items the call takes at most, None: it is never combined with others."""
    once: bool = False
    """Whether it is not repeated when its connection breaks."""


class Request(Exchange):
    """One call of a script in one life of a server, from its first try to its answer.

    If the server is connected, making the request sends it, as a part of a round and without a task.  ``answer`` does
    what else is needed: connect, wait for a busy server, load the library, repeat.  Every script may be executed twice,
    so a call is repeated once if its connection breaks, unless ``Asked.once``.
    """

    __slots__ = ("_asked", "_due", "_life", "_link", "_loading", "_server")

    def __init__(self, server: Server, life: Life, asked: Asked, round: Round, now: float) -> None:
        """``round``: the one that it is a part of if it is sent now.  ``now``: the moment, by ``loop.time()``."""
        self._server = server
        self._life = life
        self._asked = asked
        self._due = now + server.timeout
        self._link = link = server.link_to(life, now)
        if link:
            self._send(link, round)

    @property
    def usual_answer(self) -> Answer | None:
        """The answer, if the server has replied to the first try, and not with an error."""
        if not self._link or self.outcome is PENDING or isinstance(self.outcome, Exception):
            return None
        return read_reply(self.outcome, self._asked.script)

    async def answer(self) -> Answer:
        """Wait for the answer.  Never raises for an error of the server: the answer describes it."""
        server = self._server
        if not self._link and (shunned := server.shunned):
            return shunned
        repeated = False
        # A second try is safe because every script recognises its first execution.  There is no third: a server that
        # breaks two connections in a row is no server to rely on, and eviction is decided above, with what other
        # clients know.
        for last in (True,) if self._asked.once else (False, True):
            try:
                answer = await self._try()
                return answer._replace(repeated=True) if repeated else answer
            except ServerError as error:
                # Only a connection that broke is worth a second try.  Any other answer is the server's own, and would
                # be the same.
                if last or error.answer.status is not Status.UNREACHABLE or server.shunned:
                    return error.answer._replace(repeated=repeated)
            except TimedOut as error:
                # After a blocked event loop this process was late, not the server, whose reply may be unread.
                if last or error.late <= LATE_SECONDS:
                    return server.shun(self._link)
            except TimeoutError:
                return server.shun(self._link)
            repeated, self._link = self._link is not None, None
        raise AssertionError("unreachable")

    async def _try(self) -> Answer:
        """Send the call and wait for its reply.  Raises ``ServerError``, ``TimeoutError``."""
        if not self._link:
            try:
                async with self._server.patience():
                    link = await self._server.connected()
            except TimeoutError:
                return self._server.shun(None)
            # The check that makes restarts safe: a process that started again may have lost what the view believes it
            # has.  It belongs to the connection, not to the call, because a connection cannot change the process at
            # its other end.
            if link.identity.run_id != self._life.run_id:
                return Answer(Status.GONE, (), link.identity.dropping or "the server was restarted")
            self._link = link
            self._due = asyncio.get_running_loop().time() + self._server.timeout
            self._send(link, Round())
        try:
            return read_reply(await self.reply(), self._asked.script)
        except Complaint as complaint:
            return await self._satisfy(self._link, str(complaint))

    async def _satisfy(self, link: Link, complaint: str) -> Answer:
        """Handle an error reply.  The server has answered in time, so it has its whole time again for the next try."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._server.timeout
        loads = 0
        while True:
            # As ordinary as a first call: another version of zkrq, or one that began before this server, has a library
            # of its own.
            if complaint.startswith(LACKS_LIBRARY) and loads < LOADS:
                if loads and (refusal := link.refusal_of(self._loading)):
                    return read_error(refusal)
                loads += 1
                self._load(link)
            # The server is alive and says so, but another client's long script occupies it.  Shunning it would evict
            # it.
            elif complaint.startswith("BUSY "):
                if loop.time() >= self._due:
                    raise TimeoutError
                await asyncio.sleep(BUSY_PAUSE)
            else:
                return read_error(complaint)
            self._send(link, Round())
            try:
                return read_reply(await self.reply(), self._asked.script)
            except Complaint as again:
                complaint = str(again)

    def _load(self, link: Link) -> None:
        """Send the library, unless another call has sent it over this connection since this one was sent."""
        # The next try follows without waiting for the reply: a server executes what a connection sends in order.  Had
        # the calls that lack the library to wait for it, later ones would overtake them.
        if link.loading is self._loading:
            link.load(SCRIPTS[self._asked.script].library.text)

    def _send(self, link: Link, round: Round) -> None:
        """Send the call."""
        self._loading = link.loading
        # The opening (script, keys, gate) is the same for all calls of a queue in an epoch, so it is packed once and
        # kept.
        script, queue, epoch, arguments, weight, _ = self._asked
        gate = epoch, self._life.generation
        called = SCRIPTS[script]
        function = (self._server.only_looks and called.looking) or called.function
        opening = _opening(self._server.namespace, queue, script, function, *gate)
        link.call(_called_of((opening, arguments, weight)), self, round, self._due)


_called_of = from_values(ScriptCall)


@lru_cache(OPENINGS_KEPT)
def _opening(namespace: str, queue: str, script: str, function: str, epoch: int, generation: str) -> Opening:
    """Return the beginning of a script's call."""
    return opening("FCALL", function, queue, script_keys(namespace, queue, script), epoch, generation)
