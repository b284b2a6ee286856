"""Provide the queue for threads: push, pop, look, change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from zkrq.base.errors import Receipt, Receipts, ZkrqError
from zkrq.base.flows import Policy, name_of_flow
from zkrq.base.meant import unknown_method_of_queue
from zkrq.client import queue, results
from zkrq.sync.batch import Batch
from zkrq.sync.blocking import blocking, iterating, itself, passing_on, with_arguments_of
from zkrq.sync.claims import Claim, claim_of
from zkrq.sync.flow import Flow
from zkrq.sync.receipts import JoinedReceipts, join_errors

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.base.results import Result
    from zkrq.client.cluster import Cluster
    from zkrq.operations.push import PushOptions
    from zkrq.sync.portal import Portal

T = TypeVar("T")
R = TypeVar("R")
X = TypeVar("X")

TAKEN_AT_ONCE = 500
"""Items that ``push_many`` takes from a generator before it pushes them."""


class Queue(Generic[T]):
    """A named queue of items of type ``T``: ``zkrq.Queue`` for threads, with the same meanings and errors.

    If a call is interrupted, the same holds as if the asynchronous one were cancelled.

    Made by ``Cluster.queue``.  Any number of threads may use it at the same time.
    """

    def __init__(self, portal: Portal, name: str, find: Callable[[Cluster], queue.Queue[T]]) -> None:
        self._portal = portal
        self._find = find
        self.name = name

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} for threads>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unknown_method_of_queue(self, name)

    def _call(self, act: Callable[[queue.Queue[T]], Awaitable[R]]) -> R:
        return self._portal.call(lambda cluster: act(self._find(cluster)))

    def _inside(self, cluster: Cluster) -> queue.Queue[T]:
        return self._find(cluster)

    # -- push ----------------------------------------------------------------------------------------------------------

    push = blocking(queue.Queue[T].push)

    @passing_on(queue.Queue[T].push_many)
    def push_many(self, items: Iterable[T], **options: Any) -> Receipts:
        """Put many items into the queue, in order; return one receipt each.

        A generator runs in the calling thread, ``TAKEN_AT_ONCE`` items at a time, so it may use the database
        connection of that thread.  Otherwise as ``zkrq.Queue.push_many``.
        """

        is_ordered = False

        def push(some: Iterable[T]) -> Receipts:
            async def act(queue: queue.Queue[T]) -> Receipts:
                nonlocal is_ordered
                try:
                    return await queue.push_many(some, **options)
                finally:
                    is_ordered = queue._pusher.is_ordered  # pyright: ignore[reportPrivateUsage]

            return self._call(act)

        if issubclass(type(items), Sequence | Mapping):  # a mapping is refused there
            return push(items)
        receipts, errors = JoinedReceipts(), list[ZkrqError]()
        for some in _taken(items):
            try:
                receipts.add(push(iter(some)))
            except ZkrqError as error:
                errors.append(error)
                if error.outcomes is not None:
                    receipts.add(error.outcomes)
                if error.outcomes is None or len(error.outcomes) < len(some) or is_ordered:
                    break  # a bad item ends it; where the order is kept, any that was not pushed does
        if errors:
            error = join_errors(errors)
            error.outcomes = receipts
            raise error
        return receipts

    @with_arguments_of(queue.Queue[T].flow)
    def flow(self, name: str | None = None, **options: Any) -> Flow:
        """Return a flow whose home is this queue; see ``zkrq.Queue.flow``.  Raises ``ConfigError``."""
        named, policy = name_of_flow(self.name, name), Policy(**options)
        return Flow(self._portal, named, lambda cluster: queue.begin_flow(self._find(cluster), named, policy))

    # -- pop -----------------------------------------------------------------------------------------------------------

    pop = iterating(queue.Queue[T].pop, Claim[T], "Claim[T]")
    pop_batches = iterating(queue.Queue[T].pop_batches, Batch[T], "Batch[T]")

    def pop_one(self, *, timeout: Duration | None = None) -> Claim[T] | None:
        """Return one claim, or None after ``timeout`` seconds (None: wait forever; 0: take what is ready).

        If the call is interrupted, by Ctrl-C for instance, no item is claimed, or it comes back within
        ``claim_timeout``.  Raises ``Unavailable`` if no server answered within ``timeout``.
        """
        claims = self.pop_many(1, timeout=timeout)
        return claims[0] if claims else None

    def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[Claim[T]]:
        """Wait until items are ready; return at most ``n`` claims, ``[]`` after ``timeout`` seconds.

        Otherwise as ``pop_one``.
        """
        opened = self._portal.open()
        claims = opened.call(lambda: self._find(opened.cluster).pop_many(n, timeout=timeout))
        return [Claim(opened, claim) for claim in claims]

    def ack_many(self, claims: Iterable[Claim[T]], results: Iterable[object] | None = None) -> list[Claim[T]]:
        """Ack claims together; return those that were lost.  Raises as ``zkrq.Queue.ack_many`` does."""
        each = list(claims)
        given = {claim_of(claim): claim for claim in each}
        asked = list(map(claim_of, each))
        return [given[lost] for lost in self._call(lambda queue: queue.ack_many(asked, results))]

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Number of claims that this process holds, including those claimed ahead."""
        opened = self._portal.open()
        return opened.read(lambda: self._find(opened.cluster).held)

    size = blocking(queue.Queue[T].size)
    statistics = blocking(queue.Queue[T].statistics)
    limits = blocking(queue.Queue[T].limits)
    settings = blocking(queue.Queue[T].settings)
    get = blocking(queue.Queue[T].get)
    peek = blocking(queue.Queue[T].peek)
    history = blocking(queue.Queue[T].history)
    groups = blocking(queue.Queue[T].groups)
    figures = blocking(queue.Queue[T].figures)
    backlog = blocking(queue.Queue[T].backlog)
    dead_letters = blocking(queue.Queue[T].dead_letters)
    scan = iterating(queue.Queue[T].scan, itself, "Item[T]")
    find = iterating(queue.Queue[T].find, itself, "Item[T]")
    find_page = blocking(queue.Queue[T].find_page)

    # -- changing ------------------------------------------------------------------------------------------------------

    pause = blocking(queue.Queue[T].pause)
    resume = blocking(queue.Queue[T].resume)
    set_limits = blocking(queue.Queue[T].set_limits)
    set_groups = blocking(queue.Queue[T].set_groups)
    set_history = blocking(queue.Queue[T].set_history)
    set_max_size = blocking(queue.Queue[T].set_max_size)
    set_dead_letters = blocking(queue.Queue[T].set_dead_letters)
    set_results_ttl = blocking(queue.Queue[T].set_results_ttl)
    clear = blocking(queue.Queue[T].clear)
    delete = blocking(queue.Queue[T].delete)
    cancel = blocking(queue.Queue[T].cancel)
    cancel_many = blocking(queue.Queue[T].cancel_many)
    discard = blocking(queue.Queue[T].discard)
    redrive = blocking(queue.Queue[T].redrive)
    advance = blocking(queue.Queue[T].advance)
    edit = blocking(queue.Queue[T].edit)


class ResultReceipt(Receipt, Generic[R]):
    """The receipt of a push into a queue with results: ``receipt.result()`` waits for the item."""

    queue: ResultQueue[Any, R]

    def result(self, *, timeout: Duration | None = 10.0) -> Result[R]:
        """Wait until the item has ended; see ``ResultQueue.result``."""
        return self.queue.result(self.id, timeout=timeout)


class ResultQueue(Queue[T], Generic[T, R]):
    """A queue of items of type ``T`` whose handlers return results of type ``R``: ``zkrq.ResultQueue`` for threads."""

    def _call(self, act: Callable[[results.ResultQueue[T, R]], Awaitable[X]]) -> X:
        return self._portal.call(lambda cluster: act(cast("results.ResultQueue[T, R]", self._find(cluster))))

    def push(self, item: T, **options: Unpack[PushOptions]) -> ResultReceipt[R]:
        """Put one item into the queue, as ``Queue.push`` does.  The receipt can wait for the item's result."""
        receipt: ResultReceipt[R] = ResultReceipt(*super().push(item, **options))
        receipt.queue = self
        return receipt

    call = blocking(results.ResultQueue[T, R].call)
    result = blocking(results.ResultQueue[T, R].result)
    results = blocking(results.ResultQueue[T, R].results)


def find_of(blocking: Queue[T]) -> Callable[[Cluster], queue.Queue[T]]:
    """Return what finds the asynchronous queue in an open cluster, for internal use."""
    return blocking._find  # pyright: ignore[reportPrivateUsage]


def _taken(items: Iterable[T]) -> Iterator[list[T]]:
    """Divide items into lists.  If the generator of the items fails, those before are still pushed."""
    some: list[T] = []
    try:
        for item in items:
            some.append(item)
            if len(some) >= TAKEN_AT_ONCE:
                yield some
                some = []
    except Exception:
        if some:
            yield some
        raise
    if some:
        yield some
