"""Read a queue without claiming from it: count its items, look at them, follow its figures."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Generic, NamedTuple, TypeVar, get_args

from zkrq.checks import check_count, check_id
from zkrq.errors import ConfigError
from zkrq.flow import NO_FLOW, Flow
from zkrq.items import Item, ItemState, items_of
from zkrq.parts import QueueParts
from zkrq.protocol import calls
from zkrq.replication.replicas import Replicas

T = TypeVar("T")

SEEN_AT_ONCE = 500
"""Items that one call of a script reads, or removes by id."""

SCAN_PAGE = 100
"""Bundles that one call reads in a scan."""


class Sizes(NamedTuple):
    """Count the items of a queue: ready, scheduled for later, claimed, and dead letters.

    An item that has outlived its ``ttl`` is none of these, although it is stored until a consumer next asks for items.
    """

    ready: int
    scheduled: int
    claimed: int
    dead: int


class Statistics(NamedTuple):
    """Sum up a queue, as its primary knows it.

    ``oldest_ready``: seconds since the oldest ready item became due, None if no item is ready.
    ``keyed`` and ``expiring``: items that have a key, and items that have a time to live, over or not.
    ``tombstones``: bundles of items removed and still remembered, for ten minutes each.
    ``held``: claims of this process, including those claimed ahead.
    ``flow``: items that came and left; those of two looks tell what passed between them.
    """

    sizes: Sizes
    paused: bool
    oldest_ready: float | None
    keyed: int
    expiring: int
    tombstones: int
    held: int
    flow: Flow = NO_FLOW


class Inspection(Generic[T]):
    """Provide the part of a queue that only reads."""

    def __init__(self, parts: QueueParts[T]) -> None:
        """Make a queue for the client; users get queues from ``Cluster.queue``."""
        self.name = parts.name
        self.cluster = parts.leases.cluster
        """Name of the namespace."""
        self._parts = parts
        self._codec = parts.codec
        self._replicas = parts.replicas

    @property
    def held(self) -> int:
        """Number of claims that this process holds, including those claimed ahead."""
        return len(self._parts.leases)

    def _check_open(self) -> None:
        self._parts.check_open()

    async def size(self) -> Sizes:
        """Count the items by state, as the queue's primary does.  Raises ``Unavailable``."""
        self._check_open()
        counts = await self._replicas.ask(calls.Count(self.name))
        return Sizes(counts.ready, counts.scheduled, counts.claimed, counts.dead)

    async def statistics(self) -> Statistics:
        """Sum up the queue.  The cost does not grow with its items.  Raises ``Unavailable``."""
        self._check_open()
        return await read_statistics(self._replicas, self.name, self.held)

    async def get(self, id: str) -> Item[T] | None:
        """Look up one item; return None if no item has that id.  Raises ``Unavailable``."""
        self._check_open()
        bundle, position = calls.bundle_and_position(check_id("id", id))
        found, _ = await self._replicas.ask(calls.Read(self.name, [bundle]))
        items = (item for copied in found for item in items_of(copied, self._codec, [position]) if item.id == id)
        return next(items, None)

    async def peek(self, n: int = 10, state: ItemState = "ready") -> list[Item[T]]:
        """Return the first ``n`` items of one state, in their order.  Nothing changes.

        ``n`` is at most 500.  Fewer items are returned if they are large.  Raises ``Unavailable``.
        """
        self._check_open()
        check_count("n", n, least=1, most=SEEN_AT_ONCE)
        _check_state(state)
        places, (found, _) = await self._replicas.ask(calls.Peek(self.name, state, n))
        wanted: dict[bytes, list[int]] = {}
        for bundle, position in places:
            wanted.setdefault(bundle, []).append(position)
        known = {item.id: item for copied in found for item in items_of(copied, self._codec, wanted[copied.id])}
        ids = (id.decode() for id, _ in places)
        named = (calls.item_id(id, position) for id, (_, position) in zip(ids, places, strict=True))
        return [
            item
            for (bundle, _), id in zip(places, named, strict=True)
            if (item := known.get(id) or known.get(bundle.decode()))
        ]

    async def scan(self, state: ItemState | None = None) -> AsyncGenerator[Item[T]]:
        """Iterate over all items in no particular order, page by page; ``state``: only over those in that state.

        An item that exists during the whole scan is yielded at least once.  After a change of the primary the scan
        starts over, so items may be yielded twice.  Raises ``Unavailable``.
        """
        self._check_open()
        if state is not None:
            _check_state(state)
        async for (_, found, beyond), _ in self._replicas.pages(calls.Page(self.name, calls.START, SCAN_PAGE)):
            while True:
                for copied in found:
                    for item in items_of(copied, self._codec):
                        if state in (None, item.state):
                            yield item
                if not beyond:
                    break
                found, beyond = await self._replicas.ask(calls.Read(self.name, beyond))

    async def dead_letters(self, n: int = 100) -> list[Item[T]]:
        """Return the ``n`` oldest dead letters; see ``peek``.  Raises ``Unavailable``."""
        return await self.peek(n, "dead")


async def read_statistics(replicas: Replicas, queue: str, held: int) -> Statistics:
    """Read the statistics of a queue from its primary.  Raises ``Unavailable``."""
    while True:
        primary = replicas.primary(queue)
        told = await replicas.ask(calls.Statistics(queue))
        if replicas.primary(queue) == primary:  # otherwise another server may have answered
            break
    oldest = None if told.waited_ms < 0 else told.waited_ms / 1000
    sizes = Sizes(told.ready, told.scheduled, told.claimed, told.dead)
    flow = Flow(told.removed + told.expired + sum(sizes), told.removed, primary)
    return Statistics(sizes, bool(told.paused), oldest, told.keyed, told.expiring, told.tombstones, held, flow)


def _check_state(state: ItemState) -> None:
    if state not in get_args(ItemState):
        raise ConfigError(f"state is {state!r}, must be one of {', '.join(get_args(ItemState))}")
