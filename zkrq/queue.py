"""A queue as its users see it; composes the parts below and decides nothing itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar, cast, get_args

from zkrq.checks import Duration, check_count, check_duration, check_id, check_moment
from zkrq.claims import Claim
from zkrq.codecs import Codec
from zkrq.errors import Closed, CodecError, ConfigError, OutcomeUnknown, PayloadTooLarge, ZkrqError
from zkrq.feed import Feed
from zkrq.handlers import Handler
from zkrq.held import Held
from zkrq.ids import made_at_ms, new_id_at
from zkrq.items import Item, ItemState, item_of
from zkrq.replication.batching import Batcher
from zkrq.replication.copying import read_copied
from zkrq.replication.records import PRIORITIES, fresh
from zkrq.replication.replicas import Put, Replicas
from zkrq.tasks import Tasks
from zkrq.worker import After, Before, work

T = TypeVar("T")

PUSH_WINDOW = 2_000
"""Items of one ``push_many`` that are under way at once."""

SEEN_AT_ONCE = 500
"""Items looked at, or removed by id, in one call."""

CLEAR_PAGE = 500
"""Items removed in one step of ``clear``."""

POP_MANY_MAX = 1_000
"""Claims that one ``pop_many`` may ask for."""

PUT_BYTES = 120
"""What a push weighs beside its payload, about."""


class Receipt(NamedTuple):
    """What ``push`` returns: the item is on ``replicas`` servers."""

    id: str
    replicas: int


class Sizes(NamedTuple):
    """How many items of a queue are ready, scheduled for later, claimed, and dead letters."""

    ready: int
    scheduled: int
    claimed: int
    dead: int


class Queue(Generic[T]):
    """Items of type ``T`` by name.  Made with ``Cluster.queue``; lives as long as the cluster is open."""

    def __init__(
        self,
        name: str,
        *,
        codec: Codec[T],
        replicas: Replicas,
        held: Held,
        feed: Feed[T],
        tasks: Tasks,
        max_payload_bytes: int,
    ) -> None:
        self.name = name
        self._codec = codec
        self._replicas = replicas
        self._held = held
        self._feed = feed
        self._max_payload = max_payload_bytes
        self._closed = False
        self._puts: Batcher[Put, int] = Batcher(
            partial(replicas.put, name),
            size=_weigh,
            tasks=tasks,
            name=f"push to {name}",
            patience=replicas.operation_timeout,
        )

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} holding {len(self._held)}>"

    # -- push --------------------------------------------------------------------------------------------------------

    async def push(
        self,
        item: T,
        *,
        id: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
    ) -> Receipt:
        """Put one item into the queue; when this returns, every in-sync server holds it.

        ``delay`` (seconds) or ``at`` (a moment) is when it may be delivered first, None: at once.  ``priority`` is 0
        to 9, higher first.  ``id`` is for repeating a push: with the same id it is there once, however often it was
        pushed within 300 seconds.

        Raises ``OutcomeUnknown`` when the time ran out in the middle, or when this is cancelled the item may be there
        too: push again with the same id.  ``NotEnoughReplicas`` and ``Unavailable``: nothing happened, retry.
        ``CodecError``, ``PayloadTooLarge``, ``ConfigError``: nothing was written.
        """
        now_ms = time.time_ns() // 1_000_000
        put = self._prepare(self._encode(item), id, _delay_ms(delay, at), priority, now_ms)
        try:
            return Receipt(put.id, await self._puts.add(put))
        except OutcomeUnknown as error:
            error.ids = (put.id,)
            raise

    async def push_many(
        self, items: Iterable[T], *, delay: Duration | None = None, at: datetime | None = None, priority: int = 0
    ) -> list[Receipt]:
        """Put many items into the queue, in order; one receipt each.

        Every item is encoded before the first is written.  When some cannot be pushed the others are all the same, and
        then the first error is raised, with ``ids`` of all that may or may not be there if it is ``OutcomeUnknown``.
        """
        payloads = [self._encode(item) for item in items]
        delay_ms = _delay_ms(delay, at)
        receipts: list[Receipt] = []
        errors: list[ZkrqError] = []
        for start in range(0, len(payloads), PUSH_WINDOW):
            now_ms = time.time_ns() // 1_000_000
            puts = [
                self._prepare(payload, None, delay_ms, priority, now_ms)
                for payload in payloads[start : start + PUSH_WINDOW]
            ]
            results = await asyncio.gather(*map(self._puts.add, puts), return_exceptions=True)
            for put, result in zip(puts, results, strict=True):
                if isinstance(result, ZkrqError):
                    errors.append(result)
                elif isinstance(result, BaseException):
                    raise result
                else:
                    receipts.append(Receipt(put.id, result))
        if errors:
            raise _first(errors)
        return receipts

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

    def _prepare(self, payload: bytes, id: str | None, delay_ms: int, priority: int, now_ms: int) -> Put:
        if priority:
            check_count("priority", priority, least=PRIORITIES.start, most=PRIORITIES.stop - 1)
        if id is None:
            return Put(new_id_at(now_ms), fresh(priority, now_ms), delay_ms, payload)
        return Put(check_id("id", id), fresh(priority, made_at_ms(id) or now_ms), delay_ms, payload)

    # -- pop -----------------------------------------------------------------------------------------------------------

    def pop(self, *, prefetch: int | None = None, limit: int | None = None, wait: bool = True) -> Deliveries[T]:
        """Claims one after the other: ``async for claim in queue.pop()``.

        ``prefetch`` is how many items are claimed ahead for this loop, None: as many as it has lately taken in a tenth
        of a second.  ``limit``: end after so many.  ``wait=False``: end when nothing is ready.  Otherwise it never ends
        while the cluster is open.  Items claimed ahead are handed back when the loop is left.
        """
        if prefetch is not None:
            check_count("prefetch", prefetch, most=POP_MANY_MAX)
        if limit is not None:
            check_count("limit", limit)
        return Deliveries(self._feed, prefetch, limit, wait)

    async def pop_one(self, *, timeout: Duration | None = None) -> Claim[T] | None:
        """One claim, or None after ``timeout`` seconds (None: wait for ever; 0: take what is ready).

        Raises ``Unavailable`` when the queue could not be looked at within ``timeout``.
        """
        claims = await self.pop_many(1, timeout=timeout)
        return claims[0] if claims else None

    async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[Claim[T]]:
        """As soon as there are any: the ready ones, at most ``n``; ``[]`` after ``timeout`` seconds (see ``pop_one``).

        Raises ``Unavailable`` when the queue could not be looked at within ``timeout``.
        """
        check_count("n", n, least=1, most=POP_MANY_MAX)
        seconds = None if timeout is None else check_duration("timeout", timeout)
        return await self._feed.take(n, patient=seconds != 0, timeout=seconds or None)

    async def work(
        self,
        handler: Handler[T],
        *,
        concurrency: int = 10,
        grace: Duration = 30.0,
        time_limit: Duration | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        """Have ``handler`` work on the items until this is cancelled or the cluster is closed; see ``Worker``."""
        await work(
            self, handler, concurrency=concurrency, grace=grace, time_limit=time_limit, before=before, after=after
        )

    # -- seeing and steering -------------------------------------------------------------------------------------------

    async def size(self) -> Sizes:
        """How many items there are, by state, as the queue's primary counts them.  Raises ``Unavailable``."""
        self._check_open()
        return Sizes(*cast("tuple[int, int, int, int]", await self._replicas.ask("count", self.name)))

    async def clear(self) -> int:
        """Remove every item that is ready or scheduled; returns how many.  Claimed ones stay with their holders.

        Cancelled or failed in the middle, the rest is still there.  Raises ``Unavailable``, ``OutcomeUnknown``.
        """
        self._check_open()
        removed = 0
        while True:
            decision = await self._replicas.decide("clear", self.name, [CLEAR_PAGE], trim=True)
            if not decision.decided and not decision.carried:
                return removed
            removed += len(decision.decided) + len(decision.carried)

    async def get(self, id: str) -> Item[T] | None:
        """What is known of one item, None where there is none of that id.  Raises ``Unavailable``."""
        self._check_open()
        found, _ = await self._replicas.ask("read", self.name, [0, check_id("id", id)])
        return next(iter(self._items(found)), None)

    async def peek(self, n: int = 10, state: ItemState = "ready") -> list[Item[T]]:
        """The first ``n`` items that are ready, scheduled, claimed or dead, in their order; nothing changes.

        ``n`` is at most 500; of large items there may be fewer.  Raises ``Unavailable``.
        """
        self._check_open()
        check_count("n", n, least=1, most=SEEN_AT_ONCE)
        if state not in get_args(ItemState):
            raise ConfigError(f"state is {state!r}, must be one of {', '.join(get_args(ItemState))}")
        found, _ = await self._replicas.ask("peek", self.name, [0, state, n])
        return self._items(found)

    async def scan(self, state: ItemState | None = None) -> AsyncGenerator[Item[T]]:
        """Every item, in no order, page by page; ``state``: only those.

        What is there from the beginning to the end comes at least once; after a change of the primary it begins again.
        Raises ``Unavailable``.
        """
        self._check_open()
        cursor, primary = b"0", ""
        while True:
            leading = self._replicas.membership.view.primary(self.name)
            if leading != primary:
                cursor, primary = b"0", leading  # a cursor means nothing to another server
            body = await self._replicas.ask("page", self.name, [0, cursor, SEEN_AT_ONCE])
            if self._replicas.membership.view.primary(self.name) != primary:
                continue
            cursor, found, beyond = cast("tuple[bytes, object, list[bytes]]", body)
            while True:
                for item in self._items(found):
                    if state in (None, item.state):
                        yield item
                if not beyond:
                    break
                body = await self._replicas.ask("read", self.name, [0, *beyond])
                found, beyond = cast("tuple[object, list[bytes]]", body)
            if cursor == b"0":
                return

    async def dead_letters(self, n: int = 100) -> list[Item[T]]:
        """The first ``n`` dead letters, those that died first; see ``peek``.  Raises ``Unavailable``."""
        return await self.peek(n, "dead")

    def _items(self, found: object) -> list[Item[T]]:
        items = (item_of(copied, self._codec) for copied in read_copied(found))
        return [item for item in items if item is not None]

    async def cancel(self, id: str) -> bool:
        """Remove one item, whatever its state; False where there is none of that id.

        If it is claimed, its holder learns of it when the claim is next extended or settled: ``ClaimLost``.
        Raises ``Unavailable``: nothing happened; ``OutcomeUnknown``: it may have, cancel again.
        """
        return await self._remove([check_id("id", id)]) > 0

    async def discard(self, ids: Sequence[str] | None = None) -> int:
        """Remove dead letters, None: all of them; returns how many.  Raises as ``cancel`` does, with some removed."""
        removed = 0
        async for page in self._dead_pages(ids):
            removed += await self._remove(page)
        return removed

    async def _remove(self, ids: Sequence[str]) -> int:
        self._check_open()
        decision = await self._replicas.decide("cancel", self.name, list(ids), trim=True)
        return len(decision.decided) + len(decision.carried)

    async def redrive(self, ids: Sequence[str] | None = None, *, rate: float | None = None) -> int:
        """Queue dead letters again, ready at once and as if never tried, None: all of them; returns how many.

        ``rate``: at most so many a second, None: as fast as it goes.  Cancelled or failed in the middle, the rest are
        still dead letters.  Raises as ``cancel`` does.
        """
        if rate is not None and not rate > 0:
            raise ConfigError(f"rate is {rate!r}, must be more than 0 items per second")
        revived = 0
        page = SEEN_AT_ONCE if rate is None else max(1, min(SEEN_AT_ONCE, round(rate / 10)))
        async for some in self._dead_pages(ids, page):
            self._check_open()
            decision = await self._replicas.decide("redrive", self.name, [0, *some])
            revived += len(decision.decided) + len(decision.carried)
            if rate is not None:
                await asyncio.sleep(len(some) / rate)
        return revived

    async def _dead_pages(self, ids: Sequence[str] | None, page: int = SEEN_AT_ONCE) -> AsyncGenerator[Sequence[str]]:
        """The ids of dead letters: those given that are some, or all."""
        if ids is None:
            ids = [item.id async for item in self.scan("dead")]
        else:
            found = [await self.get(id) for id in ids]
            ids = [item.id for item in found if item and item.state == "dead"]
        for start in range(0, len(ids), page):
            yield ids[start : start + page]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed()

    # -- closing, by the cluster ---------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Claim and push no more; end every ``pop``."""
        self._closed = True
        self._feed.close()
        self._puts.stop()

    async def aclose(self) -> None:
        """Hand back what is held, and wait for the calls that are under way."""
        await self._held.release_all()
        await asyncio.gather(self._puts.aclose(), self._held.aclose())

    def abandon(self) -> None:
        """Whoever still waits is told that the queue is closed."""
        self._held.stop()

    def lose_all(self, owner: str, reason: str) -> None:
        """Tell every handler that its claim under ``owner`` is lost."""
        self._held.lose_all(owner, reason)


class Deliveries(Generic[T]):
    """The claims of one consumer's loop; an async iterator, and a context manager for who leaves it early and wants
    what was claimed ahead to go back at once."""

    def __init__(self, feed: Feed[T], prefetch: int | None, limit: int | None, wait: bool) -> None:
        self._feed = feed
        self._prefetch = prefetch if limit is None else min(limit, prefetch or 0)
        self._left = limit
        self._wait = wait
        self._joined = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[T]:
        if not self._joined:
            self._joined = True
            self._feed.join(self._prefetch)
        claims: list[Claim[T]] = []
        if self._left != 0:
            with suppress(Closed):
                claims = await self._feed.take(1, patient=self._wait)
        if not claims:
            await self.aclose()
            raise StopAsyncIteration
        if self._left is not None:
            self._left -= 1
        return claims[0]

    async def aclose(self) -> None:
        """End the loop; idempotent."""
        self._left = 0
        self._leave()

    def _leave(self) -> None:
        if self._joined:
            self._joined = False
            self._feed.leave(self._prefetch)

    def __del__(self) -> None:
        # A loop that was left with `break` is noticed here.
        with suppress(Exception):
            self._leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _weigh(put: Put) -> int:
    return PUT_BYTES + len(put.payload)


def _delay_ms(delay: Duration | None, at: datetime | None) -> int:
    if delay is not None and at is not None:
        raise ConfigError("delay and at exclude each other")
    if at is not None:
        seconds = (check_moment("at", at) - datetime.now(UTC)).total_seconds()
        return round(check_duration("at", max(0.0, seconds)) * 1000)
    return 0 if delay is None else round(check_duration("delay", delay) * 1000)


def _first(errors: Sequence[ZkrqError]) -> ZkrqError:
    unknown = [error for error in errors if isinstance(error, OutcomeUnknown)]
    if not unknown:
        return errors[0]
    ids = tuple(id for error in unknown for id in error.ids)
    return OutcomeUnknown(f"{len(ids)} push(es) may have happened; push again with the same ids", ids=ids)
