"""Where claims come from: one claim request at a time serves all consumers of a queue in this process.

What consumers ask for is summed up and claimed in one call, and what they are expected to ask for next with it
(prefetch).  A request whose answer is not known is repeated under the same number until it is: so nothing that was
claimed is left lying about.  An idle queue costs one look every ``SWEEP_SECONDS``; a push wakes it at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from zkrq.claims import Claim
from zkrq.codecs import Codec
from zkrq.enrolment import Enrolment
from zkrq.errors import Closed, CodecError, ConfigError, Unavailable, ZkrqError
from zkrq.events import DeadLettersDropped, Events
from zkrq.held import Held
from zkrq.limits import DeadLetters
from zkrq.replication.replicas import PUT_WINDOW_MS, Decision, Replicas
from zkrq.replication.wire import Arguments
from zkrq.tasks import Tasks
from zkrq.wakeups import Wakeups

T = TypeVar("T")

CLAIM_MAX = 500
"""Items claimed in one request."""

PREFETCH_SECONDS = 0.1
"""Without a ``prefetch`` of their own, consumers get ahead what they took in so much time."""

AHEAD_BYTES = 4 << 20
"""Bytes of payloads that are claimed ahead for the consumers of a queue, by the mean size of those seen lately."""

MEAN_OVER = 4
"""Claim requests over which the mean size of payloads is taken, about."""

KEEP_AHEAD = 1
"""Claimed items that a slow consumer may keep waiting."""

SWEEP_SECONDS = 5.0
"""Whoever waits looks again after so long, also when nobody calls."""

FIRST_PAUSE, MAX_PAUSE, MAX_DOUBLINGS = 0.05, 1.0, 10
"""Seconds between tries while no claim can be made, doubled from the one to the other."""

POLL_MS = 500
"""Whoever waits without a wake-up channel looks again after so long."""


@dataclass(eq=False, slots=True)
class _Waiter(Generic[T]):
    """Somebody who wants up to ``want`` claims, now or, if ``patient``, as soon as there are any."""

    want: int
    patient: bool
    future: asyncio.Future[list[Claim[T]]]


class Feed(Generic[T]):
    """Hands claims to the consumers of one queue in this process."""

    def __init__(
        self,
        replicas: Replicas,
        held: Held,
        wakeups: Wakeups,
        *,
        cluster: str,
        queue: str,
        codec: Codec[T],
        dead_letters: DeadLetters,
        enrolment: Enrolment,
        tasks: Tasks,
        events: Events,
    ) -> None:
        self._replicas = replicas
        self._held = held
        self._wakeups = wakeups
        self._cluster = cluster
        self._queue = queue
        self._codec = codec
        self._dead_letters = dead_letters
        self._events = events
        self._enrolment = enrolment
        self._tasks = tasks
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.claims"), {"cluster": cluster, "queue": queue})
        self._waiters: deque[_Waiter[T]] = deque()
        self._buffer: deque[Claim[T]] = deque()
        self._streams: Counter[int | None] = Counter()
        self._woken = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False
        self._seq = 0
        self._ahead = 0
        self._mean_bytes = 0.0
        self._taken = 0
        self._taken_since = 0.0
        self._looks = 0
        self._trouble: ZkrqError | None = None

    # -- what consumers call -----------------------------------------------------------------------------------------

    def join(self, prefetch: int | None) -> None:
        """A stream begins; ``prefetch`` items are claimed ahead for it, None: as fast as it has been lately."""
        self._streams[prefetch] += 1

    def leave(self, prefetch: int | None) -> None:
        """A stream ends; what was claimed ahead for nobody goes back."""
        self._streams[prefetch] -= 1
        self._streams += Counter[int | None]()  # forgets what is nobody's
        self._hand_back()

    def expect(self, prefetch: int | None, now: int) -> None:
        """A stream that had ``prefetch`` items claimed ahead wants so many from now on."""
        self._streams[prefetch] -= 1
        self._streams[now] += 1

    async def take(self, want: int, *, patient: bool, timeout: float | None = None) -> list[Claim[T]]:
        """Up to ``want`` claims; none if not ``patient`` and nothing is ready, or after ``timeout`` seconds.

        Raises ``Closed``; ``Unavailable``, or ``ConfigError`` where a server does not let this client in, where not
        even a look was possible and the caller would not wait longer.
        """
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

    def wake(self) -> None:
        """Something may be ready."""
        self._woken.set()

    def close(self) -> None:
        """End every wait with ``Closed``; what is claimed and not handed out goes back with ``Held.release_all``."""
        self._closed = True
        if self._runner:
            self._runner.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(Closed())
                waiter.future.exception()
        self._buffer.clear()

    # -- handing out ---------------------------------------------------------------------------------------------------

    def _draw(self, want: int, *, fresh: bool = False) -> list[Claim[T]]:
        """Claims from the buffer; those lost meanwhile are left out.

        While the session is not certain others may have fenced this process: only what Redis has given it just now
        (``fresh``) is handed out, the rest goes back.
        """
        drawn: list[Claim[T]] = []
        if not fresh and not self._held.is_certain():
            self._release_all()
        now = asyncio.get_running_loop().time()
        while self._buffer and len(drawn) < want:
            claim = self._buffer.popleft()
            if claim.holds_at(now):
                claim.delivered = True
                drawn.append(claim)
        self._taken += len(drawn)
        if len(self._buffer) * 2 < self._ahead:
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
                claim.delivered = False
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

    def _hand_back_surplus(self) -> None:
        """Release what was expected to be taken by now and was not: others may be waiting for it."""
        self._adapt()
        while len(self._buffer) > max(self._ahead, KEEP_AHEAD):
            self._tasks.start(self._release(self._buffer.pop()), "hand back")

    async def _release(self, claim: Claim[T]) -> None:
        try:
            await claim.release()
        except ZkrqError as error:
            self._held.let_go(claim)
            self._log.info("item %s could not be handed back, it comes back by itself: %s", claim.id, error)

    def _dismiss(self, outcome: ZkrqError | None) -> None:
        """Tell those who would not wait: nothing there, or why not."""
        for waiter in tuple(self._waiters):
            if not waiter.patient:
                self._waiters.remove(waiter)
                if waiter.future.done():
                    continue
                if outcome is None:
                    waiter.future.set_result([])
                else:
                    waiter.future.set_exception(self._failure(outcome))

    def _failure(self, reason: ZkrqError | str) -> ZkrqError:
        """What a caller is told that would not wait."""
        kind = ConfigError if isinstance(reason, ConfigError) else Unavailable
        return kind(f"queue {self._queue!r} could not be claimed from: {reason}")

    # -- claiming ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._woken.is_set():
            self._woken.set()
        if self._runner is None:
            self._taken_since = asyncio.get_running_loop().time()
            self._runner = self._tasks.keep(self._run, f"claim from {self._queue}")

    def _wanted(self) -> int:
        """How many to claim now."""
        asked = sum(waiter.want for waiter in self._waiters)
        while self._buffer and not self._buffer[0].holds:
            self._buffer.popleft()
        return max(0, min(CLAIM_MAX, asked + self._ahead - len(self._buffer)))

    def _adapt(self) -> None:
        """Expect of the adaptive streams what they took lately, and of the others what they said."""
        now = asyncio.get_running_loop().time()
        elapsed = max(now - self._taken_since, 1e-3)
        lately = int(self._taken / elapsed * PREFETCH_SECONDS) if None in self._streams else 0
        expected = lately + sum((prefetch or 0) * n for prefetch, n in self._streams.items())
        self._ahead = min(CLAIM_MAX, expected, int(AHEAD_BYTES / max(1.0, self._mean_bytes)))
        if not self._held.is_certain():
            self._ahead = 0
        if elapsed > PREFETCH_SECONDS:
            self._taken, self._taken_since = self._taken // 2, now - elapsed / 2

    async def _run(self) -> None:
        failures = 0
        while True:
            self._woken.clear()
            self._adapt()
            pause = SWEEP_SECONDS
            count = self._wanted()
            if count:
                try:
                    next_ms = await self._claim(count)
                except ZkrqError as error:
                    failures += 1
                    self._note_trouble(error)
                    pause = min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(failures, MAX_DOUBLINGS))
                    await asyncio.sleep(pause)
                    continue
                failures, self._trouble = 0, None
                self._looks += 1
                self._serve(fresh=True)
                self._hand_back()
                if next_ms == 0 and self._wanted():
                    continue
                self._dismiss(None)
                if next_ms > 0:
                    pause = min(pause, next_ms / 1000)
            if not await self._rest(pause):
                self._hand_back_surplus()

    async def _rest(self, seconds: float) -> bool:
        """Until somebody calls, or the time is over; whether somebody called."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        return True

    def _note_trouble(self, error: ZkrqError) -> None:
        if self._trouble is None:
            self._log.warning("no claims for now, trying on: %s", error)
        self._trouble = error
        self._dismiss(error)

    async def _claim(self, count: int) -> int:
        """One claim request; returns in how many milliseconds something becomes ready by itself."""
        loop = asyncio.get_running_loop()
        owner = await self._enrolment.get()
        waiter = ""
        if any(waiter.patient for waiter in self._waiters):
            self._wakeups.answer_to(owner)
            primary = self._replicas.membership.view.primary(self._queue)
            if await self._wakeups.listen(primary):
                waiter = self._wakeups.channel
        started = loop.time()
        lease_ms = round(self._held.claim_timeout * 1000)
        seq = self._seq + 1
        request = f"{owner}/{seq}"
        letters = self._dead_letters
        request_arguments: Arguments = [PUT_WINDOW_MS, owner, seq, count, lease_ms, waiter, self._held.max_attempts]
        request_arguments += ["D" if letters.expired else "X", letters.max_count or 0, letters.max_age_ms]
        decision = await self._replicas.decide("claim", self._queue, request_arguments)
        self._seq = seq
        if not self._admit(decision, owner, request, started):
            return 0
        next_ms, dropped, _ = cast("tuple[int, int, object]", decision.body)
        if dropped:
            self._events.tell(DeadLettersDropped(self._cluster, self._queue, dropped), logging.WARNING)
        if waiter or not self._waiters or next_ms == 0:
            return next_ms
        return POLL_MS if next_ms < 0 else min(next_ms, POLL_MS)

    def _admit(self, decision: Decision, owner: str, request: str, started: float) -> bool:
        """Take what was handed out into the buffer; False when it was handed out in vain: ask again.

        A request that was repeated is given what is left of its first time.
        """
        if self._enrolment.is_over(owner):
            return False  # the session ended meanwhile: others are about to be given these
        payloads = cast("list[bytes | None]", decision.body[2])
        held, decode, claims = self._held, self._codec.decode, list[Claim[T]]()
        flat = cast("Sequence[Any]", decision.flat)
        size = 0
        for payload, id, record, left_ms in zip(payloads, flat[::3], flat[1::3], flat[2::3], strict=True):
            if payload is None or id in decision.superseded:
                continue
            name, deadline_at = id.decode(), started + left_ms / 1000
            size += len(payload)
            try:
                item = decode(payload)
            except Exception as error:  # any codec's
                undecodable: Claim[bytes] = Claim(held, name, record, payload, owner, request, deadline_at)
                self._tasks.start(self._bury(undecodable, error), "bury an undecodable item")
                continue
            claims.append(Claim(held, name, record, item, owner, request, deadline_at))
        if claims:
            self._mean_bytes += (size / len(claims) - self._mean_bytes) / (MEAN_OVER if self._mean_bytes else 1)
        held.hold(claims)
        self._buffer += claims
        return True

    async def _bury(self, claim: Claim[bytes], error: Exception) -> None:
        """What cannot be decoded goes to the dead letters, its bytes kept."""
        self._log.error("item %s cannot be decoded, it goes to the dead letters: %s", claim.id, error)
        self._held.hold([claim])
        try:
            what = str(error) if isinstance(error, CodecError) else f"{type(error).__name__}: {error}"
            await claim.bury(f"cannot be decoded as {self._codec.name}: {what}")
        except ZkrqError as problem:
            self._held.let_go(claim)
            self._log.warning("item %s could not be buried, it comes back by itself: %s", claim.id, problem)
