"""Push items: encode them, gather them into batches, and choose how the servers take them.

A plain push is written to all servers in one round trip.  The primary decides a push with a key, or into a queue with a
limit, before it is written to the others: one more round trip.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from zkrq import clock
from zkrq.checks import Duration, check_count, check_duration, check_id, check_moment
from zkrq.codecs import Codec
from zkrq.errors import Closed, CodecError, ConfigError, OutcomeUnknown, PayloadTooLarge, Receipts, ZkrqError
from zkrq.ids import Ids, made_at_ms, new_id_at, new_ids_at
from zkrq.producing.receipts import PackedReceipts
from zkrq.protocol.calls import Put
from zkrq.protocol.records import PRIORITIES, fresh
from zkrq.replication.batching import MAX_BATCH, MAX_BATCH_BYTES, MAX_IN_FLIGHT, Batcher
from zkrq.replication.replicas import Pushed, Replicas
from zkrq.tasks import Tasks

T = TypeVar("T")

PUT_BYTES = 120
"""Approximate bytes of a push beside its payload."""


class Options(NamedTuple):
    """Options of a push, checked, in the units of the wire."""

    delay_ms: int = 0
    priority: int = 0
    key: str = ""
    ttl_ms: float | None = None


_PLAIN = Options()


def read_options(
    delay: Duration | None, at: datetime | None, priority: int, key: str | None, ttl: Duration | None
) -> Options:
    """Check the options of a push.  Raises ``ConfigError``."""
    if priority == 0 and delay is None and at is None and key is None and ttl is None:
        return _PLAIN
    check_count("priority", priority, least=PRIORITIES.start, most=PRIORITIES.stop - 1)
    if delay is not None and at is not None:
        raise ConfigError("delay and at exclude each other")
    seconds = 0.0
    if at is not None:
        seconds = check_duration("at", max(0.0, (check_moment("at", at) - clock.now()).total_seconds()))
    elif delay is not None:
        seconds = check_duration("delay", delay)
    ttl_ms = None if ttl is None else max(1.0, check_duration("ttl", ttl, positive=True) * 1000)
    if ttl_ms is not None and ttl_ms <= seconds * 1000:
        raise ConfigError(f"ttl is {ttl_ms / 1000:g} s, not longer than the delay of {seconds:g} s: never delivered")
    return Options(round(seconds * 1000), priority, "" if key is None else check_id("key", key), ttl_ms)


class Pusher(Generic[T]):
    """Push the items of one queue."""

    def __init__(
        self,
        queue: str,
        *,
        codec: Codec[T],
        replicas: Replicas,
        tasks: Tasks,
        max_payload_bytes: int,
        max_size: int | None,
    ) -> None:
        self._queue = queue
        self._codec = codec
        self._replicas = replicas
        self._tasks = tasks
        self._max_payload = max_payload_bytes
        self._max_size = max_size or 0
        self._closed = False
        batcher = partial(Batcher[Put, Pushed], size=_weigh, tasks=tasks, patience=replicas.operation_timeout)
        self._plain = batcher(partial(replicas.put, queue), name=f"push to {queue}")
        self._decided = batcher(partial(replicas.push, queue, self._max_size), name=f"decided push to {queue}")

    def begin(self, item: T, id: str | None, options: Options) -> tuple[str, asyncio.Future[Pushed]]:
        """Send one item; return its id and the future of its result.  Avoids creating a coroutine per item."""
        now_ms = clock.now_ms()
        payload = self._encode(item)
        if id is None:
            id, made_ms = new_id_at(now_ms), now_ms
        else:
            made_ms = made_at_ms(check_id("id", id)) or now_ms
        batcher = self._decided if self._max_size or options.key else self._plain
        return id, batcher.add(_put(id, made_ms, payload, options))

    async def push_many(self, items: Iterable[T], options: Options) -> Receipts:
        """Push many items, in order; see ``Queue.push_many``."""
        payloads: Iterable[bytes] = map(self._encode, items)
        if isinstance(items, Sequence):
            payloads = list(payloads)  # finds a bad item before the first one is written
        receipts = PackedReceipts()
        in_flight: deque[tuple[Ids, asyncio.Task[Sequence[Pushed | ZkrqError] | None]]] = deque()

        async def land() -> None:
            ids, task = in_flight[0]
            results = await asyncio.shield(task)
            in_flight.popleft()
            receipts.add(ids, results or [_interrupted(id) for id in ids])

        try:
            for chunk in _chunks(payloads):
                if len(in_flight) >= MAX_IN_FLIGHT:
                    await land()
                now_ms = clock.now_ms()
                ids = new_ids_at(now_ms, len(chunk))
                puts = [_put(id, now_ms, payload, options) for id, payload in zip(ids, chunk, strict=True)]
                in_flight.append((ids, self._tasks.start(self._send(puts), f"push many to {self._queue}")))
        except Exception as error:  # an item cannot be encoded, or the generator of the items failed
            while in_flight:
                await land()
            if isinstance(error, ZkrqError):
                error.outcomes = receipts
            raise
        while in_flight:
            await land()
        if receipts.errors:
            raise _worst(receipts)
        return receipts

    async def _send(self, puts: Sequence[Put]) -> Sequence[Pushed | ZkrqError]:
        if self._closed:
            return [Closed() for _ in puts]
        try:
            if self._max_size:
                return await self._replicas.push(self._queue, self._max_size, puts)
            return await self._replicas.put(self._queue, puts)
        except ZkrqError as error:
            if isinstance(error, OutcomeUnknown):
                error.ids = tuple(put.id for put in puts)
            return [error] * len(puts)

    def _encode(self, item: T) -> bytes:
        try:
            payload = self._codec.encode(item)
        except CodecError:
            raise
        except Exception as error:  # any codec's
            raise CodecError(f"cannot be encoded as {self._codec.name}: {error}; nothing was written") from error
        if len(payload) > self._max_payload:
            raise PayloadTooLarge(len(payload), self._max_payload)
        return payload

    def stop(self) -> None:
        """Refuse further pushes."""
        self._closed = True
        self._plain.stop()
        self._decided.stop()

    async def aclose(self) -> None:
        """Wait for the calls in flight."""
        await asyncio.gather(self._plain.aclose(), self._decided.aclose())


def _put(id: str, made_ms: int, payload: bytes, options: Options) -> Put:
    if options is _PLAIN:
        return Put(id, fresh(0, made_ms), 0, payload)
    delay_ms, priority, key, ttl_ms = options
    left = delay_ms if ttl_ms is None else f"{delay_ms} {ttl_ms:.3f}"
    return Put(id, fresh(priority, made_ms, key, ttl_ms), left, payload)


def _weigh(put: Put) -> int:
    return PUT_BYTES + len(put.payload)


def _chunks(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide payloads into batches.  If the next payload is an error, the batch before it is still sent."""
    chunk: list[bytes] = []
    room = MAX_BATCH_BYTES
    try:
        for payload in payloads:
            room -= PUT_BYTES + len(payload)
            if chunk and (room < 0 or len(chunk) >= MAX_BATCH):
                yield chunk
                chunk, room = [], MAX_BATCH_BYTES - PUT_BYTES - len(payload)
            chunk.append(payload)
    except Exception:  # of the generator or the codec
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _interrupted(id: str) -> OutcomeUnknown:
    return OutcomeUnknown("closed in the middle", ids=(id,))


def _worst(receipts: Receipts) -> ZkrqError:
    """Choose the error to raise for all: unknown outcomes come first."""
    errors = receipts.errors
    ids = dict.fromkeys(itertools.chain(*(error.ids for error in errors if isinstance(error, OutcomeUnknown))))
    text = f"{len(ids)} push(es) may have happened; push again with the same ids"
    error = OutcomeUnknown(text, ids=tuple(ids)) if ids else errors[0]
    error.outcomes = receipts
    return error
