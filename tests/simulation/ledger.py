"""Record every promise, and check that it was kept.

Everything is recorded before an operation begins, so that the operations of a killed client are known to be open.
Items are identified by a label in their payload, because a cancelled producer never learns an id.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from tests.simulation.code import LOADED, Code
from tests.simulation.ensemble import SimHub
from tests.simulation.findings import Findings
from tests.simulation.loop import WORLD, Loop, Process, State
from tests.simulation.trace import Trace
from zkrq import Claim, EndedItem, Limits, QueueFull, Receipt, Result, ResultState
from zkrq.base.checks import Duration, in_seconds
from zkrq.client.items import Item as SeenItem
from zkrq.client.moments import key_of
from zkrq.consuming.claims import lease_of
from zkrq.consuming.lease import Lease
from zkrq.consuming.leases import Leases
from zkrq.protocol import calls
from zkrq.protocol.calls import Decision, item_id
from zkrq.protocol.deciding import Decided
from zkrq.protocol.records import Bundle, unpack
from zkrq.replication.replicas import Replicas

EARLY_SECONDS = 0.005
"""Durations travel in whole milliseconds."""


LATE_SECONDS = 2.5
"""How long after its time an item may still be claimed: what is left of its life travels from server to server."""

ORDER_SECONDS = 0.1
"""Items that become ready within this are as good as simultaneous."""

LONGEST_LEASE = 10.0
"""Seconds that a consumer asks for at most."""

TOLD_SECONDS = 1.0
"""A holder that hears of a cancel at once does so within this."""

OVER = (ResultState.DONE, "none"), (ResultState.DONE, "lost")
"""What callers are told of an item whose result has expired by a clock that is minutes ahead or more."""


class Outcome(enum.Enum):
    """How an operation ended for its caller."""

    DONE = "done"
    REFUSED = "refused"  # nothing happened
    LOST = "lost"  # the claim no longer holds
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"
    RAISED = "raised"  # something that zkrq must not raise


@dataclass(eq=False, slots=True)
class Holder:
    """A claim in the hands of a consumer."""

    claim: Claim[Any]
    process: Process
    settling: bool = False
    """It was being settled, and what became of that is not known."""


@dataclass(eq=False, slots=True)
class Item:
    """One item as its producers and consumers know it.  Moments are None for what has not happened."""

    label: str
    key: str = ""
    ttl: float | None = None
    begun_at: float = math.inf
    """When the first push of it began."""
    confirmed_at: float | None = None
    """When a push of it returned."""
    open_pushes: int = 0
    """Pushes that may have happened, or may yet."""
    open_removals: int = 0
    """Acks and burials that may have happened, or may yet, and calls of clear."""
    removals_begun: int = 0
    """The same, ended or not."""
    acked: bool = False
    cancelled_at: float | None = None
    """When a cancel returned that had found it."""
    buried_at: float | None = None
    """When its burial returned."""
    gone_at: float = math.inf
    """When the ack or the cancel returned: it is certainly gone."""
    redriven_at: float | None = None
    """When it was to be given another chance first: a burial is not the last word then."""
    discarded: bool = False
    slack: float = 0.0
    """Seconds by which servers' clocks have been set since it was pushed."""
    held_back: float = 0.0
    """Seconds for which servers stood still since then, with decisions about it on their way to them."""
    delay: float = 0.0
    priority: int = 0
    group: str | None = None
    """None: it stands in line by itself."""
    handed_in_order: bool = False
    """A consumer was given it, in a group that keeps the order."""
    is_loose: bool = False
    """Its place in the order is not promised: it was redriven, replaced, cleared or cancelled, or that was begun."""
    lets_group_go_on: bool = False
    """It has failed, or may have, and later ones of its group need not wait for it since."""
    window: float = 0.0
    """Seconds for which its key is kept from others that have a window, too."""
    pushed_last: float = 0.0
    """When a push of it ended last: a server that has not heard of its window begins that when it is pushed again."""
    removal_at: float = math.inf
    """When the first removal was begun."""
    due: float = 0.0
    """Not to be delivered before."""
    keeps_a_place: bool = False
    """It may have the place in line of an item that it has replaced."""
    ids: set[str] = field(default_factory=set[str])
    deliveries: int = 0
    token: tuple[int, int] = (0, 0)
    told_lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Failures and attempts at the claims whose nack or release was told as lost, and not as perhaps carried out."""
    holders: list[Holder] = field(default_factory=list[Holder])
    pushing: int = 0
    """Pushes of it without a certain end."""
    pushes_begun: int = 0
    told_new: bool = False
    """A push returned that says that it has put it there."""
    deletions: int = 0
    """Deletions of its queue that were begun since its first push was."""
    deleted_at: float | None = None
    """When a deletion of its queue returned: whatever it was, it is not there any more ..."""
    reborn: bool = False
    """... unless a push of it that may be the first one was under way, or was begun later ..."""
    returns: bool = False
    """... or its id was another item's from then on: one of the user's, pushed again after a deletion; or any, if its
    home may have been removed by force."""
    is_moved: bool = False
    """Its home may have been removed by force: another shard numbers its fencing tokens anew then."""
    told_at: float = math.inf
    """When a caller was first told how it had ended."""
    told: tuple[ResultState, object] | None = None
    """Its final state, and its result, as a caller has learned them."""
    result: tuple[object, ...] = ()
    """What the ack left that has returned."""
    open_calls: int = 0
    """Operations on it without a certain end; servers may differ about it until it is decided on again."""

    @property
    def confirmed(self) -> bool:
        return self.confirmed_at is not None

    @property
    def expires_at(self) -> float:
        """Until then its ttl is not over on any server."""
        return math.inf if self.ttl is None else self.begun_at + self.ttl - self.slack

    def begin_removal(self) -> None:
        self.open_removals += 1
        self.removals_begun += 1
        self.open_calls += 1

    def take_back_removal(self) -> None:
        """It did not happen."""
        self.open_removals -= 1
        self.open_calls -= 1

    def is_live(self, now: float) -> bool:
        """Whether it is certainly queued, scheduled or claimed."""
        done = self.acked or self.cancelled_at is not None or self.buried_at is not None or self.open_removals
        return self.confirmed and not done and now < self.expires_at

    def was_gone(self, moment: float) -> bool:
        """Whether it was certainly neither queued, scheduled nor claimed any more, and was never to be again."""
        if self.returns:
            return False
        dead = self.buried_at is not None and self.redriven_at is None
        return self.gone_at <= moment or (dead and cast("float", self.buried_at) <= moment)

    def may_be_pushed_anew(self) -> None:
        """It is, or may be, removed, and a push of it is under way or begins.

        Its tombstone stops that, if it was there: unless the id is the user's, since that names no moment of its push.
        """
        self.returns = self.returns or any(id.startswith("own ") for id in self.ids)
        self.reborn = self.reborn or self.returns or not (self.confirmed or self.deliveries)

    @property
    def may_be_there(self) -> bool:
        """Whether some push of it may have happened."""
        return self.confirmed or self.open_pushes > 0


Standing = list[tuple[Item, int]]
"""Items that are certainly live at a moment, and how many removals of each had been begun."""


def label_at(moment: datetime) -> str:
    """The label of the item of a moment."""
    return f"at {moment.isoformat()}"


def id_at(bundle: bytes, record: Bundle, position: int) -> str:
    """The id of an item of a bundle."""
    return bundle.decode() if record.is_alone else item_id(bundle.decode(), position)


@dataclass(slots=True)
class Request:
    """One claim request: when it was begun and answered, and the ids that it was given."""

    asked_at: float
    answered_at: float = math.inf
    ids: Sequence[str] = ()
    calm: bool = False
    where: str = ""
    """The register of the view of the shard that was asked."""
    moved: bool = False
    """It was answered under a later view than it was begun: the primary before may have given it other items, for as
    long as it led."""


class Begun(NamedTuple):
    """Claims that began together: by the clock of the server that decided, and between which moments that was."""

    clock_us: int
    since: float
    until: float
    items: int


@dataclass(eq=False, slots=True)
class Push:
    """One push of one item that is under way."""

    item: Item
    begun_at: float
    rivals: Standing
    """Others with its key."""
    replaceable: list[Item] = field(default_factory=list[Item])
    """Those in whose place it may be put: also such as are pushed while it is under way."""


class Pauses:
    """Whether the queue is certainly paused: a pause has returned, and no resume was begun since before it."""

    def __init__(self, loop: Loop) -> None:
        self.since: float | None = None
        self.ever = False
        """Whether any pause was begun."""
        self.open = 0
        """Calls of either kind without a certain end."""
        self._loop = loop
        self._resumes = 0
        self._open_resumes = 0

    def begin(self, *, paused: bool) -> int | None:
        """A call of pause or resume begins; what ``end`` is to be given of it."""
        self.open += 1
        if paused:
            self.ever = True
            return None if self._open_resumes else self._resumes
        self._resumes += 1
        self._open_resumes += 1
        self.since = None
        return None

    def end(self, outcome: Outcome, mark: int | None, *, paused: bool) -> None:
        certain = outcome in (Outcome.DONE, Outcome.REFUSED)
        self.open -= certain
        if not paused:
            self._open_resumes -= certain
        elif outcome is Outcome.DONE and mark == self._resumes and self.since is None:
            self.since = self._loop.now

    def is_in_force(self, since: float) -> bool:
        """Whether the queue has certainly been paused from that moment until now."""
        return self.since is not None and self.since < since


class Ledger:
    """All items of one queue."""

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
        self.group_limit: int | None = None
        self.group_rate: tuple[int, float] | None = None
        self.ordered = False
        """Whether groups keep the order of their pushes."""
        self.tokens: dict[str, tuple[int, int]] = {}
        """The greatest fencing token of each group that keeps the order."""
        self.default_group: str | None = None
        """That of items that are pushed without one."""
        self.is_declared = False
        """Whether the order is declared: what was pushed before has no place in it, and no group here."""
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
            first.confirmed_at = self._loop.now  # whoever is told so relies on it

    def _may_be_in_window(self, push: Push, first: Item) -> bool:
        if not push.item.window or not first.window:
            return False
        end = first.pushed_last + first.window + first.slack + EARLY_SECONDS
        return (first.open_pushes > 0 and first.confirmed_at is None) or first.pushing > 0 or push.begun_at <= end

    # -- what is seen --------------------------------------------------------------------------------------------------

    def check_size(self, count: int) -> None:
        """So many items are queued, scheduled or claimed.

        What was dropped because its time was over is back when the only server that knew of it has died.
        """
        if self._max_size is None:
            return
        excused = self.excess + sum(item.expires_at < self._loop.now for item in self.items.values())
        if count > self._max_size + excused:
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
        elif item.told != told and not (self.found.leapt and told in OVER):
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

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def _is_excused(self, claim: Claim[Any], process: Process, *, certain: bool) -> bool:
        """Whether this is what "one live holder, up to fencing" leaves open: the client could not know any better.

        It was stopped between being told that the claim holds and giving it out; or its session is over, but the
        coordinator calls it certain, or Redis' word has come this very moment: in the turn of its event loop before
        the one in which the caller goes on.  A client that runs and is not certain must not give out what it was told
        before.
        """
        told_at = self.found.told_at.get(claim, 0.0)
        if told_at < process.resumed_at:
            return not (self._hub.is_live(claim.owner) and claim.holds)
        return not self._hub.is_live(claim.owner) and (certain or told_at >= self._loop.now - process.turn)

    def told_lost(self, item: Item, claim: Claim[Any]) -> None:
        """A consumer was told that its nack or release was not carried out."""
        item.told_lost.append((claim.failures, claim.attempts))

    def _check_told_lost(self, item: Item, claim: Claim[Any], what: str) -> None:
        """Compare what it was told with the counts at the next delivery; see ``records.was_put_back``."""
        for failures, attempts in item.told_lost:
            if not item.is_loose and claim.failures - claim.attempts == failures - attempts:
                self.violation(f"told lost, and carried out: {what}, {attempts} attempts and {failures} failures then")
        item.told_lost.clear()

    def delivered(self, claim: Claim[Any], process: Process, *, certain: bool) -> tuple[Item, Holder]:
        """A consumer was given this claim; ``certain``: its client is certain of its session."""
        label = str(claim.item).rstrip()
        item = self.items.get(label)
        if item is None:
            self.violation(f"unexpected: {label!r} was never pushed")
            item = self.new_item(label)
        request = lease_of(claim).grant.request
        what = f"{item.label} ({claim.id}) delivered to {process.name} under {request} {tuple(claim.token)}"
        self._trace.note(what)
        if self._is_excused(claim, process, certain=certain):
            self.counts["given out while being fenced"] += 1
        else:
            self._check_is_mine(item, claim, what)
            if self.ordered and item.group is not None:
                self._check_order_in(item.group, item, claim, what)
        if not item.may_be_there:
            self.violation(f"phantom: {what}, and every push of it was refused")
        if self._loop.now < item.due - EARLY_SECONDS - item.slack:
            self.violation(f"too early: {what}, due {item.due - self._loop.now:.3f} s later")
        self._check_life(item, claim, what)
        self._check_told_lost(item, claim, what)
        self.name(item, claim.id)
        if len(item.ids) > 1:
            self.violation(f"doubled: {item.label} is there under {sorted(item.ids)}")
        item.holders = [other for other in item.holders if self._still_holds(other)]
        item.token = max(item.token, claim.token)
        item.deliveries += 1
        self.counts["deliveries"] += 1
        self.counts["deliveries again"] += item.deliveries > 1
        holder = Holder(claim, process)
        item.holders.append(holder)
        self._check_concurrency(what)
        self._check_group(item, what)
        return item, holder

    def _held(self, items: Iterable[Item]) -> int:
        """How many of them are certainly claimed: consumers hold them that nobody has declared dead, and no cancel or
        replacement of them was begun, which frees the slot of a claim before its consumer hears of it."""
        return sum(
            self._still_holds(holder) and self._hub.is_live(holder.claim.owner)
            for item in items
            if item.cancelled_at is None and not item.open_removals
            for holder in item.holders
        )

    def _check_concurrency(self, what: str) -> None:
        """No more are held at once than the limit."""
        if (most := self.limits.concurrency) is None:
            return
        held = self._held(self.items.values())
        self.counts["deliveries at the limit"] += held == most
        if held > most:
            self.violation(f"more than {most} at once: {what}, while {held - 1} others are held")

    def _check_group(self, item: Item, what: str) -> None:
        """No more of a group are held at once than its limit."""
        if (most := self.group_limit) is None or item.group is None:
            return
        held = self._held(other for other in self.items.values() if other.group == item.group)
        self.counts["deliveries at the limit of a group"] += held == most
        if held > most:
            self.violation(f"more than {most} of group {item.group!r} at once: {what}, {held - 1} others are held")

    def let_group_go_on(self, item: Item) -> None:
        """It is to fail, by a policy that lets its group go on while it waits."""
        item.is_loose = item.lets_group_go_on = True

    def _check_order_in(self, group: str, item: Item, claim: Claim[Any], what: str) -> None:
        """It is neither handed out before an earlier one has ended, nor after a later one was; earlier: its push
        returned before that of the other began.  Fencing tokens grow."""
        # What was claimed ahead and cancelled has no place any more: its consumer may learn late that it is cancelled.
        if claim.token <= self.tokens.get(group, (0, 0)) and item.cancelled_at is None:
            self.violation(f"fencing token of group {group!r} went back: {what} after {self.tokens[group]}")
        self.tokens[group] = max(claim.token, self.tokens.get(group, (0, 0)))
        self.counts["deliveries in order"] += 1
        for other in self.items.values():
            if other.group != group or other is item:
                continue
            earlier = other.confirmed_at is not None and other.confirmed_at < item.begun_at
            if earlier and other.lets_group_go_on:
                self.counts["deliveries past a failed item"] += other.is_live(self._loop.now)
                continue
            if earlier and not item.is_loose and not item.keeps_a_place and other.is_live(self._loop.now):
                self.violation(f"out of order: {what}, while {other.label} of {group!r} has not ended")
            later = item.confirmed_at is not None and item.confirmed_at < other.begun_at
            if later and other.handed_in_order and not item.is_loose and not other.keeps_a_place and item.ttl is None:
                self.violation(f"out of order: {what}, after {other.label} of {group!r} was handed out")
        item.handed_in_order = True

    def check_rates(
        self, where: str, epoch: int | None, request: str, begun: Begun, groups: Mapping[str | None, int]
    ) -> None:
        """No more claims begin in a time than the limit, of all and of each group; ``groups``: of how many items."""
        if self.limits.rate is not None:
            self._check_rate((where, epoch, None), self.limits.rate, request, begun)
        if self.group_rate is not None:
            for group, items in groups.items():
                if group is not None:
                    self._check_rate((where, epoch, group), self.group_rate, request, begun._replace(items=items))

    def _check_rate(
        self, where: tuple[str, int | None, str | None], rate: tuple[int, Duration], request: str, begun: Begun
    ) -> None:
        """By the clock of the server that counts, and certainly in less than that time: a clock may be set."""
        if not begun.items:
            return
        most, seconds, of_group = rate[0], in_seconds(rate[1]), where[2] is not None
        known = self.begun.setdefault(where, {})
        known.setdefault(request, begun)
        near = [
            other
            for other in known.values()
            if 0 <= begun.clock_us - other.clock_us < seconds * 1e6
            and max(begun.until, other.until) - min(begun.since, other.since) < seconds
        ]
        count = sum(other.items for other in near)
        self.counts["requests at the rate of a group" if of_group else "requests at the rate"] += count == most
        if count > most:
            self.violation(
                f"more than {most} {f'of {where[2]!r} ' * of_group}in {seconds} s: {request} makes it {count}"
            )

    def _check_is_mine(self, item: Item, claim: Claim[Any], what: str) -> None:
        """Nobody else may have it, nor have been done with it."""
        asked_at = self.asked_for[claim.id, lease_of(claim).grant.request]
        # A consumer that claimed it before the cancel may learn of that late, or never, because it does not listen.
        was_held = item.told and item.told[0] is ResultState.CANCELLED and asked_at <= item.told_at
        if item.told and not was_held and not item.returns and not item.deletions:
            self.violation(f"revived: {what} after a caller was told that it is {item.told}")
        if item.deleted_at is not None and not item.reborn and asked_at > item.deleted_at:
            self.violation(f"revived: {what} after a deletion of the queue had returned")
        self.counts["made again after a deletion"] += item.deletions > 0 and item.reborn
        if (item.acked or (item.buried_at is not None and item.redriven_at is None)) and not item.returns:
            self.violation(f"revived: {what} after its {'ack' if item.acked else 'burial'} had returned")
        if item.cancelled_at is not None and not item.returns and asked_at > item.cancelled_at:
            self.violation(f"revived: {what} after its cancel had returned")
        if claim.token <= item.token and not item.is_moved:
            self.violation(f"fencing token went back: {what} after {item.token}")
        for other in item.holders:
            if not self._still_holds(other):
                continue
            if self._hub.is_live(other.claim.owner):
                self.violation(f"two holders: {what}, while {other.process.name} holds {other.claim!r}")
            else:
                self.counts["held on after being fenced"] += 1

    def _check_life(self, item: Item, claim: Claim[Any], what: str) -> None:
        """It is not claimed after its time, nor brought back by a redrive while its key was another's."""
        if item.ttl is not None and item.confirmed_at is not None and item.redriven_at is None:
            asked_at = self.asked_for[claim.id, lease_of(claim).grant.request]
            late = asked_at - item.confirmed_at - item.ttl
            if late > LATE_SECONDS + item.slack + item.held_back:
                self.violation(f"too late: {what}, asked for {late:.3f} s after its time")
        if not item.key or item.redriven_at is None or item.buried_at is None:
            return
        for rival, _ in self.standing(item.key):
            later = item.buried_at < rival.begun_at and cast("float", rival.confirmed_at) < item.redriven_at
            if rival is not item and later:
                self.violation(f"key given twice: {what} after a redrive, while {rival.label} had {item.key}")

    # -- order ---------------------------------------------------------------------------------------------------------

    def check_order(self) -> None:
        """While nothing had gone wrong, no item was handed out for the first time while one that comes before it had
        been ready since before the request, on the same shard."""
        first: dict[str, Request] = {}
        for request in self.requests:
            for id in request.ids:
                first.setdefault(id, request)
        for request in self.requests:
            if self._is_calm(request):
                self._check_order_of(request, first)

    def _is_calm(self, request: Request) -> bool:
        """Whether nothing had gone wrong by the time of its answer."""
        before = [other for other in self.requests if other.asked_at <= request.answered_at]
        return request.calm and all(
            other.answered_at < math.inf and not (other.moved and other.answered_at >= request.asked_at)
            for other in before
        )

    def check_turns(self) -> None:
        """While nothing had gone wrong, no group had two turns while another one that was in line, with an item of no
        lower priority, had none."""
        first: dict[str, Request] = {}
        for request in self.requests:
            for id in request.ids:
                first.setdefault(id, request)
        served: dict[tuple[str, str], Request] = {}
        for request in sorted(self.requests, key=lambda request: request.answered_at):
            for group, priority in self._turns_in(request).items():
                before = served.get((request.where, group))
                served[request.where, group] = request
                if before and before.answered_at < request.asked_at and self._is_calm(request):
                    self._check_turn(group, priority, before, request, first)

    def _turns_in(self, request: Request) -> dict[str, int]:
        """The groups that a request was given items of, and the greatest priority of these."""
        turns: dict[str, int] = {}
        for item in (self.by_id[id] for id in request.ids if id in self.by_id):
            if item.group is not None:
                turns[item.group] = max(item.priority, turns.get(item.group, 0))
        return turns

    def _check_turn(
        self, group: str, priority: int, before: Request, request: Request, first: Mapping[str, Request]
    ) -> None:
        meanwhile = [
            other
            for other in self.requests
            if other.where == request.where
            and other.asked_at <= request.answered_at
            and other.answered_at >= before.asked_at
        ]
        self.counts["turns compared"] += 1
        had_turns = {named for other in meanwhile for named in self._turns_in(other)}
        for id, item in self.by_id.items():
            claimed = first.get(id)
            if item.group is None or item.group in had_turns or item.priority < priority or item.ttl:
                continue
            if (claimed.where != request.where) if claimed else self.sharded:
                continue
            ready_at = math.inf if item.confirmed_at is None else item.confirmed_at + item.delay
            if ready_at > before.asked_at - ORDER_SECONDS or item.removal_at <= request.answered_at:
                continue
            if claimed and claimed.asked_at <= request.answered_at:
                continue
            self.violation(
                f"out of turn: group {group!r} had two, until {before.answered_at:.3f} and {request.answered_at:.3f} s,"
                f" {item.label} of {item.group!r} had been ready since {ready_at:.3f} s"
            )

    def _check_order_of(self, request: Request, first: Mapping[str, Request]) -> None:
        given = [self.by_id[id] for id in request.ids if first[id] is request and id in self.by_id]
        for id, item in self.by_id.items():
            claimed = first.get(id)
            if claimed and (claimed.asked_at <= request.answered_at or claimed.where != request.where):
                continue
            if claimed is None and self.sharded:  # nobody knows where it was
                continue
            ready_at = math.inf if item.confirmed_at is None else item.confirmed_at + item.delay
            if ready_at > request.asked_at - ORDER_SECONDS or item.ttl or item.removal_at <= request.answered_at:
                continue
            self.counts["orders compared"] += len(given)
            for other in given:
                earlier = ready_at + ORDER_SECONDS < other.begun_at + other.delay and not other.keeps_a_place
                if item.priority > other.priority or (item.priority == other.priority and earlier):
                    self.violation(
                        f"out of order: {other.label} ({other.priority}) was handed out at {request.answered_at:.3f} s,"
                        f" {item.label} ({item.priority}) had been ready since {ready_at:.3f} s"
                    )

    # -- ids -----------------------------------------------------------------------------------------------------------

    def gone_by_own_id(self) -> list[tuple[str, Item]]:
        """Ids that a user chose, whose items were pushed and are certainly gone."""
        return [
            (id, item)
            for id, item in sorted(self.by_id.items())
            if id.startswith("own ") and item.confirmed and item.acked and not item.open_pushes > 1
        ]

    def use_again(self, id: str, label: str) -> Item:
        """The id of an item that is gone is to be another one's."""
        self.by_id.pop(id).ids.discard(id)
        item = self.new_item(label)
        self.name(item, id)
        return item

    def _still_holds(self, holder: Holder) -> bool:
        """Whether nobody else may be given the item.  A small step of a server's clock shortens its lease unnoticed."""
        if holder.process.state is State.DEAD or holder.settling:
            return False
        return lease_of(holder.claim).holds_at(asyncio.get_running_loop().time() + self.found.unnoticed)

    def missing(self, drained: set[str]) -> list[Item]:
        """Items whose push returned and that are nowhere, with nobody who may have removed them."""
        return [item for item, _ in self.standing() if item.label not in drained]

    def letters(self) -> list[Item]:
        """Items that are certainly dead letters, unless the queue drops some."""
        return [
            item
            for item in self.items.values()
            if item.buried_at is not None
            and item.redriven_at is None
            and not (item.open_removals or item.acked or item.discarded or item.cancelled_at is not None)
        ]


def _handed(decided: Decided[calls.ClaimReply]) -> Iterator[str]:
    """The ids of the items that a claim request was given."""
    records, parts = dict(decided.records), iter(decided.reply.handed)
    for bundle, first, count, _ in zip(parts, parts, parts, parts, strict=True):
        for position in range(first - 1, first - 1 + count):
            yield id_at(bundle, unpack(records[bundle]), position)


def _handed_of_groups(decided: Decided[calls.ClaimReply]) -> Counter[str | None]:
    """How many items of each group a claim request was given."""
    records, parts, handed = dict(decided.records), iter(decided.reply.handed), Counter[str | None]()
    for bundle, _, count, _ in zip(parts, parts, parts, parts, strict=True):
        handed[unpack(records[bundle]).group] += count
    return handed


@contextmanager
def listening(loop: Loop, found: Findings, ledgers: Mapping[str, Ledger]) -> Generator[None, None, None]:
    """Note when Redis last told a client that a claim holds, and when each claim request was begun."""
    with ExitStack() as of_each:
        for code in LOADED:
            of_each.enter_context(_listening(code, loop, found, ledgers))
        yield


@contextmanager
def _listening(code: Code, loop: Loop, found: Findings, ledgers: Mapping[str, Ledger]) -> Generator[None, None, None]:
    many: type[Leases] = code.module("consuming.leases").Leases
    one: type[Lease] = code.module("consuming.lease").Lease
    replicas: type[Replicas] = code.module("replication.replicas").Replicas
    requests = (code.module("protocol.calls").Claim, code.module("protocol.calls").Turn)
    add, extend = many.add, one.extend
    decide = replicas.decide

    def note(lease: Lease) -> None:
        if (claim := lease()) is not None:
            found.told_at[cast("Claim[Any]", claim)] = loop.now

    def note_added(leases: Leases, added: Iterable[Lease]) -> None:
        noted = list(added)
        for lease in noted:
            note(lease)
        add(leases, noted)

    async def note_extended(lease: Lease, seconds: float) -> None:
        await extend(lease, seconds)
        note(lease)

    async def note_decide(replicas: Replicas, call: Decision[Any], **options: Any) -> Decided[Any]:
        if not isinstance(call, requests):
            return await decide(replicas, call, **options)
        call = cast("calls.Claim | calls.Turn", call)
        ledger = ledgers[call.queue]
        request = f"{call.owner}/{call.seq}"
        where = replicas.membership._register  # pyright: ignore[reportPrivateUsage]
        asked_at = ledger.asked_at.setdefault((where, request), loop.now)
        asked, began = Request(loop.now, where=where), replicas.membership.view.epoch
        ledger.requests.append(asked)
        decided = await decide(replicas, cast("Decision[Any]", call))
        if isinstance(call, requests[1]) and decided.reply.verdict != calls.CLAIMED:
            return decided  # as a request alone that is refused
        asked.answered_at, asked.calm, asked.moved = loop.now, found.calm, decided.epoch != began
        asked.ids = list(_handed(decided))
        if code.is_present:  # the release before knows no rates
            # A repeated request is given what its first try was: its claims may have begun then.
            begun, of_groups = (
                Begun(decided.reply.clock, asked_at, loop.now, len(asked.ids)),
                _handed_of_groups(decided),
            )
            if not asked.moved:
                ledger.check_rates(where, began, request, begun, of_groups)
            if not found.clocks_set:  # through all changes of the view, by no server's clock
                ledger.check_rates(where, None, request, begun._replace(clock_us=round(loop.now * 1e6)), of_groups)
        for id in asked.ids:
            ledger.asked_for.setdefault((id, request), asked_at)
        if ledger.pauses.is_in_force(asked_at):
            found.counts["claim requests while paused"] += 1
            if asked.ids:
                found.violation(f"handed out while paused: {asked.ids} under {request}, asked for at {asked_at:.3f} s")
        return decided

    with (
        patch.object(many, "add", note_added),
        patch.object(one, "extend", note_extended),
        patch.object(replicas, "decide", note_decide),
    ):
        yield
