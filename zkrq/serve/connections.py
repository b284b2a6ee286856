"""Bound the connections of the server: their number, and the time until each has sent the head of a request.

Uvicorn closes a connection that has been idle since a request, but neither one that has never sent anything nor one
that has sent half a head.  Where all places are taken, the connection loses its own that has waited for longest, for a
handshake, a request, or the rest of a body.  So strangers who hold connections open keep no other client out, and leave
descriptors for Redis and ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from zkrq.base.errors import ConfigError

if TYPE_CHECKING:
    import socket
    import ssl

    from zkrq.base.tasks import Tasks

HEAD_SECONDS = 10.0
"""Seconds for a TLS handshake, and for the head of a request: of the first one from the opening of the connection, else
from its first byte."""

CONNECTIONS_MAX = 2_000
"""Greatest number of open connections, if the process may have that many descriptors."""

DESCRIPTORS_KEPT = 256
"""File descriptors that are left for Redis, ZooKeeper and everything else; at most half of those there may be."""

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer to a connection for which there is no place."""


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


class Places:
    """The places of a server's connections.  One that waits for its client can lose its own to a new connection."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = set[Connection]()
        self._waiting = dict[Connection, None]()

    def take(self, connection: Connection) -> bool:
        """Give a connection a place, if need be that of the one that has waited for longest; False: none waits."""
        if connection in self._held:
            return True
        if len(self._held) >= self._most:
            if not self._waiting:
                return False
            next(iter(self._waiting)).give_up()
        self._held.add(connection)
        self.wait(connection)
        return True

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for a handshake, or a request, or the rest of one."""
        if connection in self._held:
            self._waiting.setdefault(connection)

    def answer(self, connection: Connection) -> None:
        """Note that a connection has a whole request to answer."""
        self._waiting.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """Give a place back."""
        self._held.discard(connection)
        self._waiting.pop(connection, None)


class Connection(H11Protocol):
    """A connection that is closed unless it sends the head of a request in time."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places
        self._head_due: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._places.take(self):
            self._note(has_begun=True)
        else:
            transport.write(BUSY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note(has_begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(has_begun=bool(self.conn.trailing_data[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_no_head()
        self._places.leave(self)
        super().connection_lost(exc)

    def _note(self, *, has_begun: bool) -> None:
        """Follow what is expected; ``has_begun``: unless it is here already, the head of a request is due."""
        if self.headers and not self.cycle.response_complete:  # uvicorn sets both with the first request
            self._expect_no_head()
            if not self.cycle.more_body:
                self._places.answer(self)
            return
        self._places.wait(self)
        if has_begun and self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def _expect_no_head(self) -> None:
        if self._head_due:
            self._head_due.cancel()
            self._head_due = None

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
        """Close: the head of a request has not come, or another connection needs the place."""
        self._expect_no_head()
        self._places.leave(self)
        self.connections.discard(self)
        if self.transport:
            self.transport.abort()
        elif self._handshake:
            self._handshake.cancel()


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
            if self._places.take(connection):
                self._tasks.start(connection.shake_hands(accepted, self._tls), "a TLS handshake")
                await asyncio.sleep(0)  # until it has begun: before, nobody could end it
            else:
                accepted.close()

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: ``tasks`` ends the handshakes."""
