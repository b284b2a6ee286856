"""Provide the queue that users see: push, pop, settle many, work."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from zkrq.base.checks import Duration, Headers, check_count, check_duration, check_items
from zkrq.base.errors import OutcomeUnknown, Receipt, Receipts
from zkrq.base.flows import KEEP, FlowName, Policy, name_of_flow
from zkrq.base.loop import running_loop
from zkrq.base.meant import NoOptions, options_of, unknown_method_of_queue, unknown_option
from zkrq.client.administration import Administration
from zkrq.consuming.batch import ack_together, check_batch, keep_results
from zkrq.consuming.claims import lease_of
from zkrq.consuming.deliveries import Batches, Deliveries
from zkrq.consuming.flow import Flow
from zkrq.consuming.lease import Verb
from zkrq.producing.options import read_options
from zkrq.protocol.levels import Feature
from zkrq.working.worker import work

if TYPE_CHECKING:
    from zkrq.client.parts import QueueParts
    from zkrq.consuming.claims import Claim
    from zkrq.operations.push import PushOptions
    from zkrq.working.delivery import After, Before
    from zkrq.working.handlers import Handler, Handlers

T = TypeVar("T")

POP_MANY_MAX = 1_000
"""Claims that one ``pop_many`` may ask for."""


class Queue(Administration[T]):
    """A named queue of items of type ``T``.  Made by ``Cluster.queue``; lives as long as the cluster is open."""

    def __init__(self, parts: QueueParts[T]) -> None:
        super().__init__(parts)
        self._own_loop = parts.context.own_loop
        self._pusher = parts.pusher
        self._observers = parts.pusher.observers
        self._declaration = parts.context.declaration

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} holding {self.held}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_method_of_queue(self, name)

    # -- push --------------------------------------------------------------------------------------------------------

    async def push(
        self,
        item: T,
        *,
        id: str | None = None,
        key: str | None = None,
        replace: bool = False,
        key_window: Duration | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        at_latest: Duration | None = None,
        priority: int = 0,
        ttl: Duration | None = None,
        headers: Headers | None = None,
        group: str | None = None,
        task: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Receipt:
        """Put one item into the queue.  When this returns, every in-sync server holds it.

        ``delay`` (seconds) or ``at`` (a moment): when the item may first be delivered, None: immediately.
        ``priority``: 0 to 9, higher first.  ``ttl``: seconds from now after which the item is no longer delivered,
        None: no limit; see ``DeadLetters``.  ``key``: while another item with this key is queued, scheduled or claimed,
        nothing is pushed and the receipt is a ``duplicate`` that names the other item; None: no such check.
        ``replace``: the item replaces queued and scheduled items with its key, which the receipt names as ``replaced``;
        it keeps their place in the queue unless it has a ``delay``.  ``at_latest``: seconds from the first push of
        those that replace one another after which the item is due, whatever delay the later ones have; None: no end.
        A claimed item with its key is not replaced, and both are delivered.  ``key_window``: seconds, 1 to 30 days,
        for which pushes with the same key and a window push nothing either, whatever becomes of this item; None: the
        key is free once the item is done or dead.  It excludes
        ``replace``.  ``id`` makes a push repeatable: pushed several times within 300 seconds under one id,
        the item exists once, and at most one receipt says that it is ``new``.  The receipt is ``done`` if the item was
        already removed; 600 seconds after its removal, the id can be used for a new item.  ``headers``: short texts
        beside the item, by name, for ``claim.headers``; None: none.  ``group``: the group of the item (a tenant, a
        user, a job), any text of 1 to 200 bytes.  Groups take turns, however many items each has; None: no group, but
        see ``Groups``.  ``task``: the name of the handler that the item is for, 1 to 100 letters, digits and
        ``_ . : -``, for workers that have several for one queue (``Worker.add``); None: no task.

        Raises ``OutcomeUnknown`` if the time ran out in the middle: the item may have been pushed, so push again with
        the same id.  The same holds if this call is cancelled.  ``QueueFull``, ``NotEnoughReplicas`` and
        ``Unavailable``: nothing happened, retry.  ``CodecError``, ``PayloadTooLarge``, ``ConfigError``: nothing was
        written.
        """
        if running_loop() is not self._own_loop.loop:
            raise self._own_loop.elsewhere()
        if unknown:
            raise unknown_option("push()", min(unknown), options_of(Queue[Any].push))
        if self._declaration and not self._declaration.is_done:
            await self._declaration.done()
        seen = None  # from here on as Observers.watch_push and Pusher.push, without their calls: each item comes here
        if self._observers.pushes:
            seen = self._observers.begin_push(self.name, item, id, headers)
            headers = seen.headers
        try:
            options = read_options(
                key=key,
                replace=replace,
                key_window=key_window,
                delay=delay,
                at=at,
                at_latest=at_latest,
                priority=priority,
                ttl=ttl,
                headers=headers,
                group=group,
                task=task,
            )
            call, pushed = self._pusher.begin(item, id, options)
            try:
                receipt = await pushed
            except OutcomeUnknown as error:
                error.ids = (call.id,)
                raise
        except BaseException as error:
            if seen:
                self._observers.end_push(seen, error)
            raise
        if seen:
            self._observers.end_push(seen, receipt)
        return receipt

    async def push_many(
        self,
        items: Iterable[T],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int = 0,
        ttl: Duration | None = None,
        headers: Headers | None = None,
        group: str | None = None,
        task: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Receipts:
        """Put many items into the queue, in order; return one receipt each.

        A list is encoded as a whole before the first item is written.  Items of a generator are taken and written about
        500 at a time, so a million items need little memory; it ends at the first bad item, and so do the ``outcomes``
        of the error.  If some items cannot be pushed, the others still are, and then the worst error is raised: its
        ``outcomes`` tell the result of each item, and the ``ids`` of an ``OutcomeUnknown`` name the items that may or
        may not have been pushed.  If the call is cancelled in the middle, the first items have been pushed.  Each batch
        of 500 items, or of a mebibyte, may take ``operation_timeout``.

        In a queue that keeps the order of its groups, batches leave one after the other, and none follows a batch that
        was not pushed whole: the ``outcomes`` of later items of a list are ``Unavailable``.  Those of a generator end
        there, although more of it may have been taken: push again from item ``len(outcomes)`` on.

        Raises as ``push`` does, ``ConfigError`` also for a mapping or a text in place of the items.
        """
        self._own_loop.check()
        if unknown:
            raise unknown_option("push_many()", min(unknown), options_of(Queue[Any].push_many))
        check_items(items)
        await self._parts.declared()

        def push(headers: Headers | None) -> Awaitable[Receipts]:
            options = read_options(
                delay=delay, at=at, priority=priority, ttl=ttl, headers=headers, group=group, task=task
            )
            return self._pusher.push_many(items, options)

        if self._observers.pushes:
            return await self._observers.watch_push(self.name, None, None, headers, push, is_many=True)
        return await push(headers)

    def flow(
        self,
        name: str | None = None,
        *,
        keep: Duration = KEEP,
        fail_fast: bool = False,
        ignore_missed: bool = False,
        deadline: Duration | None = None,
    ) -> Flow:
        """Return a flow whose home is this queue: items that belong together, and what comes after them; see ``Flow``.

        ``name``: 1 to 64 letters, digits and ``_ . : -``, for a flow that may be begun again, by a handler that is
        delivered again for instance; None: a name that is made here.  ``keep``: seconds, 1 to 30 days, for which its
        outcome is known after its end; until then, none of this name can be begun.  Raises ``ConfigError``.
        """
        policy = Policy(keep, fail_fast, ignore_missed, deadline)
        return begin_flow(self, name_of_flow(self.name, name), policy)

    # -- pop -----------------------------------------------------------------------------------------------------------

    def pop(self, *, prefetch: int | None = None, limit: int | None = None, wait: bool = True) -> Deliveries[T]:
        """Iterate over claims: ``async for claim in queue.pop()``.

        ``prefetch``: items claimed ahead for this loop.  None: as many as it recently took in a tenth of a second;
        those that it does not take within about a second go back to the queue.  If it is given, that many items stay
        claimed while a handler is slow, even if other consumers are idle; a handler that waits for one of them waits
        forever. ``limit``: end after this many claims, and claim no more.  ``wait=False``: end when nothing is ready.
        Otherwise the loop does not end while the cluster is open.  Items claimed ahead are handed back when the loop is
        left.
        """
        check_pop(prefetch, limit)
        return Deliveries([self._parts.line], prefetch, limit, wait, queues=(self,))

    def pop_batches(
        self,
        max_size: int = 100,
        *,
        within: Duration = 0.0,
        prefetch: int | None = None,
        limit: int | None = None,
        wait: bool = True,
    ) -> Batches[T]:
        """Iterate over batches of claims: ``async for batch in queue.pop_batches(100)``; see ``Batch``.

        ``max_size``: claims in a batch, 1 to 500; it has fewer if fewer are ready, but at least one.  ``within``:
        seconds that a batch waits for more after its first claim, 0 to 60; 0 (the default): it has what is ready.
        ``prefetch``, ``limit``: counted in items, and like ``wait`` as for ``pop``.  With ``prefetch`` None whole
        batches are claimed ahead at most.  If the loop is cancelled while a batch waits, its items go back uncounted.
        Raises ``ConfigError`` for bad arguments.
        """
        size, seconds = check_batch(max_size, within)
        check_pop(prefetch, limit)
        return Batches(self._parts.line, size, seconds, prefetch, limit, wait, queue=self)

    async def pop_one(self, *, timeout: Duration | None = None) -> Claim[T] | None:
        """Return one claim, or None after ``timeout`` seconds (None: wait forever; 0: take what is ready).

        Raises ``Unavailable`` if no server answered within ``timeout``.
        """
        claims = await self.pop_many(1, timeout=timeout)
        return claims[0] if claims else None

    async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[Claim[T]]:
        """Wait until items are ready; return at most ``n`` claims, ``[]`` after ``timeout`` seconds (see ``pop_one``).

        Fewer claims are returned if payloads are large, because one call claims about 1 MiB of them.
        Raises ``Unavailable`` if no server answered within ``timeout``.
        """
        check_count("n", n, least=1, most=POP_MANY_MAX)
        seconds = None if timeout is None else check_duration("timeout", timeout)
        return await self._parts.line.take(n, patient=seconds != 0, timeout=seconds or None)

    async def ack_many(self, claims: Iterable[Claim[T]], results: Iterable[object] | None = None) -> list[Claim[T]]:
        """Ack claims together, by one call; return those that were lost, ``[]`` if all are done.

        ``results``: one for each claim, if the queue has ``results``; None: none; see ``Batch.ack``.  Claims that were
        acked before are skipped.  Raises ``OutcomeUnknown`` or ``Unavailable`` if some may not be
        acked: call it again with the same claims.  The same holds if it is cancelled.
        """
        if results is not None:
            claims = list(claims)
            keep_results(list(map(lease_of, claims)), list(results))
        given = [claim for claim in dict.fromkeys(claims) if claim.settled is not Verb.ACK]
        await ack_together(map(lease_of, given))
        return [claim for claim in given if claim.settled is not Verb.ACK]

    async def work(
        self,
        handler: Handler[T] | Handlers[T],
        *,
        concurrency: int = 10,
        grace: Duration = 30.0,
        time_limit: Duration | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        """Call ``handler``, or the one of the item's task, for each item until this is cancelled or the cluster is
        closed; see ``Worker``."""
        self._own_loop.check()
        await work(
            self, handler, concurrency=concurrency, grace=grace, time_limit=time_limit, before=before, after=after
        )


def check_pop(prefetch: int | None, limit: int | None) -> None:
    """Check the arguments of ``pop``.  Raises ``ConfigError``."""
    if prefetch is not None:
        check_count("prefetch", prefetch, most=POP_MANY_MAX)
    if limit is not None:
        check_count("limit", limit)


def parts_of(queue: Queue[T]) -> QueueParts[T]:
    """Return the inside of a queue: for other modules of the library, not for users."""
    return queue._parts  # pyright: ignore[reportPrivateUsage]


def begin_flow(queue: Queue[Any], name: FlowName, policy: Policy) -> Flow:
    """Return a flow that is to be begun."""
    return Flow(parts_of(queue).context.flows, name, policy)


def encode_with(queue: Queue[T], item: T) -> bytes:
    """Encode an item as a push into this queue would.  Raises ``CodecError``, ``PayloadTooLarge``."""
    return parts_of(queue).pusher.encode(item)


async def push_encoded(
    queue: Queue[Any], payload: bytes, *, saved: bytes | None = None, **options: Unpack[PushOptions]
) -> Receipt:
    """Push an item that is encoded already, whatever codec this process has for the queue; otherwise as ``push``.

    ``saved``: all that was saved of the item before, as ``Item.saved_bytes`` has it, None: nothing.  Its deliveries are
    given that.  Raises ``ConfigError`` if there is some at a level that lacks saved states.
    """
    parts = parts_of(queue)
    parts.context.own_loop.check()
    if saved is not None:
        parts.everywhere.shards.placement.check(Feature.SAVES)
    await parts.declared()
    _, pushed = parts.pusher.begin(None, options.get("id"), read_options(**options), payload, saved)
    return await pushed
