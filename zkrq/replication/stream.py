"""Turn the bytes of one connection into replies, and pass each to its receiver as soon as it has arrived.

A stream is an ``asyncio.Protocol`` with hiredis' parser: the transport calls it, and it calls the receiver.  With
asyncio's own streams a reply passes through a buffer, a future and a task of the connection before its caller hears of
it; here there is nothing in between.  Measured for a lone push to three servers, that was a third of the client's
Python calls.

The receiver is called from the event loop: it must not block, and it decides what happens to the connection.  Until one
is there, ``Inbox`` keeps what arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import hiredis


class ErrorReply(NamedTuple):
    """An error reply of the server, with its text."""

    text: str


class Receiver(Protocol):
    """Is called with what happens on a connection; with nothing more once it has closed the wire."""

    def heard(self, reply: object) -> None:
        """Take the next reply: bytes, int, None, a list of these, or an ``ErrorReply``, which a list may have, too."""

    def ended(self, error: OSError) -> None:
        """Take note that the other side, or the network, has ended the connection."""

    def pause_writing(self) -> None:
        """Write nothing until ``resume_writing``: the server reads more slowly than this client writes."""

    def resume_writing(self) -> None:
        """Write again."""


class Inbox(Receiver):
    """Keep what arrives while a connection is made, for one caller that waits for it."""

    def __init__(self) -> None:
        self._replies = deque[object]()
        self._error: OSError | None = None
        self._arrived = asyncio.Event()

    def heard(self, reply: object) -> None:
        self._replies.append(reply)
        self._arrived.set()

    def ended(self, error: OSError) -> None:
        self._error = error
        self._arrived.set()

    async def take(self, count: int) -> list[object]:
        """Return this many replies, or those up to an error.  Raises what ended the connection instead."""
        # A server without room for this client replies with one error to everything, and hangs up.
        while len(self._replies) < count and not any(isinstance(reply, ErrorReply) for reply in self._replies):
            if self._error:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        return [self._replies.popleft() for _ in range(min(count, len(self._replies)))]

    def pass_on(self, receiver: Receiver) -> None:
        """Pass on what nobody has taken: the first message of a subscription may arrive with the reply to it."""
        while self._replies:
            receiver.heard(self._replies.popleft())
        if self._error:
            receiver.ended(self._error)


class Stream(asyncio.Protocol):
    """The client's end of a connection that exists: the protocol of its transport, in place of asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take over the transport of these two, which are not used any more."""
        self._inbox = Inbox()
        self._receiver: Receiver | None = self._inbox
        parser = hiredis.Reader(replyError=cast("Any", ErrorReply))  # any callable will do, its stub knows exceptions
        self._feed, self._gets = parser.feed, parser.gets
        self._writer = writer  # closes the transport and warns when it is collected, so it is kept
        self._transport = writer.transport
        self._transport.set_protocol(self)
        # A server without room for this client says so, and hangs up, before it is asked anything.  What the old
        # protocol has been called with, the new one is not: neither with these bytes, nor with the end.
        early = cast("Any", reader)
        if early._buffer:
            self.data_received(bytes(early._buffer))
        if early._eof or self._transport.is_closing():
            self.connection_lost(reader.exception())

    async def ask(self, *commands: bytes) -> list[object]:
        """Send the first commands and return their replies, up to an error.  Raises ``OSError`` if the connection
        ends instead."""
        self._transport.write(b"".join(commands))
        return await self._inbox.take(len(commands))

    def start(self, receiver: Receiver) -> Callable[[bytes], None]:
        """Pass everything from now on to ``receiver``; return the function that writes."""
        self._receiver = receiver
        self._inbox.pass_on(receiver)
        return self._transport.write

    def close(self) -> None:
        """Close the connection without sending what is still in its buffer, and call the receiver no more."""
        # Not ``transport.close``, which waits until a server that hangs has read all, or has answered TLS' farewell.
        self._receiver = None
        self._transport.abort()

    # -- what the transport calls --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass on every reply that is complete now."""
        try:
            self._feed(data)
            # A receiver may close the connection at any reply, and then has none of the further ones.
            while (receiver := self._receiver) and (reply := self._gets()) is not False:
                receiver.heard(reply)
        except hiredis.HiredisError as error:
            self._end(ConnectionError(f"not a reply of Redis: {error}"))

    def eof_received(self) -> None:
        """End the connection: what is in the buffer for writing would not be answered any more."""
        self._end(ConnectionResetError("connection closed by the server"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the connection, unless ``eof_received`` or ``close`` did."""
        self._end(exc if isinstance(exc, OSError) else ConnectionResetError(str(exc or "connection closed")))

    def pause_writing(self) -> None:
        """Have nothing written: there are more bytes in the buffer than the transport wants to hold."""
        if self._receiver:
            self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """Have something written: the server has read most of the buffer."""
        if self._receiver:
            self._receiver.resume_writing()

    def _end(self, error: OSError) -> None:
        if receiver := self._receiver:
            self._receiver = None
            receiver.ended(error)
