"""Claim from one shard of a queue, one claim request at a time, for all consumers of the queue in this process.

A supplier decides nothing.  Before each request ``core/dispatch.py`` says for how many items it is to be, and hears
afterwards what it has brought.  Items that no consumer takes go back to the queue, and the next request waits for that,
or it would get the items behind them.

A request whose answer was lost is repeated under the same number until it is answered, and gets the same items: with a
new number the items of the lost answer would stay claimed, and extended by nobody, until their deadlines.

A request that joins settlements is one decision with them (``turn.lua``): the consumer of a slot settles one item and
gets the next for the price of one call.  A request never waits for settlements that are not leaving already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from zkrq.base.alarm import NEXT_TURN, Alarm
from zkrq.base.checks import task_of
from zkrq.base.codecs import codec_of_item, place_of
from zkrq.base.errors import ClaimLost, CodecError, ConfigError, Unavailable, ZkrqError, message_of, text_of
from zkrq.base.events import DeadLettersDropped, ItemsGivenUp
from zkrq.base.log import Log
from zkrq.base.pauses import doubled
from zkrq.base.tasks import wait_ended
from zkrq.consuming.claims import Claim, UndecodedClaim, lease_of
from zkrq.consuming.core import supply as life
from zkrq.consuming.core.dispatch import ClaimReport, Stock
from zkrq.consuming.core.supply import IS_DUE, JOINED, LATE_SECONDS, WAITING, Action, Order, SupplyState
from zkrq.consuming.lease import Grant, edited_in
from zkrq.consuming.requests import Answered, Request
from zkrq.protocol import calls
from zkrq.protocol.payloads import NO_HEADERS, split, split_saved
from zkrq.protocol.records import FIELDS_FORMAT, State, clock_of

if TYPE_CHECKING:
    from zkrq.consuming.context import QueueContext
    from zkrq.consuming.core.dispatch import Dispatch
    from zkrq.consuming.leases import Leases
    from zkrq.consuming.wakeups import Wakeups
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")

FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds before the first retry of a failed request, and their maximum; doubled with each failure."""

JOIN_TURNS = 3
"""Turns of the event loop that a request waits for settlements that are about to leave: what it takes to send them."""

RETURN_TURNS = 2
"""Turns of the event loop in which consumers that were just served come back, if they have room for more."""

HAND_BACK_SECONDS = 1.0
"""Seconds that a request waits for items that are being handed back, so that it gets them before those behind them."""


LARGE_BYTES = 1 << 16
"""Bytes of payloads, of one bundle in one reply, that a server is not to keep for long once their items are gone."""


class Demand(Protocol[T]):
    """Who decides what the suppliers of a queue are to do: the part of a ``Line`` that a supplier uses."""

    dispatch: Dispatch[Claim[T]]
    decodes: bool
    """Whether items are decoded as they are claimed."""

    def carry_out(self) -> None:
        """Do what was decided."""
        ...


class Here(Protocol):
    """The shard of a supplier, as consumers of one queue see it."""

    @property
    def away(self) -> str | None:
        """Why its servers cannot be asked now, None if they can."""
        ...

    @property
    def is_home(self) -> bool | None:
        """Whether the queue is at home here, None if that is not known."""
        ...

    async def learn_home(self) -> None:
        """Find out whether it is, unless ZooKeeper does not say."""
        ...


class Supplier(Generic[T]):
    """Claim from one shard of a queue, and keep what was claimed ahead."""

    def __init__(
        self,
        replicas: Replicas,
        leases: Leases,
        wakeups: Wakeups,
        context: QueueContext,
        line: Demand[T],
        here: Here,
        *,
        seq: int = 0,
    ) -> None:
        """``seq``: at least the number of the last request that a former supplier of this queue has made."""
        self._replicas = replicas
        self._leases = leases
        self._wakeups = wakeups
        self._context = context
        self._line = line
        self._dispatch = line.dispatch
        self._here = here
        self._identity = context.identity
        self._log = Log(logging.getLogger("zkrq.claims"), {"cluster": context.cluster, "queue": context.queue})
        self._runner: asyncio.Task[None] | None = None
        self._alarm = Alarm()
        self._late: asyncio.TimerHandle | None = None
        self._joined: Request | None = None
        """The request that was sent together with settlements, until the loop below waits for its answer."""
        self._handed_back = set[asyncio.Task[None]]()
        self._trouble: ZkrqError | None = None
        """Why the last request failed."""
        self.seq = seq
        """Number of the last request."""
        self.supply = Stock["Claim[T]"](leases, lambda: here.away is not None)
        leases.join_with(self.join)

    # -- running -------------------------------------------------------------------------------------------------------

    def wake(self, alone: bool = False) -> None:
        """Make a request soon: an item may be ready.  ``alone``: no other process was woken for it."""
        if action := self.supply.wake(alone=alone):
            self.act(action)

    def act(self, action: Action) -> None:
        """Begin, ring or end the loop."""
        match action:
            case Action.RING:
                self._alarm.ring()
            case Action.START:
                self._dispatch.pace.begin(asyncio.get_running_loop().time())
                self._runner = self._context.tasks.supervise(self._run, f"claim from {self._context.queue}")
            case Action.STOP:
                self._alarm.stop()
                if self._runner:
                    self._runner.cancel()
                    self._runner = None

    def rest(self) -> bool:
        """End the loop below unless there is work for it; return whether it has ended.  A consumer begins it again.

        The caller has seen that no consumer is left.  It ends only between two requests: one in flight may have claimed
        items.
        """
        if self.supply.state in WAITING and not self.supply.ahead and not self._handed_back:
            self.supply.tell(life.REST)
            self.act(Action.STOP)
        return self._runner is None

    def close(self) -> None:
        """Make no more requests."""
        self.supply.tell(life.CLOSE)
        self.act(Action.STOP)

    @property
    def looks(self) -> int:
        """Requests that were answered."""
        return self.supply.answered

    def failure(self, reason: ZkrqError | None = None) -> ZkrqError:
        """Return the error for a caller that no server has answered in time, or whose request failed for a reason."""
        reason = reason or self._trouble
        kind = ConfigError if isinstance(reason, ConfigError) else Unavailable
        said = reason or "no server answered in time"
        error = kind(f"queue {self._context.queue!r} could not be claimed from: {said}")
        error.__cause__ = reason
        return error

    def hand_back(self, claim: Claim[T]) -> None:
        """Release an item that no consumer has seen."""
        task = self._context.tasks.start(self._release(claim), "hand back")
        self._handed_back.add(task)
        task.add_done_callback(self._handed_back.discard)

    async def _release(self, claim: Claim[T]) -> None:
        try:
            await claim.release()
        except ZkrqError as error:
            lease_of(claim).stop_extending()
            text = "item %s could not be handed back, it comes back by itself: %s"
            self._log.info(text, claim.id, error, extra={"item": claim.id})

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - A request that left with settlements waits to be taken over, and has the next number.
        - There is a loop unless the supply rests, or is closed.
        - Another supplier hears of a request that takes long only while it is in flight.
        """
        supply = self.supply
        if supply.state is not SupplyState.CLOSED:
            assert bool(self._joined) is (supply.state in JOINED), f"{supply.state}, with {self._joined}"
        assert not self._joined or self._joined.call.seq == self.seq + 1, "a request of another number than the next"
        assert bool(self._runner) is (supply.state not in (SupplyState.RESTING, SupplyState.CLOSED)), supply.state
        assert supply.asking or self._late is None, "late, and nothing is in flight"

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures, supply = 0, self.supply
        loop = asyncio.get_running_loop()
        supply.begin()
        while True:
            await self._wait_until_due()
            try:
                try:
                    request = self._take_over() or await self._next_request()
                    if request is None:
                        continue
                    report = await self._finish(request, request.answer or self._replicas.decide(request.call))
                finally:
                    self._stop_late()
            except ZkrqError as error:
                failures += 1
                if self._trouble is None:
                    self._log.warning("no claims for now, retrying: %s", error)
                self._trouble = error
                self._dispatch.fail(supply, self.failure(error), loop.time(), self._identity.is_certain())
                self._line.carry_out()
                await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
                supply.tell(life.RETRY)
                continue
            failures, self._trouble = 0, None
            self._dispatch.answer(supply, report, loop.time(), self._identity.is_certain())
            has_served = bool(report.claims)
            del report  # it has the claims, which would be extended as long as it is kept here
            self._line.carry_out()
            if has_served and supply.state in IS_DUE:
                await self._let_return()

    async def _let_return(self) -> None:
        """Let consumers that were just served come back, so that the next request is for them.

        Woken while the last request was in flight, this process owes another one.  Without a consumer it would be for
        nothing but to pass the wake-up on, and the consumer's own request would have to wait for it.
        """
        for _ in range(RETURN_TURNS):
            if self._dispatch.waiters:
                break
            await NEXT_TURN

    async def _wait_until_due(self) -> None:
        """Wait until an order is due, or a request has joined settlements."""
        supply = self.supply
        while supply.state in WAITING:
            due_at = supply.due_at
            if due_at <= asyncio.get_running_loop().time() or not await self._alarm.until(due_at):
                supply.tell(life.TIME)
        # Settlements that leave in this turn of the event loop take the request along.
        for _ in range(JOIN_TURNS):
            if supply.state in JOINED or not self._leases.is_leaving:
                break
            await NEXT_TURN

    def join(self, returning: int) -> Request | None:
        """Return the request that is to leave with settlements now, None if none is due or the loop is busy with one.

        ``returning``: consumers whose claims are settled.  Those of streams are expected back for the next item as soon
        as that is done.  The caller puts the answer, or the error, into the request.
        """
        owner, supply = self._identity.owner, self.supply
        if supply.state not in life.JOIN or self._handed_back or owner is None:
            return None
        if self._here.is_home is None:
            return None  # the loop learns it
        is_due = supply.state in IS_DUE
        if not is_due and (len(supply.ahead) >= returning or not self._dispatch.expects(returning)):
            return None
        now = asyncio.get_running_loop().time()
        order = self._dispatch.order(supply, now, self._identity.is_certain(), returning)
        if self._dispatch.actions:
            self._line.carry_out()
        hears = order.listens and self._wakeups.hears(self._replicas.primary(self._context.queue), owner)
        # Two kinds of request are left to the loop: one that has to begin to listen for a consumer that waits already,
        # and one that only passes a wake-up on.  A consumer that comes back and finds nothing asks again, and the loop
        # begins to listen then.
        if not order.wanted or (order.is_awaited and not hears):
            supply.tell(life.DECLINE)
            return None
        # The loop takes over in its next turn.  From now on nothing else is asked for, and a cancellation that is heard
        # of is remembered.
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._joined = self._make(owner, order, self._wakeups.channel if hears else "")._replace(answer=answer)
        self._leases.expect(self._joined.token)
        if action := supply.ask(order, now, life.JOIN):
            self.act(action)
        return self._joined

    def _take_over(self) -> Request | None:
        """Return the request that was sent together with settlements, if there is one."""
        request, self._joined = self._joined, None
        if request:
            self.supply.tell(life.TAKE_OVER)
            self.start_late()
        return request

    def start_late(self) -> None:
        """See to it that other suppliers, if there are any, hear that the request in flight takes long."""
        if self._dispatch.has_others and not self._late and self.supply.asking:
            self._late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._tell_late)

    def _tell_late(self) -> None:
        self._dispatch.late(self.supply, asyncio.get_running_loop().time(), self._identity.is_certain())
        self._line.carry_out()

    def _stop_late(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    async def _next_request(self) -> Request | None:
        """Ask for the next order; return its request once that may be made, None if nothing is to be asked for."""
        now = asyncio.get_running_loop().time()
        order = self._dispatch.order(self.supply, now, self._identity.is_certain())
        if self._dispatch.actions:
            self._line.carry_out()
        if not order.asks:
            self.supply.pause(order, now)
            return None
        # Noted before the first await: a wake-up that arrives from now on must lead to another request.
        self.supply.ask(order, now)
        self.start_late()
        # A request that overtakes what is being handed back would get the items behind them, and the order would be
        # lost.
        if self._handed_back:
            await wait_ended(self._handed_back, HAND_BACK_SECONDS)
        declaration = self._context.declaration
        if declaration and not declaration.is_done:
            await declaration.done()
        await self._here.learn_home()
        # Enrolled before the first claim: a claim whose owner is not in the registry looks like that of a dead
        # consumer, and any client would give it away.
        owner = self._identity.owner or await self._identity.get()
        waiter = ""
        if order.listens:
            primary = self._replicas.primary(self._context.queue)
            if not self._wakeups.hears(primary, owner):
                self._wakeups.answer_to(owner)
                await self._wakeups.listen(primary)
            if self._wakeups.hears(primary, owner):
                waiter = self._wakeups.channel
        request = self._make(owner, order, waiter)
        # A cancellation travels on another connection and may overtake the answer.  From here on it is remembered.
        self._leases.expect(request.token)
        return request

    def _make(self, owner: str, order: Order, waiter: str) -> Request:
        """Return the next request of an owner."""
        context, leases = self._context, self._leases
        letters = context.dead_letters
        call = calls.Claim(
            queue=context.queue,
            owner=owner,
            seq=self.seq + 1,
            count=order.wanted,
            lease_ms=round(leases.claim_timeout * 1000),
            waiter=waiter,
            max_attempts=leases.max_attempts,
            expired=(State.DEAD if letters.expired else State.GONE).value,
            dead_max=letters.max_count or 0,
            dead_age_ms=letters.max_age_ms,
            trim=True,  # as it usually may; ``under`` says if not
            elsewhere=not self._here.is_home,
        )
        return Request(call, asyncio.get_running_loop().time())

    async def _finish(self, request: Request, answer: Awaitable[Answered]) -> ClaimReport[Claim[T]]:
        """Wait for the answer to a request; return what it brings."""
        owner, context = request.call.owner, self._context
        try:
            decided = await answer
        except ClaimLost:
            context.declared_dead(owner)
            return ClaimReport(0)  # under another owner id
        assert request.call.seq == self.seq + 1, f"request {request.call.seq} is answered after {self.seq}"
        # Only now: if the answer is lost, the same number is asked again, and gives the same items.
        self.seq = request.call.seq
        if self._identity.is_over(owner):
            return ClaimReport(0)  # the session has ended: other consumers will get these items
        claims, size = self._admit(decided, request)
        self._dispatch.pace.limited = decided.reply.limited > 0
        next_ms, dropped = decided.reply.next_ms, decided.reply.dropped_letters
        if dropped:
            context.events.tell(DeadLettersDropped(context.cluster, context.queue, dropped), logging.WARNING)
        if given_up := calls.given_up(decided.records.with_notes()):
            context.events.tell(ItemsGivenUp(context.cluster, context.queue, tuple(given_up)), logging.WARNING)
            self._leases.figuring.given_up(len(given_up))
        is_short = sum(decided.reply.handed[2::4]) < request.call.count
        return ClaimReport(next_ms, claims, size, is_short and bool(request.call.waiter))

    def _admit(self, decided: Answered, request: Request) -> tuple[Sequence[Claim[T]], int]:
        """Make claims of the result of the request, and hold them.  Return them, and the bytes of their payloads.

        A repeated request gets what is left of its first try's lease.
        """
        # Between the answer and the leases nothing awaits: from the next line on a cancellation finds a lease to
        # lose.
        cancelled = self._leases.admit()
        codec, claims, size = self._context.codec, list[Claim[T]](), 0
        decode, is_placed, decodes = codec.decode, place_of(codec) is not None, self._line.decodes
        handed = iter(decided.reply.handed)
        records, superseded = dict(decided.records), decided.superseded
        grants: dict[bytes, Grant] = {}
        owner, token, started = request.call.owner, request.token, request.started
        for id, first, count, part in zip(handed, handed, handed, handed, strict=True):
            grant = grants.get(id)
            if grant is None:
                packed = records[id]
                grant = grants[id] = Grant(self._leases, id.decode(), packed, owner, token)
                if packed[0] == FIELDS_FORMAT:
                    grant.notes = decided.records.notes_of(id)
            edits = edited_in(grant.notes) if grant.packed[0] == FIELDS_FORMAT and grant.notes else None
            deadline_at = started + self._seconds_left(grant, first - 1, decided.reply.clock)
            lost = superseded.get(id, ())
            size += len(part)
            if len(part) > LARGE_BYTES:
                grant.is_large = True
            for position, payload in enumerate(split(part, count), first - 1):
                if payload is None or position in lost or (cancelled and grant.id_of(position) in cancelled):
                    continue
                content, headers = payload[2:], None
                # An item that cannot be decoded must not stop those behind it, nor come back forever.
                try:
                    if not payload.startswith(NO_HEADERS):
                        content, headers, saved = split_saved(payload)
                        if saved is not None:
                            grant.note_begun(position, saved)
                        if headers and (task := task_of(headers)):
                            grant.note_task(position, task)
                    if edits and position in edits:
                        content = edits[position]
                    if not decodes:
                        claims.append(UndecodedClaim(content, codec, grant, position, deadline_at, headers))
                        continue
                    item = codec_of_item(codec, grant.id_of(position)).decode(content) if is_placed else decode(content)
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # of any codec
                    undecodable = Claim(content, grant, position, deadline_at)
                    self._context.tasks.start(self._bury(undecodable, error), "bury an undecodable item")
                    continue
                claims.append(Claim(item, grant, position, deadline_at, headers))
        self._leases.add(map(lease_of, claims))
        now = asyncio.get_running_loop().time()
        self._leases.figuring.began(decided.reply.handed, grants, decided.reply.clock, now)
        if self._leases.observers.claimed:
            took = now - started
            self._leases.observers.tell_claimed(self._context.queue, claims, took)
        return claims, size

    def _seconds_left(self, grant: Grant, position: int, clock_us: int) -> float:
        """Return how long the claims of a grant hold, from the moment when it was asked for."""
        if clock_of(grant.packed) == clock_us:
            return self._leases.claim_timeout
        return (grant.record_of(position).deadline_us - clock_us) / 1_000_000

    async def _bury(self, claim: Claim[bytes], error: BaseException) -> None:
        """Move an item that cannot be decoded to the dead letters, with its bytes."""
        about = {"item": claim.id}
        what = text_of(error) if isinstance(error, CodecError) else message_of(error)
        self._log.error("item %s cannot be decoded, it goes to the dead letters: %s", claim.id, what, extra=about)
        self._leases.add([lease_of(claim)])
        try:
            await claim.bury(f"cannot be decoded as {self._context.codec.name}: {what}")
        except ZkrqError as problem:
            lease_of(claim).stop_extending()
            text = "item %s could not be buried, it comes back by itself: %s"
            self._log.warning(text, claim.id, problem, extra=about)
