"""Run a worker: claim items when there are slots for them, start their deliveries, and drain at the end.

::

    await emails.work(send, concurrency=32, grace=30)  # one queue

    worker = zkrq.Worker(concurrency=32)  # several queues share the slots
    worker.add(emails, send, weight=3).add(reports, render, weight=1)
    await worker.run()

Items are claimed when there is a slot for them, not ahead.  ``slots.py`` decides which queue gets a free slot,
``delivery.py`` what happens to a claimed item.

A slot is free when its handler has ended, and not only when the ack has returned.  So the request for the next item
leaves together with the ack, as one decision, and the next item is there when the ack is done.

A worker of several queues cannot reserve slots while it waits for an idle queue, because the others could not use them.
So it waits without slots, and items of an idle queue may be claimed while all slots are taken: at most its share, and
at least one.  They are handed back if no slot becomes free for ``HOLD_SECONDS``.

A batch occupies one slot, like an item, so each slot claims the items of one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import anyio

from zkrq.base.checks import Duration, check_count, check_duration, check_kind, in_seconds
from zkrq.base.errors import Closed, ConfigError, Unavailable, ZkrqError
from zkrq.base.events import shorten
from zkrq.base.log import Log
from zkrq.base.meant import names_options
from zkrq.base.tasks import on_loop, see_through, wait_ended
from zkrq.consuming.batch import check_batch
from zkrq.consuming.claims import Claim, lease_of
from zkrq.pool.settings import Processes
from zkrq.working.batches import BatchDelivery
from zkrq.working.delivery import After, Before, Delivery, Handling
from zkrq.working.handlers import (
    BatchHandler,
    Handler,
    Handlers,
    Read,
    by_task,
    name_of,
    read_batch_handler,
    read_handler,
    runs_in_thread,
    takes_claim,
)
from zkrq.working.outcomes import WorkerStatistics, add_up
from zkrq.working.slots import Share, Slots
from zkrq.working.tasks import UNKNOWN_AFTER, Refusing, Routes

if TYPE_CHECKING:
    from zkrq.base.retry import Retry
    from zkrq.pool.pool import Pool
    from zkrq.working.handlers import Task

T = TypeVar("T")

TAKE_MAX = 500
"""Greatest number of items claimed in one request."""

HOLD_SECONDS = 1.0
"""Seconds that a claimed item may wait for a slot."""

STOP_SECONDS = 10.0
"""Seconds that cancelled handlers have to end, and then the calls that hand items back."""

MAX_WEIGHT = 1e6


class Source(Protocol[T]):
    """The interface that a worker needs from a queue."""

    name: str

    async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[Claim[T]]: ...


class HandlerOptions(TypedDict, total=False):
    """Options of ``Worker.add`` for handlers of items and of batches; ``add`` says what they mean."""

    weight: float
    time_limit: Duration | None
    before: Before | None
    after: After | None


@dataclass(frozen=True, eq=False, slots=True)
class _Served:
    """One queue that the worker serves."""

    queue: Source[Any]
    handler: Callable[..., object] | Handlers[Any]
    """As it was given."""
    handling: Handling
    share: Share
    woken: asyncio.Event
    """Set when the queue was granted a slot."""
    routes: Routes | None = None
    """Handlings by task, None: there is one for all items."""
    size: int = 1
    """Items for one slot: those that the handler takes together, at most."""
    in_batches: bool = False
    """Whether the handler takes batches."""
    within: float = 0.0
    """Seconds that a batch waits for more items."""

    @property
    def most_slots(self) -> int:
        """Slots whose items are claimed in one request."""
        return max(1, TAKE_MAX // self.size)

    def slots_for(self, claims: Sequence[object]) -> int:
        """Return how many slots these claims occupy."""
        return -(-len(claims) // self.size)


class Worker:
    """Work on the items of one or more queues until it is cancelled.

    ``concurrency``: how many handlers run concurrently, over all queues: on one item each, or on one batch.  Once one
    has ended, and its ``after`` hook if it has one, the next may begin, even while the ack is in flight.  When
    cancelled, it stops claiming, gives running handlers ``grace`` seconds to finish (0: none), then cancels them and
    hands their items back immediately.  ``before`` and ``after`` are hooks for all queues, called for each item.  A
    hook may be ``async``; one that raises is logged and changes nothing.  ``pool``: run handlers in child processes,
    None: in this one.
    """

    @names_options("zkrq.Worker")
    def __init__(
        self,
        *,
        concurrency: int = 10,
        grace: Duration = 30.0,
        before: Before | None = None,
        after: After | None = None,
        pool: Processes | None = None,
    ) -> None:
        """Check the arguments.  Raises ``ConfigError``."""
        check_kind("pool", pool, Processes)
        self._slots = Slots(check_count("concurrency", concurrency, least=1))
        self.grace = check_duration("grace", grace)
        """Seconds that running handlers have to finish."""
        self._before = before
        self._after = after
        self._served: list[_Served] = []
        self._deliveries: dict[asyncio.Task[None], tuple[_Served, Delivery]] = {}
        self._started = 0
        self._cut_off = 0
        self._returns: set[asyncio.Task[None]] = set()
        self._limiter: anyio.CapacityLimiter | None = None
        self._task: asyncio.Task[None] | None = None
        self._pool = make_pool(pool, concurrency) if pool else None
        self._log = logging.getLogger("zkrq.working.worker")

    def __repr__(self) -> str:
        names = ", ".join(served.queue.name for served in self._served)
        running = sum(delivery.has_slot for _, delivery in self._deliveries.values())
        return f"<Worker of {names or 'nothing'}: {running} of {self._slots.count} running>"

    @overload
    def add(self, queue: Source[T], handler: Handler[T], **options: Unpack[HandlerOptions]) -> Self: ...

    @overload
    def add(
        self,
        queue: Source[T],
        handler: Handlers[T],
        *,
        unknown_after: Duration | None = UNKNOWN_AFTER,
        **options: Unpack[HandlerOptions],
    ) -> Self: ...

    @overload
    def add(
        self,
        queue: Source[T],
        handler: BatchHandler[T],
        *,
        batch: int,
        within: Duration = 0.0,
        **options: Unpack[HandlerOptions],
    ) -> Self: ...

    @names_options("Worker.add()")
    def add(
        self,
        queue: Source[T],
        handler: Handler[T] | Handlers[T] | BatchHandler[T],
        *,
        batch: int | None = None,
        within: Duration = 0.0,
        unknown_after: Duration | None = UNKNOWN_AFTER,
        weight: float = 1.0,
        time_limit: Duration | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> Self:
        """Serve one more queue.  Call this before the worker runs.

        ``handler(item)``, or ``handler(item, claim)`` if it has two parameters without a default.  When it returns, the
        item is acked.  An exception decides as in ``async with claim``: ``RetryLater``, ``Reject``, and for any other
        one, ``SystemExit`` included, the queue's retry policy.  A group of exceptions that are all ``Reject``, or all
        ``RetryLater``, counts as one.  The handler may also settle the claim itself.  An ack with an unknown outcome is
        repeated as long as the claim holds.

        A handler that is not ``async`` runs in a thread, which cannot be stopped from outside: see ``time_limit``.  In
        a worker with a ``pool`` each handler runs in a process, which finds it by its module and name, and can be
        stopped: SIGTERM raises ``CancelledError`` in it, SIGKILL follows.

        ``batch``: items that the handler takes together, 1 to 500, None: one item.  It is called as ``handler(items)``,
        or ``handler(items, batch)`` with a ``Batch`` for verdicts on single items: ``await batch[3].nack()``.  When it
        returns, all that it has not settled is acked by one call; an exception settles these as it would settle a
        single item, each by its own attempts.  A batch has at least one item, and is of this queue only; it occupies
        one slot and has one time limit, while hooks are called for each item and statistics count items.  ``within``:
        seconds that a batch waits for more after its first items, 0 to 60; 0: it has what is ready.

        A mapping of handlers by the names of tasks in place of the handler, ``{"welcome": send_welcome}``, gives each
        item to the handler of its ``task``; ``""`` is for items without one, and a ``Task`` has options of its own.  An
        item whose task is not in it goes back for other workers, and comes again after a delay of 1 s that grows to
        300 s.  That counts neither as a failure nor as a delivery; in an ordered group it holds the group.
        ``unknown_after``: seconds since its push after which it becomes a dead letter, a day unless it is given, None:
        never; not before this worker has refused it for an hour, or for as long as that if it is less.

        ``weight``: the queue's part of the slots, in proportion to those of the other queues. ``time_limit``: seconds
        that the handler may take for one item, None: no limit.  After that it is cancelled, and the item has failed.
        In a thread the item has failed too, but the thread and its slot stay occupied until the handler returns; the
        same holds when the claim is lost.  A handler that regularly calls ``anyio.from_thread.check_cancelled()`` is
        stopped there. ``before`` and ``after`` replace the worker's own hooks for this queue, None: keep them.

        Raises ``ConfigError`` for bad arguments, if a queue of this name is already served, or if the worker is
        running.
        """
        if self._limiter is not None:
            raise ConfigError("the worker is running: add queues before")
        if not hasattr(queue, "pop_many"):
            given = f"{queue!r}" if isinstance(queue, str) else type(queue).__name__
            wanted = f"cluster.queue({given})" if isinstance(queue, str) else "cluster.queue(name)"
            raise ConfigError(f"the first argument of add() is {given}, must be a queue: {wanted}")
        if any(served.queue.name == queue.name for served in self._served):
            raise ConfigError(f"the worker already serves a queue {queue.name!r}")
        if not 0 < weight <= MAX_WEIGHT:
            raise ConfigError(f"weight is {weight}, must be more than 0 and at most {MAX_WEIGHT:g}")
        limit = None if time_limit is None else check_duration("time_limit", time_limit, positive=True)
        size, seconds = check_batch(1 if batch is None else batch, within)
        if batch is None and seconds:
            raise ConfigError("within is for handlers of batches: give batch, too")
        in_batches, routes = batch is not None, None
        log = Log(self._log, {"cluster": getattr(queue, "cluster", None), "queue": queue.name})
        hooks = before or self._before, after or self._after
        if (handlers := by_task(handler)) is not None:
            if in_batches:
                raise ConfigError("a mapping of handlers gives each handler one item: leave batch out")
            unknown = _refusing(queue, handlers, unknown_after, log)
            _allow_deliveries(queue, handlers)
            handling = Handling(unknown, False, limit, *hooks, log, shorten([*map(repr, handlers)]))
            routes = _read_routes(handlers, handling, partial(self._read, queue))
        else:
            handler = cast("Handler[T] | BatchHandler[T]", handler)
            call, in_thread = self._read(queue, in_batches=in_batches)(handler)
            handling = Handling(call, in_thread, limit, *hooks, log, name_of(handler))
        woken = asyncio.Event()
        share = self._slots.add(weight, woken.set)
        self._served.append(_Served(queue, handler, handling, share, woken, routes, size, in_batches, seconds))
        return self

    def _read(self, queue: Source[Any], *, in_batches: bool = False, retry: Retry | None = None) -> Read:
        """Return what reads a handler of a queue.  ``retry``: the policy of its items, None: that of the queue."""
        if self._pool:
            return partial(_read_pooled, self._pool, queue, in_batches=in_batches, retry=retry)
        return read_batch_handler if in_batches else read_handler

    def statistics(self) -> WorkerStatistics:
        """Count running and ended deliveries since the worker was made."""
        by_queue = {served.queue.name: served.handling.tally.counts() for served in self._served}
        return add_up(by_queue, self._cut_off)

    def _use_processes(self, children: int) -> None:
        """Run handlers in this many child processes; call this before the worker runs.

        If it has a pool, the settings of that stay.  Raises ``ConfigError`` for handlers that cannot run in a process.
        """
        settings = self._pool.settings if self._pool else Processes()
        self._slots.count = children * settings.slots
        self._pool = make_pool(settings, self._slots.count)
        for n, served in enumerate(self._served):
            read = partial(self._read, served.queue, in_batches=served.in_batches)
            if (handlers := by_task(served.handler)) is not None:
                self._served[n] = replace(served, routes=_read_routes(handlers, served.handling, read))
            else:
                call, in_thread = read()(cast("Callable[..., object]", served.handler))
                self._served[n] = replace(served, handling=replace(served.handling, call=call, in_thread=in_thread))

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, *, burst: bool = False, grace: Duration | None = None) -> None:
        """Work until this is cancelled, or until the clusters of all queues are closed.

        ``burst``: return as soon as no item is ready in any of the queues and none is worked on here.  Scheduled items,
        such as failed ones that wait for their retry, are not waited for.  ``grace``: seconds instead of the worker's
        own, None: keep these.

        When cancelled, it drains: it stops claiming, running handlers get ``grace`` seconds and are then cancelled, and
        unfinished items are handed back immediately, without counting a failure.  A second cancellation ends the grace.
        A handler that does not end within ``STOP_SECONDS`` of being cancelled is abandoned and logged; its item is
        handed back too.  A thread cannot be stopped: its item is handed back, and the process lasts until it returns. A
        cancel scope of anyio cancels again and again, so there the drain is shielded and only ``grace`` bounds it.
        Raises ``ConfigError`` if there is no queue, or if the worker is already running; in a burst also
        ``Unavailable`` and ``ConfigError`` if a queue cannot be asked for items.
        """
        if not self._served:
            raise ConfigError("the worker has no queue: add one")
        if self._limiter is not None:
            raise ConfigError("the worker is already running")
        seconds = self.grace if grace is None else check_duration("grace", grace)
        self._limiter = anyio.CapacityLimiter(self._slots.count)
        try:
            async with self._pool.running() if self._pool else nullcontext():
                await self._run(burst, seconds)
        finally:
            self._limiter = None

    async def _run(self, burst: bool, grace: float) -> None:
        """Claim and deliver; when cancelled, drain."""
        self._tell_start(burst)
        self._tell_slots(self._slots.count)
        works = [self._burst()] if burst else [self._fetch(served) for served in self._served]
        fetchers = [asyncio.create_task(work, name=f"zkrq worker: fetcher {n}") for n, work in enumerate(works, 1)]
        try:
            done, _ = await asyncio.wait(fetchers, return_when=asyncio.FIRST_EXCEPTION)
            for fetcher in done:
                fetcher.result()
        finally:
            try:
                await self._drain(fetchers, grace)
            finally:
                self._tell_slots(-self._slots.count)

    def _tell_slots(self, count: int) -> None:
        """Have the client of each cluster say how many handlers this process runs at the same time."""
        for queue in {getattr(served.queue, "cluster", None): served.queue for served in self._served}.values():
            if add := getattr(queue, "_add_slots", None):
                add(count)

    def _tell_start(self, burst: bool) -> None:
        """Log what is worked on, in one line for each cluster."""
        for cluster in dict.fromkeys(getattr(served.queue, "cluster", None) for served in self._served):
            mine = [served for served in self._served if getattr(served.queue, "cluster", None) == cluster]
            text = "the worker %s: queues: %s; concurrency %d%s%s"
            begins = "begins a burst" if burst else "begins"
            names = ", ".join(f"{served.queue.name} ({served.handling.name})" for served in mine)
            known = [tell() for served in mine if (tell := getattr(served.queue, "_in_sync", None))]
            servers = next((f"; servers in sync: {text}" for text in known if text), "")
            where = f" in {self._pool.count} processes" if self._pool else ""
            self._log.info(text, begins, names, self._slots.count, where, servers, extra={"cluster": cluster})

    async def __aenter__(self) -> Self:
        """Run in the background."""
        if self._task is not None:
            raise ConfigError("the worker is already running")
        self._task = asyncio.create_task(self.run(), name="zkrq worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, as when ``run`` is cancelled."""
        task, self._task = self._task, None
        assert task is not None
        task.cancel()
        await see_through(task, cancelled=task.cancel)

    async def _drain(self, fetchers: Sequence[asyncio.Task[None]], grace: float) -> None:
        """Let running handlers finish within ``grace`` seconds, and hand back the other items."""
        cancelled: asyncio.CancelledError | None = None
        for fetcher in fetchers:
            fetcher.cancel()
        try:
            await wait_ended(fetchers, STOP_SECONDS)
            await wait_ended(self._deliveries, grace)
        except asyncio.CancelledError as again:
            cancelled = again
        self._cut_off += sum(delivery.entered for _, delivery in self._deliveries.values())
        for task in self._deliveries:
            task.cancel()
        try:
            await wait_ended(self._deliveries, STOP_SECONDS)
            self._abandon()
            await wait_ended(self._returns, STOP_SECONDS)
        except asyncio.CancelledError as again:
            cancelled = again
        if cancelled:
            raise cancelled

    def _abandon(self) -> None:
        """Hand back the items of handlers that did not end."""
        for task, (served, delivery) in self._deliveries.items():
            text = "the handler of %r did not end and is abandoned: %s"
            served.handling.log.error(text, delivery, task, extra={"item": delivery.claims[0].id})
            self._hand_back(served, [claim for claim in delivery.claims if claim.holds], begun=True)

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _fetch(self, served: _Served) -> None:
        """Claim from one queue until it is closed."""
        alone = len(self._served) == 1
        try:
            while True:
                try:
                    more = await self._ask(served, None if alone else 0)
                except (ConfigError, Unavailable):  # logged by the supplier; ``_listen`` waits until it is over
                    more = False
                if not more and not alone:
                    await self._listen(served)
        except Closed:
            pass
        finally:
            self._slots.leave(served.share)

    async def _burst(self) -> None:
        """Claim from all queues until a round that began with no item in work has found none.

        A handler may push into any of the queues, so they are asked again after the last item was done.
        """
        try:
            while True:
                idle, started = not self._deliveries, self._started
                async with asyncio.TaskGroup() as round:
                    for served in self._served:
                        round.create_task(self._exhaust(served))
                if idle and self._started == started:
                    return
                if self._deliveries:
                    await asyncio.wait(self._deliveries, return_when=asyncio.FIRST_COMPLETED)
        except ExceptionGroup as errors:  # of queues that were asked together; one says enough
            error = errors.exceptions[0]
            if not isinstance(error, Closed):
                raise error from errors

    async def _exhaust(self, served: _Served) -> None:
        """Claim from one queue until it has less than there are slots."""
        try:
            while await self._ask(served, 0):
                pass
        finally:
            self._slots.leave(served.share)

    async def _ask(self, served: _Served, timeout: float | None) -> bool:
        """Claim as many items as there are slots; return whether there may be more.

        The slots stay occupied until the answer arrives.  Raises as ``pop_many`` does.
        """
        self._slots.want(served.share, self._slots.count)
        count = await self._take_slots(served, served.most_slots)
        claims: list[Claim[Any]] = []
        is_full = False
        try:
            claims = await served.queue.pop_many(count * served.size, timeout=timeout)
            is_full = len(claims) == count * served.size
        finally:
            # A batch that is not full, and may wait for more, is the last one.
            waits = served.within > 0 and len(claims) % served.size
            last = claims[-waits:] if waits else []
            self._start_all(served, claims[: len(claims) - len(last)])
            if (used := served.slots_for(claims)) < count:
                self._slots.leave(served.share, count - used)
        if last:
            await self._complete(served, last)
        return is_full

    async def _complete(self, served: _Served, claims: list[Claim[Any]]) -> None:
        """Let a batch that has a slot wait for more items, and start it; cancelled, hand its items back."""
        try:
            await self._fill(served, claims)
        except BaseException:
            self._hand_back(served, claims, begun=False)
            self._slots.end(served.share)
            raise
        self._start_all(served, claims)

    async def _fill(self, served: _Served, claims: list[Claim[Any]]) -> None:
        """Add claims until the last batch is full, for the seconds that it may wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + served.within
        while (missing := -len(claims) % served.size) and (left := until - loop.time()) > 0:
            try:
                claims += await served.queue.pop_many(missing, timeout=left)
            except (ConfigError, Unavailable):
                return  # the items that are here are worked on; the next request meets the failure, if it lasts

    async def _listen(self, served: _Served) -> None:
        """Wait until an idle queue has items, without occupying slots for them."""
        while True:
            self._slots.leave(served.share)
            count = max(1, min(self._slots.whole_share(served.share), self._slots.free, served.most_slots))
            claims = await served.queue.pop_many(count * served.size)
            full = len(claims) == count * served.size
            try:
                await self._fill(served, claims)
                self._slots.want(served.share, served.slots_for(claims))
                async with asyncio.timeout(HOLD_SECONDS):
                    while claims:
                        slots = await self._take_slots(served, served.slots_for(claims))
                        some, claims = claims[: slots * served.size], claims[slots * served.size :]
                        self._start_all(served, some)
            except TimeoutError:
                full = True
            finally:
                self._hand_back(served, claims, begun=False)
            if full:
                return

    async def _take_slots(self, served: _Served, most: int) -> int:
        """Wait until slots are granted; return how many may be used now."""
        while not (count := self._slots.take(served.share, most)):
            served.woken.clear()
            await served.woken.wait()
        return count

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def _start_all(self, served: _Served, claims: Sequence[Claim[Any]]) -> None:
        """Start the deliveries of these claims, one for each slot."""
        for at in range(0, len(claims), served.size):
            self._start(served, claims[at : at + served.size])

    def _start(self, served: _Served, claims: Sequence[Claim[Any]]) -> None:
        kind = BatchDelivery if served.in_batches else Delivery
        handling = served.handling if served.routes is None else served.routes.of(claims[0])
        delivery = kind(handling, claims, self._limiter, lambda: self._handled(served, delivery))
        self._started += 1
        served.handling.tally.running += len(claims)
        task = asyncio.create_task(delivery.run(), name=f"zkrq worker: {served.queue.name} {claims[0].id}")
        self._deliveries[task] = served, delivery
        if not handling.in_thread and self._pool is None:
            on_loop[task] = handling.name
        task.add_done_callback(self._ended)

    def _handled(self, served: _Served, delivery: Delivery) -> None:
        """Free the slot of a handler that has ended, so that its outcome and the next request leave together.

        Not if a hook follows, which is the user's work like the handler, nor while as many outcomes as there are slots
        are being settled: if servers do not answer, the worker starts nothing further.
        """
        if served.handling.after is None and len(self._deliveries) < 2 * self._slots.count:
            self._free(served, delivery)

    def _free(self, served: _Served, delivery: Delivery) -> None:
        if delivery.has_slot:
            delivery.has_slot = False
            served.handling.tally.running -= len(delivery.claims)
            self._slots.end(served.share)

    def _ended(self, task: asyncio.Task[None]) -> None:
        served, delivery = self._deliveries.pop(task)
        on_loop.pop(task, None)
        self._free(served, delivery)  # before what may fail: a handler of logging is user code, too
        if not delivery.entered:
            self._hand_back(served, delivery.claims, begun=False)
        elif not task.cancelled() and (error := task.exception()) is not None:
            extra = {"item": delivery.claims[0].id}
            served.handling.log.error("%r: the worker failed", delivery, exc_info=error, extra=extra)

    def _hand_back(self, served: _Served, claims: Iterable[Claim[Any]], *, begun: bool) -> None:
        for claim in claims:
            if not begun:
                lease_of(claim).take_back()
            task = asyncio.create_task(_release(served, claim), name=f"zkrq worker: hand back to {served.queue.name}")
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)


async def work(
    queue: Source[T],
    handler: Handler[T] | Handlers[T],
    *,
    concurrency: int = 10,
    grace: Duration = 30.0,
    time_limit: Duration | None = None,
    before: Before | None = None,
    after: After | None = None,
) -> None:
    """Work on a queue's items until this is cancelled or the cluster is closed; see ``Worker``, ``add`` and ``run``."""
    worker = Worker(concurrency=concurrency, grace=grace, before=before, after=after)
    await worker.add(queue, handler, time_limit=time_limit).run()


def make_pool(settings: Processes, concurrency: int) -> Pool:
    """Return a pool of processes; what it needs is imported only now."""
    from zkrq.pool.pool import Pool

    return Pool(settings, concurrency)


def _read_routes(tasks: Mapping[str, Task[Any]], common: Handling, reading: Callable[..., Read]) -> Routes:
    """Return how the items of each task are handled.

    ``common``: what the handlings have in common; its ``call`` refuses items of other tasks.  ``reading``: returns what
    reads a handler whose items have a policy.  Raises ``ConfigError``.
    """
    handlings: dict[str, Handling] = {}
    for name, task in tasks.items():
        try:
            call, in_thread = reading(retry=task.retry)(task.handler)
        except ConfigError as error:
            raise ConfigError(f"task {name!r}: {error}") from error
        limit = common.time_limit if task.time_limit is None else in_seconds(task.time_limit)
        told, retry = name_of(task.handler), task.retry
        handlings[name] = replace(common, call=call, in_thread=in_thread, time_limit=limit, name=told, retry=retry)
    return Routes(handlings, common)


def _refusing(
    queue: Source[Any], handlers: Mapping[str, Task[Any]], unknown_after: Duration | None, log: Log
) -> Refusing:
    """Return what is called with items whose task has no handler.  Raises ``ConfigError``."""
    after = None if unknown_after is None else check_duration("unknown_after", unknown_after)

    def tell(task: str | None) -> None:
        if report := getattr(queue, "_tell_unknown_task", None):
            report(task, tuple(handlers))
        else:
            log.warning("no handler here for items of task %r: others may have one", task)

    return Refusing([*handlers], after, tell)


def _allow_deliveries(queue: Source[Any], handlers: Mapping[str, Task[Any]]) -> None:
    """Have servers bury an item that was never settled only after as many deliveries as any of the tasks allows."""
    if allow := getattr(queue, "_allow", None):
        for task in handlers.values():
            if task.retry:
                allow(task.retry)


def _read_pooled(
    pool: Pool, queue: Source[Any], handler: Callable[..., object], *, in_batches: bool, retry: Retry | None
) -> tuple[Callable[[Any], object], bool]:
    """Return a function that calls a handler with a claim, in a process, and that it needs no thread.

    Raises ``ConfigError``.
    """
    from zkrq.pool.setup import PooledHandler

    if in_batches:
        raise ConfigError("a worker with a pool gives each handler one item: leave batch out, or the pool")
    in_thread, wants_claim = runs_in_thread(handler), takes_claim(handler)
    undecoded = getattr(queue, "_undecoded", None)
    if undecoded is None:
        raise ConfigError(f"a worker with a pool takes queues of a cluster, not {type(queue).__name__}")
    pool.clusters.add(getattr(queue, "cluster", ""))
    pooled = PooledHandler(handler, wants_claim, not in_thread, queue.name, *undecoded())
    if retry:
        pooled = pooled._replace(per_step=retry.per_step)
    return pool.add(pooled, name_of(handler)), False


async def _release(served: _Served, claim: Claim[Any]) -> None:
    try:
        await claim.release()
    except ZkrqError as error:
        text = "item %s could not be handed back, it comes back by itself: %s"
        served.handling.log.info(text, claim.id, error, extra={"item": claim.id})
