"""Bound the connections of the server: their number, the time until each has sent the head of a request, and the time
for which a reply may be left unread.

Uvicorn closes a connection that has been idle since a request, but neither one that has never sent anything, nor one
that has sent half a head, nor one that does not read.  A connection is a stranger's until a request on it is let in,
and strangers have places of their own.  Where all of these are taken, the connection loses its own that has waited for
longest: for a handshake, a request, the rest of a body, or for its client to read.  So strangers who hold connections
open keep no other client out, and leave descriptors for Redis and ZooKeeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from zkrq.base.errors import ConfigError
from zkrq.serve.lines import FewLines

if TYPE_CHECKING:
    import socket
    import ssl

    from zkrq.base.tasks import Tasks

HEAD_SECONDS = 10.0
"""Seconds for a TLS handshake, and for the head of a request: of the first one from the opening of the connection, else
from its first byte."""

READ_SECONDS = 30.0
"""Seconds in which a client must take all that is left of its reply, or at least ``READ_LEAST`` of it."""

READ_LEAST = 16 << 10
"""Bytes of a reply that a client must take in ``READ_SECONDS``, unless it takes all."""

CONNECTIONS_MAX = 2_000
"""Greatest number of open connections, if the process may have that many descriptors."""

STRANGERS_SHARE = 4
"""One place of this many is for connections on which no request was let in yet; the others are for clients."""

PIECE_BYTES = 4 << 10
"""Bytes of a stranger that are read at a time.  A head has at most 16 KiB, h11's bound for one that is not complete."""

ARRIVED_MAX = 512 << 10
"""Bytes of a stranger that have arrived and are not read yet; reading from its socket stops long before that."""

TURN_BYTES = 16 << 10
"""Bytes of strangers that are read in one turn of the event loop: between two turns everybody else waits."""

REQUEST_BYTES = 1 << 10
"""Bytes that a request counts for besides its own, because it has to be answered."""

DESCRIPTORS_KEPT = 256
"""File descriptors that are left for Redis, ZooKeeper and everything else; at most half of those there may be."""

CONNECTION = "zkrq.connection"
"""Name under which the state of a request has its connection."""

_log = logging.getLogger("zkrq.serve.connections")
_log.setLevel(logging.WARNING)
_log.addFilter(FewLines())


def connections_max() -> int:
    """Return how many connections may be open.  Raises ``ConfigError`` if the process may open hardly any file."""
    try:
        import resource
    except ImportError:  # on Windows, where sockets are no file descriptors
        return CONNECTIONS_MAX
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    if limit < DESCRIPTORS_KEPT // 4:
        raise ConfigError(f"this process may open {limit} files, which does not suffice: raise `ulimit -n` to 1024")
    return min(CONNECTIONS_MAX, limit - min(DESCRIPTORS_KEPT, limit // 2))


class Turns:
    """Have strangers' requests read one after another, a few in each turn of the event loop.

    Otherwise all that arrive at the same time would be read and answered before a client has its turn.  The first
    request of a connection goes before the later ones of others: a probe, and a client that has just come, send one.
    """

    def __init__(self) -> None:
        self._first, self._later = dict[Connection, None](), dict[Connection, None]()
        self._is_called = False

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._first or connection in self._later

    def wait(self, connection: Connection) -> None:
        """Have a connection read what has arrived when it is its turn."""
        if connection not in self:
            (self._later if connection.cycle else self._first)[connection] = None
            self._call()

    def leave(self, connection: Connection) -> None:
        """Forget a connection."""
        self._first.pop(connection, None)
        self._later.pop(connection, None)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_called = False
        left = TURN_BYTES
        try:
            while left > 0 and (line := self._first or self._later):
                connection = next(iter(line))
                del line[connection]
                left -= REQUEST_BYTES + connection.read_piece()
        finally:  # what one connection raises keeps no other from its turn
            if self._first or self._later:
                self._call()


class _Room:
    """Some of the places: who holds one, in the order of coming, and which of these wait, the longest first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = dict[Connection, None]()
        self.waiting = dict[Connection, None]()

    def leave(self, connection: Connection) -> None:
        self.held.pop(connection, None)
        self.waiting.pop(connection, None)


class Places:
    """The places of a server's connections: some for strangers, the others for clients that were let in.

    A connection that waits for its client can lose its place to another one of its kind.
    """

    def __init__(self, most: int) -> None:
        strangers = max(1, most // STRANGERS_SHARE)
        self._strangers, self._clients = _Room(strangers), _Room(most - strangers)
        self.turns = Turns()

    def take(self, connection: Connection) -> None:
        """Give a new connection a stranger's place: if need be that of the one that has waited for longest, or, if none
        waits, of the one that came first."""
        if connection not in self._strangers.held:
            self._enter(self._strangers, connection)
            self.wait(connection)

    def is_stranger(self, connection: Connection) -> bool:
        """Tell whether a connection has a stranger's place."""
        return connection in self._strangers.held

    def _enter(self, room: _Room, connection: Connection) -> None:
        if len(room.held) >= room.most:
            waiting = (each for each in room.waiting if each not in self.turns)
            (next(waiting, None) or next(iter(room.held))).give_up()
        room.held[connection] = None

    def let_in(self, connection: Connection, *, known: bool) -> bool:
        """Count a connection among those of clients if its latest request is ``known`` to come from one, else among
        those of strangers.

        False: there is no place, because each client's connection has a request that is being answered.
        """
        here, there = (self._strangers, self._clients) if known else (self._clients, self._strangers)
        if connection in here.held:
            if known and len(there.held) >= there.most and not there.waiting:
                return False
            here.leave(connection)
            self._enter(there, connection)
        return True

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client: for a handshake, a request, the rest of one, or to read."""
        for room in (self._strangers, self._clients):
            if connection in room.held:
                room.waiting.setdefault(connection)

    def answer(self, connection: Connection) -> None:
        """Note that a connection has a whole request to answer."""
        for room in (self._strangers, self._clients):
            room.waiting.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """Give a place back."""
        self.turns.leave(connection)
        for room in (self._strangers, self._clients):
            room.leave(connection)


class _Flow(FlowControl):
    """Uvicorn's flow control, which reads no more from the socket until what has arrived is read."""

    def __init__(self, transport: asyncio.Transport, arrived: bytearray) -> None:
        super().__init__(transport)
        self._arrived = arrived

    def resume_reading(self) -> None:
        if not self._arrived:
            super().resume_reading()


class Connection(H11Protocol):
    """A connection that is closed unless it sends the head of a request in time, and reads what it asked for."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.logger = _log  # of what strangers cause, few lines
        self._places = places
        self._head_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._unread = 0
        self._arrived = bytearray()
        self._is_turn = False
        self._handshake: asyncio.Task[None] | None = None

    def let_in(self, *, known: bool) -> bool:
        """Note whose request is being answered; False: there is no place for it.  See ``Places.let_in``."""
        if not self._places.let_in(self, known=known):
            return False
        if known:
            self._places.turns.leave(self)
            self._read(len(self._arrived))
        return True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._arrived)
        transport.set_write_buffer_limits(high=1, low=0)  # so that whatever is not read is noticed
        self._places.take(self)
        self._note(has_begun=True)

    def data_received(self, data: bytes) -> None:
        """Read what has arrived; of a stranger, when it is its turn."""
        if self._places.is_stranger(self):
            self._arrived += data
            self.flow.read_paused = True
            self.transport.pause_reading()
            if len(self._arrived) > ARRIVED_MAX:
                self.give_up()
            else:
                self.handle_events()
        else:
            super().data_received(data)
        self._note(has_begun=True)

    def handle_events(self) -> None:
        """Go on with what has arrived: of a stranger when it is its turn, and when its request before is answered."""
        if self._is_turn or not self._places.is_stranger(self):
            super().handle_events()
        elif self._has_more() and not self._is_answering():
            self._places.turns.wait(self)

    def read_piece(self) -> int:
        """Read the next request of what a stranger has sent, or a piece of it; return the number of its bytes."""
        if self.transport.is_closing():
            return 0
        size = 0
        self._is_turn = True
        try:
            super().handle_events()  # more than one request may have been in the last piece
            if not self._is_answering():
                size = min(len(self._arrived), PIECE_BYTES)
                self._read(size)
        finally:
            self._is_turn = False
        if self._arrived:
            self.handle_events()
        self._note(has_begun=self._has_more())
        return size

    def _read(self, size: int) -> None:
        piece = bytes(self._arrived[:size])
        del self._arrived[:size]
        self.flow.resume_reading()
        if piece:  # to h11, nothing means the end
            super().data_received(piece)

    def _has_more(self) -> bool:
        """Whether more has arrived than the request that is being answered, or was answered last."""
        return bool(self._arrived or self.conn.trailing_data[0])

    def _is_answering(self) -> bool:
        """Whether a request has arrived as a whole and is being answered."""
        return bool(self.headers and not self.cycle.response_complete and not self.cycle.more_body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(has_begun=self._has_more())

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._places.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that a part of the reply is not taken by the client."""
        super().pause_writing()
        self._places.wait(self)
        self._expect_reading()

    def resume_writing(self) -> None:
        """Note that the client has taken all."""
        super().resume_writing()
        self._read_due = _cancelled(self._read_due)
        self._note(has_begun=False)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, unless its answer has begun; nobody waits for it any more."""
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.give_up()

    def _should_upgrade(self) -> bool:
        """Answer a request for another protocol as if it did not ask for one: there is none here."""
        return False

    def _note(self, *, has_begun: bool) -> None:
        """Follow what is expected; ``has_begun``: unless it is here already, the head of a request is due."""
        if self.headers and not self.cycle.response_complete:  # uvicorn sets both with the first request
            self._head_due = _cancelled(self._head_due)
            if self._is_answering() and not self.flow.write_paused:
                self._places.answer(self)
            return
        self._places.wait(self)
        if has_begun and self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def _expect_reading(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._read_due = self.loop.call_later(READ_SECONDS, self._check_reading)

    def _check_reading(self) -> None:
        if self._unread - self.transport.get_write_buffer_size() < READ_LEAST:
            self.give_up()
        else:
            self._expect_reading()

    def _expect_nothing(self) -> None:
        self._head_due, self._read_due = _cancelled(self._head_due), _cancelled(self._read_due)

    async def shake_hands(self, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Begin TLS on an accepted connection.  If this fails, takes too long, or is cancelled, it is closed."""
        self._handshake = asyncio.current_task()
        try:
            await self.loop.connect_accepted_socket(lambda: self, accepted, ssl=tls, ssl_handshake_timeout=HEAD_SECONDS)
        except OSError:
            pass
        finally:
            self._handshake = None
            if not self.transport:
                self._places.leave(self)

    def give_up(self) -> None:
        """Close: what was expected has not come, or another connection needs the place."""
        self._expect_nothing()
        self._places.leave(self)
        self.connections.discard(self)
        if self.transport:
            self.transport.abort()
        elif self._handshake:
            self._handshake.cancel()


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    """Cancel a timer, if there is one."""
    if timer:
        timer.cancel()


class TlsServer(asyncio.AbstractServer):
    """Accept connections, and give each its place before its handshake.

    asyncio's own servers show a connection to nobody until its handshake is over, so those whose is not would be
    without number.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        listener: socket.socket,
        tls: ssl.SSLContext,
        places: Places,
        tasks: Tasks,
    ) -> None:
        """``tasks`` owns the handshakes, and what accepts connections until ``close``."""
        self._make = make
        self._listener = listener
        self._tls = tls
        self._places = places
        self._tasks = tasks
        listener.setblocking(False)
        self._accepting = tasks.supervise(self._accept, "accept connections")

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            accepted, _ = await loop.sock_accept(self._listener)
            connection = self._make()
            self._places.take(connection)
            self._tasks.start(connection.shake_hands(accepted, self._tls), "a TLS handshake")
            await asyncio.sleep(0)  # until it has begun: before, nobody could end it

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: ``tasks`` ends the handshakes."""
