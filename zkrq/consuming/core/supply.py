"""Define the life of a supply as a table: when one shard of a queue is asked for claims, and what each event changes.

A *supply* is one shard as the consumers of this process are served by it.  Consumers, wake-ups, answers and the clock
are events.  Each finds its row in ``LIFE``, which names the next state, and what ``supplier.Supplier`` has to do.

1. One request is in flight at a time.  Two would have the same number, and the servers would answer the second with the
   items of the first.
2. What happens while a request is in flight leads to another one: its answer may have been decided before an item
   became ready, or before a consumer came.  If it leaves a wake-up channel because less was ready than it asked for, a
   consumer that came waits for the wake-up: another request would find nothing, and the next item would wait for it.
3. A request that is due joins settlements that are leaving (``turn.lua``), so it is in flight before the loop knows
   that waits for its answer.
4. A wake-up for which no other process was woken leads to a request even if no consumer waits here by then, because
   that request wakes the next process.  It is owed until a request is answered, so a failure does not lose it.
5. A supply at rest has no loop.  What was left on the servers to wake it is not relied on: its next consumer asks.
6. Of several shards, those that had more items ready than they were asked for are asked in turn, one at a time, for all
   that is wanted (``asked_of``).  The others, which may be empty, are asked only if there is no such shard, all at the
   same time.  So a process claims as much at a time as it would from a single shard, and one consumer of four shards
   does not claim four items for one.

A missing cell is a mistake of this package: it raises ``KeyError``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from zkrq.consuming.core.pace import CLAIM_MAX

LATE_SECONDS = 0.1
"""Seconds after which a request no longer counts: other shards are asked for what it is about."""

PROBE_SECONDS = 0.5
"""Seconds between two looks at a shard that had nothing, while consumers are served by other shards."""

PASS_ON_LEAST = 1.0
"""Least seconds after a request until another one is made only to wake others for what is due."""


class SupplyState(enum.StrEnum):
    """Name the states of a supply."""

    RESTING = "resting"  # no loop runs
    IDLE = "idle"  # nothing is to be asked for before a moment
    LISTENING = "listening"  # the same; nothing was ready, and a wake-up channel was left: consumers need not ask
    DUE = "due"  # an order is to be asked for
    JOINED = "joined"  # a request has left with settlements, and the loop does not know of it yet
    JOINED_CAME = "joined, came"  # the same, and a consumer came: another order follows unless a channel is left
    JOINED_DUE = "joined, due"  # the same, and another order is to be asked for after it
    ASKING = "asking"  # the loop waits for the answer to a request
    ASKING_CAME = "asking, came"  # the same, and a consumer came: another order follows unless a channel is left
    ASKING_DUE = "asking, due"  # the same, and another order is to be asked for after it
    BACKING_OFF = "backing off"  # a request has failed, and is repeated after a pause
    CLOSED = "closed"


class Action(enum.StrEnum):
    """Name what the shell does after an event."""

    START = "start"  # begin the loop
    RING = "ring"  # have the loop look again
    STOP = "stop"  # end the loop


Cell: TypeAlias = tuple[SupplyState, Action | None]
Row: TypeAlias = Mapping[SupplyState, Cell]
"""What one event makes of each state in which it may happen."""

_REST, _IDLE, _HEARS, _DUE, _JOINED, _JOINED_CAME, _JOINED_DUE, *_others = SupplyState
_ASKING, _ASKING_CAME, _ASKING_DUE, _BACK, _CLOSED = _others


def _to(state: SupplyState, action: Action | None = None) -> Cell:
    return state, action


_BUSY: Row = {
    _DUE: _to(_DUE),
    _JOINED: _to(_JOINED_DUE),
    _JOINED_CAME: _to(_JOINED_DUE),
    _JOINED_DUE: _to(_JOINED_DUE),
    _ASKING: _to(_ASKING_DUE),
    _ASKING_CAME: _to(_ASKING_DUE),
    _ASKING_DUE: _to(_ASKING_DUE),
    _BACK: _to(_BACK),
    _CLOSED: _to(_CLOSED),
}
_RUNG: Row = {_IDLE: _to(_DUE, Action.RING), _HEARS: _to(_DUE, Action.RING)}

# An answer is wanted, or the process was woken alone.
LOOK: Row = {_REST: _to(_DUE, Action.START), **_RUNG, **_BUSY}
# A consumer came that waits until there is something, or less is left than is to be claimed ahead.
CAME: Row = {
    **LOOK,
    _HEARS: _to(_HEARS),
    _JOINED: _to(_JOINED_CAME),
    _JOINED_CAME: _to(_JOINED_CAME),
    _ASKING: _to(_ASKING_CAME),
    _ASKING_CAME: _to(_ASKING_CAME),
}
# The process was woken, as others may have been.
WAKE: Row = {_REST: _to(_REST), **_RUNG, **_BUSY}
# The moment has come until which nothing was to be asked for; the loop may hear of it late.
TIME: Row = {
    _IDLE: _to(_DUE),
    _HEARS: _to(_DUE),
    _DUE: _to(_DUE),
    _JOINED: _to(_JOINED),
    _JOINED_CAME: _to(_JOINED_CAME),
    _JOINED_DUE: _to(_JOINED_DUE),
}
# An order says that nothing is to be asked for now.
PAUSE: Row = {_DUE: _to(_IDLE)}
# The loop makes a request.
ASK: Row = {_DUE: _to(_ASKING)}
# A request leaves with settlements ...
JOIN: Row = {_IDLE: _to(_JOINED, Action.RING), _HEARS: _to(_JOINED, Action.RING), _DUE: _to(_JOINED)}
# ... or is left to the loop, although consumers come back: they may have to begin to listen.
DECLINE: Row = {_IDLE: _to(_IDLE), _HEARS: _to(_IDLE), _DUE: _to(_DUE)}
# The loop waits for the answer to a request that has left with settlements.
TAKE_OVER: Row = {_JOINED: _to(_ASKING), _JOINED_CAME: _to(_ASKING_CAME), _JOINED_DUE: _to(_ASKING_DUE)}
ANSWER: Row = {_ASKING: _to(_IDLE), _ASKING_CAME: _to(_DUE), _ASKING_DUE: _to(_DUE)}
# The same; nothing is left, and a wake-up channel is there.
ANSWER_HEARD: Row = {_ASKING: _to(_HEARS), _ASKING_CAME: _to(_HEARS), _ASKING_DUE: _to(_DUE)}
FAIL: Row = {_ASKING: _to(_BACK), _ASKING_CAME: _to(_BACK), _ASKING_DUE: _to(_BACK)}
RETRY: Row = {_BACK: _to(_DUE)}
# The loop begins, perhaps again after a mistake of this package has ended it.
BEGIN: Row = {
    **{state: _to(state) for state in (_IDLE, _HEARS, _DUE, _JOINED, _JOINED_CAME, _JOINED_DUE)},
    **{state: _to(_DUE) for state in (_ASKING, _ASKING_CAME, _ASKING_DUE, _BACK)},
}
# No consumer is left.
REST: Row = {_IDLE: _to(_REST, Action.STOP), _HEARS: _to(_REST, Action.STOP)}
CLOSE: Row = {state: _to(_CLOSED, Action.STOP) for state in SupplyState}

LIFE: Mapping[str, Row] = {
    "look": LOOK,
    "came": CAME,
    "wake": WAKE,
    "time": TIME,
    "pause": PAUSE,
    "ask": ASK,
    "join": JOIN,
    "decline": DECLINE,
    "take over": TAKE_OVER,
    "answer": ANSWER,
    "answer, heard": ANSWER_HEARD,
    "fail": FAIL,
    "retry": RETRY,
    "begin": BEGIN,
    "rest": REST,
    "close": CLOSE,
}
"""The whole table, by the names of the events."""

IS_DUE = frozenset({_DUE, _JOINED_DUE, _ASKING_DUE})
"""States in which another order is asked for anyway."""

WAITING = frozenset({_IDLE, _HEARS})
"""States in which the loop waits for a moment, or for an event."""

JOINED = frozenset({_JOINED, _JOINED_CAME, _JOINED_DUE})
"""States in which a request has left with settlements, and is to be taken over."""

IN_FLIGHT = JOINED | {_ASKING, _ASKING_CAME, _ASKING_DUE}
"""States in which a request is in flight."""


class Order(NamedTuple):
    """What a supplier is to do next, and for whom."""

    asks: bool
    """Whether to make a claim request now; also for no items, to see if there are some or to pass a wake-up on."""
    wanted: int = 0
    """Items to claim."""
    listens: bool = False
    """Whether to leave a wake-up channel where nothing is ready, because a consumer waits until there is something, or
    may come back to."""
    is_awaited: bool = False
    """Whether such a consumer waits already."""
    pause: float = 0.0
    """Seconds until the next order if no request is made and no wake-up arrives."""
    expected: int = 0
    """Consumers for whom the request asks although they do not wait yet."""
    waiting: tuple[object, ...] = ()
    """Consumers that wait now: they are told if it brings nothing.  An answer that was decided before a consumer came
    says nothing about what is ready for it."""


class Supply:
    """Know what is to be asked of one shard, and when."""

    __slots__ = ("asked_at", "due_at", "is_dry", "is_late", "low", "order", "owed_at", "probed", "state", "was_owed_at")

    def __init__(self) -> None:
        self.state = SupplyState.RESTING
        self.due_at = 0.0
        """When the next order is to be asked for, unless an event makes it due before."""
        self.owed_at = math.inf
        """When a request is to be made even if no consumer waits here: others have to learn of what is due then."""
        self.was_owed_at = math.inf
        """The same, before the request in flight: it is owed again if that fails."""
        self.order: Order | None = None
        """The order whose request is in flight."""
        self.is_dry = True
        """Whether nothing was left there."""
        self.is_late = False
        """Whether the request in flight takes long."""
        self.asked_at = 0.0
        """When the last request was made."""
        self.low = 0
        """Claims made ahead below which the next order is due."""
        self.probed = 0
        """Items that the next order is to be for at least, once."""

    @property
    def asking(self) -> int:
        """Items asked for by the request in flight."""
        return self.order.wanted if self.order else 0

    def tell(self, row: Row) -> Action | None:
        """Note an event; return what is to be done."""
        self.state, action = row[self.state]
        return action

    def wake(self, *, alone: bool) -> Action | None:
        """Note a wake-up: an item may be ready.  ``alone``: no other process was woken for it."""
        if not alone:
            return self.tell(WAKE)
        self.owed_at, self.is_dry = 0.0, False
        return self.tell(LOOK)

    def probe(self, count: int) -> Action | None:
        """Have this many items claimed once, at least."""
        self.probed = count
        return self.tell(LOOK)

    def owes(self, now: float) -> bool:
        """Tell whether a request is to be made even if no consumer waits here."""
        return self.owed_at <= now

    def pause(self, order: Order, now: float) -> None:
        """Note that nothing is to be asked for now."""
        self.probed = 0
        self.due_at = min(now + order.pause, self.owed_at)
        self.tell(PAUSE)

    def ask(self, order: Order, now: float, row: Row = ASK) -> Action | None:
        """Note that the request of an order leaves: by itself or, ``row``, with settlements."""
        self.state, action = row[self.state]
        self.order, self.asked_at, self.probed = order, now, 0
        self.was_owed_at, self.owed_at = self.owed_at, math.inf
        return action

    def answer(self, now: float, next_ms: int, *, heard: bool) -> Order:
        """Note the answer to the request in flight; return its order.

        ``next_ms``: milliseconds until an item becomes ready by itself, positive if there is one.  ``heard``: nothing
        is left, and a wake-up channel is there.
        """
        self.state, _ = (ANSWER_HEARD if heard else ANSWER)[self.state]
        if next_ms > 0:
            self.owed_at = min(self.owed_at, now + max(PASS_ON_LEAST, next_ms / 1000))
        assert self.order is not None
        order, self.order, self.is_late = self.order, None, False
        return order

    def fail(self) -> Order:
        """Note that the request in flight failed; return its order."""
        self.tell(FAIL)
        self.owed_at = min(self.owed_at, self.was_owed_at)
        assert self.order is not None
        order, self.order, self.is_late = self.order, None, False
        return order

    def begin(self) -> None:
        """Note that the loop begins."""
        self.tell(BEGIN)
        if self.state not in IN_FLIGHT:
            self.order, self.is_late = None, False

    def set_low(self, target: int, elsewhere: int) -> None:
        """Note how many items are to be claimed ahead in all, and how many other shards have claimed.

        The next request leaves when half is left, so that its answer arrives before the rest is used up.
        """
        self.low = -(-target // 2) - elsewhere

    def late(self) -> None:
        """Note that the request in flight takes long: the other shards are asked for what it is about."""
        assert self.asking, "late, and not in flight"
        self.is_late = True

    def found(self, *, is_dry: bool) -> bool:
        """Note whether something is left there; return whether nothing was before, and nothing is now."""
        was_dry, self.is_dry = self.is_dry, is_dry
        return was_dry and is_dry

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - There is an order as long as its request is in flight, and no longer: the other shards would be asked for too
          little as long as this one is not asked again.
        - It asks for what one request may claim, and only one that is in flight is late.
        """
        is_closed = self.state is SupplyState.CLOSED
        assert is_closed or (self.order is not None) is (self.state in IN_FLIGHT), f"{self.state}, with {self.order}"
        assert 0 <= self.asking <= CLAIM_MAX, f"a request for {self.asking} items"
        assert self.asking or not self.is_late, "late, and not in flight"


def asked_of(wanted: int, own: Supply, before: Sequence[Supply], after: Sequence[Supply]) -> int:
    """Return how many of the items that the consumers want a shard is asked for.

    ``before`` and ``after``: the shards that were asked less recently than this one, and more recently.
    """
    others = (*before, *after)
    rivals = _with_items(others)
    if own.is_dry:
        return 0 if rivals else -(-wanted // (1 + len(others)))
    if _with_items(before) or any(rival.asking for rival in rivals):
        return 0
    return max(0, wanted - sum(other.asking for other in others if not other.is_late))


def is_spared(own: Supply, others: Sequence[Supply]) -> bool:
    """Tell whether a shard is asked for nothing because others have items."""
    return own.is_dry and bool(_with_items(others))


def _with_items(standings: Sequence[Supply]) -> list[Supply]:
    return [each for each in standings if not each.is_dry and not each.is_late]
