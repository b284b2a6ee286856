"""Let the consumers of a queue in this process wait in one line, whichever shard of the queue serves them.

``core/dispatch.py`` decides; a ``Line`` tells it of its consumers, and carries out what it says: with futures, and the
``Supplier`` of each shard.  A consumer of several queues stands in the line of each with the same future: whichever is
served first takes it out of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from zkrq.base.errors import Closed, ZkrqError
from zkrq.base.loop import running_loop
from zkrq.consuming.claims import lease_of
from zkrq.consuming.core.dispatch import AHEAD, Dispatch, Waiter
from zkrq.consuming.core.supply import Action

if TYPE_CHECKING:
    from zkrq.consuming.claims import Claim
    from zkrq.consuming.context import QueueContext
    from zkrq.consuming.core.dispatch import Stock
    from zkrq.consuming.core.pace import PrefetchLimit
    from zkrq.consuming.supplier import Supplier

T = TypeVar("T")


class Line(Generic[T]):
    """Hand the claims of a queue to its consumers in this process, first come first served.  Implements
    ``supplier.Demand``."""

    def __init__(self, context: QueueContext) -> None:
        self.own_loop = context.own_loop
        self.dispatch = Dispatch["Claim[T]"](limited=context.settings.has_limits)
        self.pace = self.dispatch.pace
        self.decodes = True
        """Whether items are decoded as they are claimed; False once handlers in other processes decode them."""
        self._identity = context.identity
        self.dispatch.is_quiet = context.identity.is_quiet
        self._suppliers: dict[Stock[Claim[T]], Supplier[T]] = {}

    def use(self, suppliers: Sequence[Supplier[T]]) -> None:
        """Claim from these from now on.  Claims of others stay as they are."""
        for supplier in self._suppliers.values():
            if supplier not in suppliers:
                supplier.close()
        self._suppliers = {supplier.supply: supplier for supplier in suppliers}
        self.dispatch.use([*self._suppliers], *(self._moment() if self.dispatch.waiters else (0.0, False)))
        for supplier in suppliers:
            supplier.start_late()
        self.carry_out()

    def close(self) -> None:
        """End every wait with ``Closed``.  Claims that were not handed out go back with ``Leases.release_all``."""
        for supplier in self._suppliers.values():
            supplier.close()
        self.dispatch.close()
        self.carry_out()

    def carry_out(self) -> None:
        """Do what was decided."""
        actions, self.dispatch.actions = self.dispatch.actions, []
        for action in actions:
            if isinstance(action, Waiter):
                caller = action.caller
                if caller.done():
                    continue  # the consumer has left, or was served elsewhere
                if action.claims is not None:
                    caller.set_result(action.claims)
                else:
                    caller.set_exception(action.error or Closed())
                    caller.exception()  # a consumer that is cancelled now does not ask for it
                continue
            stock, what = action
            if isinstance(what, Action):
                self._suppliers[stock].act(what)
            else:
                self._suppliers[stock].hand_back(what)

    def _moment(self) -> tuple[float, bool]:
        """Return the time, and whether the session is certainly alive."""
        now = asyncio.get_running_loop().time()
        return now, now < self._identity.certain_until or self._identity.is_certain()

    # -- called by consumers -------------------------------------------------------------------------------------------

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream.  Items claimed ahead go back if no consumer is left."""
        self.dispatch.leave(limit, *self._moment())
        self.carry_out()

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, or None if there is none or another consumer has waited longer."""
        identity, dispatch = self._identity, self.dispatch
        if not any(map(AHEAD, dispatch.stocks)):  # as ``draw`` would say, without two calls
            return None
        now = asyncio.get_running_loop().time()
        drawn = dispatch.draw(1, now, now < identity.certain_until or identity.is_certain())
        if dispatch.actions:
            self.carry_out()
        return drawn[0] if drawn else None

    def draw_many(self, want: int) -> list[Claim[T]]:
        """Return up to ``want`` claims made ahead; see ``draw_one``."""
        drawn = self.dispatch.draw(want, *self._moment())
        self.carry_out()
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
        return any(not stock.is_dry for stock in self.dispatch.stocks)

    def give_back(self, claims: Sequence[Claim[T]]) -> None:
        """Let other consumers have claims that were taken and not begun with; without any they go to the queue."""
        self.dispatch.give_back(claims, *self._moment())
        self.carry_out()

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims: none if nothing is ready and not ``patient``, or after ``timeout`` seconds.

        Raises ``Closed``.  If no request was answered and the caller would not wait longer, raises ``Unavailable``, or
        ``ConfigError`` if a server does not let this client in.
        """
        loop = running_loop()
        if loop is None or loop is not self.own_loop.loop:
            raise self.own_loop.elsewhere()
        dispatch, identity, now = self.dispatch, self._identity, loop.time()
        if dispatch.is_closed:
            raise Closed()
        # What is there may be taken immediately, without a future.
        if any(map(AHEAD, dispatch.stocks)) and (drawn := self.draw_many(want)):
            return drawn
        # Whether a request is answered in time tells "nothing is ready" from "nobody answers".
        looks = 0 if timeout is None else self.looks
        until = None if timeout is None else now + timeout
        future: asyncio.Future[list[Claim[T]]] = loop.create_future()
        waiter = Waiter(want, patient, future)
        # A call with a time limit asks, to learn whether it is answered.
        is_certain = now < identity.certain_until or identity.is_certain()
        dispatch.wait(waiter, now, is_certain, asks=not patient or timeout is not None)
        if dispatch.actions:
            self.carry_out()
        try:
            if until is None:
                drawn = await future
            else:
                async with asyncio.timeout_at(until):
                    drawn = await future
        except TimeoutError:
            self.withdraw(waiter)
            if self.looks == looks and not dispatch.is_quiet:
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

    def enlist(self, waiter: Waiter[Claim[T]]) -> None:
        """Let a patient waiter wait here that other queues may serve, too.  Raises ``Closed``."""
        if self.dispatch.is_closed:
            raise Closed()
        self.dispatch.wait(waiter, *self._moment(), asks=True)
        self.carry_out()

    def withdraw(self, waiter: Waiter[Claim[T]], *, served: bool = False) -> None:
        """Remove a waiter that waits no more; ``served``: because it has what it wants."""
        self.dispatch.withdraw(waiter, *self._moment(), served=served)
        self.carry_out()

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once, unless some are: the streams take from other queues and do not
        wait."""
        self.dispatch.probe(count)
        self.carry_out()

    def quiet(self) -> None:
        """Claim nothing more, or claim again, as the identity of this process now says."""
        self.dispatch.quiet(self._identity.is_quiet, *self._moment())
        self.carry_out()

    # -- what queues ask for -------------------------------------------------------------------------------------------

    @property
    def looks(self) -> int:
        """Requests that were answered."""
        return sum(stock.answered for stock in self.dispatch.stocks)

    @property
    def is_in_trouble(self) -> bool:
        """Whether every shard is."""
        return all(stock.is_in_trouble for stock in self.dispatch.stocks)

    @property
    def ahead(self) -> int:
        """Items claimed ahead."""
        return self.dispatch.ahead

    def failure(self) -> ZkrqError:
        """Return the error for a caller whose time is over, and whom no server has answered."""
        return self._suppliers[min(self.dispatch.stocks, key=lambda stock: not stock.is_in_trouble)].failure()

    @property
    def has_consumers(self) -> bool:
        """Whether consumers are here: they wait, or iterate over claims."""
        return self.dispatch.has_consumers

    def supplied_by(self, suppliers: Iterable[Supplier[T]]) -> bool:
        """Tell whether it claims from these, and no others."""
        return {*suppliers} == {*self._suppliers.values()}

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks, of what decides and of each shard."""
        assert {*self._suppliers} == {*self.dispatch.stocks}, "other shards than the suppliers'"
        self.dispatch.check_invariants()
        for supplier in self._suppliers.values():
            supplier.check_invariants()


async def take_from(lines: Sequence[Line[T]], want: int, *, patient: bool) -> list[Claim[T]]:
    """Return up to ``want`` claims of one of several queues: none if nothing is ready and not ``patient``.

    If the call is cancelled, the claims that it was just given go to other consumers, or back to their queue.
    Raises as ``Line.take`` does; an error of one queue's servers only if no other has answered.
    """
    if not patient:
        return await _look_in(lines, want)
    future: asyncio.Future[list[Claim[T]]] = asyncio.get_running_loop().create_future()
    waiter = Waiter(want, True, future)
    try:
        for line in lines:
            line.enlist(waiter)
        drawn = await future
    except asyncio.CancelledError:
        for line in lines:
            line.withdraw(waiter)
        raise
    finally:
        for line in lines:
            line.withdraw(waiter, served=True)
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
