"""Run Celery over zkrq: a transport of kombu.  Needs the extra ``celery``.

::

    app = Celery(broker="zkrq://", broker_transport_options={"redis": [...], "zookeeper": "zk1,zk2,zk3"})

A queue of kombu is a queue of zkrq, a message an item.  All connections of a process share one cluster, on an event
loop in a thread of its own (``zkrq.sync``); a forked process opens its own.  Claims travel from that thread to the
consumer's through an inbox, no more than the consumer's prefetch count allows, and are held until their message is
acked.  Remote control and events are broadcast instead (``mailboxes.py``).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.checks import as_task
from zkrq.base.errors import Closed, ConfigError, NotEnoughReplicas, Receipt, Unavailable, WrongLoop, ZkrqError
from zkrq.base.version import __version__
from zkrq.client.queue import Queue, parts_of
from zkrq.consuming.claims import Claim
from zkrq.operations.labels import Labels
from zkrq.operations.push import PUSH
from zkrq.sync.portal import Opened, Portal
from zkrq.working.delivery import settle_while_held

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.client.cluster import Cluster

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.transport.virtual.exchange import STANDARD_EXCHANGE_TYPES
    from kombu.utils.compat import detect_environment
    from kombu.utils.json import dumps, loads

    from zkrq.kombu.mailboxes import POST, Letter, Mailboxes, Message, Posted, as_message, topic_of
    from zkrq.kombu.options import KOMBU_OPTIONS, split_options
    from zkrq.kombu.prefetched import Prefetched
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.kombu needs kombu: pip install 'zkrq[celery]'") from error

__all__ = ["BROKER_URL", "Transport"]

BROKER_URL = "zkrq://"
"""URL of the broker; where it is, the transport's options say, or the environment."""

EVENTS = "celeryev"
"""Exchange of Celery's events, to which every worker sends, whether anything listens or not."""

TASK_ID = "celery-id"
"""Header with the id of the task."""

_CELERYS = "Celery has it itself"
HEADERS = Labels(
    PUSH,
    "header",
    {
        "id": "a retry has the id of the task that failed, and is no repeated push",
        "delay": f"{_CELERYS}: countdown",
        "at": f"{_CELERYS}: eta",
        "priority": f"{_CELERYS}: priority",
        "ttl": f"{_CELERYS}: expires",
        "task": "it is the name of the task",
    },
    prefix="zkrq_",
)
"""Headers of a task that are options of the push.  Celery's own header ``group`` names a canvas group."""

WINDOW = 100
"""Messages claimed for a consumer without a prefetch count that it has not been given yet."""

HAND_OVER_SECONDS = 0.001
"""Seconds that the consumer's thread has to take a claim before the cluster's thread asks for more."""

CLOSE_SECONDS = 10.0
"""Seconds that closing a channel waits for the acks in flight."""

_log = logging.getLogger("zkrq.kombu")


class _Kombu:
    """JSON as kombu writes it: also of dates, decimals and UUIDs."""

    name = "kombu"

    def encode(self, item: Message, /) -> bytes:
        return dumps(item).encode()

    def decode(self, data: bytes, /) -> Message:
        return as_message(loads(data.decode()))


CODEC: Codec[Message] = _Kombu()


class Client:
    """One cluster of a process, for all connections with the same options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Connect to nothing yet.  Raises ``ConfigError`` for options that are wrong."""
        self.options = split_options(options)
        self.portal = Portal(self.options.connect)

    def find(self, cluster: Cluster, name: str) -> Queue[Message]:
        """Return the queue in an open cluster.  Raises ``ConfigError`` for a name that zkrq does not allow."""
        return cluster.queue(name, codec=CODEC, **self.options.queue)

    def call(self, name: str, act: Callable[[Queue[Message]], Awaitable[Any]]) -> Any:
        """Await ``act(queue)`` on the event loop; return its result."""
        return self.portal.call(lambda cluster: act(self.find(cluster, name)))


class Clients:
    """Share a client among the connections of this process that have the same options."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[Client, int]] = {}
        self._lock = threading.Lock()

    def enter(self, options: Mapping[str, Any]) -> Client:
        """Return the client, for one connection more.  Raises ``ConfigError``."""
        key = _key(options)
        with self._lock:
            client, uses = self._used[key] if key in self._used else (Client(options), 0)
            self._used[key] = client, uses + 1
        return client

    def leave(self, options: Mapping[str, Any]) -> None:
        """Close the client if this was its last connection."""
        key = _key(options)
        with self._lock:
            client, uses = self._used.pop(key)
            if uses > 1:
                self._used[key] = client, uses - 1
        if uses == 1:
            client.portal.close()


def _key(options: Mapping[str, Any]) -> str:
    """Name a client by its options; those that Celery adds for kombu make no other one."""
    return repr(sorted((name, value) for name, value in options.items() if name not in KOMBU_OPTIONS))


clients = Clients()
"""Clients of this process."""


class Reader(NamedTuple):
    """A consumer of a channel: its queue, whether its messages are acked on delivery, and what is called with each."""

    queue: str
    no_ack: bool
    callback: Callable[[Message], object]


class Feed:
    """Claim from a channel's queues as many items as its consumer may be given."""

    def __init__(
        self, client: Client, opened: Opened, queues: Sequence[str], receive: Callable[[Claim[Message]], None]
    ) -> None:
        """Start; ``receive`` is called in the cluster's thread."""
        self.taken = 0
        """Claims that the consumer has taken over; only its thread changes it."""
        self._limit = 0
        self._waits = False
        """Whether the limit is reached; the consumer's thread then has to say when it is raised."""
        self._raised = asyncio.Event()
        self._receive = receive
        self._opened = opened
        names = dict.fromkeys(queues)

        def start() -> asyncio.Task[None]:
            found = [client.find(self._opened.cluster, name) for name in names]
            return asyncio.create_task(self._run(found), name=f"zkrq feed of {', '.join(names)}")

        self._task = self._opened.read(start)

    def allow(self, free: int) -> None:
        """Let the consumer be given ``free`` more than it has taken over.  Returns immediately.

        Not to be called by two threads at the same time.
        """
        limit = self.taken + free
        if limit == self._limit:
            return
        self._limit = limit
        # After the limit, and the feed looks the other way round: so one of the two sees the other, and a feed that
        # goes on claiming costs no wake-up of its thread.
        if self._waits:
            with suppress(Closed, WrongLoop):
                self._opened.start(self._go_on)

    async def _go_on(self) -> None:
        self._raised.set()

    def stop(self) -> None:
        """Claim no more.  Nothing is received after this has returned."""

        async def stop() -> None:
            self._task.cancel()
            await asyncio.wait([self._task])

        with suppress(Closed, WrongLoop):
            self._opened.call(stop)

    async def _run(self, queues: Sequence[Queue[Message]]) -> None:
        received, lines = 0, [parts_of(queue).line for queue in queues]
        async with self._opened.cluster.pop(*queues) as claims:
            while True:
                while received >= self._limit:
                    self._raised.clear()
                    self._waits = True
                    if received >= self._limit:
                        await self._raised.wait()
                    self._waits = False
                claim = await anext(claims, None)
                if claim is None:  # the cluster is closed
                    return
                if received < self._limit:
                    received += 1
                    self._receive(claim)
                    # Both threads need the interpreter's lock, and asking where there is no more would keep it from the
                    # one that was just woken to begin with this claim.
                    if received < self._limit and not any(line.ahead or line.has_more for line in lines):
                        await asyncio.sleep(HAND_OVER_SECONDS)
                else:  # the limit was lowered meanwhile
                    with suppress(ZkrqError):
                        await claim.release()


class QoS(virtual.QoS):
    """Settle claims instead of keeping messages to be sent again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag, Claim[Message].ack)
        super().ack(delivery_tag)
        self.channel.refill()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Requeued, it counts as failed, so a task that kills its process each time becomes a dead letter in the end.

        Otherwise it becomes one now.
        """
        self.channel.settle(delivery_tag, _requeue if requeue else _bury)
        super().ack(delivery_tag)
        self.channel.refill()

    def forget(self, delivery_tag: str) -> None:
        """Make room: the message's claim is lost."""
        super().ack(delivery_tag)
        self.channel.refill()

    def restore_unacked(self) -> list[object]:
        """Hand back what is not acked; it does not count as a delivery."""
        self.channel.release_all()
        self._delivered.clear()
        self.channel.refill()
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Hand back what is not acked, when the channel is closed or the process ends."""
        self._on_collect.cancel()
        self.channel.release_all()


class Channel(virtual.Channel):
    """Put messages into queues, and hand claimed ones to one consumer."""

    QoS = QoS
    supports_fanout = True
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._client = connection.zkrq
        self._opened: Opened | None = None
        self._feed: Feed | None = None
        self._claims: dict[str, Claim[Message]] = {}
        self._prefetched = Prefetched()
        self._settling: set[Future[None]] = set()
        self._readers: dict[str, Reader] = {}
        """Consumers by tag.  (The connection's own table has one for each queue, whichever channel it belongs to.)"""
        self._allowing = threading.Lock()
        self._mailboxes = connection.mailboxes

    # -- sending -------------------------------------------------------------------------------------------------------

    def basic_publish(self, message: Message, exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message.  Raises ``ConfigError`` for a task of Celery that no queue would get."""
        if not exchange or self._lookup(exchange, routing_key):
            super().basic_publish(message, exchange, routing_key, **kwargs)
            return
        if "task" in (message.get("headers") or ()):
            raise ConfigError(
                f"this process has bound no queue to the exchange {exchange!r} by the key {routing_key!r}, so the task "
                "was not sent: name its queue, which `task_queues` binds, or use the default exchange"
            )
        self._inplace_augment_message(message, exchange, routing_key)
        self._post(exchange, routing_key, message)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return those that servers keep."""
        return [queue for queue in super()._lookup(exchange, routing_key, default) if queue not in self._mailboxes]

    def _put_fanout(self, exchange: str, message: Message, routing_key: str, **kwargs: Any) -> None:
        for queue in self._lookup(exchange, routing_key):
            self._put(queue, message)
        self._post(exchange, routing_key, message)

    def _post(self, exchange: str, routing_key: str, message: Message) -> None:
        """Broadcast a message to the mailboxes of an exchange."""
        topic, posted = topic_of(exchange), Posted(routing_key, message)
        count = self._client.portal.call(lambda cluster: cluster.broadcast(topic, posted, codec=POST))
        if not count and exchange not in self.connection.unheard:
            self.connection.unheard.add(exchange)
            level = logging.INFO if exchange == EVENTS else logging.WARNING
            text = "a message to exchange %r was dropped: nobody listens to it now (reported once)"
            _log.log(level, text, exchange)

    def _put(self, queue: str, message: Message, **kwargs: Any) -> None:
        """Push a message; when this returns, every in-sync server has it.  One with an ``eta`` is due then."""
        headers: Message = message.get("headers") or {}
        properties: Message = message["properties"]
        eta, expiration, id = headers.get("eta"), properties.get("expiration"), headers.get("id")
        at = _moment(eta) if eta else None
        ttl = float(expiration) / 1000 if expiration else None
        if ttl is not None and headers.get("expires") and not self._drops(ttl, at):
            ttl = None  # a worker revokes it, so that its result says so
        options = HEADERS.read(headers)
        if headers.get("retries"):  # the task that is retried still has its key
            options = HEADERS.but(options, "key")
        if id:
            options["headers"] = {**options.get("headers", {}), TASK_ID: str(id)}
        options["task"] = as_task(headers.get("task"))
        options |= {"at": at, "ttl": ttl, "priority": self._get_message_priority(message)}
        receipt: Receipt = self._client.call(queue, partial(Queue[Message].push, item=message, **options))
        if receipt.duplicate:
            _log.info("task %s was not queued: item %s has its key %r", id, receipt.id, options["key"])

    def _drops(self, ttl: float, at: datetime | None) -> bool:
        """Tell whether servers are to drop a task when its time is over: not one that could never begin in time."""
        wait = (at - datetime.now(UTC)).total_seconds() if at else 0.0
        return self._client.options.drop_expired and ttl > max(wait, 0.0)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue; one that ends with this process becomes a mailbox when it is bound to an exchange."""
        if queue and kwargs.get("auto_delete"):
            self.connection.passing.add(queue)
        return super().queue_declare(queue, passive, **kwargs)

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **kwargs: Any) -> None:
        super().queue_bind(queue, exchange, routing_key, **kwargs)
        if exchange and queue in self.connection.passing:
            self._mailboxes.bind(queue, exchange)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Bindings are this process' own."""

    def _size(self, queue: str) -> int:
        if queue in self.connection.passing:
            return self._mailboxes.size(queue) if queue in self._mailboxes else 0
        sizes = self._client.call(queue, Queue[Message].size)
        return sizes.ready + sizes.scheduled

    def _purge(self, queue: str) -> int:
        if queue in self._mailboxes:
            return self._mailboxes.clear(queue)
        return self._client.call(queue, Queue[Message].clear)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if queue in self._mailboxes:
            self._mailboxes.delete(queue)
            return
        self._client.call(queue, Queue[Message].delete)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self._client.portal.call(lambda cluster: cluster.queues())

    # -- receiving -----------------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., object], consumer_tag: str, **kwargs: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._readers[consumer_tag] = Reader(queue, no_ack, self.connection.callback_of(queue))
        if queue in self._mailboxes:
            self._mailboxes.read(queue, self._receive_letter)
        else:
            self._feed_again()

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        reader = self._readers.pop(consumer_tag, None)
        if reader and reader.queue in self._mailboxes:
            self._mailboxes.stop_reading(reader.queue)
            return
        self._feed_again()
        for tag in self._prefetched.forgotten():  # a worker stops, and will wait for what runs
            self.settle(tag, Claim[Message].release)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.refill()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, Claim[Message].ack)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Message:
        if queue in self._mailboxes:
            message = self._mailboxes.take(queue)
            if message is None:
                raise Empty
            message["properties"]["delivery_tag"] = str(next(_tags))
            return message
        opened = self._open()

        async def take() -> tuple[str, Claim[Message]] | None:
            claims = await self._client.find(opened.cluster, queue).pop_many(1, timeout=0)
            return (self._watch(claims[0]), claims[0]) if claims else None

        taken = opened.call(take)
        if taken is None:
            raise Empty
        return self._hold(*taken)

    def _open(self) -> Opened:
        self._opened = self._client.portal.open()
        return self._opened

    def _feed_again(self) -> None:
        """Claim for the consumers that there are now."""
        if self._feed is not None:
            self._feed.stop()
            self._feed = None
            for _, claim in self.connection.inbox.take_back(self):
                self._start(claim, Claim[Message].release)
        queues = [queue for queue in self._active_queues if queue not in self._mailboxes]
        if queues and not self.closed:
            self._feed = Feed(self._client, self._open(), queues, self._receive)
            self.refill()

    def refill(self) -> None:
        """Let the consumer be given as many messages as its prefetch count leaves room for.  Called by any thread."""
        feed = self._feed
        if feed is not None:
            with self._allowing:
                most = self.qos.prefetch_count
                feed.allow(max(0, most - len(self._claims)) if most else WINDOW)

    def _receive(self, claim: Claim[Message]) -> None:
        """Take a claim from the feed, in the cluster's thread."""
        self.connection.inbox.put(self, self._watch(claim), claim)

    def _receive_letter(self, letter: Letter) -> None:
        """Take a message of a mailbox, in any thread."""
        self.connection.inbox.put(self, str(next(_tags)), letter)

    def _watch(self, claim: Claim[Message]) -> str:
        """Give a claim a delivery tag, in the cluster's thread."""
        tag = str(next(_tags))
        claim.on_lost(partial(self._lose, tag, claim.id))
        return tag

    def _lose(self, tag: str, id: str, reason: str) -> None:
        _log.warning("item %s is no longer this consumer's and may be run elsewhere, too: %s", id, reason)
        if self._claims.pop(tag, None) is not None:
            self._prefetched.drop(tag)
            self.qos.forget(tag)

    def deliver(self, tag: str, claim: Claim[Message] | Letter) -> None:
        """Give a message to its consumer, in the consumer's thread."""
        if isinstance(claim, Letter):
            reader = next((each for each in self._readers.values() if each.queue == claim.queue), None)
            claim.message["properties"]["delivery_tag"] = tag
            if reader is not None:  # otherwise its consumer was cancelled meanwhile
                reader.callback(claim.message)
            return
        reader = next((each for each in reversed(self._readers.values()) if each.queue == claim.queue), None)
        message = None
        if reader is None:
            self._start(claim, Claim[Message].release)
        elif not claim.lost:
            message = self._hold(tag, claim)
        # After it is held, so that no other thread sees more room than there is.
        if self._feed is not None:
            self._feed.taken += 1
        try:
            if reader and message:
                if reader.no_ack:
                    self.settle(tag, Claim[Message].ack)
                reader.callback(message)
                if tag in self._claims:
                    self._prefetched.note(tag, message)
        finally:
            self.refill()

    def _hold(self, tag: str, claim: Claim[Message]) -> Message:
        message = claim.item
        properties = message["properties"]
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = claim.attempts > 1
        self._claims[tag] = claim
        return message

    # -- settling ------------------------------------------------------------------------------------------------------

    def settle(self, tag: str, act: Settle) -> None:
        """Settle the claim of a message, once.  Returns immediately; acks of a moment leave together."""
        claim = self._claims.pop(tag, None)
        self._prefetched.drop(tag)
        if claim is not None:
            self._start(claim, act)

    def _start(self, claim: Claim[Message], act: Settle) -> None:
        async def settle() -> None:
            try:
                await settle_while_held(claim, act)
            except ZkrqError as error:
                _log.info("item %s could not be settled: %s", claim.id, error, extra={"queue": claim.queue})

        with suppress(Closed, WrongLoop):  # then it comes back by itself, or is its parent process's
            assert self._opened is not None
            future = self._opened.start(settle)
            self._settling.add(future)
            future.add_done_callback(self._settling.discard)

    def release_all(self) -> None:
        """Hand back what is not acked."""
        for tag in tuple(self._claims):
            self.settle(tag, Claim[Message].release)

    def close(self) -> None:
        """Hand back what was not acked, and wait for the acks in flight, for ``CLOSE_SECONDS`` at most."""
        super().close()
        if self._client.portal.is_open:  # not in a forked process, where nothing settles its parent's claims
            wait(tuple(self._settling), CLOSE_SECONDS)


class Inbox:
    """Pass claims from the cluster's thread to the thread that delivers messages."""

    def __init__(self) -> None:
        self._claims: deque[tuple[Channel, str, Claim[Message] | Letter]] = deque()
        self._filled = threading.Condition()
        self._bell: socket.socket | None = None

    def put(self, channel: Channel, tag: str, claim: Claim[Message] | Letter) -> None:
        """Add a claim, or a message of a mailbox, and wake the other thread."""
        with self._filled:
            self._claims.append((channel, tag, claim))
            self._filled.notify_all()
        if self._bell is not None:
            with suppress(OSError):  # full: it is ringing already; closed: there is no listener
                self._bell.send(b".")

    def take(self, timeout: float | None) -> tuple[Channel, str, Claim[Message] | Letter] | None:
        """Return the next one, or None after ``timeout`` seconds (None: wait forever)."""
        with self._filled:
            self._filled.wait_for(lambda: self._claims, timeout)
            return self._claims.popleft() if self._claims else None

    def take_back(self, channel: Channel) -> list[tuple[str, Claim[Message]]]:
        """Remove the claims of a channel."""
        with self._filled:
            mine = [(owner, tag, claim) for owner, tag, claim in self._claims if owner is channel]
            letters = [entry for entry in mine if isinstance(entry[2], Letter)]
            self._claims = deque([*letters, *(entry for entry in self._claims if entry[0] is not channel)])
        return [(tag, claim) for _, tag, claim in mine if not isinstance(claim, Letter)]

    def ring(self, bell: socket.socket) -> None:
        """Write a byte to a socket whenever a claim is put."""
        self._bell = bell


class Transport(virtual.Transport):
    """Connect kombu to a namespace; ``transport_options`` are the arguments of ``zkrq.connect`` and of ``queue``."""

    Channel = Channel
    can_parse_url = True  # so kombu makes no host of it
    driver_type = "zkrq"
    driver_name = "zkrq"
    connection_errors = (*virtual.Transport.connection_errors, Unavailable, NotEnoughReplicas)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: virtual.Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._options = dict(client.transport_options)
        self._zkrq: Client | None = None
        self.inbox = Inbox()
        self.unheard: set[str] = set()
        """Exchanges to which a message was sent that nobody heard."""
        self.passing: set[str] = set()
        """Queues that end with this process."""
        self.mailboxes = Mailboxes(lambda: self.zkrq.portal.open(), self._bound)
        self._bell: tuple[socket.socket, socket.socket] | None = None

    def _bound(self, exchange: str, routing_key: str) -> Collection[str]:
        """Return the queues that this process has bound to an exchange by a key that fits."""
        known = self.state.exchanges[exchange]
        return STANDARD_EXCHANGE_TYPES[known["type"]](None).lookup(known["table"], exchange, routing_key, None)

    @property
    def zkrq(self) -> Client:
        """The client of an established connection."""
        assert self._zkrq is not None
        return self._zkrq

    @property
    def default_connection_params(self) -> Mapping[str, object]:
        """What a URL leaves open: no host, so that none is named in logs or handed on to other connections."""
        return {}

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Name the broker in logs; any other URL was refused."""
        return BROKER_URL

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Transport:
        """Connect.  Raises ``ConfigError`` for problems to correct, ``Unavailable`` for problems that may pass."""
        if self._zkrq is None:
            _check(self.client)
            client = clients.enter(self._options)
            try:
                client.portal.open()
            except BaseException:
                clients.leave(self._options)
                raise
            self._zkrq = client
        return super().establish_connection()

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        self.mailboxes.close()
        if self._zkrq is not None:
            self._zkrq = None
            clients.leave(self._options)
        if self._bell is not None:
            for end in self._bell:
                end.close()
            self._bell = None

    def callback_of(self, queue: str) -> Callable[[Message], object]:
        """Return what ``basic_consume`` of kombu has made of a callback."""
        return self._callbacks[queue]

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver the next message.  Raises ``TimeoutError`` after ``timeout`` seconds, None: wait forever."""
        taken = self.inbox.take(timeout)
        if taken is None:
            raise TimeoutError
        channel, tag, claim = taken
        channel.deliver(tag, claim)

    def register_with_event_loop(self, connection: Transport, loop: virtual.Hub) -> None:
        """Deliver messages on kombu's event loop as they come."""
        if self._bell is None:
            self._bell = socket.socketpair()
            for end in self._bell:
                end.setblocking(False)
        loop.add_reader(self._bell[0].fileno(), self._answer)
        self.inbox.ring(self._bell[1])
        self._answer()

    def _answer(self) -> None:
        """Deliver all messages there are."""
        if self._bell is not None:
            with suppress(BlockingIOError):
                while self._bell[0].recv(4096):
                    pass
        while taken := self.inbox.take(0):
            channel, tag, claim = taken
            channel.deliver(tag, claim)


Settle = Callable[[Claim[Message]], Awaitable[None]]


async def _requeue(claim: Claim[Message]) -> None:
    await claim.nack(0, "requeued")


async def _bury(claim: Claim[Message]) -> None:
    await claim.bury("rejected")


def _moment(eta: object) -> datetime:
    """Read Celery's ``eta``; without a time zone it is in UTC.  Raises ``ConfigError``."""
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError as error:
        raise ConfigError(f"the header 'eta' is {eta!r:.100}: {error}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _check(client: virtual.Connection) -> None:
    """Check what a connection was given beside its options.  Raises ``ConfigError``."""
    if client.hostname not in (None, BROKER_URL) or client.userid or client.password or client.port:
        raise ConfigError(
            f"the broker's URL must be {BROKER_URL!r}: servers, namespace and credentials are broker_transport_options "
            "(redis, zookeeper, namespace, ...), or come from the environment"
        )
    if client.ssl:
        raise ConfigError(
            "broker_use_ssl is not for zkrq: give redis_tls and zookeeper_tls in broker_transport_options"
        )
    if detect_environment() != "default":
        raise ConfigError("gevent and eventlet replace the threads that zkrq needs: use prefork, threads or solo")


_tags = itertools.count(1)
"""Delivery tags, unique in the process."""

TRANSPORT_ALIASES["zkrq"] = "zkrq.kombu:Transport"
