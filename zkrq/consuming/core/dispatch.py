"""Decide which claims go to which consumer, and what each shard of a queue is asked for: events in, actions out.

A *stock* is a supply (``supply.py``) with the claims made ahead of it.  A *waiter* is a call that found nothing there.
The shell (``line.py``, ``supplier.py``) tells ``Dispatch`` of events, and after each carries out ``actions``.

From a wake-up to a handler:

- ``Supply.wake`` makes the stock due.  Its loop asks ``order`` what to claim: what the waiters want, and what is to be
  claimed ahead (``Pace.target``).  Of several shards each is asked for its part of that (``asked_of``).
- The request leaves, by itself or with settlements.  What happens meanwhile makes the stock due again.
- ``answer`` puts the claims into the stock.  ``_decide`` gives them to the waiters, the first that came first, and says
  which stock is to look again.  The shell sets the waiters' futures, and their handlers begin.
- What is left stays ahead: the next ``draw`` of a stream takes it without a wait, and asks for more when less than
  ``Supply.low`` is left.

How far ahead a stream claims is decided in ``Pace.adapt``, which sets ``Pace.target``.  Beyond it a request asks for
the waiters, and for consumers that are *expected*: they settle a claim just now, and come back for the next one.
``CLAIM_MAX`` bounds one request.  ``Supply.set_low`` says when the next one leaves, ``Pace.surplus`` what goes back.

1. Nothing waits that could begin: a consumer waits only while nothing is claimed ahead, and the first that came is
   served first.  So a stream that finds claims ahead does not overtake those who wait.
2. A claim is in one place: in a stock, with the consumer that was given it, or on its way back.  It is given only while
   it holds, and while the session is not certain only if a server has just granted it: another client may have fenced
   this owner, but a fenced owner is granted nothing.
3. Without consumers nothing stays claimed ahead.
4. An answer that brings nothing leads to no other request, unless a consumer that wants an answer came after that
   request had left, or no wake-up channel was left.
5. A caller that does not wait is told that nothing is ready once every shard has answered after it came.  A shard that
   fails, or is away, is not waited for, unless it is the same with all.
6. Streams take the claims of one shard at a time, because claims that were made together are settled together.  A turn
   lasts until those are used up, or for as many claims as the target says.
7. A *quiet* process claims nothing more.  What is claimed ahead goes back, a call that does not wait is told that
   nothing is ready, and the others keep waiting.  A wake-up that no other process received still leads to a request,
   for no items, which wakes the next process.  It leaves no wake-up channel, or items would be reported here first.

``now`` is ``loop.time()``, in seconds.  ``is_certain``: whether the session is certainly alive.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from zkrq.consuming.core.lease import DELIVER, HOLDING, TAKE_BACK, LeaseState
from zkrq.consuming.core.pace import AHEAD_SECONDS, CLAIM_MAX, Pace, PrefetchLimit
from zkrq.consuming.core.supply import (
    CAME,
    IS_DUE,
    LOOK,
    PROBE_SECONDS,
    Action,
    Order,
    Supply,
    SupplyState,
    asked_of,
    is_spared,
)

C = TypeVar("C")

SWEEP_SECONDS = 5.0
"""Seconds between two requests of a waiting consumer that receives no wake-up."""

POLL_MS = 500
"""Milliseconds between two requests of a waiting consumer that has no wake-up channel."""


class Held(Protocol):
    """What is known of a claim: its lease."""

    state: LeaseState
    deadline_at: float

    @property
    def issuer(self) -> object:
        """What settles it: one for each shard of a queue."""
        ...


_lease_of = cast("Callable[[object], Held]", attrgetter("_lease"))
"""Return the lease of a claim.  Implemented in C, so a call per item costs almost nothing."""


class Caller(Protocol[C]):
    """The consumer behind a waiter: a future.  Only the shell sets it."""

    def done(self) -> bool:
        """Tell whether it waits no more: it was served elsewhere, or has left and was not withdrawn yet."""
        ...

    def set_result(self, result: list[C], /) -> None: ...

    def set_exception(self, exception: Exception, /) -> None: ...

    def exception(self) -> BaseException | None: ...


@dataclass(eq=False, slots=True)
class Waiter(Generic[C]):
    """A call that wants up to ``want`` claims: now or, if ``patient``, as soon as there are some."""

    want: int
    patient: bool
    caller: Caller[C]
    claims: list[C] | None = None
    """What it was given.  Empty: nothing is ready."""
    error: Exception | None = None
    """Why nobody can tell what is ready.  A wait that ends with neither was closed."""
    answers: dict[Stock[C], Exception | None] | None = None
    """Stocks that had nothing for it, or have failed.  None: none yet."""


class ClaimReport(NamedTuple, Generic[C]):
    """What a claim request brought."""

    next_ms: int
    """Milliseconds until an item becomes ready by itself; 0: some are left, or this request has to be made again;
    negative: never."""
    claims: Sequence[C] = ()
    size: int = 0
    """Bytes of the payloads."""
    listening: bool = False
    """Whether a wake-up channel was left: not where all that was asked for was there."""


class Stock(Supply, Generic[C]):
    """One shard as the consumers are served by it: its supply, and the claims made ahead of it."""

    __slots__ = ("ahead", "answered", "fails", "is_away", "issuer")

    def __init__(self, issuer: object = None, is_away: Callable[[], bool] = lambda: False) -> None:
        """``issuer``: what settles its claims.  ``is_away`` tells whether its servers cannot be asked now."""
        super().__init__()
        self.issuer = issuer
        self.is_away = is_away
        self.ahead = deque[C]()
        """Claims made ahead, in the order in which they are given."""
        self.fails = False
        """Whether the last request failed."""
        self.answered = 0
        """Requests that were answered."""

    @property
    def is_in_trouble(self) -> bool:
        """Whether the last request failed, or the next one will."""
        return self.fails or self.is_away()


Act: TypeAlias = "Waiter[C] | tuple[Stock[C], Action | C]"
"""What the shell is to do: end a wait, as the waiter says; something with a stock's loop; or hand back one of a stock's
claims, which no consumer has seen."""


class Cause(enum.Enum):
    """Say which stocks an event makes look what is to be claimed."""

    NONE = enum.auto()  # the consumers want no more than before: nobody
    CAME = enum.auto()  # one came: all, but where nothing was ready, or is when asked now, a wake-up will tell
    ASKS = enum.auto()  # one came that is to hear whether something is ready, or was: all
    LOW = enum.auto()  # less is left than is to be claimed ahead: as CAME; with several shards all
    LEFT = enum.auto()  # the answer of one that has more: the others, whose turn it is; itself if more is wanted
    EMPTIED = enum.auto()  # the answer of one that has no more: the others
    STILL_EMPTY = enum.auto()  # as before it: the others that have items, or empty shards would never rest
    LATE = enum.auto()  # one does not answer: the others


class Dispatch(Generic[C]):
    """Know the consumers and the stocks of one queue, and decide after every event."""

    def __init__(self, *, limited: bool = False) -> None:
        self.pace = Pace()
        self.pace.limited = limited
        self.waiters = deque[Waiter[C]]()
        """In the order in which they came."""
        self.stocks: Sequence[Stock[C]] = ()
        """In the order in which they are asked: the one that has served last comes last."""
        self.actions: list[Act[C]] = []
        """What the shell is to carry out, in this order.  It empties the list."""
        self.has_others = False
        """Whether there are several stocks."""
        self.is_closed = False
        self.is_quiet = False
        """Whether nothing more is to be claimed, as an operator says; see ``quiet``."""
        self._turn: Stock[C]
        self._left = 0

    # -- consumers -------------------------------------------------------------------------------------------------

    @property
    def has_consumers(self) -> bool:
        """Whether consumers are here: they wait, or iterate over claims."""
        return bool(self.waiters or self.pace.streams)

    @property
    def ahead(self) -> int:
        """Items claimed ahead."""
        return sum(map(len, map(AHEAD, self.stocks)))

    def draw(self, want: int, now: float, is_certain: bool) -> list[C]:
        """Return up to ``want`` claims made ahead: none if there are none, or if another consumer has waited longer."""
        drawn: list[C] = []
        if self.waiters or self.is_closed:
            return drawn
        if not is_certain:
            for stock in self.stocks:
                self._hand_back(stock, len(stock.ahead))
        while len(drawn) < want:
            stock = self._turn
            if not (stock.ahead and self._left):
                if not self._begin_turn():
                    break
                stock = self._turn
            self._left -= 1
            claim = stock.ahead.popleft()
            lease = _lease_of(claim)
            if lease.state in HOLDING and lease.deadline_at > now:  # as _pull, without the call
                lease.state = DELIVER[lease.state]
                drawn.append(claim)
        stock = self._turn
        if drawn:
            self.pace.taken += len(drawn)
            # The first part of the question is answered for every item; ``_decide`` asks the whole.
            if len(stock.ahead) < stock.low and (self.has_others or stock.state not in _QUIET):
                self._decide(Cause.LOW, now, is_certain)
        return drawn

    def wait(self, waiter: Waiter[C], now: float, is_certain: bool, *, asks: bool) -> None:
        """Let a consumer wait that has found nothing.  ``asks``: also where a wake-up would tell it."""
        self.waiters.append(waiter)
        if self.is_quiet:
            self._tell_impatient()
            return
        for stock in self.stocks:
            # What makes a stock look is in ``_decide``.  This spares the call for consumers for whom there is nothing
            # to do: usually most of those that wait.
            if asks or stock.state not in _QUIET:
                self._decide(Cause.ASKS if asks else Cause.CAME, now, is_certain)
                break

    def withdraw(self, waiter: Waiter[C], now: float, is_certain: bool, *, served: bool = False) -> None:
        """Remove a waiter that waits no more.  Claims that it was given here go to the next one, unless it was
        ``served``."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        # A cancellation may come in the turn between being served and going on.  Then the claims are here and nobody
        # knows of them.
        if waiter.claims and not served:
            self._put_back(waiter.claims)
        self._decide(Cause.NONE, now, is_certain)

    def give_back(self, claims: Sequence[C], now: float, is_certain: bool) -> None:
        """Let other consumers have claims that were taken and not begun with; without any they go to the queue."""
        self._put_back(claims)
        if not self.is_closed:  # else the shell hands back what no consumer has begun with
            self._decide(Cause.NONE, now, is_certain)

    def leave(self, limit: PrefetchLimit, now: float, is_certain: bool) -> None:
        """Remove a stream.  (``pace.join`` adds one, which by itself is no reason to ask for anything.)"""
        self.pace.leave(limit)
        self._decide(Cause.NONE, now, is_certain)

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once, unless some are: the streams take from other queues and do not
        wait."""
        for stock in () if self.ahead or self.is_quiet else self.stocks:
            if action := stock.probe(count):
                self.actions.append((stock, action))

    def quiet(self, is_quiet: bool, now: float, is_certain: bool) -> None:
        """Claim nothing more, or claim again."""
        self.is_quiet = is_quiet
        if is_quiet:
            self._tell_impatient()
        self._decide(Cause.NONE if is_quiet else Cause.ASKS, now, is_certain)

    def _tell_impatient(self) -> None:
        """Tell those who would not wait that nothing is ready for this process."""
        for waiter in [each for each in self.waiters if not (each.patient or each.caller.done())]:
            self.waiters.remove(waiter)
            waiter.claims = []
            self.actions.append(waiter)

    # -- shards ----------------------------------------------------------------------------------------------------

    def use(self, stocks: Sequence[Stock[C]], now: float, is_certain: bool) -> None:
        """Claim from these from now on.  Claims of others stay as they are."""
        self.stocks = stocks
        self.has_others = len(stocks) > 1
        self._turn, self._left = stocks[0], 0 if self.has_others else _ENDLESS
        self.pace.shards = len(stocks)
        if self.waiters:
            self._decide(Cause.ASKS, now, is_certain, told=tuple(self.waiters))

    def close(self) -> None:
        """End every wait.  Claims that were not handed out are the shell's to hand back."""
        self.is_closed = True
        while self.waiters:
            self.actions.append(self.waiters.popleft())

    # -- requests --------------------------------------------------------------------------------------------------

    def expects(self, returning: int) -> bool:
        """Tell whether consumers who are about to come back are to find items claimed for them."""
        return returning > 0 and self.pace.eager > len(self.waiters)  # one that waits does not come back

    def order(self, stock: Stock[C], now: float, is_certain: bool, returning: int = 0) -> Order:
        """Say what a stock that is due is to be asked for.

        ``returning``: consumers whose settlements leave now.  A stream among them is expected back immediately, and
        finds its next item claimed when its settlement is done.
        """
        if self.is_quiet:  # nothing but to pass a wake-up on
            return Order(asks=stock.owes(now), pause=SWEEP_SECONDS)
        if surplus := self.pace.surplus(now, self.ahead):
            for each in self.stocks:
                count = min(surplus, len(each.ahead))
                self._hand_back(each, count)
                surplus -= count
        self.pace.adapt(now, is_certain=is_certain)
        expected = min(returning, max(0, self.pace.eager - len(self.waiters))) if is_certain else 0
        count = self._wanted_of(stock, now, expected)
        # A process that was woken alone makes a request even if nobody waits here any more: the request wakes the
        # next process that waits.  Without it the item would lie there until the next sweep.
        if not (count or stock.owes(now) or (now - stock.asked_at >= PROBE_SECONDS and self._is_spared(stock))):
            return Order(asks=False, pause=self._pause_of(stock, SWEEP_SECONDS))
        waiting = tuple(self.waiters)
        is_awaited = any(map(_PATIENT, waiting))
        return Order(
            asks=True,
            wanted=count,
            listens=is_awaited or expected > 0,
            is_awaited=is_awaited,
            expected=expected,
            waiting=waiting,
        )

    def answer(self, stock: Stock[C], report: ClaimReport[C], now: float, is_certain: bool) -> None:
        """Note what the request in flight has brought: give it to the consumers, and say when the next one is due."""
        next_ms, listening, claims, limited = report.next_ms, report.listening, report.claims, self.pace.limited
        is_dry = next_ms != 0
        # Where a rate has stopped the request, no channel was left.
        order = stock.answer(now, next_ms, heard=is_dry and listening and not limited)
        stock.answered += 1
        stock.fails = False
        # If nothing was ahead before, consumers could take nothing: their pace is measured from now on.
        self.pace.note_claimed(now, items=len(claims), size=report.size, buffer_was_empty=not self.ahead)
        stock.ahead += claims
        is_dry_still = stock.found(is_dry=is_dry)
        # Only an empty shard is an answer for callers that do not wait: what is left comes with the next request.
        told = self._tell_askers(stock, order, None) if is_dry else ()
        cause = Cause.STILL_EMPTY if is_dry_still else Cause.EMPTIED if is_dry else Cause.LEFT
        self._decide(cause, now, is_certain, at=stock, fresh=stock, told=told)
        if limited:
            self._hand_back(stock, max(0, len(stock.ahead) - order.expected))
        if not listening and self.waiters and next_ms:
            next_ms = POLL_MS if next_ms < 0 else min(next_ms, POLL_MS)
        stock.due_at = now + self._pause_of(stock, min(SWEEP_SECONDS, next_ms / 1000) if next_ms > 0 else SWEEP_SECONDS)

    def fail(self, stock: Stock[C], error: Exception, now: float, is_certain: bool) -> None:
        """Note that the request in flight failed.

        Those who asked are told; those who wait longer are served by another request, or by another shard.
        """
        order = stock.fail()
        stock.fails = True
        told = self._tell_askers(stock, order, error)
        cause = Cause.STILL_EMPTY if stock.found(is_dry=True) else Cause.EMPTIED
        self._decide(cause, now, is_certain, at=stock, told=told)

    def late(self, stock: Stock[C], now: float, is_certain: bool) -> None:
        """Note that the request in flight takes long."""
        stock.late()
        self._decide(Cause.LATE, now, is_certain, at=stock)

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decide(
        self,
        cause: Cause,
        now: float,
        is_certain: bool,
        *,
        at: Stock[C] | None = None,
        fresh: Stock[C] | None = None,
        told: Iterable[Waiter[C]] = (),
    ) -> None:
        """Settle what follows from an event: who is served, whose wait is over, what goes back, who is to look.

        ``at``: the stock that it was about.  ``fresh``: the one that a server has just granted claims.  ``told``: the
        waiters that were answered by it.
        """
        is_low = cause is Cause.LOW
        if self.is_quiet:
            for stock in self.stocks:
                self._hand_back(stock, len(stock.ahead))
            return
        if self.waiters and any(map(AHEAD, self.stocks)):
            is_low = self._serve(now, is_certain, fresh)
        if fresh and self.has_others:
            # So that shards take turns, and none is asked for everything.
            self.stocks = [*(stock for stock in self.stocks if stock is not fresh), fresh]
        for waiter in told:
            self._end_if_over(waiter)
        if not (self.waiters or self.pace.streams):
            for stock in self.stocks:
                self._hand_back(stock, len(stock.ahead))
        for stock in self.stocks:
            if stock.state in IS_DUE:
                continue
            match cause:
                case Cause.NONE | Cause.LOW | Cause.CAME:
                    looks = False
                case Cause.ASKS:
                    looks = bool(self.waiters)
                case Cause.LEFT if stock is at:
                    looks = self._wanted_of(stock, now) > 0 and (bool(self.waiters) or len(stock.ahead) < stock.low)
                case Cause.STILL_EMPTY:
                    looks = stock is not at and not stock.is_dry
                case Cause.LEFT | Cause.EMPTIED | Cause.LATE:
                    looks = stock is not at
            # What a shard without items is asked for, it has not; the others may have it.
            row = LOOK if looks or (is_low and self.has_others) else CAME if is_low or cause is Cause.CAME else None
            if row:
                stock.state, action = row[stock.state]
                if action:
                    self.actions.append((stock, action))

    def _serve(self, now: float, is_certain: bool, fresh: Stock[C] | None) -> bool:
        """Give claims made ahead to those who wait; return whether less is left than is to be claimed ahead."""
        is_low = False
        for stock in self.stocks:
            if not is_certain and stock is not fresh:
                self._hand_back(stock, len(stock.ahead))
            while self.waiters and stock.ahead:
                waiter = self.waiters[0]
                if not waiter.caller.done():
                    drawn = self._pull(stock, waiter.want, now)
                    is_low = is_low or len(stock.ahead) < stock.low
                    if not drawn:
                        break
                    waiter.claims = drawn
                    self.actions.append(waiter)
                self.waiters.popleft()
        return is_low

    def _pull(self, stock: Stock[C], want: int, now: float) -> list[C]:
        """Take claims from a stock, and leave out those that were lost meanwhile."""
        drawn: list[C] = []
        while stock.ahead and len(drawn) < want:
            claim = stock.ahead.popleft()
            lease = _lease_of(claim)
            if lease.state in HOLDING and lease.deadline_at > now:
                lease.state = DELIVER[lease.state]
                drawn.append(claim)
        self.pace.taken += len(drawn)
        return drawn

    def _put_back(self, claims: Sequence[C]) -> None:
        """Put claims that were taken back into their stocks, as the first; those of shards that are gone stay away."""
        for claim in reversed(claims):
            lease = _lease_of(claim)
            issuer = lease.issuer
            for stock in self.stocks:
                if stock.issuer is issuer:
                    lease.state = TAKE_BACK[lease.state]
                    stock.ahead.appendleft(claim)

    def _hand_back(self, stock: Stock[C], count: int) -> None:
        """Hand back this many of the claims made ahead, the last ones."""
        for _ in range(count):
            self.actions.append((stock, stock.ahead.pop()))

    def _begin_turn(self) -> bool:
        """Let another shard that has claims have its turn.  Return whether one has."""
        if not self.has_others:
            return False
        for stock in (*(other for other in self.stocks if other is not self._turn), self._turn):
            if stock.ahead:
                self._turn, self._left = stock, max(self.pace.target, len(stock.ahead))
                if action := stock.tell(LOOK):
                    self.actions.append((stock, action))
                return True
        return False

    def _wanted_of(self, stock: Stock[C], now: float, expected: int = 0) -> int:
        """Return how many items this one is to claim now.  ``expected``: consumers that are about to come back."""
        own = stock.ahead
        while own:
            lease = _lease_of(own[0])
            if lease.state in HOLDING and lease.deadline_at > now:
                break
            own.popleft()
        ahead, target = self.ahead, self.pace.target
        stock.set_low(target, ahead - len(own))
        count = sum(map(_WANT, self.waiters)) + max(0, max(target, expected) - ahead)
        if count and self.has_others:
            at = self.stocks.index(stock)
            count = asked_of(count, stock, self.stocks[:at], self.stocks[at + 1 :])
        return min(CLAIM_MAX, max(count, stock.probed - len(own) if stock.probed else 0))

    def _is_spared(self, stock: Stock[C]) -> bool:
        """Tell whether consumers are here that this one is not asked for, because others have items."""
        return self.has_consumers and is_spared(stock, [other for other in self.stocks if other is not stock])

    def _pause_of(self, stock: Stock[C], longest: float) -> float:
        """Return how many seconds after its last request, at most, this one is to look again."""
        if self.ahead > self.pace.fixed:
            longest = min(longest, AHEAD_SECONDS)
        return min(longest, PROBE_SECONDS) if self.has_others and self._is_spared(stock) else longest

    def _tell_askers(self, stock: Stock[C], order: Order, error: Exception | None) -> Sequence[Waiter[C]]:
        """Note that one had nothing, or has failed; return those for whom its request was made, if they do not wait
        longer."""
        told = [waiter for waiter in cast("tuple[Waiter[C], ...]", order.waiting) if not waiter.patient]
        for waiter in told:
            waiter.answers = {**(waiter.answers or {}), stock: error}
        return told

    def _end_if_over(self, waiter: Waiter[C]) -> None:
        """End the wait of one who would not wait longer, if every shard had nothing."""
        if waiter.claims is not None or waiter.caller.done():
            return
        answers = waiter.answers or {}
        silent = [stock for stock in self.stocks if stock not in answers]
        errors = [error for stock, error in answers.items() if error and stock in self.stocks]
        has_answer = len(silent) + len(errors) < len(self.stocks)
        # Three cases: some shards had nothing, and the others cannot be reached: nothing is ready, as far as is
        # known.  All have failed: the first error is the answer.  Otherwise another shard may still have items.
        if not (all(stock.is_in_trouble for stock in silent) if has_answer else errors and not silent):
            return
        self.waiters.remove(waiter)
        if has_answer:
            waiter.claims = []
        else:
            waiter.error = errors[0]
        self.actions.append(waiter)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - Nothing waits that could begin.
        - Who was served here waits here no more: the next claims would be lost with a wait that has ended.
        - The turn is one of a shard that is used, for a number of claims that is not negative: a stream would find
          nothing while claims are there, or would never leave a shard.
        - What is claimed ahead is of its shard, there once, and no consumer has it: it would be handed out twice.
        - Without consumers nothing is claimed ahead, unless the shell is about to hand it back.
        - Once closed nobody waits.
        - A quiet process has nothing ahead, and no call that would not wait.
        """
        assert not self.actions, f"nobody carries out {self.actions}"
        assert not (self.is_closed and self.waiters), "closed, and consumers wait"
        assert self.has_others == (len(self.stocks) > 1), f"{len(self.stocks)} stocks"
        assert self._turn in self.stocks, "the turn of a shard that is not used any more"
        assert self._left >= 0, f"a turn for {self._left} claims"
        ahead = [claim for stock in self.stocks for claim in stock.ahead]
        waiting = [waiter for waiter in self.waiters if not waiter.caller.done()]
        for waiter in waiting:
            assert waiter.claims is None, f"was served, and waits still: {waiter}"
            assert waiter.want > 0, f"waits for nothing: {waiter}"
        assert not (waiting and ahead), f"{len(waiting)} consumers wait, and {len(ahead)} claims are there"
        assert self.is_closed or self.has_consumers or not ahead, f"{len(ahead)} claims ahead of nobody"
        assert len({*map(id, ahead)}) == len(ahead), "a claim is there twice"
        assert not (self.is_quiet and ahead), f"quiet, and {len(ahead)} claims are there"
        assert not self.is_quiet or all(waiter.patient for waiter in waiting), "quiet, and a call waits for an answer"
        self.pace.check_invariants()
        for stock in self.stocks:
            stock.check_invariants()
            for lease in map(_lease_of, stock.ahead):
                assert lease.issuer is stock.issuer, f"a claim of another shard: {lease!r}"
                assert lease.state is not LeaseState.DELIVERED, f"a consumer has what is ahead: {lease!r}"


_ENDLESS = 1 << 60
"""Claims in the turn of a shard that is the only one."""

_QUIET = IS_DUE | {SupplyState.LISTENING, SupplyState.JOINED_CAME, SupplyState.ASKING_CAME}
"""States in which a stock need not hear of a consumer that wants no answer."""

AHEAD = attrgetter("ahead")
_WANT, _PATIENT = attrgetter("want"), attrgetter("patient")
