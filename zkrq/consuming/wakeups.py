"""Wake consumers when an item becomes ready: one channel per process, on every server on which a consumer waits.

A consumer that finds nothing registers the channel's name on the queue's primary.  The script that makes an item ready
takes names from there and publishes to them.  The channel's name ends with the owner id, so the holder of a cancelled
item can be notified by its claim's token.  A lost message costs time, never an item, because a waiting consumer asks
again every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.events import Events, WakeupsRefused
from zkrq.protocol.keys import key
from zkrq.protocol.replies import Verdict
from zkrq.replication.link import ServerError

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.protocol.view import ServerId
    from zkrq.replication.server import Server

RETRY_SECONDS = 0.5
"""Seconds before a failed subscription is retried."""

_log = logging.getLogger("zkrq.consuming.wakeups")


class _Subscription(NamedTuple):
    """A subscription on one server: whether it is active, and whether it was tried at all."""

    listening: asyncio.Event
    tried: asyncio.Event
    task: asyncio.Task[None]


class Wakeups:
    """Listen on the requested servers, and wake the queue that a message names."""

    def __init__(self, servers: Mapping[ServerId, Server], *, namespace: str, tasks: Tasks, events: Events) -> None:
        self.channel = _channel(namespace, secrets.token_hex(8))
        self._servers = servers
        self._namespace = namespace
        self._tasks = tasks
        self._events = events
        self._refused: dict[ServerId, str] = {}
        self._subscriptions: dict[ServerId, _Subscription] = {}
        self._waiting: dict[bytes, Callable[[bool], None]] = {}
        self._cancelled: dict[bytes, Callable[[str, str], None]] = {}
        self._ended: dict[bytes, tuple[Callable[[str], None], Callable[[], None]]] = {}

    @property
    def trouble(self) -> tuple[str, ...]:
        """Servers that do not let this process listen, and why."""
        listening = {id for id, each in self._subscriptions.items() if each.listening.is_set()}
        refused = sorted((id, reason) for id, reason in self._refused.items() if id not in listening)
        return tuple(f"wake-ups of server {id}: {reason}" for id, reason in refused)

    def register(self, queue: str, wake: Callable[[bool], None], cancelled: Callable[[str, str], None]) -> None:
        """Call ``wake`` whenever an item of this queue may have become ready, with True if no other process was woken.

        Call ``cancelled`` with the claim request and the item's id when an item claimed by this process was cancelled.
        """
        self._waiting[key(self._namespace, queue, "ready").encode()] = wake
        self._cancelled[key(self._namespace, queue, "claimed").encode()] = cancelled

    def forget(self, queue: str) -> None:
        """Call nothing for this queue any more."""
        self._waiting.pop(key(self._namespace, queue, "ready").encode(), None)
        self._cancelled.pop(key(self._namespace, queue, "claimed").encode(), None)
        self._ended.pop(key(self._namespace, queue, "lead").encode(), None)

    def await_ends(self, queue: str, ended: Callable[[str], None], missed: Callable[[], None]) -> None:
        """Call ``ended`` with the id of an item for which this process waits when it has ended; ``missed`` when such
        messages may have been missed."""
        self._ended[key(self._namespace, queue, "lead").encode()] = ended, missed

    def answer_to(self, owner: str) -> None:
        """Listen on the channel of this owner id, under which the scripts find the holder of a claim."""
        channel = _channel(self._namespace, owner)
        # A new owner id has a new channel, and the subscriptions on the old one end: messages for the dead owner
        # would otherwise wake this process for claims that are no longer its own.
        if channel != self.channel:
            self.channel = channel
            self.listen_only_to(frozenset())
            for _, missed in tuple(self._ended.values()):
                missed()

    def hears(self, server: ServerId, owner: str) -> bool:
        """Tell whether this process listens to a server on the channel of this owner id."""
        found = self._subscriptions.get(server)
        return found is not None and found.listening.is_set() and self.channel.endswith(owner)

    def wake_all(self) -> None:
        """Make every queue send a request, because messages may have been missed."""
        for wake in tuple(self._waiting.values()):
            wake(False)
        for _, missed in tuple(self._ended.values()):
            missed()

    def listen_only_to(self, servers: frozenset[ServerId]) -> None:
        """End the subscriptions on all other servers: they are no longer in the view."""
        for id in self._subscriptions.keys() - servers:
            gone = self._subscriptions.pop(id)
            gone.task.cancel()
            gone.tried.set()
            self._refused.pop(id, None)

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
                    self._note_refusal(server, error)
                tried.set()
                # Whatever was published while nobody listened is lost.  Every queue looks once, instead of waiting
                # for the sweep.
                self.wake_all()
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            tried.set()

    def _note_refusal(self, server: ServerId, error: ServerError) -> None:
        """Report once that a server does not let this process listen."""
        if error.answer.verdict is not Verdict.CORRECT:
            self._refused.pop(server, None)
        elif server not in self._refused:
            right = f"this client's user needs the right to the channels {_channel(self._namespace, '*')}"
            reason = self._refused[server] = f"{error} ({right})"
            self._events.tell(WakeupsRefused(self._namespace, server, reason), logging.WARNING)

    def _heard(self, message: bytes) -> None:
        wake = self._waiting.get(message)
        if wake:
            wake(True)
            return
        lead, _, id = message.partition(b" ")
        if lead in self._ended:
            self._ended[lead][0](id.decode())
            return
        claims, request, id = (*message.split(b" ", 2), b"", b"")[:3]
        if claims in self._cancelled:
            self._cancelled[claims](request.decode(), id.decode())


def _channel(namespace: str, name: str) -> str:
    return f"{{{namespace}}}:wake:{name}"
