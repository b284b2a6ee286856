"""Bound the connections of the server: their number, and the time until each has sent the head of a request.

Uvicorn closes a connection that has been idle since a request, but neither one that has never sent anything nor one
that has sent half a head.  Where all places are taken, the connection that has waited for a head for longest loses its
own.  So strangers who hold connections open keep no other client out, and leave descriptors for Redis and ZooKeeper.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from zkrq.base.errors import ConfigError

HEAD_SECONDS = 10.0
"""Seconds for the head of a request: of the first one from the opening of the connection, else from its first byte."""

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
    """The places of a server's connections.  Of those without a request, the one that waits for longest comes first."""

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self._waiting = dict[Connection, None]()

    def wait(self, connection: Connection) -> None:
        """Note that a connection has no request to answer."""
        self._waiting.setdefault(connection)

    def no_longer(self, connection: Connection) -> None:
        """Note that a connection has a request to answer, or is closed."""
        self._waiting.pop(connection, None)

    def free_one(self) -> bool:
        """Close the connection that has waited for longest.  False: every one has a request to answer."""
        for connection in self._waiting:
            connection.give_up()
            return True
        return False


class Connection(H11Protocol):
    """A connection that is closed unless it sends the head of a request in time."""

    def __init__(self, *args: Any, places: Places, **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._places.most and not self._places.free_one():
            transport.write(BUSY)
            transport.close()
        else:
            self._note(has_begun=True)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note(has_begun=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(has_begun=bool(self.conn.trailing_data[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _note(self, *, has_begun: bool) -> None:
        """Follow whether a request is expected; ``has_begun``: its head is due."""
        if self.headers and not self.cycle.response_complete:  # uvicorn sets both with the first request
            self._forget()
            return
        self._places.wait(self)
        if has_begun and self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def _forget(self) -> None:
        """Wait for no head."""
        self._places.no_longer(self)
        if self._head_due:
            self._head_due.cancel()
            self._head_due = None

    def give_up(self) -> None:
        """Close: the head of a request has not come, or another connection needs the place."""
        self._forget()
        self.connections.discard(self)
        self.transport.abort()
