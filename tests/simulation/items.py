"""What a ledger records of items, pushes, holders and claim requests."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, cast

from tests.simulation.loop import Loop, Process
from zkrq import Claim, ResultState
from zkrq.protocol.calls import item_id
from zkrq.protocol.records import Bundle

RESULT_SECONDS = 500.0
"""For how long the result of an item is kept."""

ACK_SECONDS = 20.0
"""How long before its return an ack may have been decided, at most."""

EARLY_SECONDS = 0.005
"""Durations travel in whole milliseconds."""

LONGEST_LEASE = 10.0
"""Seconds that a consumer asks for at most."""


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
    saved: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """What consumers have saved of it for certain, or were given: marks, each with the least fencing token."""
    steps: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The same of steps that have returned."""
    open_calls: int = 0
    """Operations on it without a certain end; servers may differ about it until it is decided on again."""

    @property
    def confirmed(self) -> bool:
        return self.confirmed_at is not None

    @property
    def expires_at(self) -> float:
        """Until then its ttl is not over on any server."""
        return math.inf if self.ttl is None else self.begun_at + self.ttl - self.slack

    def note_saved(self, marks: Sequence[str], token: tuple[int, int]) -> None:
        """A save of these has returned, or a delivery was given them."""
        for mark in marks:
            self.saved[mark] = min(token, self.saved.get(mark, token))

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
