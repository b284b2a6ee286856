"""Hear what no server stores: remote control of Celery's workers, the replies, and the workers' events.

A queue that is deleted with its process (``auto_delete``) and bound to an exchange is a *mailbox*: it is a list in this
process.  Messages to an exchange to which no other queue is bound are broadcast to the topic of that exchange
(``Cluster.broadcast``).  Every process with a mailbox there hears them, and keeps those whose routing key fits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kombu.utils.json import dumps, loads

from zkrq.base.errors import Closed, CodecError, WrongLoop

if TYPE_CHECKING:
    from zkrq.client.topics import Listener
    from zkrq.sync.portal import Opened

UNREAD_MAX = 1000
"""Messages that a mailbox without a consumer keeps; of more the oldest are dropped."""

Message: TypeAlias = dict[str, Any]
"""A message as kombu's virtual transports pass it: ``body``, ``headers``, ``properties`` and the content's type."""


def as_message(found: Any) -> Message:
    """Return what was read as a message.  Raises ``CodecError`` if it is none."""
    match found:
        case {"body": _, "properties": {"delivery_info": dict()}} as message:
            return message
        case _:
            raise CodecError("it is no message of kombu, so something else has sent it")


class Letter(NamedTuple):
    """A message that was heard, for a mailbox."""

    queue: str
    message: Message


class Posted(NamedTuple):
    """A message on its way to the mailboxes of an exchange."""

    key: str
    message: Message


class _Post:
    """JSON as kombu writes it."""

    name = "kombu"

    def encode(self, item: Posted, /) -> bytes:
        return dumps(item._asdict()).encode()

    def decode(self, data: bytes, /) -> Posted:
        match loads(data.decode()):
            case {"key": str(key), "message": message}:
                return Posted(key, as_message(message))
            case _:
                raise CodecError("it is no message of kombu, so something else has sent it")


POST = _Post()


def topic_of(exchange: str) -> str:
    """Return the topic to which messages of an exchange are broadcast."""
    return f"kombu.{exchange}"


class Mailboxes:
    """The mailboxes of one connection."""

    def __init__(self, open_cluster: Callable[[], Opened], fitting: Callable[[str, str], Collection[str]]) -> None:
        """``fitting(exchange, key)``: the queues that are bound there by a key that fits, in any thread."""
        self._open = open_cluster
        self._fitting = fitting
        self._lock = threading.Lock()
        self._unread: dict[str, deque[Message]] = {}
        self._readers: dict[str, Callable[[Letter], None]] = {}
        self._listeners: dict[str, tuple[Opened, Listener[Posted]]] = {}

    def __contains__(self, queue: object) -> bool:
        return queue in self._unread

    def bind(self, queue: str, exchange: str) -> None:
        """Make a queue a mailbox, and listen to the exchange: what is sent to it from now on is heard."""
        with self._lock:
            self._unread.setdefault(queue, deque(maxlen=UNREAD_MAX))
        if exchange in self._listeners:
            return
        opened = self._open()
        listener = opened.read(lambda: opened.cluster.listen(topic_of(exchange), codec=POST))
        self._listeners[exchange] = opened, listener
        opened.call(listener.__aenter__)

        async def follow() -> None:
            async for posted in listener:
                self._hear(exchange, posted)

        opened.start(follow)

    def _hear(self, exchange: str, posted: Posted) -> None:
        """Put a message into the mailboxes that it is for, in the cluster's thread."""
        for queue in self._fitting(exchange, posted.key):
            # Each consumer changes its own.
            message = {**posted.message, "properties": {**posted.message["properties"]}}
            with self._lock:
                reader = self._readers.get(queue)
                if reader is None and queue in self._unread:
                    self._unread[queue].append(message)
            if reader is not None:
                reader(Letter(queue, message))

    def read(self, queue: str, reader: Callable[[Letter], None]) -> None:
        """Pass on what is in a mailbox, and what comes, in the thread in which it comes."""
        with self._lock:
            unread = list(self._unread[queue])
            self._unread[queue].clear()
            self._readers[queue] = reader
        for message in unread:
            reader(Letter(queue, message))

    def stop_reading(self, queue: str) -> None:
        """Keep what comes from now on."""
        with self._lock:
            self._readers.pop(queue, None)

    def take(self, queue: str) -> Message | None:
        """Return the next message of a mailbox, None if there is none."""
        with self._lock:
            unread = self._unread[queue]
            return unread.popleft() if unread else None

    def size(self, queue: str) -> int:
        """Count the messages of a mailbox."""
        return len(self._unread[queue])

    def clear(self, queue: str) -> int:
        """Drop the messages of a mailbox; return how many there were."""
        with self._lock:
            count = len(self._unread[queue])
            self._unread[queue].clear()
        return count

    def delete(self, queue: str) -> None:
        """Drop a mailbox."""
        with self._lock:
            self._unread.pop(queue, None)
            self._readers.pop(queue, None)

    def close(self) -> None:
        """Stop listening."""
        listeners, self._listeners = self._listeners, {}
        for opened, listener in listeners.values():
            with suppress(Closed, WrongLoop):
                opened.start(listener.aclose)
