"""Connect to Redis with nothing but hiredis: no client library can be faster."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Self, cast
from urllib.parse import urlsplit

import hiredis

from zkrq.replication.wire import Word, pack


class RawRedis(asyncio.Protocol):
    """One connection; calls are pipelined and answered in order."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[object]] = deque()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to the server of this URL."""
        place = urlsplit(url)
        _, protocol = await asyncio.get_running_loop().create_connection(
            cls, place.hostname or "localhost", place.port or 6379
        )
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := cast("object", self._reader.gets())) is not False:
            self._waiting.popleft().set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        while self._waiting:
            self._waiting.popleft().set_exception(exc or ConnectionResetError("connection lost"))

    def call(self, words: Sequence[Word]) -> asyncio.Future[object]:
        """Send one command; the future gets its reply, an error as an exception object."""
        assert self._transport
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(pack(tuple(words)))
        return future

    async def ask(self, *words: Word) -> object:
        """Send one command and wait for its reply.  Raises an error reply."""
        reply = await self.call(words)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """Close the connection."""
        if self._transport:
            self._transport.close()
