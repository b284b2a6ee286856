"""Being told that something is ready: one channel per process, listened to on every server that a consumer waits on.

A consumer that finds nothing leaves the channel's name at the queue's primary; the script that makes an item ready
takes names from there and publishes to them.  A lost message costs time, never an item: whoever waits looks again
every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping

from zkrq.replication.keys import key
from zkrq.replication.server import Server, ServerError
from zkrq.replication.view import ServerId
from zkrq.tasks import Tasks

RETRY_SECONDS = 0.5
"""Pause before listening to a server again that could not be listened to."""

_log = logging.getLogger("zkrq.wakeups")


class Wakeups:
    """Listens where it is asked to, and calls whoever waits."""

    def __init__(self, servers: Mapping[ServerId, Server], *, namespace: str, tasks: Tasks) -> None:
        self.channel = f"{{{namespace}}}:wake:{secrets.token_hex(8)}"
        self._servers = servers
        self._namespace = namespace
        self._tasks = tasks
        self._listening: dict[ServerId, asyncio.Event] = {}
        self._listeners: dict[ServerId, asyncio.Task[None]] = {}
        self._waiting: dict[bytes, Callable[[], None]] = {}

    def register(self, queue: str, wake: Callable[[], None]) -> None:
        """Call ``wake`` whenever something may have become ready in this queue."""
        self._waiting[key(self._namespace, queue, "ready").encode()] = wake

    def wake_all(self) -> None:
        """Have everybody look again: what was published meanwhile may have been missed."""
        for wake in tuple(self._waiting.values()):
            wake()

    def keep_only(self, servers: frozenset[ServerId]) -> None:
        """Stop listening to servers that are no longer in the view."""
        for id in tuple(self._listeners):
            if id not in servers:
                self._listeners.pop(id).cancel()
                del self._listening[id]

    async def listen(self, server: ServerId, timeout: float) -> bool:
        """Listen to a server from now on; False when that cannot be had within ``timeout`` seconds."""
        listening = self._listening.setdefault(server, asyncio.Event())
        if server not in self._listeners:
            self._listeners[server] = self._tasks.start(self._listen(server, listening), f"listen to {server}")
        if not listening.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await listening.wait()
            except TimeoutError:
                return False
        return True

    async def _listen(self, server: ServerId, listening: asyncio.Event) -> None:
        while True:
            try:
                await self._servers[server].listen(self.channel, self._heard, listening)
            except ServerError as error:
                extra = {"cluster": self._namespace, "server": server}
                _log.debug("not listening to %s: %s", server, error, extra=extra)
            self.wake_all()
            await asyncio.sleep(RETRY_SECONDS)

    def _heard(self, message: bytes) -> None:
        wake = self._waiting.get(message)
        if wake:
            wake()
