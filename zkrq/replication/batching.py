"""Group commit: combine many small calls into one.

The first call of an idle ``Batcher`` leaves immediately, with all calls that the same turn of the event loop adds.
Calls that arrive while a batch is in flight leave together when it returns, with the next calls of its waiters; or
earlier, if they are many or have waited for long.  So a lone call waits for nothing, and many callers share one round
trip without asking for it.  (The idea is the group commit of databases: DeWitt et al., 1984.)

Several batchers may share an ``InFlightLimit``.  With many queues every batch would be small, and a batch of one costs
servers as much as one of ten.  So only some of them are in flight, and the others gather more calls until one returns.
If the calls of all are few, and loop and servers have slack (``slack.py``), they do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from zkrq.base.alarm import NEXT_TURN
from zkrq.base.errors import Closed, OutcomeUnknown, Unavailable, own
from zkrq.replication.slack import FEW_CALLS, Slack

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks

MAX_BATCH = 500
"""Calls in one batch: as many as one script executes in a few milliseconds."""

MAX_BATCH_BYTES = 1 << 20
"""Bytes beyond which a batch is closed; a larger call is sent alone."""

FURTHER_LEAST = 100
"""Calls that leave while a batch is in flight, and that are not split: fewer are cheaper if they wait for it."""

FURTHER_BYTES = 1 << 16
"""Bytes of calls that leave while a batch is in flight."""

FURTHER_SECONDS = 0.002
"""Seconds after which a call leaves while a batch is in flight: callers then wait for a slow server once, not twice."""

MAX_WAITING = 100_000
"""Calls that may wait for a batch."""

MAX_IN_FLIGHT = 4
"""Batches in flight at the same time."""

SHARED_IN_FLIGHT = 32
"""Batches in flight at the same time over batchers that share a limit."""

LATE_SECONDS = 0.1
"""Seconds without a landing after which a limit holds nobody back."""

CallT = TypeVar("CallT")
ResultT = TypeVar("ResultT")

Batch: TypeAlias = list[tuple[CallT, asyncio.Future[ResultT], float]]
"""Calls that leave together, the future of each result, and when the call was added."""

Landed: TypeAlias = Callable[[Sequence[CallT], Sequence[float], Sequence[ResultT | Exception]], None]
"""A function of calls, of the seconds from adding each call to its result, and of the results."""


class InFlightLimit:
    """Limit the batches that several batchers have in flight; those beyond it stand in line, first come first served.

    No time is waited for: a batcher leaves as soon as another one's batch has landed.  If none lands for
    ``LATE_SECONDS``, servers hang, and as many of those in line leave beside them.
    """

    def __init__(self, most: int = SHARED_IN_FLIGHT) -> None:
        self._most = most
        self._in_flight = 0
        self._line: deque[Callable[[], None]] = deque()
        self._late: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Batches in flight."""
        return self._in_flight

    def begin(self, go_on: Callable[[], None]) -> bool:
        """Count one more batch.  False: it may not leave now, and ``go_on`` is called when it may be tried again."""
        if self._in_flight >= self._most:
            self._line.append(go_on)
            self._wait_for_late()
            return False
        self._in_flight += 1
        return True

    def end(self) -> None:
        """Count a batch that has landed no more."""
        self._in_flight -= 1
        if self._line:
            # Callers that it has answered make their next calls first, which then leave with others.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._admit)

    def _admit(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None
        for _ in range(len(self._line)):
            if self._in_flight >= self._most:
                break
            self._line.popleft()()
        if self._line:
            self._wait_for_late()

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - No batch has landed twice: a count below what is in flight would let more leave than the servers stand.
        - While batchers stand in line, a timer admits them even if no batch lands.
        """
        assert self._in_flight >= 0, f"{self._in_flight} batches in flight"
        assert self._late or not self._line, "batchers in line, and nothing admits them if no batch lands"

    def _wait_for_late(self) -> None:
        # A batcher that was admitted may have begun to wait again, and then there is a timer.
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._open)

    def _open(self) -> None:
        """Let as many leave as may be in flight, beside those that are and do not land."""
        self._late = None
        counted, self._in_flight = self._in_flight, 0
        self._admit()
        self._in_flight += counted


class Batcher(Generic[CallT, ResultT]):
    """Collect calls and pass them to ``send``, which answers each or raises for all.

    ``send`` returns one result, or one exception, per call in order.  A cancelled caller stops waiting; its call is
    still sent.  A call that has waited for ``patience`` seconds without leaving fails with ``Unavailable``.
    """

    def __init__(
        self,
        send: Callable[[Sequence[CallT]], Awaitable[Sequence[ResultT | Exception]]],
        *,
        tasks: Tasks,
        name: str,
        patience: float,
        watched: Sequence[object] = (),
        landed: Landed[CallT, ResultT] | None = None,
        limit: InFlightLimit | None = None,
    ) -> None:
        """``landed`` is called with the results of each batch while ``watched`` is not empty.  ``limit``: what it
        shares with other batchers; without one its calls wait for each other, because whether they are few is not
        known."""
        self._send = send
        self._tasks = tasks
        self._name = name
        self._patience = patience
        self._watched = watched
        self._on_landed = landed
        self._limit = limit
        self._in_line = False
        self._waiting: deque[tuple[CallT, asyncio.Future[ResultT], int, float]] = deque()
        self._bytes = 0
        self._in_flight = 0
        self._calls_in_flight = 0
        self._slack = Slack()
        self._starting = 0  # batches that were taken and have not been sent yet
        self._scheduled_at: float | None = None
        """When a task was begun that takes what waits in the next turn of the loop, None: there is none."""
        self._is_adding = False
        """Whether ``add`` is starting a task."""
        self._hurry: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied: asyncio.Event | None = None
        """Set when nothing is in flight any more, once it is waited for."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, call: CallT, size: int = 1) -> asyncio.Future[ResultT]:
        """Add a call of this size, in bytes, to the next batch; return the future of its result."""
        if self._closed:
            raise Closed()
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if len(self._waiting) >= MAX_WAITING:
            raise Unavailable(f"{self._name}: {MAX_WAITING} calls are waiting already; nothing happened, retry later")
        future: asyncio.Future[ResultT] = asyncio.Future(loop=loop)  # as loop.create_future(), which is slower
        self._bytes += size
        now = self._scheduled_at or loop.time()
        self._waiting.append((call, future, size, now))
        if self._scheduled_at is None:
            # The first call of an idle queue leaves immediately: a lone caller does not wait.  The others wait for
            # the batch in flight, which costs them at most the time of one.
            if self._is_worth_it():
                # First, because the task may run before ``start`` returns (``asyncio.eager_task_factory``).
                self._scheduled_at, self._is_adding = now, True
                try:
                    self._tasks.start(self._carry(None), self._name)
                except Closed:
                    self._scheduled_at = None
                    raise
                finally:
                    self._is_adding = False
            elif self._hurry is None:
                self._hurry_up_later(loop)
        return future

    @property
    def is_idle(self) -> bool:
        """Whether no call waits or is in flight."""
        return not self._waiting and not self._in_flight

    @property
    def is_leaving(self) -> bool:
        """Whether calls leave within the next turns of the event loop."""
        is_scheduled = self._scheduled_at is not None and bool(self._waiting)
        return self._starting > 0 or (is_scheduled and self._is_worth_it())

    def stop(self) -> None:
        """Refuse further calls; those that have not left fail with ``Closed``: nothing happened."""
        self._closed = True
        if self._hurry:
            self._hurry.cancel()
        # They have not left, so "nothing happened" is certain.  Those in flight keep their futures, and end with
        # their answers.
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(Closed())
                future.exception()

    async def aclose(self) -> None:
        """Stop, and wait for the batches in flight."""
        self.stop()
        if self._in_flight:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - No batch has landed twice, and no more are in flight than may be: the servers' memory depends on it.
        - The calls in flight are counted until they land: a count that grows would end the slack forever.
        - The bytes of what waits are those of its calls: they decide when calls leave, and with whom.
        - What waits is in the order in which it came, because the first is the first to be turned away.
        - While calls wait, something makes them leave: a batch in flight, a task or a timer, or a place in line.
        - After ``stop`` nothing waits: a call that left then would be executed after its caller was told ``Closed``.
        """
        assert 0 <= self._starting <= self._in_flight <= MAX_IN_FLIGHT, f"{self._in_flight} batches in flight"
        calls = self._calls_in_flight
        assert self._in_flight <= calls <= self._in_flight * MAX_BATCH, f"{calls} calls in {self._in_flight} batches"
        assert len(self._waiting) <= MAX_WAITING, f"{len(self._waiting)} calls wait"
        if self._closed:
            assert not self._waiting, f"{self._name}: closed, and calls wait"
            return
        assert self._bytes == sum(size for _, _, size, _ in self._waiting), f"{self._name}: wrong count of bytes"
        since = [since for *_, since in self._waiting]
        assert since == sorted(since), f"{self._name}: calls wait in another order than they came"
        leaves = self._in_flight or self._scheduled_at is not None or self._hurry or self._in_line
        assert leaves or not self._waiting, f"{self._name}: calls wait, and nothing makes them leave"

    def _is_worth_it(self) -> bool:
        """Whether the waiting calls should leave now."""
        if self._in_line or not self._in_flight:
            return not self._in_line
        if self._in_flight == MAX_IN_FLIGHT:
            return False
        return len(self._waiting) >= FURTHER_LEAST or self._bytes >= FURTHER_BYTES or self._has_slack()

    def _has_slack(self) -> bool:
        """Whether calls need not wait for each other."""
        if self._limit is None:
            return False
        # A few calls in each of many queues are a crowd.
        calls = len(self._waiting) + self._calls_in_flight + self._limit.in_flight - self._in_flight
        return calls <= FEW_CALLS and self._slack.allows(calls)  # the first part spares a crowd the second

    def _hurry_up_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._in_flight < MAX_IN_FLIGHT and not self._in_line:
            since = self._waiting[0][-1]
            self._hurry = loop.call_at(since + FURTHER_SECONDS, self._depart, True)

    def _depart(self, hurry: bool = False) -> None:
        """Send what is to leave now; ``hurry``: whatever waits."""
        self._start(self._take_all(hurry))

    def _start(self, batches: Sequence[Batch[CallT, ResultT]]) -> None:
        for batch in batches:
            self._starting += 1
            self._tasks.start(self._carry(batch), self._name)

    def _begin(self) -> Batch[CallT, ResultT] | None:
        """Take the batch that is to leave now, None if none is.  Several leave in the next turn of the event loop."""
        batches = self._take_all()
        if len(batches) == 1:
            return batches[0]
        self._start(batches)  # together, so that their callers come back together
        return None

    def _take_all(self, hurry: bool = False) -> Sequence[Batch[CallT, ResultT]]:
        """Take the batches that are to leave now."""
        now, self._scheduled_at = self._scheduled_at or asyncio.get_running_loop().time(), None
        if self._hurry:
            self._hurry.cancel()
            self._hurry = None
        if self._waiting and self._waiting[0][-1] <= now - self._patience:
            self._turn_away(now - self._patience)
        batches: list[Batch[CallT, ResultT]] = []
        while (
            self._waiting and not self._in_line and self._in_flight < MAX_IN_FLIGHT and (hurry or self._is_worth_it())
        ):
            if self._limit and not self._limit.begin(self._leave_line):
                self._in_line = True
                return batches
            batches.append(batch := self._take())
            self._in_flight += 1
            self._calls_in_flight += len(batch)
        if self._waiting and self._loop:
            self._hurry_up_later(self._loop)
        return batches

    def _leave_line(self) -> None:
        self._in_line = False
        self._depart()

    def _take(self) -> Batch[CallT, ResultT]:
        batch: Batch[CallT, ResultT] = []
        waiting, room = self._waiting, MAX_BATCH_BYTES
        # A large number of calls leaves in as many parts as may be in flight, so that servers work on one while the
        # next is made.
        count = max(FURTHER_LEAST, -(-len(waiting) // (MAX_IN_FLIGHT - self._in_flight)))
        if len(waiting) < count + FURTHER_LEAST:
            count = len(waiting)  # the rest would have to wait
        for _ in range(min(count, MAX_BATCH)):
            call, future, size, since = waiting[0]
            room -= size
            if room < 0 and batch:
                break
            waiting.popleft()
            self._bytes -= size
            batch.append((call, future, since))
        return batch

    def _turn_away(self, latest: float) -> None:
        """Fail the calls that have waited for too long, since this moment; they are in order of arrival."""
        while self._waiting and self._waiting[0][-1] <= latest:
            call, future, size, since = self._waiting.popleft()
            self._bytes -= size
            error = Unavailable(f"{self._name}: waited for {self._patience:g} s; nothing happened, retry")
            if not future.done():
                future.set_exception(error)
            if self._watched:
                self._report([(call, future, since)], [error])

    async def _carry(self, batch: Batch[CallT, ResultT] | None) -> None:
        """Carry out a batch, None: what waits now; then those that follow it, as long as calls are to leave."""
        if batch:
            self._starting -= 1
        else:
            if self._is_adding:
                await NEXT_TURN  # an eager task would leave without the calls that this turn still adds
            # Where other batchers have batches in flight, callers of several are answered in one turn of the event
            # loop.  One turn later all of them have made their next calls, and these leave together.
            if self._limit and self._limit.in_flight and not self._has_slack():
                await NEXT_TURN
            batch = self._begin()
        loop = asyncio.get_running_loop()
        while batch:
            began = loop.time()
            results: Sequence[ResultT | Exception] = ()
            try:
                results = await self._send([call for call, _, _ in batch])
            except Exception as error:  # each caller gets an error of its own, because a traceback is not shared
                results = [own(error) for _ in batch]
            finally:
                if self._limit:
                    self._slack.note(began, loop.time())
                self._land(batch, results or [OutcomeUnknown("closed in the middle") for _ in batch])
            if self._scheduled_at is not None:
                return  # another task has begun to do what follows
            # Callers that were answered here make their next calls first.
            self._scheduled_at = loop.time()
            await NEXT_TURN
            if self._limit and self._limit.in_flight and not self._has_slack():
                await NEXT_TURN
            batch = self._begin()

    def _land(self, batch: Batch[CallT, ResultT], results: Sequence[ResultT | Exception]) -> None:
        """Answer the callers of a batch that has landed."""
        self._in_flight -= 1
        self._calls_in_flight -= len(batch)
        for (_, future, _), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._limit:
            self._limit.end()
        if self._watched:
            self._report(batch, results)
        if self._emptied and not self._in_flight:
            self._emptied.set()

    def _report(self, batch: Batch[CallT, ResultT], results: Sequence[ResultT | Exception]) -> None:
        if self._on_landed and self._loop:
            now = self._loop.time()
            self._on_landed([call for call, _, _ in batch], [now - since for *_, since in batch], results)
