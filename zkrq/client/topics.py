"""Broadcast messages to the present listeners of a topic: at most once, and not stored.

A message is published on every in-sync server of the first shard, under an id of its own.  A listener subscribes on
each of them and passes each message on once, so a server may die without a message being lost or heard twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from weakref import finalize

from zkrq.base.checks import check_name
from zkrq.base.codecs import Place, codec_at
from zkrq.base.errors import Closed, CodecError, ConfigError, PayloadTooLarge, message_of, text_of
from zkrq.base.events import SubscriptionSilent
from zkrq.protocol.keys import topic_channel
from zkrq.replication.subscriptions import Subscriptions

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.events import Events
    from zkrq.base.tasks import Tasks
    from zkrq.client.shard import Shard

T = TypeVar("T")

MESSAGE_BYTES = 1 << 20
"""Greatest size of an encoded message."""

ID_BYTES = 12
"""Bytes of the id that precedes a message."""

UNREAD_MAX = 1000
"""Unread messages that a listener keeps; beyond that the oldest are dropped."""

SEEN_MAX = 10_000
"""Ids of messages that a listener remembers, to pass each on once."""

FOLLOW_SECONDS = 1.0
"""Seconds between two checks which servers are in sync."""

_log = logging.getLogger("zkrq.topics")


async def broadcast(shard: Shard, namespace: str, topic: str, message: T, codec: Codec[T]) -> int:
    """Publish a message; see ``Cluster.broadcast``."""
    check_name("the topic", topic)
    codec = codec_at(codec, _place(namespace, topic))
    try:
        payload = codec.encode(message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any codec's
        raise CodecError(f"cannot be encoded as {codec.name}: {text_of(error)}; nothing was sent") from error
    if len(payload) > MESSAGE_BYTES:
        raise PayloadTooLarge(len(payload), MESSAGE_BYTES)
    count = await shard.replicas.broadcast(topic, secrets.token_bytes(ID_BYTES) + payload)
    if count < 0:
        raise ConfigError(f"nothing was sent: {_right(namespace)}")
    return count


def _place(namespace: str, topic: str) -> Place:
    return Place(namespace, f"topic {topic}")


class _Inbox:
    """Collect the messages that arrive from the servers of a topic."""

    def __init__(self, namespace: str, topic: str, events: Events) -> None:
        self._events = events
        self.unread: deque[bytes] = deque()
        self.arrived = asyncio.Event()
        self.closed = False
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._topic = topic
        self._extra = {"cluster": namespace}
        self._has_dropped = False

    def hear(self, message: bytes) -> None:
        """Keep a message unless it was heard before."""
        id, payload = message[:ID_BYTES], message[ID_BYTES:]
        if id in self._seen or self.closed:
            return
        self._seen[id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        self.unread.append(payload)
        self.arrived.set()
        if len(self.unread) > UNREAD_MAX:
            self.unread.popleft()
            if not self._has_dropped:
                self._has_dropped = True
                text = "a listener to topic %s is %d messages behind, so the oldest are dropped (reported once)"
                _log.warning(text, self._topic, UNREAD_MAX, extra=self._extra)

    def close(self) -> None:
        """Let the loop end once it has read all messages."""
        self.closed = True
        self.arrived.set()

    def report(self, server: str, reason: str, is_silent: bool) -> None:
        """Report that a subscription went silent, or that a server does not let this client listen."""
        if is_silent:
            self._events.tell(SubscriptionSilent(self._extra["cluster"], server), logging.WARNING)
            return
        text = "not listening to topic %s on server %s: %s (%s)"
        _log.warning(text, self._topic, server, reason, _right(self._extra["cluster"]), extra=self._extra)


class Listener(Generic[T]):
    """The messages of a topic: ``async for message in cluster.listen("topic")``.

    ``async with`` starts to listen immediately; otherwise the first request for a message does.  Messages that were
    broadcast earlier are not heard.  It ends with the block, with ``aclose``, or with the cluster.
    """

    def __init__(self, shard: Shard, tasks: Tasks, namespace: str, topic: str, codec: Codec[T]) -> None:
        """``topic`` is checked here; nothing is asked of a server yet."""
        self._topic = check_name("the topic", topic)
        self._codec = codec_at(codec, _place(namespace, topic))
        self._shard = shard
        self._tasks = tasks
        self._inbox = _Inbox(namespace, topic, shard.events)
        self._subscriptions = Subscriptions(
            shard.fleet.servers,
            "",
            self._inbox.hear,
            namespace=namespace,
            tasks=tasks,
            troubled=self._inbox.report,
        )
        self._channel = partial(topic_channel, namespace, topic=topic)
        self._task: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        return f"<Listener to {self._topic!r}, {len(self._inbox.unread)} unread>"

    async def __aenter__(self) -> Self:
        """Listen on every in-sync server that allows it.  Raises ``Closed`` after ``aclose``."""
        if self._inbox.closed:
            raise Closed(f"the listener to topic {self._topic} is closed: make another one by listen()")
        if self._task is None:
            follow = _follow(self._shard, self._subscriptions, self._inbox, self._channel)
            self._task = self._tasks.start(follow, f"follow topic {self._topic}")
            finalize(self, self._task.cancel)
        await _subscribe(self._shard, self._subscriptions, self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop listening.  Idempotent."""
        self._inbox.unread.clear()
        self._inbox.close()
        if self._task is not None:
            self._task.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next message.  A message that the codec cannot decode is logged and skipped."""
        inbox = self._inbox
        if self._task is None and not inbox.closed:
            await self.__aenter__()
        while True:
            while inbox.unread:
                payload = inbox.unread.popleft()
                try:
                    return self._codec.decode(payload)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # any codec's
                    _log.warning("a message to topic %s was left out: %s", self._topic, message_of(error))
            if inbox.closed:
                raise StopAsyncIteration
            inbox.arrived.clear()
            await inbox.arrived.wait()


async def _subscribe(shard: Shard, subscriptions: Subscriptions, channel: Callable[..., str]) -> None:
    """Listen on every server of the view; ``channel``: of the topic, in a deployment."""
    wanted, receivers = channel(deployment=shard.view.deployment), frozenset(shard.view.receivers)
    if wanted != subscriptions.channel:
        subscriptions.change_channel(wanted)
    subscriptions.listen_only_to(receivers)
    await asyncio.gather(*map(subscriptions.listen, receivers))


async def _follow(shard: Shard, subscriptions: Subscriptions, inbox: _Inbox, channel: Callable[..., str]) -> None:
    """Listen to the servers of each view, until cancelled.  Refers to no listener, which may be dropped."""
    try:
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)  # the listener has subscribed
            await _subscribe(shard, subscriptions, channel)
    except Closed:
        pass
    finally:
        subscriptions.listen_only_to(frozenset())
        inbox.close()


def _right(namespace: str) -> str:
    return f"this client's user needs the right to the channels {{{namespace}}}:topic:*"
