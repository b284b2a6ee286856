"""Push the items of a queue: encode them, gather them into batches, and give each caller its receipt.

Pushes of callers that wait at the same time leave together (``batching.py``), in bundles where that is possible
(``bundling.py``), and go to any shard or to the queue's home (``sending.py``).  A plain push is written to all servers
of its shard in one round trip.  The primary decides a push with a key, into a queue with a limit, or into a group that
keeps the order, before it is written to the others: one more round trip.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from zkrq.base import clock
from zkrq.base.codecs import codec_of_item
from zkrq.base.errors import (
    Closed,
    CodecError,
    OutcomeUnknown,
    PayloadTooLarge,
    Receipt,
    Receipts,
    Unavailable,
    ZkrqError,
    text_of,
)
from zkrq.base.ids import check_push_id
from zkrq.producing.bundling import (
    PUT_BYTES,
    Push,
    bundles_of,
    chunks,
    named_chunks,
    put_of,
    puts_of_many,
    puts_of_named,
)
from zkrq.producing.options import out_of_order
from zkrq.producing.receipts import BundleIds, PackedReceipts, Results, results_of
from zkrq.producing.sending import Named, Sender
from zkrq.protocol.calls import Put, bundle_and_position
from zkrq.protocol.payloads import NO_HEADERS, with_headers
from zkrq.protocol.tuples import from_values
from zkrq.replication.batching import MAX_IN_FLIGHT, Batcher, InFlightLimit
from zkrq.replication.runner import PrimaryDecides

if TYPE_CHECKING:
    from zkrq.base.checks import Headers
    from zkrq.base.codecs import Codec
    from zkrq.consuming.context import QueueContext
    from zkrq.producing.options import Options
    from zkrq.producing.placement import Placement
    from zkrq.protocol.pushing import Pushes
    from zkrq.replication.causes import Causes

T = TypeVar("T")

SEALED_KEPT = 1_000
"""Flows of which a queue remembers that they are not open."""

_receipt_of = from_values(Receipt)


@dataclass(eq=False, slots=True)
class Chunk:
    """Items of a ``push_many`` that leave together.  ``ids``: of each put; empty until they are made.  ``names``: the
    ids in each of its bundles, if the push has a name in its flow."""

    payloads: Sequence[bytes]
    options: Options
    ids: Sequence[Sequence[str]]
    names: Sequence[BundleIds] = ()
    is_decided: bool = False
    """Whether the primary has to decide about it, as servers have said when they refused it."""


class Pusher(Generic[T]):
    """Push the items of one queue."""

    def __init__(
        self, context: QueueContext, sender: Sender, placement: Placement, limit: InFlightLimit | None = None
    ) -> None:
        """``limit``: of the batches of all queues of the client that are in flight."""
        self.observers: Final = context.observers
        self._queue = queue = context.queue
        self._codec: Codec[T] = context.codec
        self._sender = sender
        self._tasks = context.tasks
        self._max_payload = context.settings.max_payload_bytes
        self._groups = context.settings.groups
        self._closed = False
        self._sealed = dict[bytes, None]()
        """Flows of which servers have refused plain pushes; the decision says whether such a flow still runs."""
        batcher = partial(
            Batcher[Push, Receipt],
            tasks=context.tasks,
            patience=placement.first.replicas.operation_timeout,
            watched=context.observers.pushed,
            landed=self._report,
            limit=limit,
        )
        self._plain = batcher(self._send_plain, name=f"push to {queue}")
        self._homed = batcher(partial(self._send_home, decided=False), name=f"push of ids to {queue}")
        self._decided = batcher(partial(self._send_home, decided=True), name=f"decided push to {queue}")
        self._members = batcher(partial(self._send_plain, at_home=True), name=f"push of members to {queue}")

    # -- one item a call -----------------------------------------------------------------------------------------------

    def begin(
        self,
        item: T,
        id: str | None,
        options: Options,
        encoded: bytes | None = None,
        saved: bytes | None = None,
    ) -> tuple[Push, asyncio.Future[Receipt]]:
        """Send one item; return the push and the future of its receipt.  Avoids creating a coroutine per item.

        ``encoded``: the item as it is stored, instead of ``item``; ``saved``: with what was saved of it before.
        """
        if self._groups is not None:
            options = options.among(self._groups)
        headers = options.stored_headers if options.task else options.headers
        payload = self._encode(item, headers, id) if encoded is None else with_headers(encoded, headers, saved)
        if id is None:
            call = Push("", 0, payload, options)
        else:
            call = Push(id, check_push_id(id) or clock.now_ms(), payload, options)
        if self._sender.is_decided or options.key or (id is not None and bundle_and_position(id)[0] != id):
            batcher = self._decided
        elif options.flow:
            batcher = self._of_flow(options, id)
        else:
            batcher = self._plain if id is None else self._homed
        return call, batcher.add(call, PUT_BYTES + len(payload))

    async def push(self, item: T, id: str | None, options: Options, encoded: bytes | None = None) -> Receipt:
        """Push one item; see ``Queue.push``.  ``encoded``: as of ``begin``."""
        call, pushed = self.begin(item, id, options, encoded)
        try:
            return await pushed
        except OutcomeUnknown as error:
            error.ids = (call.id,)
            raise

    def _of_flow(self, options: Options, id: str | None) -> Batcher[Push, Receipt]:
        """Return what sends an item of a flow: an item that is held is decided, and so is a member of a sealed flow."""
        if options.is_held or options.flow in self._sealed:
            return self._decided
        return self._members if id is None else self._homed

    def is_decided_about(self, options: Options, id: str | None) -> bool:
        """Tell whether the primary may have decided about a push that has returned just now: unless servers took it
        because they know its flow as open."""
        is_named = bool(options.key) or (id is not None and bundle_and_position(id)[0] != id)
        return is_named or options.is_held or self.is_decided or options.flow in self._sealed

    async def _send_plain(self, calls: Sequence[Push], *, at_home: bool = False) -> Sequence[Receipt | ZkrqError]:
        """Push items that were gathered, in bundles as far as possible, to one shard."""
        try:
            make = partial(bundles_of, calls)
            pushes, groups, causes = await self._sender.anywhere(make, len(calls), at_home=at_home)
        except PrimaryDecides:
            self._note_refusal({call.options.flow for call in calls})
            return await self._send_home(calls, decided=True)
        if pushes.why is not None:  # some servers had taken it, others left it to the primary
            self._note_refusal({call.options.flow for call in calls})
        if not pushes.exceptional:
            copies = pushes.replicas
            return [_receipt_of((call.id, copies, False, False, True, ())) for call in calls]
        return _receipts(calls, pushes, groups, causes)

    async def _send_home(self, calls: Sequence[Push], *, decided: bool) -> Sequence[Receipt | ZkrqError]:
        """Push items that have an identity, each to the shard that its id names, or to the queue's home."""
        named = [Named(put_of(call), call.made_ms > 0, call.options.of_key) for call in calls]

        def note(refused: Sequence[int]) -> None:
            self._note_refusal({calls[at].options.flow for at in refused})

        results = await self._sender.at_home(named, decided=decided, refused=note)
        return [_receipt(call, result) for call, result in zip(calls, results, strict=True)]

    def _note_refusal(self, flows: Collection[bytes]) -> None:
        """Note that servers have refused plain pushes of these flows, unless the queue has all of them decided."""
        for flow in flows if not self.is_decided else ():
            if flow:
                self.note_stage(flow, is_open=False)

    def note_stage(self, flow: bytes, *, is_open: bool) -> None:
        """Have the primary decide about further members of a flow unless it is open, as far as this client knows."""
        self._sealed.pop(flow, None)
        if not is_open:
            if len(self._sealed) >= SEALED_KEPT:
                del self._sealed[next(iter(self._sealed))]
            self._sealed[flow] = None

    def _report(self, calls: Sequence[Push], seconds: Sequence[float], results: Sequence[Receipt | Exception]) -> None:
        self.observers.tell_pushed(self._queue, seconds, _outcomes(results))

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks of the pushes that wait and are in flight."""
        for batcher in self._batchers:
            batcher.check_invariants()
        assert len(self._sealed) <= SEALED_KEPT, f"{len(self._sealed)} flows are remembered"

    # -- many items a call ---------------------------------------------------------------------------------------------

    async def push_many(self, items: Iterable[T], options: Options, name: str = "") -> Receipts:
        """Push many items, in order; see ``Queue.push_many``.  ``name``: begins the names of their bundles, see
        ``Flow.push_many``; empty: they have none."""
        if self._groups is not None:
            options = options.among(self._groups)
        headers = options.stored_headers
        payloads: Iterable[bytes] = (self._encode(item, headers) for item in items)
        if isinstance(items, Sequence):
            payloads = list(payloads)  # finds a bad item before the first one is written
        receipts = PackedReceipts()
        in_flight: deque[tuple[Chunk, asyncio.Task[Sequence[Results] | None]]] = deque()

        async def land() -> None:
            chunk, task = in_flight[0]
            results: Sequence[Results] | None = ()
            with suppress(Exception):  # no error of a push, which is a result; it was logged
                results = await asyncio.shield(task)
                if results is None and not receipts.errors:
                    in_flight[0] = chunk, self._start(chunk)
                    results = await asyncio.shield(in_flight[0][1])
            in_flight.popleft()
            if results is None:
                ended: Sequence[Results] = [[_out_of_turn()] * len(ids) for ids in chunk.ids]
            else:
                ended = results or [[_interrupted(id) if id else Closed() for id in ids] for ids in chunk.ids]
            for ids, part in zip(chunk.ids, ended, strict=True):
                receipts.add(ids, part)

        try:
            for some, names in self._divide(payloads, options, name):
                # In order, or a batch that is tried again would come behind the next one.
                while len(in_flight) >= (1 if self.is_ordered else MAX_IN_FLIGHT):
                    await land()
                if self.is_ordered and receipts.errors:
                    break
                chunk = Chunk(some, options, [("",)] * len(some), names)
                in_flight.append((chunk, self._start(chunk)))
        except Exception as error:  # an item cannot be encoded, or the generator of the items failed
            while in_flight:
                await land()
            if isinstance(error, ZkrqError):
                error.outcomes = receipts
            raise
        while in_flight:
            await land()
        if receipts.errors:
            error = _worst(receipts)
            if isinstance(payloads, list) and (left := len(payloads) - len(receipts)):
                receipts.add([""] * left, [_out_of_turn()] * left)
            raise error
        return receipts

    def _divide(
        self, payloads: Iterable[bytes], options: Options, name: str
    ) -> Iterable[tuple[Sequence[bytes], Sequence[BundleIds]]]:
        """Divide payloads into chunks; if they have a name, with the names of their bundles."""
        if not name:
            return ((some, ()) for some in chunks(payloads))
        headers = options.stored_headers
        beside = len(with_headers(b"", headers) if headers else NO_HEADERS)
        return named_chunks(payloads, name, beside)

    def _start(self, chunk: Chunk) -> asyncio.Task[Sequence[Results] | None]:
        return self._tasks.start(self._send(chunk), f"push many to {self._queue}")

    async def _send(self, chunk: Chunk) -> Sequence[Results] | None:
        """Push a chunk; return the results of each of its puts, None: nothing was written, because the primary has to
        decide, so it has to be pushed again after those before it."""
        if self._closed:
            return [[Closed()] * len(ids) for ids in chunk.ids]
        began = asyncio.get_running_loop().time()
        results = await self._send_open(chunk)
        if results and self.observers.pushed:
            seconds = [asyncio.get_running_loop().time() - began] * len(chunk.payloads)
            outcomes = _outcomes(itertools.chain.from_iterable(results))
            self.observers.tell_pushed(self._queue, seconds, outcomes)
        return results

    async def _send_open(self, chunk: Chunk) -> Sequence[Results] | None:
        is_decided = self._sender.is_decided or chunk.is_decided or chunk.options.flow in self._sealed
        are_named = bool(chunk.names)
        if are_named and self.is_ordered:
            return [[out_of_order("a name of many")] * len(ids) for ids in chunk.ids]

        def make(ending: str) -> tuple[Sequence[Put], None]:
            if are_named:
                puts, chunk.ids = puts_of_named(chunk.payloads, chunk.options, chunk.names, are_alone=is_decided)
            else:
                puts, chunk.ids = puts_of_many(chunk.payloads, chunk.options, ending, are_alone=is_decided)
            return puts, None

        if is_decided:
            puts, _ = make("")
            named = [Named(put, by_caller=are_named) for put in puts]
            try:
                results = await self._sender.at_home(named, decided=True, in_turn=True)
            except PrimaryDecides:
                return None
            return [(result,) for result in results]
        try:
            at_home = bool(chunk.options.flow)
            pushes, _, causes = await self._sender.anywhere(make, len(chunk.payloads), at_home=at_home)
        except PrimaryDecides:
            chunk.is_decided = True
            self._note_refusal({chunk.options.flow})
            return None
        except ZkrqError as error:
            if isinstance(error, OutcomeUnknown):
                error.ids = tuple(itertools.chain.from_iterable(chunk.ids))
            return [[error] * len(ids) for ids in chunk.ids]
        if pushes.why is not None:
            self._note_refusal({chunk.options.flow})
        return [results_of(pushes, at, ids, causes, are_named=are_named) for at, ids in enumerate(chunk.ids)]

    def encode(self, item: T) -> bytes:
        """Encode an item, without its headers.  Raises ``CodecError``, ``PayloadTooLarge``."""
        return self._encode(item, {})[len(NO_HEADERS) :]

    def _encode(self, item: T, headers: Headers, id: str | None = None) -> bytes:
        try:
            payload = (self._codec if id is None else codec_of_item(self._codec, id)).encode(item)
        except CodecError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any codec's
            raise CodecError(
                f"cannot be encoded as {self._codec.name}: {text_of(error)}; nothing was written"
            ) from error
        if len(payload) > self._max_payload:
            raise PayloadTooLarge(len(payload), self._max_payload)
        return with_headers(payload, headers) if headers else NO_HEADERS + payload

    @property
    def is_ordered(self) -> bool:
        """Whether the queue is known to keep an order, by an option or because its servers have said so."""
        return self._sender.keeps_order

    @property
    def is_decided(self) -> bool:
        """Whether the primary decides about every push, as far as this client knows."""
        return self._sender.is_decided

    @property
    def is_idle(self) -> bool:
        """Whether no push is in flight but those of ``push_many``, whose caller refers to the queue."""
        return all(batcher.is_idle for batcher in self._batchers)

    @property
    def _batchers(self) -> Sequence[Batcher[Push, Receipt]]:
        return self._plain, self._homed, self._decided, self._members

    def stop(self) -> None:
        """Refuse further pushes."""
        self._closed = True
        for batcher in self._batchers:
            batcher.stop()

    async def aclose(self) -> None:
        """Wait for the calls in flight."""
        await asyncio.gather(*(batcher.aclose() for batcher in self._batchers))


def _receipts(
    calls: Sequence[Push], pushes: Pushes, groups: Sequence[Sequence[int]], causes: Causes
) -> Sequence[Receipt | ZkrqError]:
    """Return the receipt of each call.  ``groups``: for each put of the batch, the positions of its calls."""
    receipts: dict[int, Receipt | ZkrqError] = {}
    for number, group in enumerate(groups):
        ids = [calls[at].id for at in group]
        for at, result in zip(group, results_of(pushes, number, ids, causes, are_named=False), strict=True):
            receipts[at] = _receipt(calls[at], result)
    return [receipts[at] for at in range(len(calls))]


def _receipt(call: Push, result: int | Receipt | ZkrqError) -> Receipt | ZkrqError:
    return Receipt(call.id, result) if isinstance(result, int) else result


def _outcomes(results: Iterable[int | Receipt | Exception]) -> Counter[str]:
    """Count results of pushes by their names, for observers, without a call of Python for each."""
    every = list(results)
    kinds = Counter(map(type, every))
    receipt_count = kinds.pop(Receipt, 0)
    outcomes = Counter[str]()
    for kind, count in kinds.items():
        outcomes["pushed" if kind is int else kind.__name__] += count
    if receipt_count:
        receipts = (result for result in every if isinstance(result, Receipt))
        for (duplicate, done, new), count in Counter(map(_how, receipts)).items():
            outcome = "duplicate" if duplicate else "done" if done else "known" if new is False else "pushed"
            outcomes[outcome] += count
    return outcomes


_how = attrgetter("duplicate", "done", "new")


def _interrupted(id: str) -> OutcomeUnknown:
    return OutcomeUnknown("closed in the middle", ids=(id,))


def _out_of_turn() -> Unavailable:
    return Unavailable(
        "not pushed, since an item before it was not: it would have come out of order; nothing was written, push it "
        "again after that one"
    )


def _worst(receipts: Receipts) -> ZkrqError:
    """Choose the error to raise for all: unknown outcomes come first."""
    errors = receipts.errors
    ids = dict.fromkeys(itertools.chain(*(error.ids for error in errors if isinstance(error, OutcomeUnknown))))
    text = f"{len(ids)} push(es) may have happened; push again with the same ids"
    error = OutcomeUnknown(text, ids=tuple(ids)) if ids else errors[0]
    error.outcomes = receipts
    return error
