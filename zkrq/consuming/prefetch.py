"""Where claims come from: one claim request at a time serves all consumers of a queue in this process.

What consumers ask for is summed up and claimed in one call, and what they are expected to ask for next with it
(prefetch).  What was claimed on that expectation and is not taken goes back to the queue.  A request whose answer is
not known is repeated under the same number until it is: so nothing that was claimed is left lying about.

An idle queue costs one look every ``SWEEP_SECONDS``; a push wakes it immediately.  A push wakes one process only, so
one that is woken while none of its consumers waits makes a request for no items, which wakes the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from zkrq.claims import Claim, lease_of
from zkrq.codecs import Codec
from zkrq.consuming.identity import Identity
from zkrq.consuming.leases import Leases
from zkrq.consuming.wakeups import Wakeups
from zkrq.errors import ClaimLost, Closed, CodecError, ConfigError, Unavailable, ZkrqError
from zkrq.events import DeadLettersDropped, Events
from zkrq.home import Home, running_loop
from zkrq.limits import DeadLetters
from zkrq.protocol import calls
from zkrq.protocol.deciding import Decided
from zkrq.protocol.records import State
from zkrq.replication.replicas import Replicas
from zkrq.tasks import Tasks

T = TypeVar("T")

CLAIM_MAX = 500
"""Items claimed in one request."""

PREFETCH_SECONDS = 0.1
"""Seconds of work that consumers without a ``prefetch`` of their own have claimed ahead, at their recent pace."""

AHEAD_BYTES = 4 << 20
"""Bytes of payloads that are claimed ahead for the consumers of a queue, by the mean size of those seen lately."""

MEAN_OVER = 4
"""Claim requests over which the mean size of payloads is taken, about."""

AHEAD_SECONDS = 0.5
"""Seconds between two looks at what was claimed ahead.  What consumers, by their pace between the two, will not have
taken by the next one goes back, so an item waits at most twice as long for a consumer that takes nothing."""

SWEEP_SECONDS = 5.0
"""Whoever waits looks again after so long, also when nobody calls."""

FIRST_PAUSE, MAX_PAUSE, MAX_DOUBLINGS = 0.05, 1.0, 10
"""Seconds between tries while no claim can be made, doubled from the one to the other."""

POLL_MS = 500
"""Whoever waits without a wake-up channel looks again after so long."""


class PrefetchLimit(NamedTuple):
    """How many items are claimed ahead for a stream: at most ``most``, None: by its pace alone.

    ``fixed``: the stream asked for exactly that many, and keeps them however long it takes none.
    """

    most: int | None
    fixed: bool = False


@dataclass(eq=False, slots=True)
class _Waiter(Generic[T]):
    """Somebody who wants up to ``want`` claims, now or, if ``patient``, as soon as there are any."""

    want: int
    patient: bool
    future: asyncio.Future[list[Claim[T]]]


class Prefetcher(Generic[T]):
    """Hands claims to the consumers of one queue in this process."""

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
    ) -> None:
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
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.claims"), {"cluster": cluster, "queue": queue})
        self._waiters: deque[_Waiter[T]] = deque()
        self._buffer: deque[Claim[T]] = deque()
        self._streams: Counter[PrefetchLimit] = Counter()
        self._woken = asyncio.Event()
        self._woken_alone = False
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._seq = 0
        self._target = 0
        self._mean_bytes = 0.0
        self._fixed = 0
        self._taken = 0
        self._pace_since = 0.0, 0
        self._last_look = 0.0, 0
        self._stalled = False
        self._looks = 0
        self._trouble: ZkrqError | None = None

    # -- what consumers call -----------------------------------------------------------------------------------------

    def join(self, limit: PrefetchLimit) -> None:
        """A stream begins."""
        self._streams[limit] += 1
        self._stalled = False

    def leave(self, limit: PrefetchLimit) -> None:
        """A stream ends; what was claimed ahead and has no consumer left goes back."""
        self._streams[limit] -= 1
        self._streams += Counter[PrefetchLimit]()  # forgets those of which there are none
        self._hand_back()

    def expect(self, limit: PrefetchLimit, now: PrefetchLimit) -> None:
        """A stream changes what is claimed ahead for it."""
        self._streams[limit] -= 1
        self._streams[now] += 1

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Up to ``want`` claims; none if not ``patient`` and nothing is ready, or after ``timeout`` seconds.

        Raises ``Closed``; ``Unavailable``, or ``ConfigError`` where a server does not let this client in, where not
        even a look was possible and the caller would not wait longer.
        """
        if running_loop() is not self.home.loop:
            raise self.home.elsewhere()
        if self._closed:
            raise Closed()
        if not self._waiters and (drawn := self._draw(want)):
            return drawn
        waiter = _Waiter(want, patient, asyncio.get_running_loop().create_future())
        looks = self._looks
        self._waiters.append(waiter)
        self._look()
        try:
            if timeout is None:
                return await waiter.future
            async with asyncio.timeout(timeout):
                return await waiter.future
        except TimeoutError:
            self._withdraw(waiter)
            if self._looks == looks:
                raise self._failure(self._trouble or "no server answered in time") from self._trouble
            return []
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise

    def draw_one(self) -> Claim[T] | None:
        """A claim that was made ahead, if there is one and nobody has waited longer."""
        if not self._buffer or self._waiters or self._closed:
            return None
        drawn = self._draw(1)
        return drawn[0] if drawn else None

    def wake(self, alone: bool = False) -> None:
        """Something may be ready.  ``alone``: this process was woken for it, and no other one."""
        self._woken_alone = self._woken_alone or alone
        self._woken.set()

    def close(self) -> None:
        """End every wait with ``Closed``; what is claimed and not handed out goes back with ``Leases.release_all``."""
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
        """Claims from the buffer; those lost meanwhile are left out.

        While the session is not certain others may have fenced this process: only what Redis has given it just now
        (``fresh``) is handed out, the rest goes back.
        """
        drawn: list[Claim[T]] = []
        if not fresh and not self._leases.is_certain():
            self._release_all()
        now = asyncio.get_running_loop().time()
        while self._buffer and len(drawn) < want:
            claim = self._buffer.popleft()
            lease = lease_of(claim)
            if lease.holds_at(now):
                lease.delivered = True
                drawn.append(claim)
        self._taken += len(drawn)
        if len(self._buffer) * 2 < self._target:
            self._look()
        return drawn

    def _serve(self, *, fresh: bool = False) -> None:
        while self._waiters and self._buffer:
            waiter = self._waiters[0]
            if not waiter.future.done():
                drawn = self._draw(waiter.want, fresh=fresh)
                if not drawn:
                    return
                waiter.future.set_result(drawn)
            self._waiters.popleft()

    def _withdraw(self, waiter: _Waiter[T]) -> None:
        """The waiter has gone; what it was just given goes to the next one."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
            for claim in reversed(waiter.future.result()):
                lease_of(claim).delivered = False
                self._buffer.appendleft(claim)
            self._serve()
        self._hand_back()

    def _hand_back(self) -> None:
        """Release what was claimed, if nobody is left who wants it."""
        if not self._streams and not self._waiters:
            self._release_all()

    def _release_all(self) -> None:
        while self._buffer:
            self._tasks.start(self._release(self._buffer.popleft()), "hand back")

    def _hand_back_untaken(self) -> None:
        """Release what the consumers have not taken and will not take soon: other processes may be waiting for it."""
        now = asyncio.get_running_loop().time()
        looked_at, taken = self._last_look
        if now - looked_at < AHEAD_SECONDS:
            return
        self._last_look = now, self._taken
        moved = self._taken - taken
        expected = self._fixed + int(moved / (now - looked_at) * AHEAD_SECONDS)
        if len(self._buffer) <= expected:
            return
        self._stalled = moved == 0
        self._pace_since = looked_at, taken  # so that it is not claimed again at an older pace
        while len(self._buffer) > expected:
            self._tasks.start(self._release(self._buffer.pop()), "hand back")

    async def _release(self, claim: Claim[T]) -> None:
        try:
            await claim.release()
        except ZkrqError as error:
            lease_of(claim).stop_extending()
            self._log.info("item %s could not be handed back, it comes back by itself: %s", claim.id, error)

    def _dismiss(self, asking: Iterable[_Waiter[T]], outcome: ZkrqError | None) -> None:
        """Answer the waiters of this request that would not wait: nothing is there, or the error."""
        for waiter in asking:
            if not waiter.patient and waiter in self._waiters:
                self._waiters.remove(waiter)
                if waiter.future.done():
                    continue
                if outcome is None:
                    waiter.future.set_result([])
                else:
                    waiter.future.set_exception(self._failure(outcome))

    def _failure(self, reason: ZkrqError | str) -> ZkrqError:
        """The error for a caller that would not wait."""
        kind = ConfigError if isinstance(reason, ConfigError) else Unavailable
        return kind(f"queue {self._queue!r} could not be claimed from: {reason}")

    # -- claiming ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._woken.is_set():
            self._woken.set()
        if self._runner is None:
            self._pace_since = self._last_look = asyncio.get_running_loop().time(), 0
            self._runner = self._tasks.keep(self._run, f"claim from {self._queue}")

    def _wanted(self) -> int:
        """How many to claim now."""
        asked = sum(waiter.want for waiter in self._waiters)
        while self._buffer and not self._buffer[0].holds:
            self._buffer.popleft()
        return max(0, min(CLAIM_MAX, asked + self._target - len(self._buffer)))

    def _adapt(self) -> None:
        """Expect of streams what they asked for, and of the others their recent pace.

        A stream with a limit gets that at once, so that a short one needs one request only; by its pace after it has
        once taken nothing for ``AHEAD_SECONDS``.
        """
        now = asyncio.get_running_loop().time()
        since, taken_before = self._pace_since
        taken, elapsed = self._taken - taken_before, now - since
        # The first one tells no pace: a slow consumer has nothing claimed ahead, and so nothing to hand back.
        lately = int(max(0, taken - 1) / max(elapsed, PREFETCH_SECONDS) * PREFETCH_SECONDS)
        self._fixed = expected = 0
        for (most, fixed), streams in self._streams.items():
            if fixed:
                self._fixed += (most or 0) * streams
            elif most is None:
                expected = max(expected, lately)
            else:
                expected = max(expected, min(most * streams, lately) if self._stalled else most * streams)
        self._target = min(CLAIM_MAX, self._fixed + expected, int(AHEAD_BYTES / max(1.0, self._mean_bytes)))
        if not self._leases.is_certain():
            self._target = 0
        if elapsed > PREFETCH_SECONDS:
            self._pace_since = now - elapsed / 2, self._taken - taken // 2

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            alone, self._woken_alone = self._woken_alone, False
            self._hand_back_untaken()
            self._adapt()
            pause = SWEEP_SECONDS
            count = self._wanted()
            if count or alone:
                asking = tuple(self._waiters)
                try:
                    next_ms = await self._claim(count)
                except ZkrqError as error:
                    failures += 1
                    self._woken_alone = self._woken_alone or alone  # still to be passed on if no consumer waits then
                    self._note_trouble(asking, error)
                    asking = ()
                    pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(failures, MAX_DOUBLINGS))
                    await asyncio.sleep(pause)
                    continue
                failures, self._trouble = 0, None
                self._looks += 1
                self._serve(fresh=True)
                self._hand_back()
                if next_ms == 0 and self._wanted():
                    continue
                self._dismiss(asking, None)
                if next_ms > 0:
                    pause = min(pause, next_ms / 1000)
            asking = ()  # a waiter holds the claims that it was given: those that were dropped would be extended
            if len(self._buffer) > self._fixed:
                pause = min(pause, AHEAD_SECONDS)
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        """Wait until there may be something to do, at most for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _note_trouble(self, asking: Iterable[_Waiter[T]], error: ZkrqError) -> None:
        if self._trouble is None:
            self._log.warning("no claims for now, retrying: %s", error)
        self._trouble = error
        self._dismiss(asking, error)

    async def _claim(self, count: int) -> int:
        """One claim request; returns in how many milliseconds something becomes ready by itself."""
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
            return 0  # ask again, under another id
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
        """Take what was handed out into the buffer; False when it was handed out in vain: ask again.

        A request that was repeated is given what is left of its first time.
        """
        if self._identity.is_over(owner):
            return False  # the session ended meanwhile: others are about to be given these
        leases, decode, claims = self._leases, self._codec.decode, list[Claim[T]]()
        size = 0
        for payload, (id, record, left_ms) in zip(decided.reply.payloads, decided.records, strict=True):
            if payload is None or id in decided.superseded:
                continue
            name, deadline_at = id.decode(), started + left_ms / 1000
            size += len(payload)
            try:
                item = decode(payload)
            except Exception as error:  # any codec's
                undecodable: Claim[bytes] = Claim(leases, name, record, payload, owner, request, deadline_at)
                self._tasks.start(self._bury(undecodable, error), "bury an undecodable item")
                continue
            claims.append(Claim(leases, name, record, item, owner, request, deadline_at))
        if claims:
            self._mean_bytes += (size / len(claims) - self._mean_bytes) / (MEAN_OVER if self._mean_bytes else 1)
        leases.add(map(lease_of, claims))
        if not self._buffer:
            self._last_look = asyncio.get_running_loop().time(), self._taken
        self._buffer += claims
        return True

    async def _bury(self, claim: Claim[bytes], error: Exception) -> None:
        """What cannot be decoded goes to the dead letters, its bytes kept."""
        self._log.error("item %s cannot be decoded, it goes to the dead letters: %s", claim.id, error)
        self._leases.add([lease_of(claim)])
        try:
            what = str(error) if isinstance(error, CodecError) else f"{type(error).__name__}: {error}"
            await claim.bury(f"cannot be decoded as {self._codec.name}: {what}")
        except ZkrqError as problem:
            lease_of(claim).stop_extending()
            self._log.warning("item %s could not be buried, it comes back by itself: %s", claim.id, problem)
