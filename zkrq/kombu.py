"""Run Celery over zkrq: a transport of kombu.  Needs the extra ``celery``.

::

    from zkrq.kombu import BROKER_URL  # importing it makes the scheme zkrq:// known

    app = Celery(broker=BROKER_URL, broker_transport_options={"redis": [...], "zookeeper": "zk1,zk2,zk3"})

A queue of kombu is a queue of zkrq, a message an item.  All connections of a process share one cluster, on an event
loop in a thread of its own (``zkrq.sync``); a forked process opens its own.  Claims travel from that thread to the
consumer's through an inbox, no more than the consumer's prefetch count allows, and are held until their message is
acked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from typing import Any, TypeAlias

from zkrq import __version__
from zkrq.claims import Claim
from zkrq.cluster import Cluster
from zkrq.codecs import Codec
from zkrq.connecting import connect
from zkrq.errors import Closed, ConfigError, NotEnoughReplicas, Unavailable, WrongLoop, ZkrqError
from zkrq.queue import Queue
from zkrq.sync.portal import Opened, Portal
from zkrq.working.delivery import ack_while_held

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.json import dumps, loads
except ModuleNotFoundError as error:
    raise ConfigError("zkrq.kombu needs kombu: pip install 'zkrq[celery]'") from error

__all__ = ["BROKER_URL", "Transport"]

BROKER_URL = "zkrq://"
"""URL of the broker; where it is, the transport's options say, or the environment."""

EVENTS = "celeryev"
"""Exchange of Celery's events, to which every worker sends, whether anything listens or not."""

TASK_ID = "celery-id"
"""Header with the id of the task."""

WINDOW = 100
"""Messages claimed for a consumer without a prefetch count that it has not been given yet."""

CLOSE_SECONDS = 10.0
"""Seconds that closing a channel waits for the acks in flight."""

QUEUE_OPTIONS = frozenset({"claim_timeout", "retry", "dead_letters", "max_size", "max_payload_bytes"})

KOMBU_OPTIONS = frozenset(
    {"body_encoding", "deadletter_queue", "interval_max", "interval_start", "interval_step", "max_retries"}
)

_log = logging.getLogger("zkrq.kombu")

Message: TypeAlias = dict[str, Any]
"""A message as kombu's virtual transports pass it: ``body``, ``headers``, ``properties`` and the content's type."""


class _Kombu:
    """JSON as kombu writes it: also of dates, decimals and UUIDs."""

    name = "kombu"

    def encode(self, item: Message, /) -> bytes:
        return dumps(item).encode()

    def decode(self, data: bytes, /) -> Message:
        return loads(data.decode())


CODEC: Codec[Message] = _Kombu()


class Client:
    """One cluster of a process, for all connections with the same options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Connect to nothing yet.  Raises ``ConfigError`` for options that are wrong."""
        self._queue_options = {name: value for name, value in options.items() if name in QUEUE_OPTIONS}
        settings = {name: value for name, value in options.items() if name not in QUEUE_OPTIONS | KOMBU_OPTIONS}
        try:
            connect(**settings)
        except TypeError as error:
            raise ConfigError(f"broker_transport_options: {error}") from error
        self.portal = Portal(partial(connect, **settings))

    def find(self, cluster: Cluster, name: str) -> Queue[Message]:
        """Return the queue in an open cluster.  Raises ``ConfigError`` for a name that zkrq does not allow."""
        return cluster.queue(name, codec=CODEC, **self._queue_options)

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
        key = repr(sorted(options.items()))
        with self._lock:
            client, uses = self._used[key] if key in self._used else (Client(options), 0)
            self._used[key] = client, uses + 1
        return client

    def leave(self, options: Mapping[str, Any]) -> None:
        """Close the client if this was its last connection."""
        key = repr(sorted(options.items()))
        with self._lock:
            client, uses = self._used.pop(key)
            if uses > 1:
                self._used[key] = client, uses - 1
        if uses == 1:
            client.portal.close()


_clients = Clients()


class Feed:
    """Claim from a channel's queues as many items as its consumer has asked for."""

    def __init__(
        self, client: Client, opened: Opened, queues: Sequence[str], receive: Callable[[Claim[Message]], None]
    ) -> None:
        """Start; ``receive`` is called in the cluster's thread."""
        self._receive = receive
        self._permits = asyncio.Semaphore(0)
        self._opened = opened
        names = dict.fromkeys(queues)

        def start() -> asyncio.Task[None]:
            found = [client.find(self._opened.cluster, name) for name in names]
            return asyncio.create_task(self._run(found), name=f"zkrq feed of {', '.join(names)}")

        self._task = self._opened.read(start)

    def ask(self, count: int) -> None:
        """Claim this many more, as they come.  Returns immediately."""

        async def ask() -> None:
            for _ in range(count):
                self._permits.release()

        with suppress(Closed, WrongLoop):
            self._opened.start(ask)

    def stop(self) -> None:
        """Claim no more.  Nothing is received after this has returned."""

        async def stop() -> None:
            self._task.cancel()
            await asyncio.wait([self._task])

        with suppress(Closed, WrongLoop):
            self._opened.call(stop)

    async def _run(self, queues: Sequence[Queue[Message]]) -> None:
        async with self._opened.cluster.pop(*queues) as claims:
            while True:
                await self._permits.acquire()
                claim = await anext(claims, None)
                if claim is None:  # the cluster is closed
                    return
                self._receive(claim)


class QoS(virtual.QoS):
    """Settle claims instead of keeping messages to be sent again."""

    channel: Channel

    def ack(self, delivery_tag: str) -> None:
        self.channel.settle(delivery_tag, ack_while_held)
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

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Hand back what is not acked; it does not count as a delivery."""
        self._on_collect.cancel()
        self.channel.release_all()


class Channel(virtual.Channel):
    """Put messages into queues, and hand claimed ones to one consumer."""

    QoS = QoS
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        del self.exchange_types["fanout"]
        self._client = connection.zkrq
        self._opened: Opened | None = None
        self._feed: Feed | None = None
        self._claims: dict[str, Claim[Message]] = {}
        self._settling: set[Future[None]] = set()
        self._not_acked: set[str] = set()
        self._expected = 0
        """Messages asked for that the consumer has not been given yet."""
        self._asking = threading.Lock()

    # -- sending -------------------------------------------------------------------------------------------------------

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **kwargs: Any) -> None:
        if type == "fanout":
            raise ConfigError(
                f"the exchange {exchange!r} is a fanout, which zkrq does not have: without remote control "
                "(`celery inspect`, `celery control`, revoke) and event monitors"
            )
        super().exchange_declare(exchange, type, **kwargs)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        queues = super()._lookup(exchange, routing_key, default)
        if not queues and exchange not in self.connection.unheard:
            self.connection.unheard.add(exchange)
            level = logging.INFO if exchange == EVENTS else logging.WARNING
            _log.log(
                level,
                "a message to exchange %r was dropped: this process has bound no queue to it (reported once)",
                exchange,
            )
        return queues

    def _put(self, queue: str, message: Message, **kwargs: Any) -> None:
        """Push a message; when this returns, every in-sync server has it.  One with an ``eta`` is due then."""
        headers: Message = message.get("headers") or {}
        properties: Message = message["properties"]
        eta, expiration, id = headers.get("eta"), properties.get("expiration"), headers.get("id")
        push = partial(
            Queue[Message].push,
            item=message,
            at=_moment(eta) if eta else None,
            priority=self._get_message_priority(message),
            ttl=float(expiration) / 1000 if expiration else None,
            headers={TASK_ID: str(id)} if id else None,
        )
        self._client.call(queue, push)

    def _size(self, queue: str) -> int:
        sizes = self._client.call(queue, Queue[Message].size)
        return sizes.ready + sizes.scheduled

    def _purge(self, queue: str) -> int:
        return self._client.call(queue, Queue[Message].clear)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        self._client.call(queue, Queue[Message].delete)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self._client.portal.call(lambda cluster: cluster.queues())

    # -- receiving -----------------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., object], consumer_tag: str, **kwargs: Any
    ) -> None:
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        (self._not_acked.add if no_ack else self._not_acked.discard)(queue)
        self._feed_again()

    def basic_cancel(self, consumer_tag: str) -> None:
        super().basic_cancel(consumer_tag)
        self._feed_again()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.refill()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self.settle(message.delivery_tag, ack_while_held)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> Message:
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
                self._start(claim, _release)
        self._expected = 0
        if self._active_queues:
            self._feed = Feed(self._client, self._open(), self._active_queues, self._receive)
            self.refill()

    def refill(self) -> None:
        """Ask for as many messages as the consumer may be given."""
        with self._asking:
            if self._feed is None:
                return
            free = self.qos.can_consume_max_estimate()
            more = (WINDOW if free is None else free) - self._expected
            if more > 0:
                self._expected += more
                self._feed.ask(more)

    def _receive(self, claim: Claim[Message]) -> None:
        """Take a claim from the feed, in the cluster's thread."""
        self.connection.inbox.put(self, self._watch(claim), claim)

    def _watch(self, claim: Claim[Message]) -> str:
        """Give a claim a delivery tag, in the cluster's thread."""
        tag = str(next(_tags))
        claim.on_lost(partial(self._lose, tag, claim.id))
        return tag

    def _lose(self, tag: str, id: str, reason: str) -> None:
        _log.warning("item %s is no longer this consumer's and may be run elsewhere, too: %s", id, reason)
        if self._claims.pop(tag, None) is not None:
            self.qos.forget(tag)

    def deliver(self, tag: str, claim: Claim[Message]) -> None:
        """Give a message to its consumer."""
        with self._asking:
            self._expected -= 1
        if not claim.lost:
            message = self._hold(tag, claim)
            if claim.queue in self._not_acked:
                self.settle(tag, ack_while_held)
            self.connection.hand_over(message, claim.queue)
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
        if claim is not None:
            self._start(claim, act)

    def _start(self, claim: Claim[Message], act: Settle) -> None:
        async def settle() -> None:
            try:
                await act(claim)
            except ZkrqError as error:
                _log.info("item %s could not be settled: %s", claim.id, error)

        with suppress(Closed, WrongLoop):  # then it comes back by itself, or is its parent process's
            assert self._opened is not None
            future = self._opened.start(settle)
            self._settling.add(future)
            future.add_done_callback(self._settling.discard)

    def release_all(self) -> None:
        """Hand back what is not acked."""
        for tag in tuple(self._claims):
            self.settle(tag, _release)

    def close(self) -> None:
        """Hand back what was not acked, and wait for the acks in flight, for ``CLOSE_SECONDS`` at most."""
        super().close()
        wait(tuple(self._settling), CLOSE_SECONDS)


class Inbox:
    """Pass claims from the cluster's thread to the thread that delivers messages."""

    def __init__(self) -> None:
        self._claims: deque[tuple[Channel, str, Claim[Message]]] = deque()
        self._filled = threading.Condition()
        self._bell: socket.socket | None = None

    def put(self, channel: Channel, tag: str, claim: Claim[Message]) -> None:
        """Add a claim, and wake the other thread."""
        with self._filled:
            self._claims.append((channel, tag, claim))
            self._filled.notify_all()
        if self._bell is not None:
            with suppress(OSError):  # full: it is ringing already; closed: nobody listens
                self._bell.send(b".")

    def take(self, timeout: float | None) -> tuple[Channel, str, Claim[Message]] | None:
        """Return the next claim, or None after ``timeout`` seconds (None: wait forever)."""
        with self._filled:
            self._filled.wait_for(lambda: self._claims, timeout)
            return self._claims.popleft() if self._claims else None

    def take_back(self, channel: Channel) -> list[tuple[str, Claim[Message]]]:
        """Remove the claims of a channel."""
        with self._filled:
            mine = [(tag, claim) for owner, tag, claim in self._claims if owner is channel]
            self._claims = deque(entry for entry in self._claims if entry[0] is not channel)
        return mine

    def ring(self, bell: socket.socket) -> None:
        """Write a byte to a socket whenever a claim is put."""
        self._bell = bell


class Transport(virtual.Transport):
    """Connect kombu to a namespace; ``transport_options`` are the arguments of ``zkrq.connect`` and of ``queue``."""

    Channel = Channel
    driver_type = "zkrq"
    driver_name = "zkrq"
    connection_errors = (*virtual.Transport.connection_errors, Unavailable, NotEnoughReplicas)
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=frozenset({"direct", "topic"}))

    def __init__(self, client: virtual.Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._options = dict(client.transport_options)
        self._zkrq: Client | None = None
        self.inbox = Inbox()
        self.unheard: set[str] = set()
        """Exchanges to which a message was sent that no queue is bound to."""
        self._bell: tuple[socket.socket, socket.socket] | None = None

    @property
    def zkrq(self) -> Client:
        """The client of an established connection."""
        assert self._zkrq is not None
        return self._zkrq

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Transport:
        """Connect.  Raises ``ConfigError`` for problems to correct, ``Unavailable`` for problems that may pass."""
        if self._zkrq is None:
            self._zkrq = _clients.enter(self._options)
        self._zkrq.portal.open()
        return super().establish_connection()

    def close_connection(self, connection: Transport) -> None:
        super().close_connection(connection)
        if self._zkrq is not None:
            self._zkrq = None
            _clients.leave(self._options)
        if self._bell is not None:
            for end in self._bell:
                end.close()
            self._bell = None

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
            self.inbox.ring(self._bell[1])
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

    def hand_over(self, message: Message, queue: str) -> None:
        """Call the consumer of a queue."""
        self._deliver(message, queue)


Settle = Callable[[Claim[Message]], Awaitable[None]]


async def _requeue(claim: Claim[Message]) -> None:
    await claim.nack(0, "requeued")


async def _bury(claim: Claim[Message]) -> None:
    await claim.bury("rejected")


async def _release(claim: Claim[Message]) -> None:
    await claim.release()


def _moment(eta: str) -> datetime:
    """Read Celery's ``eta``; without a time zone it is in UTC."""
    moment = datetime.fromisoformat(eta)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_tags = itertools.count(1)
"""Delivery tags, unique in the process."""

TRANSPORT_ALIASES["zkrq"] = "zkrq.kombu:Transport"
