"""Push items: encode them, gather them into bundles and batches, and choose how the servers take them.

A plain push goes to any shard, and to another one if nothing happened there; one with an id, a key or a limit goes to
the queue's home (see ``placement.py``).  A plain push is written to all servers of its shard in one round trip.  The
primary decides a push with a key, or into a queue with a limit, before it is written to the others: one more round
trip.

Items that leave together, without an id or a life of their own, form bundles: servers keep, claim and remove them
together.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from zkrq.base import clock
from zkrq.base.checks import Duration, Headers, check_count, check_duration, check_headers, check_id, check_moment
from zkrq.base.codecs import Codec
from zkrq.base.errors import (
    Closed,
    CodecError,
    ConfigError,
    NotEnoughReplicas,
    OutcomeUnknown,
    PayloadTooLarge,
    Receipt,
    Receipts,
    Unavailable,
    ZkrqError,
)
from zkrq.base.ids import check_push_id, new_id_at, new_ids_at
from zkrq.base.tasks import together
from zkrq.consuming.context import QueueContext
from zkrq.producing.placement import Placement, Target
from zkrq.producing.receipts import BundleIds, PackedReceipts, Results, receipt
from zkrq.protocol.calls import Put, bundle_and_position
from zkrq.protocol.payloads import NO_HEADERS, join, with_headers
from zkrq.protocol.records import BUNDLE_MAX, PRIORITIES, fresh
from zkrq.protocol.shards import ShardName
from zkrq.replication.batching import MAX_BATCH, MAX_BATCH_BYTES, MAX_IN_FLIGHT, Batcher, own
from zkrq.replication.replicas import Done, Duplicate, Known, Pushed, PushResults
from zkrq.replication.runner import MapChanged

T = TypeVar("T")
M = TypeVar("M")

PUT_BYTES = 60
"""Approximate bytes of a push beside its payload."""

BUNDLE_BYTES = 1 << 14
"""Bytes of payloads in a bundle: a server reads all of them to hand out one.  A larger item is alone."""


MAP_PAUSE = 0.1
"""Seconds until the shard map is read again if it is not yet as new as a server asks for."""


class Options(NamedTuple):
    """Options of a push, checked, in the units of the wire; ``ttl_ms`` 0: no limit."""

    priority: int = 0
    delay_ms: int = 0
    key: str = ""
    ttl_ms: float = 0
    headers: Headers = MappingProxyType({})

    @property
    def is_plain(self) -> bool:
        """Whether the item may be in a bundle."""
        return not (self.delay_ms or self.key or self.ttl_ms)


_PLAIN = Options()

_receipt_of = cast(
    "Callable[[tuple[str, int, bool, bool, bool]], Receipt]", partial(cast("Any", tuple).__new__, Receipt)
)
"""Make a receipt of its values, without a call of Python: one is made for each push."""


def read_options(
    delay: Duration | None,
    at: datetime | None,
    priority: int,
    key: str | None,
    ttl: Duration | None,
    headers: Headers | None = None,
) -> Options:
    """Check the options of a push.  Raises ``ConfigError``."""
    if priority == 0 and delay is None and at is None and key is None and ttl is None and not headers:
        return _PLAIN
    check_count("priority", priority, least=PRIORITIES.start, most=PRIORITIES.stop - 1)
    if delay is not None and at is not None:
        raise ConfigError("delay and at exclude each other")
    seconds = 0.0
    if at is not None:
        seconds = check_duration("at", max(0.0, (check_moment("at", at) - clock.now()).total_seconds()))
    elif delay is not None:
        seconds = check_duration("delay", delay)
    ttl_ms = 0.0 if ttl is None else max(1.0, check_duration("ttl", ttl, positive=True) * 1000)
    if ttl_ms and ttl_ms <= seconds * 1000:
        raise ConfigError(f"ttl is {ttl_ms / 1000:g} s, not longer than the delay of {seconds:g} s: never delivered")
    checked_key = "" if key is None else check_id("key", key)
    return Options(priority, round(seconds * 1000), checked_key, ttl_ms, check_headers(headers or {}))


class Push:
    """One push that waits for its batch.

    ``id`` is empty until it leaves, unless the caller gave one.  ``made_ms``: when the caller made that id, 0: none.
    """

    __slots__ = ("id", "made_ms", "options", "payload")

    def __init__(self, id: str, made_ms: int, payload: bytes, options: Options) -> None:
        self.id = id
        self.made_ms = made_ms
        self.payload = payload
        self.options = options


@dataclass(eq=False, slots=True)
class Chunk:
    """Items of a ``push_many`` that leave together.  ``ids``: of each push; empty until they are made."""

    payloads: Sequence[bytes]
    options: Options
    ids: Sequence[Sequence[str]]


_Send = Callable[[Target, Sequence[Put], int], Awaitable[PushResults]]
"""Push to a shard, placed by the map of this number."""


class Pusher(Generic[T]):
    """Push the items of one queue."""

    def __init__(self, context: QueueContext, placement: Placement) -> None:
        self.observers: Final = context.observers
        self._queue = queue = context.queue
        self._codec: Codec[T] = context.codec
        self._placement = placement
        self._tasks = context.tasks
        self._max_payload = context.settings.max_payload_bytes
        self._max_size = context.settings.max_size or 0
        self._closed = False
        batcher = partial(
            Batcher[Push, Receipt],
            tasks=context.tasks,
            patience=placement.first.replicas.operation_timeout,
            watched=context.observers.pushed,
            landed=self._report,
        )
        self._plain = batcher(self._send_plain, name=f"push to {queue}")
        self._homed = batcher(self._send_homed, name=f"push of ids to {queue}")
        self._decided = batcher(self._send_decided, name=f"decided push to {queue}")

    def begin(self, item: T, id: str | None, options: Options) -> tuple[Push, asyncio.Future[Receipt]]:
        """Send one item; return the push and the future of its receipt.  Avoids creating a coroutine per item."""
        payload = self._encode(item, options)
        if id is None:
            call = Push("", 0, payload, options)
        else:
            call = Push(id, check_push_id(id) or clock.now_ms(), payload, options)
        if self._max_size or options.key or (id is not None and bundle_and_position(id)[0] != id):
            batcher = self._decided
        else:
            batcher = self._plain if id is None else self._homed
        return call, batcher.add(call, PUT_BYTES + len(payload))

    async def _send_plain(self, calls: Sequence[Push]) -> Sequence[Receipt | ZkrqError]:
        """Push items that were gathered, in bundles as far as possible, to one shard."""

        def make(ending: str) -> tuple[list[Put], list[Sequence[int]]]:
            puts: list[Put] = []
            groups: list[Sequence[int]] = []
            for priority, group in _in_groups(calls):
                groups.append(group)
                some = [calls[at] for at in group]
                puts.append(_put(some[0], ending) if priority is None else _bundle(priority, some, ending))
            return puts, groups

        results, groups = await self._place(make, len(calls))
        return _receipts(calls, results, groups)

    async def _send_homed(self, calls: Sequence[Push]) -> Sequence[Receipt | ZkrqError]:
        """Push items under ids of their callers, each to the shard that its id names, or to the queue's home."""

        async def push(target: Target, puts: Sequence[Put], map: int) -> PushResults:
            return await target.replicas.put(self._queue, puts, map=map)

        return await self._send_home(calls, push)

    async def _send_decided(self, calls: Sequence[Push]) -> Sequence[Receipt | ZkrqError]:
        """Let the primary decide about each item, on the shard that its id names, or on the queue's home."""

        async def push(target: Target, puts: Sequence[Put], map: int) -> PushResults:
            return await target.replicas.push(self._queue, self._max_size, puts, map=map)

        return await self._send_home(calls, push)

    async def _place(self, make: Callable[[str], tuple[Sequence[Put], M]], count: int) -> tuple[PushResults, M]:
        """Push items without an identity to one shard; to another one, under new ids, if nothing was written there.

        ``make`` makes the pushes, with ids of this ending.  Raises what the last shard did.
        """
        placement, tried = self._placement, set[ShardName]()
        while True:
            map = placement.map.number
            target = placement.choose(tried)
            tried.add(target.name)
            has_other = map > 0 and placement.has_other(tried)
            puts, more = make(placement.ending(target))
            target.under_way += count
            try:
                return await target.replicas.put(self._queue, puts, map=map, patient=not has_other), more
            except MapChanged:
                await self._refresh(map)
                tried.clear()
            except (NotEnoughReplicas, Unavailable):
                target.avoid()
                if not has_other:
                    raise
            finally:
                target.under_way -= count

    async def _send_home(self, calls: Sequence[Push], push: _Send) -> Sequence[Receipt | ZkrqError]:
        """Push items that have an identity, each to its shard."""
        receipts: dict[int, Receipt | ZkrqError] = {}

        async def send(target: Target, group: Sequence[int], map: int) -> Sequence[int]:
            """Return those that must be placed anew."""
            some = [calls[at] for at in group]
            try:
                results = await push(target, [_put(call) for call in some], map)
            except MapChanged:
                return group
            except ZkrqError as error:
                receipts.update((at, own(error)) for at in group)
            else:
                receipts.update(zip(group, _receipts(some, results, [(at,) for at in range(len(some))]), strict=True))
            return ()

        left: Sequence[int] = range(len(calls))
        while left:
            map, groups = self._placement.map.number, dict[Target, list[int]]()
            for at in left:
                try:
                    groups.setdefault(await self._placement.find(self._queue, calls[at].id), []).append(at)
                except ZkrqError as error:
                    receipts[at] = error
            again = await together(send(target, group, map) for target, group in groups.items())
            if left := [at for some in again for at in some]:
                await self._refresh(map)
        return [receipts[at] for at in range(len(calls))]

    async def _refresh(self, map: int) -> None:
        """Read the shard map after a server has asked for a newer one than this."""
        if self._placement.map.number <= map:
            await self._placement.refresh()
            if self._placement.map.number <= map:
                await asyncio.sleep(MAP_PAUSE)

    def _report(self, calls: Sequence[Push], seconds: Sequence[float], results: Sequence[Receipt | Exception]) -> None:
        self.observers.tell_pushed(self._queue, seconds, _outcomes(results))

    async def push_many(self, items: Iterable[T], options: Options) -> Receipts:
        """Push many items, in order; see ``Queue.push_many``."""
        payloads: Iterable[bytes] = (self._encode(item, options) for item in items)
        if isinstance(items, Sequence):
            payloads = list(payloads)  # finds a bad item before the first one is written
        receipts = PackedReceipts()
        in_flight: deque[tuple[Chunk, asyncio.Task[Sequence[Results] | None]]] = deque()

        async def land() -> None:
            chunk, task = in_flight[0]
            results = await asyncio.shield(task)
            in_flight.popleft()
            ended = results or [[_interrupted(id) if id else Closed() for id in ids] for ids in chunk.ids]
            for ids, part in zip(chunk.ids, ended, strict=True):
                receipts.add(ids, part)

        try:
            for some in _chunks(payloads):
                if len(in_flight) >= MAX_IN_FLIGHT:
                    await land()
                chunk = Chunk(some, options, [("",)] * len(some))
                in_flight.append((chunk, self._tasks.start(self._send(chunk), f"push many to {self._queue}")))
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

    def _puts_of(self, chunk: Sequence[bytes], options: Options, ending: str) -> tuple[list[Put], list[Sequence[str]]]:
        """Make the pushes of many payloads, in bundles if possible; return them and the ids of the items of each."""
        now_ms = clock.now_ms()
        if self._max_size or not options.is_plain:
            ids: Sequence[str] = new_ids_at(now_ms, len(chunk))
            if ending:
                ids = [id + ending for id in ids]
            return [_alone(id, now_ms, payload, options) for id, payload in zip(ids, chunk, strict=True)], [
                (id,) for id in ids
            ]
        puts: list[Put] = []
        names: list[Sequence[str]] = []
        for part in _parts(list(map(len, chunk))):
            id, payloads = new_id_at(now_ms) + ending, chunk[part.start : part.stop]
            if len(payloads) == 1:
                puts.append(_alone(id, now_ms, payloads[0], options))
                names.append((id,))
            else:
                puts.append(Put(id, fresh(options.priority, now_ms, size=len(payloads)), join(payloads)))
                names.append(BundleIds(id, len(payloads)))
        return puts, names

    async def _send(self, chunk: Chunk) -> Sequence[Results]:
        """Push a chunk; return the results of each of its pushes."""
        if self._closed:
            return [[Closed()] * len(ids) for ids in chunk.ids]
        began = asyncio.get_running_loop().time()
        results = await self._send_open(chunk)
        if self.observers.pushed:
            seconds = [asyncio.get_running_loop().time() - began] * len(chunk.payloads)
            outcomes = _outcomes(itertools.chain.from_iterable(results))
            self.observers.tell_pushed(self._queue, seconds, outcomes)
        return results

    async def _send_open(self, chunk: Chunk) -> Sequence[Results]:
        def make(ending: str) -> tuple[Sequence[Put], None]:
            puts, chunk.ids = self._puts_of(chunk.payloads, chunk.options, ending)
            return puts, None

        try:
            if self._max_size:
                results = await self._push_limited(make)
            else:
                results, _ = await self._place(make, len(chunk.payloads))
        except ZkrqError as error:
            if isinstance(error, OutcomeUnknown):
                error.ids = tuple(itertools.chain.from_iterable(chunk.ids))
            return [[error] * len(ids) for ids in chunk.ids]
        return [results.of(at, len(ids)) for at, ids in enumerate(chunk.ids)]

    async def _push_limited(self, make: Callable[[str], tuple[Sequence[Put], None]]) -> PushResults:
        """Push many items into a queue with a limit, at its home."""
        while True:
            map, home = self._placement.map.number, await self._placement.home(self._queue)
            puts, _ = make("")
            try:
                return await home.replicas.push(self._queue, self._max_size, puts, map=map)
            except MapChanged:
                await self._refresh(map)

    def _encode(self, item: T, options: Options) -> bytes:
        try:
            payload = self._codec.encode(item)
        except CodecError:
            raise
        except Exception as error:  # any codec's
            raise CodecError(f"cannot be encoded as {self._codec.name}: {error}; nothing was written") from error
        if len(payload) > self._max_payload:
            raise PayloadTooLarge(len(payload), self._max_payload)
        return with_headers(payload, options.headers) if options.headers else NO_HEADERS + payload

    @property
    def is_idle(self) -> bool:
        """Whether no push is in flight but those of ``push_many``, whose caller refers to the queue."""
        return self._plain.is_idle and self._homed.is_idle and self._decided.is_idle

    def stop(self) -> None:
        """Refuse further pushes."""
        self._closed = True
        self._plain.stop()
        self._homed.stop()
        self._decided.stop()

    async def aclose(self) -> None:
        """Wait for the calls in flight."""
        await asyncio.gather(self._plain.aclose(), self._homed.aclose(), self._decided.aclose())


def _in_groups(calls: Sequence[Push]) -> Iterator[tuple[int | None, Sequence[int]]]:
    """Divide pushes into bundles: the priority, and the positions of the pushes; None with one that is alone."""
    together: dict[int, list[int]] = {}
    for at, call in enumerate(calls):
        if call.made_ms or not (call.options is _PLAIN or call.options.is_plain):
            yield None, (at,)
        else:
            together.setdefault(call.options.priority, []).append(at)
    for priority, members in together.items():
        for part in _parts([len(calls[at].payload) for at in members]):
            yield (None if len(part) == 1 else priority), members[part.start : part.stop]


def _parts(sizes: Sequence[int]) -> Iterator[range]:
    """Divide items of these sizes into parts for bundles, of nearly equal numbers."""
    whole = len(sizes)
    most = -(-whole // -(-whole // BUNDLE_MAX))
    start = length = 0
    for at, size in enumerate(sizes):
        length += size
        if at > start and (at - start >= most or length > BUNDLE_BYTES):
            yield range(start, at)
            start, length = at, size
    yield range(start, whole)


def _bundle(priority: int, calls: Sequence[Push], ending: str) -> Put:
    now_ms = clock.now_ms()
    bundle = new_id_at(now_ms) + ending
    for call, id in zip(calls, BundleIds(bundle, len(calls)), strict=True):
        call.id = id
    return Put(bundle, fresh(priority, now_ms, size=len(calls)), join([call.payload for call in calls]))


def _put(call: Push, ending: str = "") -> Put:
    made_ms = call.made_ms
    if not made_ms:
        made_ms = clock.now_ms()
        call.id = new_id_at(made_ms) + ending
    return _alone(call.id, made_ms, call.payload, call.options)


def _alone(id: str, made_ms: int, payload: bytes, options: Options) -> Put:
    priority, delay_ms, key, ttl_ms, _ = options
    return Put(id, fresh(priority, made_ms, delay_ms=delay_ms, key=key, ttl_ms=ttl_ms), join((payload,)))


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


def _receipts(
    calls: Sequence[Push], results: PushResults, groups: Sequence[Sequence[int]]
) -> Sequence[Receipt | ZkrqError]:
    """Return the receipt of each call.  ``groups``: for each push of the batch, the positions of its calls."""
    if not results.others:
        copies = results.replicas
        return [_receipt_of((call.id, copies, False, False, True)) for call in calls]
    receipts: dict[int, Receipt | ZkrqError] = {}
    for number, group in enumerate(groups):
        for at, result in zip(group, results.of(number, len(group)), strict=True):
            receipts[at] = _receipt(calls[at], result)
    return [receipts[at] for at in range(len(calls))]


def _receipt(call: Push, result: Pushed | ZkrqError) -> Receipt | ZkrqError:
    return result if isinstance(result, ZkrqError) else receipt(call.id, result, is_named=call.made_ms > 0)


def _outcomes(results: Iterable[Receipt | Pushed | Exception]) -> Counter[str]:
    """Count results of pushes by their names, for observers, without a call of Python for each."""
    every = list(results)
    kinds = Counter(map(type, every))
    receipt_count = kinds.pop(Receipt, 0)
    outcomes = Counter[str]()
    for kind, count in kinds.items():
        outcomes[_OUTCOMES.get(kind, kind.__name__)] += count
    if receipt_count:
        receipts = (result for result in every if isinstance(result, Receipt))
        for (duplicate, done, new), count in Counter(map(_how, receipts)).items():
            outcome = "duplicate" if duplicate else "done" if done else "known" if new is False else "pushed"
            outcomes[outcome] += count
    return outcomes


_OUTCOMES: Mapping[type, str] = {int: "pushed", Duplicate: "duplicate", Known: "pushed", Done: "done"}
"""Names of the results of ``push_many``, which makes the ids: one that is known is known from the same push."""

_how = attrgetter("duplicate", "done", "new")


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
