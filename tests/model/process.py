"""The process of a consumer: ``zkrq/consuming/core`` decides which claims go to whom, and what is asked for next.

Here is what ``Line`` and ``Supplier`` do for it, without an event loop: events go in, and what it says is carried out.
What consumers do, and what the time is, chance says; what it knows of its session and its leases, the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from tests.model.content import Item, Token
from tests.model.promises import check_consistent
from tests.model.world import World
from zkrq.consuming.core import lease as leases
from zkrq.consuming.core import supply as life
from zkrq.consuming.core.dispatch import ClaimReport, Dispatch, Stock, Waiter
from zkrq.consuming.core.lease import HOLDING, LeaseState
from zkrq.consuming.core.pace import PrefetchLimit
from zkrq.consuming.core.supply import IS_DUE, WAITING, Action, Order

STREAMS = (PrefetchLimit(0), PrefetchLimit(2), PrefetchLimit(3, fixed=True), PrefetchLimit(None))
"""What is claimed ahead for a consumer that goes on."""

SECONDS = (0.1, 0.6, 6.0)
"""What passes between two events: less than any pause of the core's, a short one, a sweep."""

EVENTS = 3
"""Fewer events than this happen in one turn."""

MOST = 4
"""Items that one consumer wants."""

AT_ONCE = 6
"""Items that consumers want or have at the same time, before no other consumer comes."""

SEES = 0.5
"""How often a process sees that its leases are over; another one knows only that its session is not certain."""

DOUBTS = 0.3
"""How often a process has heard nothing of ZooKeeper lately."""

LEAVES = 0.1
"""How often a consumer that was just served leaves, or gives back what it has not begun with."""

CLOSES = 0.5
"""How often a process is closed, and does not only come to an end."""

ENDS = 0.3
"""How often a stream, or one that waits, leaves when it may."""

PATIENT = 0.7
HEARS = 0.5
MORE = 0.3
"""How often a consumer waits until there is something; a wake-up channel is there; more is left than was asked for."""


class Lease:
    """What the core knows of a claim."""

    __slots__ = ("issuer", "state", "token")

    def __init__(self, process: Process, token: Token) -> None:
        self.issuer = process
        self.token = token
        self.state = LeaseState.GRANTED

    @property
    def deadline_at(self) -> float:
        is_seen = self.issuer.sees_deadlines and self.issuer.is_over(self.token)
        return -math.inf if is_seen else math.inf


class Held:
    """A claim on an item; ``version``: of the record that says so; ``fence``: fencing token."""

    __slots__ = ("_lease", "bundle", "fence", "item", "position", "saved", "saves", "state_sent", "version")

    def __init__(
        self, lease: Lease, item: Item, bundle: Item, position: int, version: bytes, fence: tuple[int, int]
    ) -> None:
        self._lease = lease
        self.item = item
        self.bundle = bundle
        self.position = position
        self.version = version
        self.fence = fence
        self.saved = b""
        """The state that the consumer was given, or has saved."""
        self.state_sent = b""
        """That of the save in flight."""
        self.saves = 0
        """Number of the last one."""

    @property
    def token(self) -> Token:
        return self._lease.token

    @property
    def state(self) -> LeaseState:
        return self._lease.state

    def tell(self, row: leases.Row) -> None:
        """Note an event of its life."""
        self._lease.state = row[self._lease.state]


class Caller:
    """A consumer that waits, until it is served or has left."""

    def __init__(self) -> None:
        self.has_ended = False

    def done(self) -> bool:
        return self.has_ended

    def set_result(self, result: list[Held], /) -> None:
        self.has_ended = True

    def set_exception(self, exception: Exception, /) -> None:
        self.has_ended = True

    def exception(self) -> BaseException | None:
        return None


class Process:
    """The consumers of one queue, and the core that serves them."""

    def __init__(self, world: World) -> None:
        self.world = world
        clock = world.ledger.clock
        self.dispatch = Dispatch[Held](limited=clock.limit > 0 or clock.ordered)
        self.stock = Stock[Held](self)
        self.dispatch.use([self.stock], 0.0, True)
        self.token: Token = ""
        """Of the last request of this session."""
        self.is_open = False
        """Whether that request has no answer yet: it is made again under the same number."""
        self.sees_deadlines = world.chance(SEES)
        self.taken: list[Held] = []
        """Claims that consumers have."""
        self.returning: list[Held] = []
        """Claims that no consumer has seen, on their way back."""
        self._streams: list[PrefetchLimit] = []
        self._now = 0.0
        self._doubts = False

    def is_over(self, token: Token) -> bool:
        """Whether the session of this claim request has ended, by the clock of the process."""
        return token in self.world.ledger.lapsed

    @property
    def is_certain(self) -> bool:
        return not self._doubts and not self.is_over(self.token)

    @property
    def moment(self) -> tuple[float, bool]:
        return self._now, self.is_certain

    # -- what consumers do -------------------------------------------------------------------------------------------

    def happen(self, *, come: bool) -> None:
        """Let some events happen; ``come``: consumers still come."""
        world = self.world
        events = [self._leave, self._draw, self._draw, self._wake, self._pass_time, self._pass_time, self._doubt]
        events += [self._wait, self._wait, self._wait, self._join, self._join, self._probe] if come else [self._rest]
        for _ in range(world.below(EVENTS)):
            events[world.below(len(events))]()
            self._carry_out()

    def _wait(self) -> None:
        world, want = self.world, 1 + self.world.below(MOST)
        if len(self.taken) + sum(waiter.want for waiter in self.dispatch.waiters) + want > AT_ONCE:
            return
        if drawn := self.dispatch.draw(want, *self.moment):
            self._take(drawn)
            return
        waiter = Waiter[Held](want, world.chance(PATIENT), Caller())
        self.dispatch.wait(waiter, *self.moment, asks=not waiter.patient)

    def _leave(self) -> None:
        """One that waits leaves, or a stream ends."""
        if self._streams and self.world.chance(ENDS):
            self.dispatch.leave(self._streams.pop(), *self.moment)
        elif self.dispatch.waiters and self.world.chance(ENDS):
            waiter = self.dispatch.waiters[self.world.below(len(self.dispatch.waiters))]
            waiter.caller.set_result([])
            self.dispatch.withdraw(waiter, *self.moment)

    def _join(self) -> None:
        if not self._streams:
            self._streams.append(STREAMS[self.world.below(len(STREAMS))])
            self.dispatch.pace.join(self._streams[0])

    def _draw(self) -> None:
        """A stream goes on."""
        if self._streams and len(self.taken) < AT_ONCE:
            drawn = self.dispatch.draw(1, *self.moment)
            self.world.ledger.counts["claimed ahead"] += len(drawn)
            self._take(drawn)

    def _probe(self) -> None:
        if self._streams:
            self.dispatch.probe(1 + self.world.below(MOST))

    def _wake(self) -> None:
        """A message says that an item may be ready."""
        if action := self.stock.wake(alone=self.world.chance(HEARS)):
            self._act(action)

    def _pass_time(self) -> None:
        self._now += SECONDS[self.world.below(len(SECONDS))]
        if self.stock.state in WAITING and self.stock.due_at <= self._now:
            self.stock.tell(life.TIME)

    def _doubt(self) -> None:
        self._doubts = self.world.chance(DOUBTS)

    def _rest(self) -> None:
        if not self.dispatch.has_consumers and self.stock.state in life.REST and not self.returning:
            self.stock.tell(life.REST)

    def _take(self, claims: Sequence[Held]) -> None:
        """A consumer begins with these, or gives them back."""
        if self.world.has_all_rules:
            check_consistent(partial(_check_delivered, claims))
        if claims and self.world.chance(LEAVES):
            self.dispatch.give_back(claims, *self.moment)
            return
        ledger = self.world.ledger
        for claim in claims:
            self.world.log("holds", claim.item, claim.token)
            ledger.hold(claim.item, claim.token)
            ledger.hold_in_order(claim.item, claim.token, claim.fence)
            if ledger.saves:
                ledger.give_saved(claim.item, claim.saved)
        self.taken += claims

    # -- what the core says ------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        dispatch = self.dispatch
        while dispatch.actions:
            actions, dispatch.actions = dispatch.actions, []
            served: list[Waiter[Held]] = []
            for action in actions:
                if isinstance(action, Waiter):
                    action.caller.set_result([])
                    served.append(action)
                elif isinstance(what := action[1], Action):
                    self._act(what)
                else:
                    self.returning.append(what)
            for waiter in served:
                if self.world.chance(LEAVES):
                    dispatch.withdraw(waiter, *self.moment)
                else:
                    self._take(waiter.claims or ())
        if self.world.has_all_rules:
            check_consistent(dispatch.check_invariants)

    def _act(self, action: Action) -> None:
        if action is Action.START:
            self.stock.begin()

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether the core is to be asked what to claim."""
        return self.stock.state in life.ASK

    def order(self) -> Order | None:
        """Ask for an order; None if nothing is to be claimed now."""
        order = self.dispatch.order(self.stock, *self.moment)
        self._carry_out()
        if not order.asks:
            self.stock.pause(order, self._now)
            return None
        self.stock.ask(order, self._now)
        return order

    def join(self, returning: int) -> Order | None:
        """Ask for an order that leaves with settlements, of this many claims; None if none does."""
        stock = self.stock
        if stock.state not in life.JOIN or self.returning:
            return None
        if stock.state not in IS_DUE and (len(stock.ahead) >= returning or not self.dispatch.expects(returning)):
            return None
        order = self.dispatch.order(stock, *self.moment, returning)
        self._carry_out()
        if not order.wanted or (order.is_awaited and not self.world.chance(HEARS)):
            stock.tell(life.DECLINE)
            return None
        stock.ask(order, self._now, life.JOIN)
        return order

    def take_over(self) -> None:
        """Wait for the answer to the request that has left with settlements."""
        self.stock.tell(life.TAKE_OVER)

    def next_token(self) -> Token:
        """The number of the next request: that of the last one, if it was not answered.

        Now and then under another owner id, but not while claims of this one are ahead: they end with it.
        """
        world = self.world
        if not self.is_open and not self.token:
            self.token = world.token()
        elif not self.is_open:
            self.token = world.next_token(self.token, may_rename=not (self.stock.ahead or self.returning))
        self.is_open = True
        return self.token

    def answer(self, claims: Sequence[Held], *, is_short: bool) -> None:
        """The request was answered."""
        self.is_open = False
        next_ms = -1 if is_short or not self.world.chance(MORE) else 0
        listening = is_short and self.stock.order is not None and self.stock.order.listens and self.world.chance(HEARS)
        report = ClaimReport(next_ms, claims, len(claims), listening)
        self.dispatch.answer(self.stock, report, *self.moment)
        self._carry_out()

    def refuse(self) -> None:
        """The request was refused, or its answer came after the end of the session: another owner asks again."""
        self.lose()
        self.is_open, self.token = False, ""
        self.dispatch.answer(self.stock, ClaimReport(0), *self.moment)
        self._carry_out()

    def fail(self, error: Exception) -> None:
        """The request has failed, and is made again."""
        self.dispatch.fail(self.stock, error, *self.moment)
        self._carry_out()
        self.stock.tell(life.RETRY)

    # -- the end -----------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """The process hears that sessions are over: their claims are lost."""
        for claim in (*self.stock.ahead, *self.taken, *self.returning):
            if self.is_over(claim.token):
                claim.tell(leases.LOSE)
        self.taken = [claim for claim in self.taken if claim.state in HOLDING]
        self.returning = [claim for claim in self.returning if claim.state in HOLDING]

    def close(self) -> None:
        """No consumer waits any more; what none of them has taken goes back."""
        if self.world.chance(CLOSES):
            self.dispatch.close()
            self.stock.tell(life.CLOSE)
            self.returning += self.stock.ahead
            self.stock.ahead.clear()
        while self.dispatch.waiters:
            waiter = self.dispatch.waiters[0]
            waiter.caller.set_result([])
            self.dispatch.withdraw(waiter, *self.moment)
        while self._streams:
            self.dispatch.leave(self._streams.pop(), *self.moment)
        self._carry_out()


def _check_delivered(claims: Sequence[Held]) -> None:
    for claim in claims:
        assert claim.state is LeaseState.DELIVERED, f"a consumer is given {claim.item!r}, which is {claim.state}"
