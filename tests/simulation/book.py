"""Record every promise, before the operation that makes it begins.

So the operations of a killed client are known to be open.  Items are identified by a label in their payload, because
a cancelled producer never learns an id.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tests.simulation.ensemble import SimHub
from tests.simulation.findings import Findings
from tests.simulation.items import (
    ACK_SECONDS,
    EARLY_SECONDS,
    LONGEST_LEASE,
    RESULT_SECONDS,
    Begun,
    Holder,
    Item,
    Outcome,
    Pauses,
    Push,
    Request,
    Standing,
    label_at,
)
from tests.simulation.loop import WORLD, Loop, State
from tests.simulation.trace import Trace
from zkrq import EndedItem, Groups, Limits, QueueFull, Receipt, Result, ResultState
from zkrq.client.items import Item as SeenItem
from zkrq.client.moments import key_of
from zkrq.consuming.claims import lease_of

TOLD_SECONDS = 1.0
"""A holder that hears of a cancel at once does so within this."""

OVER = (ResultState.DONE, "none"), (ResultState.DONE, "lost")
"""What callers are told of an item whose result has expired by a clock that is at least minutes ahead."""


class Book:
    """Record what was promised of one queue: its items, their pushes, removals and results."""

    def __init__(
        self, loop: Loop, hub: SimHub, trace: Trace, found: Findings, *, max_size: int | None, sharded: bool = False
    ) -> None:
        self.open_clears = 0
        """Calls of clear that were left in the middle: until a scrub the primary alone may know what is gone."""
        self.deletions = 0
        """Calls of delete that were begun: servers may remember different removals then."""
        self.open_deletions = 0
        """Those that may still remove what is pushed now."""
        self._replacing: list[Push] = []
        """Pushes in the place of others that may be executed yet."""
        self.open_redrives = 0
        self.open_discards = 0
        self.discards_begun = 0
        """Such calls that may happen yet: to what dies meanwhile as well."""
        self.schedule, self.has_keyed_moments = "", False
        """The schedule that pushes into it, and whether each of its items has a key."""
        self.moments_lost = set[datetime]()
        """Moments of the schedule that were told as lost."""
        self.items: dict[str, Item] = {}
        self.by_id: dict[str, Item] = {}
        self.found = found
        self.counts = found.counts
        self.violation = found.violation
        self.pauses = Pauses(loop)
        self.excess = 0
        """By how many items the queue may be larger than ``max_size``: what was redriven, and what was being pushed or
        removed when something else happened to it than its caller was told."""
        self.limits = Limits()
        """Those that every client declares before its first claim."""
        self.groups = Groups()
        """What every client declares of groups."""
        self.ordered = False
        """Whether groups keep the order of their pushes."""
        self.tokens: dict[str, tuple[int, int]] = {}
        """The greatest fencing token of each group that keeps the order."""
        self.default_group: str | None = None
        """That of items that are pushed without one."""
        self.declared_at = math.inf
        """Since when the settings of the queue are declared.  What was pushed before has no place in an order, and no
        group here; what was asked for before is within no limit."""
        self.from_before = set[str]()
        """Labels of the items whose pushes had begun then: they may be more than the queue's size."""
        self.begun: dict[tuple[str, int | None, str | None], dict[str, Begun]] = {}
        """By the view's register, its epoch, in which one server counts (None: all epochs), and group (None: all): the
        requests that were given something."""
        self.requests: list[Request] = []
        self.asked_at: dict[tuple[str, str], float] = {}
        """When each claim request was begun, by its shard and its name."""
        self.asked_for: dict[tuple[str, str], float] = {}
        """The same of those that were given something, by item and request."""
        self._loop = loop
        self._hub = hub
        self._trace = trace
        self._max_size = max_size
        self.sharded = sharded

    def new_item(
        self,
        label: str,
        *,
        delay: float = 0.0,
        priority: int = 0,
        key: str = "",
        ttl: float | None = None,
        group: str | None = None,
        window: float = 0.0,
    ) -> Item:
        item = self.items[label] = Item(label, key, ttl, delay=delay, priority=priority, due=self._loop.now + delay)
        item.group, item.window = group if self.is_declared or not self.ordered else None, window
        return item

    def recurring(self, moment: datetime) -> str:
        """The item that is pushed at a moment, by any process: any of these pushes may happen, from now on."""
        label = label_at(moment)
        item = self.items.get(label)
        if item is None:
            key = key_of(self.schedule, moment) if self.has_keyed_moments else ""
            item = self.new_item(label, group=self.default_group, key=key)
            item.begun_at = self._loop.now
            item.open_calls += 1
            self.excess += 1
            self.counts["recurring items"] += 1
        item.open_pushes += 1
        self._may_be_reborn(item)
        return label

    def check_moments(self, moments: Iterable[datetime]) -> None:
        """Each of these moments, of which it is stored that they are done, was pushed, or told as lost."""
        for moment in moments:
            self.counts["moments checked"] += 1
            item = self.items.get(label_at(moment))
            was_pushed = item and (item.deliveries or item.removals_begun or item.deletions)
            if not was_pushed and moment not in self.moments_lost:
                self.violation(f"lost in silence: the moment {moment.isoformat()} of a schedule")

    def name(self, item: Item, id: str) -> None:
        """The id of an item is known now."""
        item.ids.add(id)
        if self.by_id.setdefault(id, item) is not item:
            self.violation(f"mixed up: {id} is {item.label} and {self.by_id[id].label}")

    def _may_be_reborn(self, item: Item) -> None:
        """A push of it begins."""
        item.pushing += 1
        item.pushes_begun += 1
        if item.deletions:
            item.may_be_pushed_anew()
        if self.open_deletions:
            self.begin_deletion(item)

    def begin_forgetting(self) -> None:
        """A shard may be removed by force: pushes that are under way, or are repeated, may put items there anew."""
        for item in self.items.values():
            item.deletions += 1
            item.reborn = item.reborn or item.pushing > 0
            item.returns = item.is_moved = True

    def begin_deletion(self, item: Item) -> None:
        """It may be gone from now on, whatever it is."""
        item.removal_at = min(item.removal_at, self._loop.now)
        item.deletions += 1
        if item.pushing:
            item.may_be_pushed_anew()
        item.discarded = True
        item.begin_removal()

    # -- pushes --------------------------------------------------------------------------------------------------------

    def standing(self, key: str = "") -> Standing:
        """The items that are certainly live; ``key``: only those that have it."""
        now = self._loop.now
        items = self.items.values()
        return [(item, item.removals_begun) for item in items if (not key or item.key == key) and item.is_live(now)]

    def still(self, standing: Standing) -> list[Item]:
        """Those of them that have certainly been live ever since."""
        return [item for item, begun in standing if item.removals_begun == begun and item.is_live(self._loop.now)]

    def there_since(self, begun_at: float) -> int:
        """How many items may have been queued, scheduled or claimed at some moment from then until now."""
        return sum(item.may_be_there and not item.was_gone(begun_at) for item in self.items.values())

    def begin_push(self, item: Item, *, replaces: bool = False) -> Push:
        rivals = [(rival, begun) for rival, begun in self.standing(item.key) if rival is not item] if item.key else []
        replaceable: list[Item] = []
        if replaces:
            rivals = []
            item.keeps_a_place = not item.delay
            replaceable = [each for each in self.items.values() if each.key == item.key and each is not item]
            for each in replaceable:
                self.begin_removal(each)
        item.begun_at = min(item.begun_at, self._loop.now)
        item.open_pushes += 1
        self._may_be_reborn(item)
        item.open_calls += 1
        self.excess += 1
        for other in self._replacing if item.key else ():
            if other.item.key == item.key and other.item is not item and item not in other.replaceable:
                other.replaceable.append(item)
                self.begin_removal(item)
        push = Push(item, self._loop.now, rivals, replaceable)
        if replaces:
            self._replacing.append(push)
        return push

    def pushed(self, push: Push, receipt: Receipt) -> None:
        """It returned."""
        item = push.item
        self.excess -= 1
        item.open_calls -= 1
        item.pushing -= 1
        item.pushed_last = self._loop.now
        if receipt.duplicate:
            item.open_pushes -= 1
            self._check_duplicate(push, receipt)
            return
        self.name(item, receipt.id)
        self._check_new(push, receipt)
        self._check_replaced(push, receipt)
        # Pushed again after an unknown outcome it is known by its id, though by now it may have been delivered or
        # replaced, or have expired, and another one may have been given the key.
        may_be_gone = item.deliveries or item.removals_begun or self._loop.now >= item.expires_at
        rivals = () if may_be_gone else self.still(push.rivals)
        for rival in rivals:
            text = f"{item.label} ({receipt.id}), while {rival.label} ({', '.join(rival.ids)}) is there"
            self.violation(f"key given twice: {item.key} to {text}")
        if item.window and item.confirmed_at is None:
            self._check_windows(item)
        if item.confirmed_at is None:
            item.confirmed_at = self._loop.now

    def _check_windows(self, item: Item) -> None:
        """It was not accepted in the window of another item of its key, whatever has become of that."""
        self.counts["windows"] += 1
        for other in self.items.values():
            if other is item or other.key != item.key or not other.window or other.is_moved or item.is_moved:
                continue
            is_before = other.confirmed_at is not None and other.confirmed_at < item.begun_at
            if is_before and self._loop.now < other.begun_at + other.window - other.slack - EARLY_SECONDS:
                text = f"{item.label}, {self._loop.now - other.begun_at:.3f} s after {other.label}"
                self.violation(f"two in a window of {other.window} s: {text} of key {item.key}")

    def _check_replaced(self, push: Push, receipt: Receipt) -> None:
        """Exactly the items that it names are gone because of it."""
        replaced = [self.by_id[id] for id in receipt.replaced if id in self.by_id]
        self.counts["replaced items"] += len(receipt.replaced)
        if strangers := [each.label for each in replaced if each.key != push.item.key]:
            self.violation(f"replaced others: {push.item.label} of key {push.item.key} replaced {strangers}")
        # The answer is that of every try of this push, so those before it may do no more.
        tries = [other for other in self._replacing if other.item is push.item]
        self._replacing = [other for other in self._replacing if other.item is not push.item]
        for each in itertools.chain.from_iterable(one.replaceable for one in tries or [push]):
            self.end_removal(each, Outcome.DONE)
        for each in replaced:
            self.cancelled(each, was_held=False)

    def _check_new(self, push: Push, receipt: Receipt) -> None:
        """One push has put it there, unless a deletion has taken it away meanwhile; nobody is told of another one."""
        item = push.item
        if receipt.new is False and item.pushes_begun == 1:
            self.violation(f"not told that it is new: {item.label}, {receipt}")
        was_there = item.confirmed_at is not None and item.confirmed_at <= push.begun_at
        if receipt.new and (item.told_new or was_there) and not item.returns:
            self.violation(f"told that it is new, though it was there: {item.label}, {receipt}")
        item.told_new = item.told_new or receipt.new is True
        if item.pushes_begun > 1:
            self.counts[f"pushed again, new: {receipt.new}"] += 1

    def push_failed(self, push: Push, outcome: Outcome, error: BaseException | None) -> None:
        """It raised, or was cancelled."""
        if outcome is not Outcome.REFUSED:
            return
        self.excess -= 1
        push.item.open_pushes -= 1
        push.item.pushing -= 1
        push.item.open_calls -= 1
        if push in self._replacing:
            self._replacing.remove(push)
        for each in push.replaceable:
            self.end_removal(each, outcome)
        if isinstance(error, QueueFull):
            self.counts["queue full"] += 1
            if (there := self.there_since(push.begun_at)) < (self._max_size or math.inf):
                self.violation(f"full with {there} items: {push.item.label}, max_size is {self._max_size}")

    def _check_duplicate(self, push: Push, receipt: Receipt) -> None:
        """It names an item of this key that may have been there at some moment of the push."""
        self.counts["duplicate keys"] += 1
        item, first = push.item, self.by_id.get(receipt.id)
        told = f"{item.label} is told that {item.key} belongs to {receipt.id}"
        if first is None or first is item or first.key != item.key:
            self.violation(f"duplicate of something else: {told}, {first and first.label}")
        elif not first.may_be_there:
            self.violation(f"duplicate of nothing: {told}, every push of which was refused")
        elif receipt.done and not item.window:
            self.violation(f"kept away by a window, though it has none: {told}")
        elif self._may_be_in_window(push, first):
            self.counts["kept away by a window"] += receipt.done
        elif first.was_gone(push.begun_at):
            self.violation(f"key kept for nothing: {told}, which was gone at {first.gone_at} or {first.buried_at} s")
        elif first.confirmed_at is None:
            first.confirmed_at = self._loop.now  # a caller that is told so relies on it

    def _may_be_in_window(self, push: Push, first: Item) -> bool:
        if not push.item.window or not first.window:
            return False
        end = first.pushed_last + first.window + first.slack + EARLY_SECONDS
        return (first.open_pushes > 0 and first.confirmed_at is None) or first.pushing > 0 or push.begun_at <= end

    @property
    def is_declared(self) -> bool:
        return self.declared_at < math.inf

    def declared(self) -> None:
        """A program that declares the settings of the queue has pushed."""
        if not self.is_declared:
            self.declared_at = self._loop.now
            self.from_before = set(self.items)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def check_size(self, count: int) -> None:
        """So many items are queued, scheduled or claimed.

        What was dropped because its time was over is back when the only server that knew of it has died.
        """
        if self._max_size is None or self.deletions:  # which take it away, until a program declares it again
            return
        now = self._loop.now
        excused = self.excess + sum(
            item.expires_at < now or (label in self.from_before and not item.was_gone(now))
            for label, item in self.items.items()
        )
        if self.is_declared and count > self._max_size + excused:
            self.violation(f"too large: {count} items, max_size is {self._max_size}, {excused} may be excused")

    def check_count(self, count: int, begun_at: float, standing: Standing) -> None:
        """While nothing has gone wrong, what is counted is what is there."""
        self.check_size(count)
        least, most = len(self.still(standing)), self.there_since(begun_at)
        if self.found.calm and not least <= count <= most:
            self.violation(f"miscounted: {count} items, there were {least} to {most}")

    def saw(self, seen: SeenItem[Any]) -> Item | None:
        """An item was looked at."""
        label = str(seen.item).rstrip()
        item = self.items.get(label)
        if item is None:
            self.violation(f"unexpected: {label!r} ({seen.id}) is there and was never pushed")
            return None
        self.name(item, seen.id)
        expires = seen.expires_in is not None
        if (seen.key or "") != item.key or (expires != (item.ttl is not None) and seen.state != "dead"):
            self.violation(f"changed: {item.label} has the key {seen.key!r} and expires in {seen.expires_in} s")
        early = self._loop.now < item.expires_at - EARLY_SECONDS
        if seen.state == "dead" and seen.reason == "expired" and early and item.redriven_at is None:
            self.violation(f"expired too early: {item.label}, {item.expires_at - self._loop.now:.3f} s before its time")
        return item

    # -- removals ------------------------------------------------------------------------------------------------------

    def begin_removal(self, item: Item, *, by_consumer: bool = False) -> None:
        item.is_loose = item.is_loose or not by_consumer
        item.removal_at = min(item.removal_at, self._loop.now)
        item.begin_removal()
        self.excess += 1

    def end_removal(self, item: Item, outcome: Outcome, *, letters_go: bool = False) -> None:
        """Of a claim that was lost it may have happened for a moment, on a server that died.

        ``letters_go``: it was a burial, in a queue that drops dead letters or has them discarded.  Then it may have
        happened for good: the letter was gone before the burial was repeated, which found no claim of its own.
        """
        if outcome is Outcome.LOST and letters_go:
            return
        if outcome in (Outcome.DONE, Outcome.REFUSED, Outcome.LOST):
            item.take_back_removal()
        if outcome in (Outcome.DONE, Outcome.REFUSED):
            self.excess -= 1

    def buried(self, item: Item, begun_at: float) -> None:
        """A burial returned."""
        item.buried_at = self._loop.now
        self.check_settled("burial", item, begun_at)
        if self.open_redrives:
            self.redrive(item)
        if self.open_discards:
            self.discard(item)

    def redrive(self, item: Item) -> None:
        """It may be delivered again from now on, and die again."""
        item.redriven_at = self._loop.now if item.redriven_at is None else item.redriven_at
        item.is_loose = True
        item.begin_removal()

    def discard(self, item: Item) -> None:
        """If it is a dead letter, it may be gone from now on."""
        item.discarded = True
        item.open_calls += 1

    def cancelled(self, item: Item, *, was_held: bool) -> None:
        """A cancel has found it: nobody may settle it any more, and its holder is to stop."""
        now = self._loop.now
        item.cancelled_at = now if item.cancelled_at is None else item.cancelled_at
        item.gone_at = min(item.gone_at, now)
        holders = [holder for holder in item.holders if self._still_holds(holder)]
        if was_held and holders:
            self._loop.call_later(TOLD_SECONDS, self._count_told, holders, context=WORLD)
            self._loop.call_later(LONGEST_LEASE + 1.0, self._check_told, holders, context=WORLD)

    def _count_told(self, holders: list[Holder]) -> None:
        told = all(not holder.claim.holds for holder in holders)
        self.counts["holders told of a cancel at once" if told else "holders not told of a cancel at once"] += 1

    def _check_told(self, holders: list[Holder]) -> None:
        for holder in holders:
            if self._still_holds(holder):
                self.violation(f"not told: {holder.process.name} holds {holder.claim!r}, which was cancelled")

    def acked(self, item: Item, begun_at: float) -> None:
        """An ack returned."""
        item.acked = True
        item.gone_at = min(item.gone_at, self._loop.now)
        self.check_settled("ack", item, begun_at)

    def left(self, item: Item, result: object) -> None:
        """An ack returned that leaves this result."""
        item.result = (result,)
        self._check_result(item)

    def _may_be_forgotten(self, item: Item) -> bool:
        """Whether its result may be so old that it is kept no more: its age counts from the decision of the ack."""
        return self._loop.now > item.gone_at + RESULT_SECONDS - ACK_SECONDS

    def told(self, item: Item, result: Result[Any], begun_at: float) -> None:
        """A caller that began to ask at this moment was told what became of an item."""
        self.counts[f"told {result.state}"] += 1
        if item.returns or item.deletions:
            return
        if result.state not in (ResultState.DONE, ResultState.CANCELLED):
            # An item whose time is over may be a dead letter, or be dropped later.  Of several items a caller is told
            # together, so of one that was dead it may be told after it was redriven and done.
            if (
                item.told
                and item.told_at < begun_at
                and result.state in (ResultState.QUEUED, ResultState.CLAIMED, ResultState.DEAD)
            ):
                self.violation(f"told otherwise: {item.label} is {result.state}, and was {item.told}")
            return
        told = result.state, result.value if result.has_value else "lost" if result.is_lost else "none"
        if item.told is None:
            item.told, item.told_at = told, self._loop.now
        elif item.told != told and not (told in OVER and (self.found.leapt or self._may_be_forgotten(item))):
            self.violation(f"told otherwise: {item.label} is {told}, and was {item.told}")
        self._check_result(item)

    def check_history(self, item: Item, ended: EndedItem) -> None:
        """In the end the history says this of an item."""
        self.counts[f"in the history: {ended.state}"] += 1
        if item.returns or item.deletions:
            return
        if item.told and item.told[0] != ended.state:
            self.violation(f"the history says that {item.label} is {ended.state}, and a caller was told {item.told}")
        if item.acked and ended.state != "done":
            self.violation(f"the history says that {item.label} is {ended.state}, and its ack had returned")
        if ended.state == "done" and not (item.removals_begun or item.acked):
            self.violation(f"the history says that {item.label} is done, and nobody has acked it")
        if (ended.took is None) != (ended.owner is None):
            self.violation(f"the history says that {item.label} took {ended.took} s of {ended.owner}")

    def _check_result(self, item: Item) -> None:
        if self.found.away:
            return
        if item.told and item.result and not item.returns and item.told != (ResultState.DONE, item.result[0]):
            if self.found.leapt and item.told in OVER:
                return
            self.violation(f"result lost: {item.label} is {item.told}, and its ack has left {item.result}")

    def check_settled(self, verb: str, item: Item, begun_at: float) -> None:
        """A claim was settled: that may not be when its item was cancelled before."""
        if item.cancelled_at is not None and not item.returns and begun_at > item.cancelled_at:
            self.violation(f"settled: {verb} of {item.label} returned, after a cancel had at {item.cancelled_at:.3f} s")

    def _still_holds(self, holder: Holder) -> bool:
        """Whether nobody else may be given the item.  A small step of a server's clock shortens its lease unnoticed."""
        if holder.process.state is State.DEAD or holder.settling:
            return False
        return lease_of(holder.claim).holds_at(asyncio.get_running_loop().time() + self.found.unnoticed)
