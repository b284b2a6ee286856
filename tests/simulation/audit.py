"""The audit at the end of a seed: a newcomer takes all that is there, and then everything has to add up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tests.simulation.administering import resume
from tests.simulation.agreement import disagreements, leftovers
from tests.simulation.faults.covered import REPAIR
from tests.simulation.faults.shards import reshard_by
from tests.simulation.flow_book import FlowBook
from tests.simulation.flow_watch import FlowWatch
from tests.simulation.flowing import audit_flows
from tests.simulation.items import Item, Outcome
from tests.simulation.world import CALL_LIMIT, Client, Lane, World
from zkrq import Cancellation, Queue, Receipt
from zkrq import Item as QueuedItem
from zkrq.base import clock
from zkrq.client.inner import client_of
from zkrq.client.moments import from_ms, to_ms, walk
from zkrq.client.timetable import Key
from zkrq.protocol.shards import ShardState

CLOCKS_APART = 130.0
"""Seconds by which clocks of clients differ at most, which are set by a fault."""

MOMENTS_MAX = 10_000
"""More moments than a seed has."""

DRAIN_SECONDS = 700.0
"""Longer than an item whose push is still on its way is waited for, which is the longest wait that there is."""

REPAIR_SECONDS = 200.0
"""Within so long all servers are in sync again, once nothing goes wrong any more."""

REMOVE_SECONDS = 1_500.0
"""Within so long a shard is removed without force: ids are remembered for ten minutes, by clocks that differ."""

SCRUB_SECONDS = 1_000.0
"""Within so long a scrub has mended what operations without a certain end have left behind."""

MAX_AGE = timedelta(seconds=30.0)
"""Twice what any setting lets a dead letter grow."""

DAY = 86_400.0

MEMORY_SECONDS = 1_300.0
"""After this long nothing is remembered of what is gone: longer than tombstones live, by clocks that differ."""


async def audit(auditor: Client, flows: FlowBook | None = None, watch: FlowWatch | None = None) -> None:
    """A newcomer takes all that is there, and then everything has to add up."""
    world, found = auditor.world, auditor.world.found
    until = world.loop.now + REPAIR_SECONDS
    while not await auditor.open():
        if world.loop.now > until:
            found.violation("the namespace cannot be opened")
            return
        await asyncio.sleep(1.0)
    if world.plan:
        await _settle_shard(auditor)
    while REPAIR and not world.is_whole:
        if world.loop.now > until:
            found.violation(f"not repaired: {[view for _, view in world.views]} with {world.servers}")
            break
        await asyncio.sleep(1.0)
    audits = [_Audit(auditor, lane) for lane in world.lanes]
    if flows and watch:
        watch.begin_audit()
        await audit_flows(auditor, flows)
        watch.stop()
    for audit in audits:
        await audit.drain()
    for text in disagreements(world, scrubbed=False):
        found.violation(text)
    until = world.loop.now + SCRUB_SECONDS
    while REPAIR and (wrong := list(disagreements(world, scrubbed=True))):
        if world.loop.now > until:
            found.violation("; ".join(wrong))
            break
        found.counts["waited for a scrub"] += 1
        await asyncio.sleep(20.0)
    if world.plan and world.plan.leaves:
        await _remove_shard(auditor, audits)
    for audit in audits:
        await audit.check()
    for day in range(world.shape.days):
        await _another_day(world, first=day == 0)
        for audit in audits:
            await audit.use_ids_again(day)
    if world.shape.days:
        world.loop.skipped += world.found.leapt
        await asyncio.sleep(MEMORY_SECONDS)
        for text in leftovers(world):
            found.violation(text)
    await auditor.close()


async def _settle_shard(auditor: Client) -> None:
    """An operator brings to its end what others have begun, one way or the other."""
    shard = auditor.world.shards[-1]
    if shard.has_ended:
        await _insist(auditor, "remove shard")
    elif shard.state in (ShardState.JOINING, ShardState.CLOSED):
        call = auditor.world.chance_for("settling").choice(("add shard", "drain shard"))
        call = "add shard" if shard.state is ShardState.JOINING else call
        await _insist(auditor, call)


async def _remove_shard(auditor: Client, audits: Sequence[_Audit]) -> None:
    """The second shard is drained, and removed as soon as that is allowed without force: when nothing is there."""
    for audit in audits:
        await audit.discard_letters()
    if auditor.world.shards[-1].state is ShardState.OPEN:
        await _insist(auditor, "drain shard")
    if auditor.world.shards[-1].state is ShardState.DRAINING:
        await _insist(auditor, "remove shard", audits)


async def _insist(auditor: Client, call: str, audits: Sequence[_Audit] = ()) -> None:
    until = auditor.world.loop.now + REMOVE_SECONDS
    while not await reshard_by(auditor, call, force=False):
        if auditor.world.loop.now > until:
            auditor.world.found.violation(f"{call} does not end: {auditor.world.shards[-1].entry}")
            return
        await asyncio.sleep(30.0)
        for audit in audits:  # a scrub may have carried on a push that nobody finished
            await audit.drain()


async def _another_day(world: World, *, first: bool) -> None:
    """Time passes: the first time everything runs on, afterwards clocks go on while everything stands still."""
    if first:
        world.loop.skipped += world.found.leapt
        await asyncio.sleep(MEMORY_SECONDS)
    else:
        world.loop.skipped += DAY
        await asyncio.sleep(1.0)
    world.found.counts["days"] += 1


class _Audit:
    """What is left in one queue."""

    def __init__(self, auditor: Client, lane: Lane) -> None:
        self._auditor = auditor
        self._world = auditor.world
        self._lane = lane
        self._ledger = lane.ledger
        queue = auditor.queue(lane)
        assert queue is not None
        self._queue: Queue[Any] = queue
        self._drained: set[str] = set()

    async def check(self) -> None:
        """Everything was delivered, and nothing is left."""
        await self.drain()
        await self._check_moments()
        for item in self._ledger.missing(self._drained):
            self._ledger.violation(f"lost: {item.label} ({', '.join(item.ids) or 'never delivered'})")
        if (declared := self._lane.setting.declared_groups) and declared.settings:
            pass  # a group may be kept out of the line
        elif self._lane.setting.groups or self._lane.setting.all_grouped:
            self._ledger.check_turns()
        else:
            self._ledger.check_order()
        await self._check_letters()
        await self._check_history()
        await self._check_keys()

    async def _check_moments(self) -> None:
        """Each moment that is stored as done was pushed, or told as lost; and those are done in which all was away."""
        world, lane = self._world, self._lane
        if not lane.setting.every or world.rolling:
            return
        assert self._auditor.cluster
        client = client_of(self._auditor.cluster)
        entry = (await client.schedule_store.read()).entries.get(Key(lane.name, lane.schedule))
        progress = (await client.moment_store.read()).get(Key(lane.name, lane.schedule))
        if entry is None or entry.since is None:
            return
        done = entry.since if progress is None else from_ms(progress.done)
        if world.away_until is not None and lane.setting.max_size is None:  # a full queue may delay a moment
            until = world.away_until - timedelta(seconds=CLOCKS_APART)
            if done < until:
                self._ledger.violation(f"moments of a schedule are done until {done}, and not until {until}")
        moments, _ = walk(entry.schedule, to_ms(entry.since), to_ms(done), MOMENTS_MAX)
        self._ledger.check_moments(map(from_ms, moments))

    async def _check_history(self) -> None:
        """What the history says is what became of the items."""
        if self._lane.setting.history is None:
            return
        items = (await self._auditor.do("history", self._queue.history(), CALL_LIMIT)).value or []
        if len(items) > self._lane.setting.history * len(self._world.views):
            self._ledger.violation(f"a history of {len(items)} items, {self._lane.setting.history} are to be kept")
        by_id = {id: item for item in self._ledger.items.values() for id in item.ids}
        for ended in items:
            if item := by_id.get(ended.id):
                self._ledger.check_history(item, ended)

    async def _check_letters(self) -> None:
        """What was buried is a dead letter, and there are no more and no older ones than the queue is to keep."""
        ledger, policy = self._ledger, self._lane.setting.dead_letters
        oldest = MAX_AGE + timedelta(seconds=2 * self._world.shape.clocks + self._world.stepped)
        letters = (await self._auditor.do("scan", self._dead_letters(), 10 * CALL_LIMIT)).value or []
        found = {item.label for one in letters if (item := ledger.saw(one))}
        kept = ledger.letters()
        if policy and policy.max_count and len(letters) > policy.max_count * len(self._world.views):
            ledger.violation(f"too many dead letters: {len(letters)}, {policy.max_count} are to be kept")
        if policy and policy.max_age and any(one.died_at and clock.now() - one.died_at > oldest for one in letters):
            ledger.violation(f"old dead letters: {[one.died_at for one in letters]}, now it is {clock.now()}")
        if not self._lane.setting.drops_letters:
            for item in kept:
                if item.label not in found:
                    ledger.violation(f"lost: {item.label}, a dead letter")
        ledger.counts["dead letters in the end"] += len(letters)

    async def _dead_letters(self) -> list[QueuedItem[Any]]:
        """All of them: ``peek`` returns fewer where payloads are large."""
        return list({one.id: one async for one in self._queue.scan("dead")}.values())

    async def _check_keys(self) -> None:
        """Nothing is left: every key is free again, and there is room."""
        ledger, auditor, queue = self._ledger, self._auditor, self._queue
        statistics = (await auditor.do("statistics", queue.statistics(), CALL_LIMIT)).value
        if statistics and (statistics.keyed or statistics.expiring or statistics.paused):
            ledger.violation(f"not empty: {statistics}")
        for key in sorted({item.key for item in ledger.items.values()} - {""}):
            item = ledger.new_item(f"the last of {key}", key=key)
            push = ledger.begin_push(item)
            ended = await auditor.do("push", queue.push(item.label, key=key), CALL_LIMIT)
            if ended.outcome is not Outcome.DONE or ended.value is None or ended.value.duplicate:
                ledger.violation(f"not free: a push with {key} ended with {ended}")
                continue
            ledger.pushed(push, ended.value)
            found = (await auditor.do("cancel", queue.cancel(ended.value.id), CALL_LIMIT)).value
            if found is not Cancellation.REMOVED:
                ledger.violation(f"{found} instead of removed: {ended.value}")

    async def discard_letters(self) -> None:
        for item in self._ledger.items.values():
            self._ledger.discard(item)
        await self._auditor.do("discard", self._queue.discard(), CALL_LIMIT)

    async def use_ids_again(self, day: int) -> None:
        """What was removed long ago is forgotten: the same ids are as good as new; what was removed just now is not."""
        ledger = self._ledger
        again: list[Item] = []
        for id, before in ledger.gone_by_own_id()[:3]:
            item = ledger.use_again(id, f"{before.label} of day {day}")
            if await self._push(item, id):
                again.append(item)
        await self.drain()
        for item in again:
            if item.label not in self._drained:
                ledger.violation(f"lost: {item.label}, whose id was used before")
            elif not (receipt := await self._push_again(item)) or not receipt.done:
                ledger.violation(f"not remembered: {item.label} is acked, a push of its id returned {receipt}")
        ledger.counts["ids used again"] += len(again)
        await self.drain()

    async def _push(self, item: Item, id: str) -> bool:
        push = self._ledger.begin_push(item)
        ended = await self._auditor.do("push", self._queue.push(item.label, id=id), CALL_LIMIT)
        if ended.outcome is not Outcome.DONE or ended.value is None:
            self._ledger.violation(f"not pushed: {item.label} ended with {ended}")
            return False
        if ended.value.done:
            self._ledger.violation(f"remembered for too long: a push of {id} returned {ended.value}")
        self._ledger.pushed(push, ended.value)
        return True

    async def _push_again(self, item: Item) -> Receipt | None:
        (id,) = item.ids
        return (await self._auditor.do("push", self._queue.push(item.label, id=id), CALL_LIMIT)).value

    async def drain(self) -> None:
        """Take and ack until nothing is left."""
        world, auditor, queue = self._world, self._auditor, self._queue
        leapt = world.found.leapt
        until = world.loop.now + DRAIN_SECONDS + world.stepped - leapt
        while True:
            if self._lane.setting.pauses:  # again and again: a pause of unknown outcome may come late
                await resume(auditor, self._lane, queue)
            ended = await auditor.do("drain", queue.pop_many(100, timeout=2.0), 2.1)
            for claim in ended.value or ():
                item, holder = auditor.given(self._lane, claim)
                holder.settling = True
                begun_at = world.loop.now
                acked = await auditor.do("ack", claim.ack(), CALL_LIMIT)
                if acked.outcome is Outcome.DONE:
                    self._ledger.acked(item, begun_at)
                    self._drained.add(item.label)
            if not ended.value:
                sizes = (await auditor.do("size", queue.size(), CALL_LIMIT)).value
                if sizes is not None and sizes[:3] == (0, 0, 0):
                    return
                if world.loop.now > until and leapt:
                    # What was delayed by a clock that was wrong by far is late by as much.
                    world.loop.skipped += leapt
                    leapt, until = 0.0, until + DRAIN_SECONDS
                elif world.loop.now > until:
                    self._ledger.violation(f"stranded: {sizes}")
                    return
                await asyncio.sleep(5.0)
