"""Let the consumers of a queue in this process wait in one line, whichever shard of the queue serves them.

A ``Line`` is what the consumers want: it gives each supplier (one shard of the queue, ``supplier.py``) its orders, and
hands out what the suppliers report.  A consumer of several queues stands in the line of each with the same ``Waiter``:
whichever is served first takes it out of the others.

Streams take claims that were made ahead of one shard at a time, because claims that were made together are settled
together: a turn lasts until that shard's are used up, or for as many as the consumers take in a moment (``pace.py``).
``turns.py`` says which part of what the consumers want each shard is asked for.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.loop import running_loop
from zkrq.consuming.claims import lease_of
from zkrq.consuming.core.pace import AHEAD_SECONDS, CLAIM_MAX, Pace, PrefetchLimit
from zkrq.consuming.core.supply import IS_DUE, Order, SupplyState
from zkrq.consuming.core.turns import PROBE_SECONDS, asked_of, is_spared

if TYPE_CHECKING:
    from zkrq.consuming.claims import Claim
    from zkrq.consuming.context import QueueContext
    from zkrq.consuming.supplier import Report, Supplier

T = TypeVar("T")

SWEEP_SECONDS = 5.0
"""Seconds between two requests of a waiting consumer that receives no wake-up."""

POLL_MS = 500
"""Milliseconds between two requests of a waiting consumer that has no wake-up channel."""


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """Wait for claims: a call that wants up to ``want`` claims: now or, if ``patient``, as soon as there are some."""

    want: int
    patient: bool
    future: asyncio.Future[list[Claim[T]]]
    supplier: Supplier[T] | None = None
    """Where its claims come from, None before it has some."""
    answers: dict[Supplier[T], ZkrqError | None] | None = None
    """Suppliers that had nothing for it, or have failed.  None: none yet."""


_WANT, _PATIENT = attrgetter("want"), attrgetter("patient")


class Line(Generic[T]):
    """Hand the claims of a queue to its consumers in this process, first come first served.  Implements
    ``supplier.Demand``."""

    def __init__(self, context: QueueContext) -> None:
        self.own_loop = context.own_loop
        self.pace = Pace()
        self.pace.limited = context.settings.has_limits
        self._identity = context.identity
        self._waiters: deque[Waiter[T]] = deque()
        self._suppliers: Sequence[Supplier[T]] = ()
        """In the order in which they are asked: the one that has served last comes last."""
        self._buffers: Sequence[deque[Claim[T]]] = ()
        self.has_others = False
        """Whether there are several suppliers."""
        self._turn: Supplier[T]
        self._left = 0
        self._closed = False

    def use(self, suppliers: Sequence[Supplier[T]]) -> None:
        """Claim from these from now on.  Claims of others stay as they are."""
        gone = [supplier for supplier in self._suppliers if supplier not in suppliers]
        self._suppliers = suppliers
        self._buffers = [supplier.buffer for supplier in suppliers]
        self.has_others = len(suppliers) > 1
        self._turn, self._left = suppliers[0], 0 if self.has_others else sys.maxsize
        self.pace.shards = len(suppliers)
        for supplier in gone:
            supplier.close()
        for supplier in suppliers:
            supplier.note_company()
        for waiter in tuple(self._waiters):
            self._end_if_over(waiter)
        if self._waiters:
            self.look()

    def close(self) -> None:
        """End every wait with ``Closed``.  Claims that were not handed out go back with ``Leases.release_all``."""
        self._closed = True
        for supplier in self._suppliers:
            supplier.close()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(Closed())
                waiter.future.exception()

    # -- called by consumers -----------------------------------------------------------------------------------------

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead for one more stream."""
        self.pace.join(limit)

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream.  Items claimed ahead go back if no consumer is left."""
        self.pace.leave(limit)
        self.hand_back()

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        self.pace.change(limit, now)

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, or None if there is none or another consumer has waited longer."""
        # Waiting consumers came first.  A stream that finds claims made ahead while others wait would overtake them
        # forever.
        if self._waiters or self._closed:
            return None
        if not self._turn.buffer:
            if not self.has_others or not self._begin_turn():
                return None
        elif not self._left:
            self._begin_turn()
        self._left -= 1
        drawn = self._turn.draw(1)
        return drawn[0] if drawn else None

    def draw_many(self, want: int) -> list[Claim[T]]:
        """Return up to ``want`` claims made ahead; see ``draw_one``."""
        drawn: list[Claim[T]] = []
        while len(drawn) < want and not self._waiters and not self._closed:
            if not self._turn.buffer:
                if not self.has_others or not self._begin_turn():
                    break
            elif not self._left:
                self._begin_turn()
            some = self._turn.draw(min(want - len(drawn), self._left))
            self._left -= len(some)
            drawn += some
        return drawn

    async def take_batch(self, want: int, *, patient: bool, within: float) -> list[Claim[T]]:
        """Return up to ``want`` claims, as ``take`` does, after waiting ``within`` seconds for more than the first.

        If a shard is known to have more than was claimed ahead, it is asked for the rest.  If the call is cancelled,
        the claims go to other consumers, or back to the queue.
        """
        drawn = self.draw_many(want) or await self.take(want, patient=patient)
        # A shard that had nothing left when it was last asked is not asked for the rest: that request was made with the
        # last ack, and another one would double the cost of a queue that has less than a batch.
        if not drawn or len(drawn) == want or not (within or self.has_more):
            return drawn
        # If the session may be over, a claim that waits here may be another client's by the time (``Supplier.draw``).
        if not self._identity.is_certain():
            return drawn
        loop = asyncio.get_running_loop()
        until = loop.time() + within
        # Nobody has begun with them: closing the cluster meanwhile hands them back.
        for claim in drawn:
            lease_of(claim).take_back()
        try:
            while len(drawn) < want and (self.has_more or until > loop.time()):
                was_late = until <= loop.time()
                some = await self._take_more(want - len(drawn), until)
                for claim in some:
                    lease_of(claim).take_back()
                drawn += some
                if was_late and not some:
                    break  # other consumers were faster, or servers do not answer
        except BaseException:
            self.give_back(drawn)
            raise
        if not self._identity.is_certain():
            self.give_back(drawn)
            return await self.take_batch(want, patient=patient, within=within)
        # Their deadlines may have passed while the batch waited, if the event loop was blocked.
        held = _held_at(loop.time(), [claim for claim in drawn if lease_of(claim).holds])
        for claim in held:
            lease_of(claim).deliver()
        return held or await self.take_batch(want, patient=patient, within=within)

    async def _take_more(self, want: int, until: float) -> list[Claim[T]]:
        """Return claims for the rest of a batch, none if there are none by this time, or if servers fail."""
        loop = asyncio.get_running_loop()
        left = max(0.0, until - loop.time())
        try:
            return await self.take(want, patient=left > 0, timeout=left or None)
        except Closed:
            raise
        except ZkrqError:
            # What was taken before is delivered; the next batch meets the failure, if it lasts.
            await asyncio.sleep(max(0.0, until - loop.time()))
            return []

    @property
    def has_more(self) -> bool:
        """Whether a shard had more items than it was last asked for."""
        return any(not supplier.supply.is_dry for supplier in self._suppliers)

    def give_back(self, claims: Sequence[Claim[T]]) -> None:
        """Let other consumers have claims that were taken and not begun with; without any they go to the queue."""
        for supplier in self._suppliers:
            supplier.take_back([claim for claim in claims if supplier.has_granted(claim)])
        if self._closed:
            return  # ``Leases.release_all`` hands back what no consumer has begun with
        for supplier in tuple(self._suppliers):
            self._serve(supplier)
        self.hand_back()

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims: none if nothing is ready and not ``patient``, or after ``timeout`` seconds.

        Raises ``Closed``.  If no request was answered and the caller would not wait longer, raises ``Unavailable``, or
        ``ConfigError`` if a server does not let this client in.
        """
        if running_loop() is not self.own_loop.loop:
            raise self.own_loop.elsewhere()
        if self._closed:
            raise Closed()
        # Nobody waits, so what is there may be taken immediately, without a future.
        if not self._waiters:
            for supplier in self._suppliers:
                if supplier.buffer and (drawn := supplier.draw(want)):
                    return drawn
        loop = asyncio.get_running_loop()
        waiter = Waiter(want, patient, loop.create_future())
        self._waiters.append(waiter)
        for supplier in self._suppliers:
            # One that has nothing will wake this process.  A call with a time limit asks, to learn whether it answers.
            state = supplier.supply.state
            if state not in IS_DUE and not (state is SupplyState.LISTENING and patient and timeout is None):
                supplier.look()
        # Whether a request was answered in time tells "nothing is ready" from "nobody answers".
        looks = 0 if timeout is None else self.looks
        until = None if timeout is None else loop.time() + timeout
        try:
            if until is None:
                drawn = await waiter.future
            else:
                async with asyncio.timeout_at(until):
                    drawn = await waiter.future
        except TimeoutError:
            self.withdraw(waiter)
            if self.looks == looks:
                raise self.failure() from None
            return []
        except asyncio.CancelledError:
            self.withdraw(waiter)
            raise
        # The consumer goes on a turn of the event loop after it was served.  If that took until the claims ended, other
        # consumers may have the items by now.
        now = loop.time()
        for claim in drawn:
            if lease_of(claim).deadline_at <= now:
                left = None if until is None else max(0.0, until - now)
                return _held_at(now, drawn) or await self.take(want, patient=patient, timeout=left)
        return drawn

    def enlist(self, waiter: Waiter[T]) -> None:
        """Let a patient waiter wait here that other queues may serve, too.  Raises ``Closed``."""
        if self._closed:
            raise Closed()
        self._waiters.append(waiter)
        self.look()

    def strike(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that another queue has served."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self.hand_back()

    def withdraw(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that has stopped waiting.  Claims that it was just given here go to the next one."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        future, supplier = waiter.future, waiter.supplier
        # A cancellation may come in the turn between being served and going on.  Then the claims are here and nobody
        # knows of them: they are put back in front, for the next waiter.
        is_served = future.done() and not future.cancelled() and not future.exception()
        if is_served and supplier and supplier in self._suppliers:
            supplier.take_back(future.result())
            self._serve(supplier)
        self.hand_back()

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once, unless some are: the streams take from other queues and do not
        wait."""
        for supplier in () if self.ahead else self._suppliers:
            supplier.probe(count)

    # -- what queues ask for -------------------------------------------------------------------------------------------

    @property
    def looks(self) -> int:
        """Requests that were answered."""
        return sum(supplier.looks for supplier in self._suppliers)

    @property
    def is_in_trouble(self) -> bool:
        """Whether every shard is."""
        return all(supplier.is_in_trouble for supplier in self._suppliers)

    @property
    def ahead(self) -> int:
        """Items claimed ahead."""
        return sum(map(len, self._buffers))

    def failure(self) -> ZkrqError:
        """Return the error for a caller whose time is over, and whom no server has answered."""
        return min(self._suppliers, key=lambda supplier: not supplier.is_in_trouble).failure()

    @property
    def has_consumers(self) -> bool:
        """Whether consumers are here: they wait, or iterate over claims."""
        return bool(self._waiters or self.pace.streams)

    # -- called by suppliers -------------------------------------------------------------------------------------------

    def expects(self, returning: int) -> bool:
        """Tell whether consumers who are about to come back are to find items claimed for them."""
        return returning > 0 and self.pace.eager > len(self._waiters)  # one that waits does not come back

    def order(self, supplier: Supplier[T], returning: int = 0) -> Order:
        """Say what a supplier is to do next.

        ``returning``: consumers whose settlements leave now.  A stream among them is expected back immediately, and
        finds its next item claimed when its settlement is done.
        """
        now = asyncio.get_running_loop().time()
        self._hand_back_untaken(now)
        is_certain = self._identity.is_certain()
        self.pace.adapt(now, is_certain=is_certain)
        expected = min(returning, max(0, self.pace.eager - len(self._waiters))) if is_certain else 0
        count = self._wanted_of(supplier, expected)
        # A process that was woken alone makes a request even if nobody waits here any more: the request wakes the
        # next process that waits.  Without it the item would lie there until the next sweep.
        if not (count or supplier.supply.owes(now) or self._is_probe_due(supplier, now)):
            return Order(False, pause=self._pause_of(supplier, SWEEP_SECONDS))
        waiting = tuple(self._waiters)
        is_awaited = any(map(_PATIENT, waiting))
        return Order(True, count, is_awaited or expected > 0, is_awaited, expected=expected, waiting=waiting)

    def late(self, supplier: Supplier[T]) -> None:
        """Let the others see what a late request is about."""
        self._look_elsewhere(supplier)

    def report(self, supplier: Supplier[T], order: Order, report: Report) -> float:
        """Hand out what was claimed.  Return the seconds until the next order, 0: immediately."""
        now, is_dry, next_ms = asyncio.get_running_loop().time(), report.is_dry, report.next_ms
        # If nothing was ahead before, consumers could take nothing: their pace is measured from now on.
        was_empty = self.ahead == report.items
        self.pace.note_claimed(now, items=report.items, size=report.size, buffer_was_empty=was_empty)
        self._serve(supplier, fresh=True)
        if not report.listening and self._waiters and next_ms:
            next_ms = POLL_MS if next_ms < 0 else min(next_ms, POLL_MS)
        if self.pace.limited:
            supplier.release(max(0, len(supplier.buffer) - order.expected))
        self.hand_back()
        self._note(supplier, is_dry=is_dry)
        # An item that is left will come with the next request.  Only an empty shard is an answer for callers that do
        # not wait.
        if is_dry:
            self._answer(order, supplier)
        # A shortfall is not made up item by item: the next request leaves when less than half is left.
        elif self._wanted_of(supplier) and (self._waiters or len(supplier.buffer) < supplier.supply.low):
            return 0.0
        return self._pause_of(supplier, min(SWEEP_SECONDS, next_ms / 1000) if next_ms > 0 else SWEEP_SECONDS)

    def failed(self, supplier: Supplier[T], order: Order, error: ZkrqError) -> None:
        """Tell the consumers that asked; those that wait longer are served by another request, or by another shard."""
        self._answer(order, supplier, error)
        self._note(supplier, is_dry=True)

    def look(self) -> None:
        """Let every shard look what is to be claimed."""
        for supplier in self._suppliers:
            if supplier.supply.state not in IS_DUE:
                supplier.look()

    def supplied_by(self, suppliers: Iterable[Supplier[T]]) -> bool:
        """Tell whether it claims from these, and no others."""
        return {*suppliers} == {*self._suppliers}

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - Who was served here waits here no more: the next claims would be lost with a future that is done.
        - The turn is one of a shard that is used, for a number of claims that is not negative: a stream would find
          nothing while claims are there, or would never leave a shard.
        - What is counted as claimed ahead is what the shards have: more would stop requests, and less would claim
          without bound.
        - Once closed nobody waits.
        """
        suppliers = self._suppliers
        for waiter in self._waiters:
            assert waiter.supplier not in suppliers, f"was served, and waits still: {waiter}"
            assert waiter.want > 0, f"waits for nothing: {waiter}"
        assert not (self._closed and self._waiters), "closed, and consumers wait"
        assert self.has_others == (len(suppliers) > 1), f"{len(suppliers)} suppliers"
        assert self._turn in suppliers, "the turn of a shard that is not used any more"
        assert self._left >= 0, f"a turn for {self._left} claims"
        assert {*map(id, self._buffers)} == {id(each.buffer) for each in suppliers}, "other buffers than the shards'"
        self.pace.check_invariants()
        for supplier in suppliers:
            supplier.check_invariants()

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _wanted_of(self, supplier: Supplier[T], expected: int = 0) -> int:
        """Return how many items this one is to claim now.  ``expected``: consumers that are about to come back."""
        supplier.drop_lost()
        supply, ahead, own = supplier.supply, self.ahead, len(supplier.buffer)
        supply.keep(self.pace.target, ahead - own)
        count = sum(map(_WANT, self._waiters)) + max(0, max(self.pace.target, expected) - ahead)
        if count and self.has_others:
            at = self._suppliers.index(supplier)
            before, after = self._suppliers[:at], self._suppliers[at + 1 :]
            count = asked_of(count, supply, [each.supply for each in before], [each.supply for each in after])
        return min(CLAIM_MAX, max(count, supply.probed - own if supply.probed else 0))

    def _is_probe_due(self, supplier: Supplier[T], now: float) -> bool:
        """Tell whether to see, without claiming anything, if there are items again where there were none."""
        return now - supplier.supply.asked_at >= PROBE_SECONDS and self._is_spared(supplier)

    def _is_spared(self, supplier: Supplier[T]) -> bool:
        """Tell whether consumers are here that this one is not asked for, because others have items."""
        others = [other.supply for other in self._suppliers if other is not supplier]
        return self.has_consumers and is_spared(supplier.supply, others)

    def _pause_of(self, supplier: Supplier[T], longest: float) -> float:
        """Return how many seconds after its last request, at most, this one is to look again."""
        if self.ahead > self.pace.fixed:
            longest = min(longest, AHEAD_SECONDS)
        return min(longest, PROBE_SECONDS) if self.has_others and self._is_spared(supplier) else longest

    def _hand_back_untaken(self, now: float) -> None:
        """Release items that the consumers will not take soon, because consumers of other processes may want them."""
        surplus = self.pace.surplus(now, self.ahead)
        for supplier in self._suppliers if surplus else ():
            count = min(surplus, len(supplier.buffer))
            supplier.release(count)
            surplus -= count

    def _note(self, supplier: Supplier[T], *, is_dry: bool) -> None:
        """Note whether items are left on a shard.  In any case it is another's turn; but shards that have nothing do
        not make each other look again, or two of them would never rest."""
        is_dry_still = supplier.supply.found(is_dry=is_dry)
        if self.has_others:
            self._look_elsewhere(supplier, with_items=is_dry_still)

    def _look_elsewhere(self, supplier: Supplier[T], *, with_items: bool = False) -> None:
        """Let the others look what is to be claimed; ``with_items``: those that have some."""
        for other in self._suppliers:
            if other is not supplier and not (with_items and other.supply.is_dry):
                other.look()

    # -- handing out ---------------------------------------------------------------------------------------------------

    def _serve(self, supplier: Supplier[T], *, fresh: bool = False) -> None:
        """Give what this one has claimed to those who wait.  ``fresh``: Redis has just granted it."""
        while self._waiters and supplier.buffer:
            waiter = self._waiters[0]
            if not waiter.future.done():
                drawn = supplier.draw(waiter.want, fresh=fresh)
                if not drawn:
                    break
                waiter.supplier = supplier
                waiter.future.set_result(drawn)
            self._waiters.popleft()
        # The supplier that has served goes to the end, so that shards take turns and none is asked for everything.
        if self.has_others and supplier in self._suppliers:
            self._suppliers = [*(other for other in self._suppliers if other is not supplier), supplier]

    def _answer(self, order: Order, supplier: Supplier[T], error: ZkrqError | None = None) -> None:
        """Tell those for whom a request was made that this one has nothing for them, or has failed."""
        for waiter in cast("tuple[Waiter[T], ...]", order.waiting):
            if not waiter.patient and not waiter.future.done():
                waiter.answers = {**(waiter.answers or {}), supplier: error}
                self._end_if_over(waiter)

    def hand_back(self) -> None:
        """Release the items claimed ahead if no consumer is left."""
        if not self.has_consumers:
            for supplier in self._suppliers:
                supplier.release()

    def _begin_turn(self) -> bool:
        """Let another shard that has claims have its turn.  Return whether one has."""
        for supplier in (*(other for other in self._suppliers if other is not self._turn), self._turn):
            if supplier.buffer:
                self._turn, self._left = supplier, max(self.pace.target, len(supplier.buffer))
                supplier.look()
                return True
        return False

    def _end_if_over(self, waiter: Waiter[T]) -> None:
        """End the wait of one who would not wait longer, if every shard had nothing.

        One whose requests fail is not waited for, unless it is the same with all.
        """
        answers = waiter.answers or {}
        silent = [supplier for supplier in self._suppliers if supplier not in answers]
        errors = [error for supplier, error in answers.items() if error and supplier in self._suppliers]
        has_answer = len(silent) + len(errors) < len(self._suppliers)
        # Three cases: some shards had nothing, and the others cannot be reached: nothing is ready, as far as is
        # known.  All have failed: the first error is the answer.  Otherwise another shard may still have items.
        if not (all(supplier.is_in_trouble for supplier in silent) if has_answer else errors and not silent):
            return
        self._waiters.remove(waiter)
        if has_answer:
            waiter.future.set_result([])
        else:
            waiter.future.set_exception(errors[0])


async def take_from(lines: Sequence[Line[T]], want: int, *, patient: bool) -> list[Claim[T]]:
    """Return up to ``want`` claims of one of several queues: none if nothing is ready and not ``patient``.

    If the call is cancelled, the claims that it was just given go to other consumers, or back to their queue.
    Raises as ``Line.take`` does; an error of one queue's servers only if no other has answered.
    """
    if not patient:
        return await _look_in(lines, want)
    waiter = Waiter[T](want, True, asyncio.get_running_loop().create_future())
    try:
        for line in lines:
            line.enlist(waiter)
        drawn = await waiter.future
    except asyncio.CancelledError:
        for line in lines:
            line.withdraw(waiter)
        raise
    finally:
        for line in lines:
            line.strike(waiter)
    return _held_at(asyncio.get_running_loop().time(), drawn) or await take_from(lines, want, patient=True)


def _held_at(now: float, drawn: Sequence[Claim[T]]) -> list[Claim[T]]:
    """Return the claims that still hold; the others were never delivered."""
    held: list[Claim[T]] = []
    for claim in drawn:
        if lease_of(claim).deadline_at > now:
            held.append(claim)
        else:
            lease_of(claim).take_back()
    return held


async def _look_in(lines: Sequence[Line[T]], want: int) -> list[Claim[T]]:
    """Return claims of the first queue that has some.

    One whose requests fail is not waited for, unless it is the same with all.
    """
    failure: ZkrqError | None = None
    has_answered = False
    for line in sorted(lines, key=lambda line: line.is_in_trouble):
        if line.is_in_trouble and has_answered:
            break
        try:
            if claims := await line.take(want, patient=False):
                return claims
            has_answered = True
        except Closed:
            raise
        except ZkrqError as error:
            failure = error
    if failure and not has_answered:
        raise failure
    return []
