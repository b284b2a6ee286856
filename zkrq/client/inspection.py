"""Read a queue without claiming from it: count its items, look at them, follow its figures."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from zkrq.base import clock
from zkrq.base.checks import MAX_GROUPS, check_count, check_group, check_id
from zkrq.base.errors import ConfigError
from zkrq.base.events import TaskUnknown
from zkrq.base.limits import HISTORY_MAX, DeadLetters, Groups, History, Limits, QueueSettings, ResultTtl, Size
from zkrq.base.periods import MINUTE
from zkrq.base.tasks import together
from zkrq.client.backlog import LOOK_BACK_SECONDS, Backlog, stored_backlog
from zkrq.client.figures import read_figures
from zkrq.client.groups import LargestGroups, add_groups, read_groups
from zkrq.client.history import read_history
from zkrq.client.items import Codecs, EndedItem, Item, ItemState, items_of
from zkrq.client.reports import read_all_progress, read_progress
from zkrq.client.throughput import NO_THROUGHPUT, Throughput
from zkrq.operations.states import STATE
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.base.checks import Duration
    from zkrq.base.codecs import Codec
    from zkrq.base.limits import Results
    from zkrq.base.retry import Retry
    from zkrq.client.figures import Figures
    from zkrq.client.parts import QueueParts
    from zkrq.client.shard import Shard
    from zkrq.client.shards import Shards, ShardStatus
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")
X = TypeVar("X")

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
    """Sum up a queue, as its primaries know it: one in each shard.

    ``oldest_ready``: seconds since the oldest ready item became due, or since the first group in line waits for its
    turn; None if no item is ready.
    ``keyed`` and ``expiring``: items that have a key, and items that have a time to live, over or not.
    ``tombstones``: bundles of items removed and still remembered, for ten minutes each.
    ``held``: claims of this process, including those claimed ahead.
    ``flow``: items that came and left; those of two looks tell what passed between them.
    ``away``: shards that could not be asked, and are not in these figures.
    ``deleted``: whether the queue was deleted, and no item has come since.
    ``limits``: those that hold now.  ``claimable_in``: seconds until they let another claim begin: 0: now; None: when a
    claim ends.
    ``groups``: groups with items that are ready or claimed, a group on several shards once for each.  Of these
    ``groups_in_line`` wait for their turn, and ``groups_blocked`` for the end of a claim, or for their
    rate; ``group_limits``: those of each group.  ``history``: how many of the
    items that have ended last are kept.  ``damaged``: entries that no server could read and that are set aside
    (``zkrq damaged``); the items in them are counted nowhere else.  ``max_size``: how many items the queue may have,
    queued, scheduled and claimed; None: any number.  ``dead_letters``: how many are kept and for how long.
    ``results_ttl``: seconds for which results are kept; None: as each program says.  ``paused_until``: the moment at
    which the pause ends by itself; None: it is not paused, or until ``resume``.
    """

    sizes: Sizes
    paused: bool
    oldest_ready: float | None
    keyed: int
    expiring: int
    tombstones: int
    held: int
    flow: Throughput = NO_THROUGHPUT
    away: tuple[str, ...] = ()
    deleted: bool = False
    groups: int = 0
    groups_in_line: int = 0
    groups_blocked: int = 0
    group_limits: Groups = Groups()
    limits: Limits = Limits()
    claimable_in: float | None = 0.0
    history: int = 0
    damaged: int = 0
    max_size: int | None = None
    dead_letters: DeadLetters = DeadLetters()
    results_ttl: float | None = None
    paused_until: datetime | None = None

    @property
    def settings(self) -> QueueSettings:
        """What the queue promises, together."""
        return QueueSettings(
            self.limits, self.group_limits, self.history, self.max_size, self.dead_letters, self.results_ttl
        )

    @property
    def pause(self) -> str:
        """Say for people that the queue is paused, and until when; empty if it is not."""
        if not self.paused:
            return ""
        return f"paused until {self.paused_until:%Y-%m-%d %H:%M:%S} UTC" if self.paused_until else "paused"

    @property
    def limited(self) -> str | None:
        """Say for people which limit keeps items from being claimed now; None: none does."""
        if self.claimable_in is None:
            return f"limited: {self.sizes.claimed:,} of {self.limits.concurrency or 0:,} claimed"
        if self.claimable_in and self.limits.rate:
            count, seconds = self.limits.rate
            return f"limited: {count:,} claims in {seconds:g} s, the next in {self.claimable_in:.1f} s"
        return None


class Inspection(Generic[T]):
    """Provide the part of a queue that only reads."""

    def __init__(self, parts: QueueParts[T]) -> None:
        """Make a queue for the client; users get queues from ``Cluster.queue``."""
        self.name = parts.name
        self.cluster = parts.context.cluster
        """Name of the namespace."""
        self._parts = parts
        self._codecs = Codecs(parts.codec, parts.context.saved_codec)
        self._everywhere = parts.everywhere

    @property
    def held(self) -> int:
        """Number of claims that this process holds, including those claimed ahead."""
        return self._parts.held

    async def size(self) -> Sizes:
        """Count the items by state, as the queue's primary does.  Raises ``Unavailable``."""
        self._parts.check_open()
        counts = await self._everywhere.each(lambda replicas: replicas.ask(calls.Count(self.name)))
        return Sizes(*map(sum, zip(*((of.ready, of.scheduled, of.claimed, of.dead) for of in counts), strict=True)))

    async def statistics(self) -> Statistics:
        """Sum up the queue.  The cost does not grow with its items.

        Shards that are away are left out, and named in ``away``.  Raises ``Unavailable``.
        """
        self._parts.check_open()
        return await read_all_statistics(self._everywhere.shards, self.name, self.held)

    async def limits(self) -> Limits:
        """Return the present limits of the queue, from whichever program.  Raises ``Unavailable``."""
        return (await self.statistics()).limits

    async def settings(self) -> QueueSettings:
        """Return what the queue promises: its limits, order, history, size, dead letters and results, whoever
        has declared them.

        Raises ``Unavailable``.
        """
        return (await self.statistics()).settings

    async def get(self, id: str) -> Item[T] | None:
        """Look up one item; return None if no item has that id.  Raises ``Unavailable``."""
        check_id("id", id)
        self._parts.check_open()
        return await self._first(id, lambda shard: self._get(id, shard.replicas))

    async def _first(self, id: str, ask: Callable[[Shard], Awaitable[X | None]]) -> X | None:
        """Ask the shards that may have an item, one after the other; return the first answer that is true."""
        known: set[Shard] = set()
        while shards := await self._everywhere.further(known, [id]):
            for shard in shards:
                if self._everywhere.may_have(shard, id):
                    async with self._everywhere.unless_removed(shard):
                        if found := await ask(shard):
                            return found
        home = await self._everywhere.came_to(self.name, [id])
        return await ask(home) if home else None

    async def _get(self, id: str, replicas: Replicas) -> Item[T] | None:
        """Look up an item on one shard."""
        places = calls.stored_at(id)
        for copied in (await replicas.ask(calls.Read(self.name, list(places)))).items:
            for item in items_of(copied, self._codecs, [places[copied.id.decode()]]):
                if item.id == id:
                    return await self._with_progress(item, replicas) if item.state == "claimed" else item
        return None

    async def _with_progress(self, item: Item[T], replicas: Replicas) -> Item[T]:
        report = await read_progress(self.name, item.id, replicas)
        return item if report is None else replace(item, progress=report)

    async def peek(self, n: int = 10, state: ItemState = "ready", *, group: str | None = None) -> list[Item[T]]:
        """Return the first ``n`` items of one state, in their order.  Nothing changes.

        ``n`` is at most 500.  Fewer items are returned if they are large.  Of ready items, the first of each group come
        first.  ``group``: only the ready items of this group, None: of all.  Raises ``ConfigError``, ``Unavailable``.
        """
        if group is not None and state != "ready":
            raise ConfigError(f"state is {state!r}: of one group only the ready items are listed; use scan()")
        check_count("n", n, least=1, most=SEEN_AT_ONCE)
        STATE.check("state", state)
        self._parts.check_open()
        only = calls.only_of(None if group is None else check_group("group", group))
        found = await self._everywhere.each(lambda replicas: self._peek(replicas, n, state, only))
        return found[0] if len(found) == 1 else list(heapq.merge(*found, key=_ORDER[state]))[:n]

    async def _peek(self, replicas: Replicas, n: int, state: ItemState, only: str = "") -> list[Item[T]]:
        """Return the first items of one shard."""
        places, (found, _) = await replicas.ask(calls.Peek(self.name, state, n, only))
        wanted: dict[bytes, list[int]] = {}
        for bundle, position in places:
            wanted.setdefault(bundle, []).append(position)
        known = {item.id: item for copied in found for item in items_of(copied, self._codecs, wanted[copied.id])}
        if state == "claimed" and known:
            reports = await read_all_progress(self.name, list(known), replicas)
            known = {id: replace(item, progress=reports.get(id)) for id, item in known.items()}
        ids = (id.decode() for id, _ in places)
        named = (calls.item_id(id, position) for id, (_, position) in zip(ids, places, strict=True))
        return [
            item
            for (bundle, _), id in zip(places, named, strict=True)
            if (item := known.get(id) or known.get(bundle.decode()))
        ]

    async def history(self, n: int = 100) -> list[EndedItem]:
        """Return the ``n`` items that have ended last, done, dead, cancelled or expired, the latest first.

        As many are known as the option ``history`` of ``Cluster.queue`` says, or ``set_history``: none by default.
        Like ``peek`` it tells what the queue's primary knows; ``result`` tells what every server does.  A dead letter
        that was redriven has not ended.  ``n`` is at most 10,000.  Raises ``ConfigError``, ``Unavailable``.
        """
        check_count("n", n, least=1, most=HISTORY_MAX)
        self._parts.check_open()
        found = await self._everywhere.each(lambda replicas: read_history(self.name, n, replicas))
        return found[0] if len(found) == 1 else sorted(itertools.chain(*found), key=_ended, reverse=True)[:n]

    async def groups(self, n: int = 10) -> LargestGroups:
        """Return the ``n`` groups with the most items that wait or are claimed, the largest first.

        At most 10,000 groups of a shard are looked at, some hundred in each call.  ``n`` is at most 100.  Raises
        ``ConfigError``, ``Unavailable``.
        """
        check_count("n", n, least=1, most=MAX_GROUPS)
        self._parts.check_open()
        return add_groups(await self._everywhere.each(lambda replicas: read_groups(self.name, n, replicas)), n)

    async def figures(self, since: Duration = 3600.0, step: Duration | None = None) -> list[Figures]:
        """Return what handlers did with the items in the last ``since`` seconds, at most 35 days: how many were done
        and failed, how long they waited and took.  The oldest first, one record for every ``step`` seconds.

        ``step``: a multiple of 60 for the last 26 hours, of 3600 for more; None: 60, or 3600.
        Each process reports every ten seconds what its workers, and other consumers, have done; what it did since its
        last report is lost if it dies.  Raises ``ConfigError``, ``Unavailable``.
        """
        self._parts.check_open()
        return await read_figures(self.name, self._everywhere, since, step)

    async def backlog(self) -> Backlog:
        """Tell how many items are ready, whether they grow or shrink, and when none is left.

        It is told from the figures of the last ten minutes, so nobody need have looked before; below level 2, which has
        none, only the number is known.  Raises ``Unavailable``.
        """
        ready = (await self.size()).ready
        found: Sequence[Figures] = ()
        with suppress(ConfigError):  # the level has no figures
            found = await self.figures(LOOK_BACK_SECONDS, MINUTE)
        return stored_backlog(found, clock.now_ms() / 1000, ready)

    async def scan(self, state: ItemState | None = None, *, group: str | None = None) -> AsyncGenerator[Item[T]]:
        """Iterate over all items in no particular order, page by page; ``state``: only over those in that state;
        ``group``: only over those of that group.

        An item that exists during the whole scan is yielded at least once.  After a change of the primary the scan
        starts over, so items may be yielded twice.  Raises ``Unavailable``.
        """
        if state is not None:
            STATE.check("state", state)
        if group is not None:
            check_group("group", group)
        self._parts.check_open()
        known: set[Shard] = set()
        while shards := await self._everywhere.further(known):
            for shard in shards:
                async with self._everywhere.unless_removed(shard):
                    async for item in self._scan(shard.replicas):
                        if state in (None, item.state) and group in (None, item.group):
                            yield item

    async def _scan(self, replicas: Replicas) -> AsyncGenerator[Item[T]]:
        """Iterate over all items of one shard."""
        async for (_, found, beyond, _), _ in replicas.pages(calls.Page(self.name, calls.START, SCAN_PAGE)):
            while True:
                for copied in found:
                    for item in items_of(copied, self._codecs):
                        yield item
                if not beyond:
                    break
                found, beyond, _ = await replicas.ask(calls.Read(self.name, beyond))

    def _add_slots(self, count: int) -> None:
        """Note that a worker with this many slots begins to serve the queue; negative: that it ends."""
        self._parts.context.identity.add_slots(count)

    def _tell_unknown_task(self, task: str | None, known: Sequence[str]) -> None:
        """Report that a worker of this process has no handler for a task."""
        context = self._parts.context
        context.events.tell(TaskUnknown(context.cluster, self.name, task or "", tuple(known)), logging.WARNING)

    def _allow(self, retry: Retry) -> None:
        """Note that a worker of this process decides about some of the items by this policy."""
        self._parts.context.deliveries.allow(retry)

    def _undecoded(self) -> tuple[Codec[T], Results[Any] | None, Codec[Any], bool, float]:
        """Decode no item before it is asked for; return what decodes items, how results and saved states are kept,
        whether a save begins the attempts anew, and the time of a claim."""
        self._parts.line.decodes = False
        context = self._parts.context
        settings = context.settings
        return self._parts.codec, settings.results, context.saved_codec, context.retry.per_step, settings.claim_timeout

    def _in_sync(self) -> str:
        """Say which servers the queue is on, as far as its client knows, for the line that a worker logs."""
        views = [shard.view for shard in self._everywhere.shards.open.values()]
        members = [id for view in views for id in view.members]
        return f"{', '.join(members)} ({len(members)} of {sum(len(view.servers) for view in views)})"

    async def dead_letters(self, n: int = 100) -> list[Item[T]]:
        """Return the ``n`` oldest dead letters; see ``peek``.  Raises ``Unavailable``."""
        return await self.peek(n, "dead")


def _ended(item: EndedItem) -> datetime:
    return item.ended_at


def _due(item: Item[Any]) -> tuple[int, datetime]:
    return -item.priority, item.pushed_at


_ORDER: Mapping[ItemState, Callable[[Item[Any]], Any]] = {
    "ready": _due,
    "scheduled": lambda item: item.seconds_left or 0.0,  # None: it is due, and stays scheduled until the next claim
    "claimed": lambda item: item.seconds_left,
    "dead": lambda item: item.died_at,
}
"""By which the items of several shards, each in its order, are merged."""


async def read_all_statistics(shards: Shards, queue: str, held: int) -> Statistics:
    """Read the statistics of a queue from its primaries.  Raises ``Unavailable`` if no shard can be asked."""
    here, away = shards.reachable()
    here = sorted(here, key=lambda shard: shard is not shards.first)
    found = await together(read_statistics(shard.replicas, queue) for shard in here)
    return _add_statistics(found)._replace(held=held, away=away)


def shards_left_out(figures: Iterable[Statistics], shards: Mapping[str, ShardStatus]) -> list[str]:
    """Return the shards whose items are not in these figures, sorted."""
    away = {name for name, shard in shards.items() if shard.away and len(shards) > 1}
    return sorted(away.union(*(each.away for each in figures)))


def _add_statistics(found: Sequence[Statistics]) -> Statistics:
    """Add up the statistics of a queue in several shards.

    ``found``: of the first shard first, whose limits are told if no shard has items.
    """
    if len(found) == 1:
        return found[0]
    home = max(found, key=lambda each: each.sizes)
    waits = [each.oldest_ready for each in found if each.oldest_ready is not None]
    pushed, removed = sum(each.flow.pushed for each in found), sum(each.flow.removed for each in found)
    return Statistics(
        Sizes(*map(sum, zip(*(each.sizes for each in found), strict=True))),
        any(each.paused for each in found),
        max(waits, default=None),
        sum(each.keyed for each in found),
        sum(each.expiring for each in found),
        sum(each.tombstones for each in found),
        0,
        Throughput(pushed, removed, ",".join(each.flow.server for each in found)),
        deleted=any(each.deleted for each in found) and not pushed and not any(each.paused for each in found),
        groups=sum(each.groups for each in found),
        groups_in_line=sum(each.groups_in_line for each in found),
        groups_blocked=sum(each.groups_blocked for each in found),
        # Every shard has the same limits, and only the home of the queue has claims to count.
        limits=home.limits,
        group_limits=home.group_limits,
        claimable_in=max((each.claimable_in for each in found), key=lambda wait: math.inf if wait is None else wait),
        history=home.history,
        max_size=home.max_size,
        dead_letters=home.dead_letters,
        results_ttl=home.results_ttl,
        damaged=sum(each.damaged for each in found),
        paused_until=max((each.paused_until for each in found if each.paused_until), default=None),
    )


async def read_statistics(replicas: Replicas, queue: str) -> Statistics:
    """Read the statistics of a queue in one shard, without this process' claims.  Raises ``Unavailable``."""
    while True:
        primary = replicas.primary(queue)
        told = await replicas.ask(calls.Statistics(queue))
        if replicas.primary(queue) == primary:  # otherwise another server may have answered
            break
    oldest = None if told.waited_ms < 0 else told.waited_ms / 1000
    limits = told.limits.decode(errors="replace")
    sizes = Sizes(told.ready, told.scheduled, told.claimed, told.dead)
    flow = Throughput(told.removed + told.expired + sum(sizes), told.removed, primary)
    return Statistics(
        sizes,
        bool(told.paused),
        oldest,
        told.keyed,
        told.expiring,
        told.tombstones,
        0,
        flow,
        deleted=bool(told.deleted),
        limits=Limits.read(limits),
        claimable_in=None if told.claim_ms < 0 else told.claim_ms / 1000,
        groups=told.groups,
        groups_in_line=told.in_line,
        groups_blocked=told.blocked,
        group_limits=Groups.read(limits),
        history=History.read(limits).count,
        max_size=Size.read(limits).max,
        dead_letters=DeadLetters.read(limits),
        results_ttl=ResultTtl.read(limits).in_seconds,
        damaged=told.set_aside,
        paused_until=clock.at_ms(told.paused_until_ms) if told.paused_until_ms else None,
    )
