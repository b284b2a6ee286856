"""Claim items: one claim request at a time serves all consumers of a queue in this process.

A request asks for all that the waiting consumers want, and for what they are expected to want next (prefetch; see
``pace.py``).  Items that were claimed ahead and are not taken go back to the queue.  A request whose answer was lost is
repeated under the same number until it is answered, and gets the same items, so no claimed item is forgotten.

An idle queue costs one request every ``SWEEP_SECONDS``; a push wakes it immediately.  A push wakes one process only, so
a process that is woken while none of its consumers waits requests no items, which wakes the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from zkrq.claims import Claim, lease_of
from zkrq.codecs import Codec
from zkrq.consuming.identity import Identity
from zkrq.consuming.lease import Grant
from zkrq.consuming.leases import Leases
from zkrq.consuming.pace import AHEAD_SECONDS, CLAIM_MAX, Pace, PrefetchLimit
from zkrq.consuming.wakeups import Wakeups
from zkrq.errors import ClaimLost, Closed, CodecError, ConfigError, Unavailable, ZkrqError
from zkrq.events import DeadLettersDropped, Events
from zkrq.home import Home, running_loop
from zkrq.limits import DeadLetters
from zkrq.logs import Log
from zkrq.pauses import doubled
from zkrq.protocol import calls
from zkrq.protocol.deciding import Decided
from zkrq.protocol.payloads import NO_HEADERS, split, split_payload
from zkrq.protocol.records import State, clock_of
from zkrq.replication.replicas import Replicas
from zkrq.tasks import Tasks, wait_set

T = TypeVar("T")

SWEEP_SECONDS = 5.0
"""Seconds between two requests of a waiting consumer that receives no wake-up."""

FIRST_PAUSE, MAX_PAUSE = 0.05, 1.0
"""Seconds before the first retry of a failed request, and their maximum; doubled with each failure."""

POLL_MS = 500
"""Milliseconds between two requests of a waiting consumer that has no wake-up channel."""


@dataclass(eq=False, slots=True)
class Waiter(Generic[T]):
    """Wait for claims: a call that wants up to ``want`` claims: now or, if ``patient``, as soon as there are some."""

    want: int
    patient: bool
    future: asyncio.Future[list[Claim[T]]]


class Prefetcher(Generic[T]):
    """Hand claims to the consumers of one queue in this process."""

    def __init__(
        self,
        replicas: Replicas,
        leases: Leases,
        wakeups: Wakeups,
        *,
        cluster: str,
        queue: str,
        codec: Codec[T],
        dead_letters: DeadLetters,
        identity: Identity,
        declared_dead: Callable[[str], None],
        tasks: Tasks,
        events: Events,
        home: Home,
        away: Callable[[], str | None],
    ) -> None:
        """``away`` tells why the servers cannot be asked now, None if they can."""
        self._away = away
        self._replicas = replicas
        self._leases = leases
        self._wakeups = wakeups
        self._cluster = cluster
        self._queue = queue
        self._codec = codec
        self._dead_letters = dead_letters
        self._events = events
        self.home = home
        self._identity = identity
        self._declared_dead = declared_dead
        self._tasks = tasks
        self._log = Log(logging.getLogger("zkrq.claims"), {"cluster": cluster, "queue": queue})
        self._waiters: deque[Waiter[T]] = deque()
        self._buffer: deque[Claim[T]] = deque()
        self._pace = Pace()
        self._woken = asyncio.Event()
        self._woken_alone = False
        self._looking = False  # whether _look was called since the loop's last turn
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._seq = 0
        self._probed = 0
        self.looks = 0
        """Requests that were answered."""
        self._trouble: ZkrqError | None = None

    # -- called by consumers -----------------------------------------------------------------------------------------

    def join(self, limit: PrefetchLimit) -> None:
        """Claim ahead for one more stream."""
        self._pace.join(limit)

    def leave(self, limit: PrefetchLimit) -> None:
        """Remove a stream.  Items claimed ahead go back if no consumer is left."""
        self._pace.leave(limit)
        self._hand_back()

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """Change the limit of items claimed ahead for a stream."""
        self._pace.change(limit, now)

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Return up to ``want`` claims: none if nothing is ready and not ``patient``, or after ``timeout`` seconds.

        Raises ``Closed``.  If no request was answered and the caller would not wait longer, raises ``Unavailable``, or
        ``ConfigError`` if a server does not let this client in.
        """
        if running_loop() is not self.home.loop:
            raise self.home.elsewhere()
        if self._closed:
            raise Closed()
        if not self._waiters and (drawn := self._draw(want)):
            return drawn
        waiter = Waiter(want, patient, asyncio.get_running_loop().create_future())
        looks = self.looks
        self._waiters.append(waiter)
        if not self._looking:
            self._look()
        try:
            if timeout is None:
                return await waiter.future
            async with asyncio.timeout(timeout):
                return await waiter.future
        except TimeoutError:
            self.withdraw(waiter)
            if self.looks == looks:
                raise self.failure() from self._trouble
            return []
        except asyncio.CancelledError:
            self.withdraw(waiter)
            raise

    def enlist(self, waiter: Waiter[T]) -> None:
        """Let a waiter wait here that other queues may serve, too.  Raises ``Closed``."""
        if self._closed:
            raise Closed()
        self._waiters.append(waiter)
        self._look()

    def strike(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that another queue has served."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        self._hand_back()

    def draw_one(self) -> Claim[T] | None:
        """Return a claim made ahead, or None if there is none or another consumer has waited longer."""
        if not self._buffer or self._waiters or self._closed:
            return None
        drawn = self._draw(1)
        return drawn[0] if drawn else None

    @property
    def ahead(self) -> int:
        """Number of items that are to be claimed ahead, at the present pace."""
        return self._pace.target

    def probe(self, count: int) -> None:
        """Claim up to this many items ahead, once, unless some are: the streams take from elsewhere and do not wait."""
        if not self._buffer:
            self._probed = count
            self._look()

    def wake(self, alone: bool = False) -> None:
        """Make a request soon: an item may be ready.  ``alone``: no other process was woken for it."""
        self._woken_alone = self._woken_alone or alone
        self._woken.set()

    def move(self) -> None:
        """End every wait with no claims: the shards to claim from have changed, so look again there."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_result([])

    @property
    def is_in_trouble(self) -> bool:
        """Whether the last request failed, or the next one will."""
        return self._trouble is not None or self._away() is not None

    def close(self) -> None:
        """End every wait with ``Closed``.  Claims that were not handed out go back with ``Leases.release_all``."""
        self._closed = True
        if self._runner:
            self._runner.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(Closed())
                waiter.future.exception()

    # -- handing out ---------------------------------------------------------------------------------------------------

    def _draw(self, want: int, *, fresh: bool = False) -> list[Claim[T]]:
        """Take claims from the buffer, skipping those that were lost meanwhile.

        While the session is not certain, other clients may have fenced this process.  Then this returns only claims
        that Redis has just granted (``fresh``), and the others go back.
        """
        drawn: list[Claim[T]] = []
        if not fresh and not self._leases.is_certain():
            self._release_all()
        now = asyncio.get_running_loop().time()
        while self._buffer and len(drawn) < want:
            claim = self._buffer.popleft()
            lease = lease_of(claim)
            if lease.settled is None and lease.deadline_at > now and not lease.loss:  # holds_at, without the call
                lease.delivered = True
                drawn.append(claim)
        self._pace.taken += len(drawn)
        if len(self._buffer) * 2 < self._pace.target and not self._looking:
            self._look()
        return drawn

    def _serve(self, *, fresh: bool = False) -> None:
        """Give the buffered claims to the waiters, first come first served."""
        while self._waiters and self._buffer:
            waiter = self._waiters[0]
            if not waiter.future.done():
                drawn = self._draw(waiter.want, fresh=fresh)
                if not drawn:
                    return
                waiter.future.set_result(drawn)
            self._waiters.popleft()

    def withdraw(self, waiter: Waiter[T]) -> None:
        """Remove a waiter that has stopped waiting.  Claims that it was just given here go to the next one."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
            for claim in reversed(waiter.future.result()):
                if lease_of(claim).issuer is self._leases:
                    lease_of(claim).take_back()
                    self._buffer.appendleft(claim)
            self._serve()
        self._hand_back()

    def _hand_back(self) -> None:
        """Release the buffered items if no consumer is left."""
        if not self._pace.streams and not self._waiters:
            self._release_all()

    def _release_all(self) -> None:
        while self._buffer:
            self._tasks.start(self._release(self._buffer.popleft()), "hand back")

    def _hand_back_untaken(self) -> None:
        """Release items that the consumers will not take soon, because consumers of other processes may want them."""
        for _ in range(self._pace.surplus(asyncio.get_running_loop().time(), len(self._buffer))):
            self._tasks.start(self._release(self._buffer.pop()), "hand back")

    async def _release(self, claim: Claim[T]) -> None:
        try:
            await claim.release()
        except ZkrqError as error:
            lease_of(claim).stop_extending()
            text = "item %s could not be handed back, it comes back by itself: %s"
            self._log.info(text, claim.id, error, extra={"item": claim.id})

    def _dismiss(self, asking: Iterable[Waiter[T]], outcome: ZkrqError | None) -> None:
        """Answer the waiters of this request that are not patient: with no claims, or with the error."""
        for waiter in asking:
            if not waiter.patient and waiter in self._waiters:
                self._waiters.remove(waiter)
                if waiter.future.done():
                    continue
                if outcome is None:
                    waiter.future.set_result([])
                else:
                    waiter.future.set_exception(self._failure(outcome))

    def failure(self) -> ZkrqError:
        """Return the error for a caller whose time is over, and whom no server has answered."""
        return self._failure(self._trouble or "no server answered in time")

    def _failure(self, reason: ZkrqError | str) -> ZkrqError:
        """Return the error for a caller that would not wait."""
        kind = ConfigError if isinstance(reason, ConfigError) else Unavailable
        return kind(f"queue {self._queue!r} could not be claimed from: {reason}")

    # -- claiming ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Make the loop below check whether to send a request."""
        self._looking = True
        self._woken.set()
        if self._runner is None:
            self._pace.begin(asyncio.get_running_loop().time())
            self._runner = self._tasks.supervise(self._run, f"claim from {self._queue}")

    def _wanted(self) -> int:
        """Return how many items to claim now."""
        asked = sum(waiter.want for waiter in self._waiters)
        while self._buffer and not lease_of(self._buffer[0]).holds:
            self._buffer.popleft()
        return max(0, min(CLAIM_MAX, asked + max(self._pace.target, self._probed) - len(self._buffer)))

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            self._looking = False
            alone, self._woken_alone = self._woken_alone, False
            self._hand_back_untaken()
            self._pace.adapt(asyncio.get_running_loop().time(), is_certain=self._leases.is_certain())
            pause = SWEEP_SECONDS
            count, self._probed = self._wanted(), 0
            if count or alone:
                asking = tuple(self._waiters)
                try:
                    next_ms = await self._claim(count)
                except ZkrqError as error:
                    failures += 1
                    self._woken_alone = self._woken_alone or alone  # still to be passed on if no consumer waits by then
                    self._note_trouble(asking, error)
                    asking = ()
                    pause = doubled(FIRST_PAUSE, failures, most=MAX_PAUSE)
                    await asyncio.sleep(pause)
                    continue
                failures, self._trouble = 0, None
                self.looks += 1
                self._serve(fresh=True)
                self._hand_back()
                if next_ms == 0 and self._wanted():
                    continue
                self._dismiss(asking, None)
                if next_ms > 0:
                    pause = min(pause, next_ms / 1000)
            asking = ()  # frees the waiters and the claims that they were given: a dropped claim must not be extended
            if len(self._buffer) > self._pace.fixed:
                pause = min(pause, AHEAD_SECONDS)
            await wait_set(self._woken, pause)

    def _note_trouble(self, asking: Iterable[Waiter[T]], error: ZkrqError) -> None:
        if self._trouble is None:
            self._log.warning("no claims for now, retrying: %s", error)
        self._trouble = error
        self._dismiss(asking, error)

    async def _claim(self, count: int) -> int:
        """Make one claim request.  Return the milliseconds until an item becomes ready by itself, negative: never."""
        loop = asyncio.get_running_loop()
        owner = await self._identity.get()
        waiter = ""
        if any(waiter.patient for waiter in self._waiters):
            self._wakeups.answer_to(owner)
            primary = self._replicas.primary(self._queue)
            if await self._wakeups.listen(primary):
                waiter = self._wakeups.channel
        started = loop.time()
        lease_ms = round(self._leases.claim_timeout * 1000)
        seq = self._seq + 1
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
        try:
            decided = await self._replicas.decide(call)
        except ClaimLost:
            self._declared_dead(owner)
            return 0  # ask again, under another owner id
        self._seq = seq
        if not self._admit(decided, owner, request, started):
            return 0
        next_ms, dropped = decided.reply.next_ms, decided.reply.dropped_letters
        if dropped:
            self._events.tell(DeadLettersDropped(self._cluster, self._queue, dropped), logging.WARNING)
        if waiter or not self._waiters or next_ms == 0:
            return next_ms
        return POLL_MS if next_ms < 0 else min(next_ms, POLL_MS)

    def _admit(self, decided: Decided[calls.ClaimReply], owner: str, request: str, started: float) -> bool:
        """Put the result of the request into the buffer.  False: it must not be handed out, so ask again.

        A repeated request gets what is left of its first try's lease.
        """
        if self._identity.is_over(owner):
            return False  # the session has ended: other consumers will get these items
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
                if payload is None or position in lost:
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
        self._pace.note_claimed(now, items=len(claims), size=size, buffer_was_empty=not self._buffer)
        self._buffer += claims
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
