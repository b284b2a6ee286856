"""Subscribe to a channel on several servers, each over a connection of its own, and again whenever one ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.replies import Status, Verdict
from zkrq.replication.link import ServerError

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.protocol.view import ServerId
    from zkrq.replication.server import Server

RETRY_SECONDS = 0.5
"""Seconds before a failed subscription is retried."""

_log = logging.getLogger("zkrq.replication.subscriptions")


class _Subscription(NamedTuple):
    """A subscription on one server: whether it is active, and whether it was tried at all."""

    listening: asyncio.Event
    tried: asyncio.Event
    task: asyncio.Task[None]


class Subscriptions:
    """Listen to one channel at a time on the servers that are asked for."""

    def __init__(
        self,
        servers: Mapping[ServerId, Server],
        channel: str,
        heard: Callable[[bytes], None],
        *,
        namespace: str,
        tasks: Tasks,
        missed: Callable[[], None] = lambda: None,
        troubled: Callable[[ServerId, str, bool], None] = lambda server, reason, is_silent: None,
    ) -> None:
        """``heard`` is called with each message; ``missed`` when some may have been lost; ``troubled`` once for each
        server that does not let this client listen, with the reason and False, and with True whenever a subscription
        went silent."""
        self.channel = channel
        self.refused: dict[ServerId, str] = {}
        self._servers = servers
        self._heard, self._missed, self._tell = heard, missed, troubled
        self._namespace = namespace
        self._tasks = tasks
        self._subscriptions: dict[ServerId, _Subscription] = {}

    def is_listening(self, server: ServerId) -> bool:
        """Tell whether a subscription is active there."""
        found = self._subscriptions.get(server)
        return found is not None and found.listening.is_set()

    def change_channel(self, channel: str) -> None:
        """Listen to another channel from now on; the subscriptions to this one end."""
        self.channel = channel
        self.listen_only_to(frozenset())

    def listen_only_to(self, servers: frozenset[ServerId]) -> None:
        """End the subscriptions on all other servers."""
        for id in self._subscriptions.keys() - servers:
            gone = self._subscriptions.pop(id)
            gone.task.cancel()
            gone.tried.set()
            self.refused.pop(id, None)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks: whom nothing listens to any more is not said to be heard.

        A consumer that relies on wake-ups asks no more than every few seconds.
        """
        deaf = [id for id, each in self._subscriptions.items() if each.listening.is_set() and each.task.done()]
        assert not deaf, f"said to be heard, and nothing listens: {deaf}"

    async def listen(self, server: ServerId) -> bool:
        """Start listening to a server.  Return whether that works now; it is retried in any case."""
        found = self._subscriptions.get(server)
        if found is None:
            listening, tried = asyncio.Event(), asyncio.Event()
            work = self._listen(server, listening, tried)
            task = self._tasks.start(work, f"listen to {server}")
            # Otherwise Python warns of a coroutine that was never awaited.
            task.add_done_callback(lambda _: work.close())  # if it is cancelled before its first step
            found = self._subscriptions[server] = _Subscription(listening, tried, task)
        if not found.tried.is_set():
            await found.tried.wait()
        return found.listening.is_set()

    async def _listen(self, server: ServerId, listening: asyncio.Event, tried: asyncio.Event) -> None:
        try:
            while True:
                try:
                    await self._servers[server].listen(self.channel, self._heard, listening, tried)
                except ServerError as error:
                    extra = {"cluster": self._namespace, "server": server}
                    _log.debug("not listening to %s: %s", server, error, extra=extra)
                    self._note_trouble(server, error)
                tried.set()
                self._missed()  # whatever was published while nobody listened is lost
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            tried.set()

    def _note_trouble(self, server: ServerId, error: ServerError) -> None:
        """Report that a subscription went silent; and once that a server does not let this client listen."""
        if error.answer.status is Status.SILENT:
            self._tell(server, str(error), True)
        if error.answer.verdict is not Verdict.CORRECT:
            self.refused.pop(server, None)
        elif server not in self.refused:
            self.refused[server] = str(error)
            self._tell(server, str(error), False)
