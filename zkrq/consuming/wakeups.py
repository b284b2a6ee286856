"""Wake consumers when an item becomes ready: one channel per process, on every server on which a consumer waits.

A consumer that finds nothing registers the channel's name on the queue's primary.  The script that makes an item ready
takes names from there and publishes to them.  The channel's name ends with the owner id, so the holder of a cancelled
item can be notified by its claim's token.  A lost message costs time, never an item, because a waiting consumer asks
again every few seconds.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zkrq.base.events import Events, SubscriptionSilent, WakeupsRefused
from zkrq.protocol.keys import key, wake_channel
from zkrq.replication.subscriptions import Subscriptions

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.protocol.view import ServerId, View
    from zkrq.replication.server import Server


class Wakeups:
    """Listen on the requested servers, and wake the queue that a message names."""

    def __init__(self, servers: Mapping[ServerId, Server], *, namespace: str, tasks: Tasks, events: Events) -> None:
        self._namespace = namespace
        self._events = events
        self._deployment = ""
        self._owner = secrets.token_hex(8)  # until there is one
        self._waiting: dict[bytes, Callable[[bool], None]] = {}
        self._cancelled: dict[bytes, Callable[[str, str], None]] = {}
        self._ended: dict[bytes, tuple[Callable[[str], None], Callable[[], None]]] = {}
        self._subscriptions = Subscriptions(
            servers,
            wake_channel(namespace, "", self._owner),
            self._heard,
            namespace=namespace,
            tasks=tasks,
            missed=self.wake_all,
            troubled=self._report,
        )
        self.listen = self._subscriptions.listen

    @property
    def channel(self) -> str:
        """Channel on which this process is woken."""
        return self._subscriptions.channel

    @property
    def trouble(self) -> tuple[str, ...]:
        """Servers that do not let this process listen, and why."""
        known = self._subscriptions
        refused = sorted((id, reason) for id, reason in known.refused.items() if not known.is_listening(id))
        return tuple(f"wake-ups of server {id}: {self._with_right(reason)}" for id, reason in refused)

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
        self._owner = owner
        self._change_channel()

    def follow(self, view: View) -> None:
        """Listen only to the servers of this view, in its deployment, and make every queue send a request."""
        self._deployment = view.deployment
        self._change_channel()
        self._subscriptions.listen_only_to(frozenset(view.receivers))
        self.wake_all()

    def _change_channel(self) -> None:
        channel = wake_channel(self._namespace, self._deployment, self._owner)
        # A new owner id has a new channel, and the subscriptions on the old one end: messages for the dead owner
        # would otherwise wake this process for claims that are no longer its own.
        if channel != self.channel:
            self._subscriptions.change_channel(channel)
            for _, missed in tuple(self._ended.values()):
                missed()

    def hears(self, server: ServerId, owner: str) -> bool:
        """Tell whether this process listens to a server on the channel of this owner id."""
        return self._subscriptions.is_listening(server) and self.channel.endswith(owner)

    def wake_all(self) -> None:
        """Make every queue send a request, because messages may have been missed."""
        for wake in tuple(self._waiting.values()):
            wake(False)
        for _, missed in tuple(self._ended.values()):
            missed()

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - The channel is that of the present owner and deployment: on another one no script finds this process, and
          every consumer that waits gets its item seconds late.
        - A queue that is woken hears of cancelled items, too.
        """
        assert self.channel == wake_channel(self._namespace, self._deployment, self._owner), "another owner's channel"
        assert len(self._waiting) == len(self._cancelled), "a queue that is woken, and hears of no cancelled items"
        self._subscriptions.check_invariants()

    def _with_right(self, reason: str) -> str:
        channels = wake_channel(self._namespace, "", "").rstrip(":")
        return f"{reason} (this client's user needs the right to the channels {channels}:*)"

    def _report(self, server: ServerId, reason: str, is_silent: bool) -> None:
        refused = WakeupsRefused(self._namespace, server, self._with_right(reason))
        self._events.tell(SubscriptionSilent(self._namespace, server) if is_silent else refused, logging.WARNING)

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
