"""Claim items: one claim request at a time, to a shard of a queue, serves all consumers of the queue in this process.

A request asks for all that the waiting consumers want, and for what they are expected to want next (prefetch; see
``pace.py``).  Items that were claimed ahead and are not taken go back to the queue, and the next
request waits for that, or it would get the items behind them.  A request whose answer was lost is repeated under the
same number until it is answered, and gets the same items, so no claimed item is forgotten.

An idle queue costs one request every ``SWEEP_SECONDS``; a push wakes it immediately.  A push wakes one process only, so
a process that is woken while none of its consumers waits requests no items, which wakes the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from zkrq.base.codecs import Codec
from zkrq.base.errors import ClaimLost, CodecError, ConfigError, Unavailable, ZkrqError
from zkrq.base.events import DeadLettersDropped
from zkrq.base.log import Log
from zkrq.base.pauses import doubled
from zkrq.base.tasks import wait_ended, wait_set
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.context import QueueContext
from zkrq.consuming.lease import Grant
from zkrq.consuming.leases import Leases
from zkrq.consuming.line import Line, Waiter
from zkrq.consuming.pace import CLAIM_MAX
from zkrq.consuming.turns import LATE_SECONDS, PROBE_SECONDS, Standing
from zkrq.consuming.wakeups import Wakeups
from zkrq.protocol import calls
from zkrq.protocol.deciding import Decided
from zkrq.protocol.payloads import NO_HEADERS, split, split_payload
from zkrq.protocol.records import State, clock_of
from zkrq.replication.replicas import Replicas

T = TypeVar("T")

SWEEP_SECONDS = 5.0
"""Seconds between two requests of a waiting consumer that receives no wake-up."""

FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds before the first retry of a failed request, and their maximum; doubled with each failure."""

HAND_BACK_SECONDS = 1.0
"""Seconds that a request waits for items that are being handed back, so that it gets them before those behind them."""

POLL_MS = 500
"""Milliseconds between two requests of a waiting consumer that has no wake-up channel."""


class Prefetcher(Generic[T]):
    """Claim from one shard of a queue for its consumers in this process.  Implements ``line.Supplier``."""

    def __init__(
        self,
        replicas: Replicas,
        leases: Leases,
        wakeups: Wakeups,
        context: QueueContext,
        line: Line[T],
        away: Callable[[], str | None],
        *,
        seq: int = 0,
    ) -> None:
        """``away`` tells why the servers cannot be asked now, None if they can.

        ``seq``: at least the number of the last request that a former prefetcher of this queue has made.
        """
        self._away = away
        self._replicas = replicas
        self._leases = leases
        self._wakeups = wakeups
        self._cluster = context.cluster
        self._queue = context.queue
        self._codec: Codec[T] = context.codec
        self._dead_letters = context.dead_letters
        self._events = context.events
        self._identity = context.identity
        self._declared_dead = context.declared_dead
        self._tasks = context.tasks
        self._log = Log(logging.getLogger("zkrq.claims"), {"cluster": context.cluster, "queue": context.queue})
        self._line = line
        self._pace = line.pace
        self._woken = asyncio.Event()
        self._woken_alone = False
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self.seq = seq
        """Number of the last request."""
        self._is_waiting = False
        self._probed = self._low = 0
        self._handed_back = set[asyncio.Task[None]]()
        self._trouble: ZkrqError | None = None
        self.standing = Standing()
        self.buffer: deque[Claim[T]] = deque()
        """Claims made ahead."""
        self.is_looking = False
        """Whether ``look`` was called since the loop below looked last."""
        self.looks = 0
        """Requests that were answered."""

    # -- called by the line --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Make the loop below check whether to send a request."""
        self.is_looking = True
        self._woken.set()
        if self._runner is None and not self._closed:
            self._pace.begin(asyncio.get_running_loop().time())
            self._runner = self._tasks.supervise(self._run, f"claim from {self._queue}")

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once."""
        self._probed = count
        self.look()

    def wake(self, alone: bool = False) -> None:
        """Make a request soon: an item may be ready.  ``alone``: no other process was woken for it."""
        if alone:
            self._woken_alone, self.standing.is_dry = True, False
            if self._runner is None:  # it rests, so another process is to be woken
                self.look()
        self._woken.set()

    @property
    def is_in_trouble(self) -> bool:
        """Whether the last request failed, or the next one will."""
        return self._trouble is not None or self._away() is not None

    def failure(self) -> ZkrqError:
        """Return the error for a caller whose time is over, and whom no server has answered."""
        return self._failure(self._trouble or "no server answered in time")

    def rest(self) -> bool:
        """End the loop below unless there is work for it; return whether it has ended.  ``look`` begins it again.

        It ends only between two requests: one in flight may have claimed items.
        """
        if self._runner:
            if not self._is_waiting or self._woken.is_set() or self.buffer or self._handed_back:
                return False
            if self._line.has_consumers:
                return False
            self._runner.cancel()
            self._runner = None
            self._is_waiting = False
        return True

    def close(self) -> None:
        """Make no more requests."""
        self._closed = True
        if self._runner:
            self._runner.cancel()

    def draw(self, want: int, *, fresh: bool = False) -> list[Claim[T]]:
        """Take claims from the buffer, skipping those that were lost meanwhile.

        While the session is not certain, other clients may have fenced this process.  Then this returns only claims
        that Redis has just granted (``fresh``), and the others go back.
        """
        drawn: list[Claim[T]] = []
        now = asyncio.get_running_loop().time()
        if not fresh and now >= self._identity.certain_until and not self._identity.is_certain():
            self.release()
        while self.buffer and len(drawn) < want:
            claim = self.buffer.popleft()
            lease = lease_of(claim)
            if lease.settled is None and lease.deadline_at > now and not lease.loss:  # holds_at, without the call
                lease.delivered = True
                drawn.append(claim)
        self._pace.taken += len(drawn)
        if len(self.buffer) < self._low and not self.is_looking:
            self._line.look()
        return drawn

    def take_back(self, claims: Sequence[Claim[T]]) -> None:
        """Put claims that were drawn back into the buffer, as the first."""
        for claim in reversed(claims):
            lease_of(claim).take_back()
            self.buffer.appendleft(claim)

    def release(self, count: int | None = None) -> None:
        """Hand back so many of the items claimed ahead, the last ones; None: all."""
        for _ in range(len(self.buffer) if count is None else count):
            task = self._tasks.start(self._release(self.buffer.pop()), "hand back")
            self._handed_back.add(task)
            task.add_done_callback(self._handed_back.discard)

    async def _release(self, claim: Claim[T]) -> None:
        try:
            await claim.release()
        except ZkrqError as error:
            lease_of(claim).stop_extending()
            text = "item %s could not be handed back, it comes back by itself: %s"
            self._log.info(text, claim.id, error, extra={"item": claim.id})

    def _failure(self, reason: ZkrqError | str) -> ZkrqError:
        """Return the error for a caller that would not wait."""
        kind = ConfigError if isinstance(reason, ConfigError) else Unavailable
        error = kind(f"queue {self._queue!r} could not be claimed from: {reason}")
        error.__cause__ = reason if isinstance(reason, ZkrqError) else None
        return error

    # -- claiming ------------------------------------------------------------------------------------------------------

    def _wanted(self) -> int:
        """Return how many items to claim now."""
        while self.buffer and not lease_of(self.buffer[0]).holds:
            self.buffer.popleft()
        others_ahead = self._line.ahead - len(self.buffer)
        self._low = -(-self._pace.target // 2) - others_ahead
        probed = self._probed - len(self.buffer) if self._probed else 0
        return min(CLAIM_MAX, max(probed, self._line.wanted_of(self)))

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            self.is_looking = False
            alone, self._woken_alone = self._woken_alone, False
            self._line.hand_back_untaken()
            self._pace.adapt(asyncio.get_running_loop().time(), is_certain=self._identity.is_certain())
            pause = SWEEP_SECONDS
            count, self._probed = self._wanted(), 0
            if count or alone or self._is_probe_due():
                asking = self._line.waiting
                try:
                    next_ms = await self._request(count)
                except ZkrqError as error:
                    failures += 1
                    self._woken_alone = self._woken_alone or alone  # still to be passed on if no consumer waits by then
                    self._note_trouble(asking, error)
                    asking = ()
                    await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
                    continue
                failures, self._trouble = 0, None
                self.looks += 1
                self._line.serve(self, fresh=True)
                self._line.hand_back()
                self._note(is_dry=next_ms != 0)
                if next_ms == 0 and self._wanted():
                    continue
                if next_ms != 0:
                    self._line.answer(asking, self)
                if next_ms > 0:
                    pause = min(pause, next_ms / 1000)
            asking = ()  # frees the waiters and the claims that they were given: a dropped claim must not be extended
            self._is_waiting = True
            await wait_set(self._woken, self._line.pause_of(self, pause))
            self._is_waiting = False

    def _is_probe_due(self) -> bool:
        """Tell whether to see, without claiming anything, if there are items again where there were none."""
        since = asyncio.get_running_loop().time() - self.standing.asked_at
        return since >= PROBE_SECONDS and self._line.is_spared(self)

    async def _request(self, count: int) -> int:
        """Make a claim request; meanwhile others see what it is about."""
        loop, standing = asyncio.get_running_loop(), self.standing
        standing.asking, standing.asked_at = count, loop.time()
        late = loop.call_later(LATE_SECONDS, self._note_late)
        try:
            return await self._claim(count)
        finally:
            late.cancel()
            standing.asking, standing.is_late = 0, False

    def _note_late(self) -> None:
        self.standing.is_late = True
        self._line.look_elsewhere(self)

    def _note(self, *, is_dry: bool) -> None:
        """Note whether items are left here.  In any case it is another shard's turn; but shards that have nothing do
        not make each other look again."""
        was_dry, self.standing.is_dry = self.standing.is_dry, is_dry
        self._line.look_elsewhere(self, with_items=was_dry and is_dry)

    def _note_trouble(self, asking: Iterable[Waiter[T]], error: ZkrqError) -> None:
        if self._trouble is None:
            self._log.warning("no claims for now, retrying: %s", error)
        self._trouble = error
        self._line.answer(asking, self, self._failure(error))
        self._note(is_dry=True)

    async def _claim(self, count: int) -> int:
        """Make one claim request.  Return the milliseconds until an item becomes ready by itself, negative: never."""
        loop = asyncio.get_running_loop()
        if self._handed_back:
            await wait_ended(self._handed_back, HAND_BACK_SECONDS)
        owner = await self._identity.get()
        waiter = ""
        if self._line.is_patient:
            self._wakeups.answer_to(owner)
            primary = self._replicas.primary(self._queue)
            if await self._wakeups.listen(primary):
                waiter = self._wakeups.channel
        started = loop.time()
        lease_ms = round(self._leases.claim_timeout * 1000)
        seq = self.seq + 1
        request = f"{owner}/{seq}"
        letters = self._dead_letters
        call = calls.Claim(
            queue=self._queue,
            owner=owner,
            seq=seq,
            count=count,
            lease_ms=lease_ms,
            waiter=waiter,
            max_attempts=self._leases.max_attempts,
            expired=(State.DEAD if letters.expired else State.GONE).value,
            dead_max=letters.max_count or 0,
            dead_age_ms=letters.max_age_ms,
        )
        self._leases.expect(request)
        try:
            decided = await self._replicas.decide(call)
        except ClaimLost:
            self._declared_dead(owner)
            return 0  # ask again, under another owner id
        self.seq = seq
        if not self._admit(decided, owner, request, started):
            return 0
        next_ms, dropped = decided.reply.next_ms, decided.reply.dropped_letters
        if dropped:
            self._events.tell(DeadLettersDropped(self._cluster, self._queue, dropped), logging.WARNING)
        if waiter or not self._line.waiting or next_ms == 0:
            return next_ms
        return POLL_MS if next_ms < 0 else min(next_ms, POLL_MS)

    def _admit(self, decided: Decided[calls.ClaimReply], owner: str, request: str, started: float) -> bool:
        """Put the result of the request into the buffer.  False: it must not be handed out, so ask again.

        A repeated request gets what is left of its first try's lease.
        """
        if self._identity.is_over(owner):
            return False  # the session has ended: other consumers will get these items
        cancelled = self._leases.admit()
        decode, claims, size = self._codec.decode, list[Claim[T]](), 0
        handed = iter(decided.reply.handed)
        records, superseded = dict(decided.records), decided.superseded
        grants: dict[bytes, Grant] = {}
        for id, first, count, part in zip(handed, handed, handed, handed, strict=True):
            grant = grants.get(id)
            if grant is None:
                grant = grants[id] = Grant(self._leases, id.decode(), records[id], owner, request)
            deadline_at = started + self._seconds_left(grant, first - 1, decided.reply.clock)
            lost = superseded.get(id, ())
            size += len(part)
            for position, payload in enumerate(split(part, count), first - 1):
                if payload is None or position in lost or (cancelled and grant.id_of(position) in cancelled):
                    continue
                content, headers = payload[2:], None
                if not payload.startswith(NO_HEADERS):
                    content, headers = split_payload(payload)
                try:
                    item = decode(content)
                except Exception as error:  # of any codec
                    undecodable = Claim(content, grant, position, deadline_at)
                    self._tasks.start(self._bury(undecodable, error), "bury an undecodable item")
                    continue
                claims.append(Claim(item, grant, position, deadline_at, headers))
        self._leases.add(map(lease_of, claims))
        now = asyncio.get_running_loop().time()
        if self._leases.observers.claimed:
            self._leases.observers.tell_claimed(self._queue, claims, now - started)
        self._pace.note_claimed(now, items=len(claims), size=size, buffer_was_empty=not self._line.ahead)
        self.buffer += claims
        return True

    def _seconds_left(self, grant: Grant, position: int, clock_us: int) -> float:
        """Return how long the claims of a grant hold, from the moment when it was asked for."""
        if clock_of(grant.packed) == clock_us:
            return self._leases.claim_timeout
        return (grant.record_of(position).deadline_us - clock_us) / 1_000_000

    async def _bury(self, claim: Claim[bytes], error: Exception) -> None:
        """Move an item that cannot be decoded to the dead letters, with its bytes."""
        about = {"item": claim.id}
        self._log.error("item %s cannot be decoded, it goes to the dead letters: %s", claim.id, error, extra=about)
        self._leases.add([lease_of(claim)])
        try:
            what = str(error) if isinstance(error, CodecError) else f"{type(error).__name__}: {error}"
            await claim.bury(f"cannot be decoded as {self._codec.name}: {what}")
        except ZkrqError as problem:
            lease_of(claim).stop_extending()
            text = "item %s could not be buried, it comes back by itself: %s"
            self._log.warning(text, claim.id, problem, extra=about)
