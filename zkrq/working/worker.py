"""The worker: a loop that claims, runs handlers and drains.  What becomes of an item is decided by its ``Claim``.

::

    await emails.work(send, concurrency=32, grace=30)  # one queue

    worker = zkrq.Worker(concurrency=32)  # several queues share the slots
    worker.add(emails, send, weight=3).add(reports, render, weight=1)
    await worker.run()

An item occupies one *slot* while it is worked on.  Items are claimed when there is a slot for them, not ahead.  Where
several queues have work, each gets slots by its weight; a queue that has none leaves its share to the others, and gets
it back as slots become free.  Of such an idle queue one item may be claimed while all slots are taken: it is handed
back when none was free for ``HOLD_SECONDS``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

from zkrq.checks import Duration, check_count, check_duration
from zkrq.claims import Claim, lease_of
from zkrq.errors import Closed, ConfigError, OutcomeUnknown, Unavailable, ZkrqError
from zkrq.retry import Reject, RetryLater
from zkrq.working.handlers import Handler, read_handler
from zkrq.working.outcomes import COUNTED_AS, ENDINGS, Counts, Ending, Outcome, WorkerStatistics

T = TypeVar("T")

TAKE_MAX = 500
"""Items that are asked for at once."""

HOLD_SECONDS = 1.0
"""That an item may be kept waiting for a slot."""

ACK_PAUSE = 0.1
"""Seconds before an ack is tried again."""

STOP_SECONDS = 10.0
"""That handlers which were cancelled are given to end, and then that handing back may take."""

MAX_WEIGHT = 1e6

Before: TypeAlias = Callable[[Claim[Any]], object]
"""A hook, called with the claim before the handler.  It may settle the claim: then the handler is left out."""

After: TypeAlias = Callable[[Claim[Any], Outcome], object]
"""A hook, called when the claim is settled."""


class Source(Protocol[T]):
    """What a worker needs of a queue."""

    name: str

    async def pop_many(self, n: int, *, timeout: Duration | None = None) -> list[Claim[T]]: ...


@dataclass(eq=False, slots=True)
class Line:
    """A queue that a worker serves, and its part of the slots."""

    queue: Source[Any]
    call: Callable[[Claim[Any]], object]
    in_thread: bool
    weight: float
    time_limit: float | None
    before: Before | None
    after: After | None
    log: logging.LoggerAdapter[logging.Logger]
    want: int = 0
    """Slots that it could use more than it has."""
    slots: int = 0
    """Slots that are its own: those of running items, and those that it has got for the next ones."""
    granted: int = 0
    """Of these, what has not been used yet."""
    idle: bool = True
    passed: float = 0.0
    """Slots that it was given so far, by its weight."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED_AS.values(), 0))

    def counts(self) -> Counts:
        return Counts(running=self.running, **self.endings)


def next_line(wanting: Sequence[Line], concurrency: int) -> Line:
    """Who gets a free slot: of those that have not got their share of the slots, the one that was given least so far.

    Shares are seldom whole numbers.  Whoever is below its own, if only by a part of a slot, may have one more; in the
    long run the parts even out by the number of items ("start-time fair queueing": Goyal et al., 1996).
    """
    total = sum(line.weight for line in wanting)
    below = [line for line in wanting if line.slots * total < concurrency * line.weight]
    return min(below or wanting, key=lambda line: line.passed)


class _Job:
    """One item that is being worked on."""

    __slots__ = ("claim", "entered", "line", "thread")

    def __init__(self, line: Line, claim: Claim[Any]) -> None:
        self.line = line
        self.claim = claim
        self.entered = False
        """Whether its task has begun: one that was cancelled before leaves the claim as it was."""
        self.thread: asyncio.Task[object] | None = None


class Worker:
    """Works on the items of one or more queues until it is cancelled.

    ``concurrency`` is how many items are worked on at once, over all queues.  When it is cancelled it claims nothing
    more, gives running handlers ``grace`` seconds to finish (0: none), then cancels them and hands their items back at
    once.  ``before`` and ``after`` are hooks for all queues; a hook may be ``async``, and one that raises is logged and
    changes nothing.
    """

    def __init__(
        self,
        *,
        concurrency: int = 10,
        grace: Duration = 30.0,
        before: Before | None = None,
        after: After | None = None,
    ) -> None:
        """Raises ``ConfigError`` for bad arguments."""
        self._concurrency = check_count("concurrency", concurrency, least=1)
        self._grace = check_duration("grace", grace)
        self._before = before
        self._after = after
        self._lines: list[Line] = []
        self._clock = 0.0
        self._jobs: dict[asyncio.Task[None], _Job] = {}
        self._returns: set[asyncio.Task[None]] = set()
        self._limiter: anyio.CapacityLimiter | None = None
        self._task: asyncio.Task[None] | None = None
        self._log = logging.getLogger("zkrq.working.worker")

    def __repr__(self) -> str:
        names = ", ".join(line.queue.name for line in self._lines)
        return f"<Worker of {names or 'nothing'}: {len(self._jobs)} of {self._concurrency} running>"

    def add(
        self,
        queue: Source[T],
        handler: Handler[T],
        *,
        weight: float = 1.0,
        time_limit: Duration | None = None,
        before: Before | None = None,
        after: After | None = None,
    ) -> Self:
        """Serve a queue too; to be called before it runs.

        ``handler(item)``, or ``handler(item, claim)`` where it has two parameters without a default.  When it returns,
        the item is acked; what it raises decides as in ``async with claim``: ``RetryLater``, ``Reject``, and for
        anything else the queue's retry policy.  It may also settle the claim itself.  An ack whose outcome is not known
        is repeated for as long as the claim holds.

        A handler that is not ``async`` runs in a thread, which nobody can stop: see ``time_limit``.

        ``weight`` is the queue's part of the slots, in proportion to those of the other queues.
        ``time_limit`` is how many seconds the handler may take for one item, None: no limit.  Then it is cancelled, and
        the item has failed.  In a thread it is not waited for: the item has failed all the same, while the thread, and
        its slot, are occupied until the handler returns; so is it when the claim is lost.  A handler that calls
        ``anyio.from_thread.check_cancelled()`` now and then is stopped there.
        ``before`` and ``after`` replace the worker's own hooks for this queue, None: keep them.

        Raises ``ConfigError`` for bad arguments, a queue of a name that is served already, or when it runs.
        """
        if self._limiter is not None:
            raise ConfigError("the worker runs: queues are added before")
        if any(line.queue.name == queue.name for line in self._lines):
            raise ConfigError(f"the worker serves a queue {queue.name!r} already")
        if not 0 < weight <= MAX_WEIGHT:
            raise ConfigError(f"weight is {weight}, must be more than 0 and at most {MAX_WEIGHT:g}")
        limit = None if time_limit is None else check_duration("time_limit", time_limit, positive=True)
        call, in_thread = read_handler(handler)
        self._lines.append(
            Line(
                queue=queue,
                call=call,
                in_thread=in_thread,
                weight=weight,
                time_limit=limit,
                before=before or self._before,
                after=after or self._after,
                log=logging.LoggerAdapter(self._log, {"queue": queue.name}),
            )
        )
        return self

    def statistics(self) -> WorkerStatistics:
        """What runs, and how deliveries ended, since the worker was made."""
        by_queue = {line.queue.name: line.counts() for line in self._lines}
        return WorkerStatistics(
            running=sum(counts.running for counts in by_queue.values()),
            done=sum(counts.done for counts in by_queue.values()),
            failed=sum(counts.failed for counts in by_queue.values()),
            lost=sum(counts.lost for counts in by_queue.values()),
            released=sum(counts.released for counts in by_queue.values()),
            by_queue=by_queue,
        )

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until this is cancelled, or the clusters of all queues are closed.

        Cancelled, it drains: nothing more is claimed, running handlers get ``grace`` seconds and are then cancelled,
        and what was not finished is handed back at once, without counting a failure.  A second cancellation ends the
        grace.  A handler that does not end within ``STOP_SECONDS`` of being cancelled is left behind, and logged; its
        item goes back as well.  A thread cannot be stopped: its item goes back, and the process lasts until it returns.

        A cancel scope of anyio cancels over and over, so there the drain is shielded and only ``grace`` bounds it.
        Raises ``ConfigError`` where there is no queue, or when it runs already.
        """
        if not self._lines:
            raise ConfigError("the worker has no queue: add one")
        if self._limiter is not None:
            raise ConfigError("the worker runs already")
        self._limiter = anyio.CapacityLimiter(self._concurrency)
        fetchers = [
            asyncio.create_task(self._fetch(line), name=f"zkrq worker: {line.queue.name}") for line in self._lines
        ]
        try:
            done, _ = await asyncio.wait(fetchers, return_when=asyncio.FIRST_EXCEPTION)
            for fetcher in done:
                fetcher.result()
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    await self._drain(fetchers)
            finally:
                self._limiter = None

    async def __aenter__(self) -> Self:
        """Begin to run in the background."""
        if self._task is not None:
            raise ConfigError("the worker runs already")
        self._task = asyncio.create_task(self.run(), name="zkrq worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, as when ``run`` is cancelled."""
        task, self._task = self._task, None
        assert task is not None
        cancelled: asyncio.CancelledError | None = None
        task.cancel()
        with anyio.CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as again:
                    cancelled = again
                    task.cancel()
        if not task.cancelled():
            task.result()
        if cancelled:
            raise cancelled

    async def _drain(self, fetchers: Sequence[asyncio.Task[None]]) -> None:
        """Let what runs finish within ``grace``, and hand back the rest."""
        cancelled: asyncio.CancelledError | None = None
        for fetcher in fetchers:
            fetcher.cancel()
        try:
            await _wait_ended(fetchers, STOP_SECONDS)
            await _wait_ended(self._jobs, self._grace)
        except asyncio.CancelledError as again:
            cancelled = again
        for task in self._jobs:
            task.cancel()
        try:
            await _wait_ended(self._jobs, STOP_SECONDS)
            for task, job in self._jobs.items():
                job.line.log.error("the handler of item %s does not end and is left behind: %s", job.claim.id, task)
                if job.claim.holds:
                    self._hand_back(job.line, [job.claim], delivered=True)
            await _wait_ended(self._returns, STOP_SECONDS)
        except asyncio.CancelledError as again:
            cancelled = again
        if cancelled:
            raise cancelled

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _want(self, line: Line, count: int) -> None:
        """The queue could use so many slots."""
        if line.idle:  # what it left to others is not owed to it
            line.passed = max(line.passed, self._clock)
        line.idle = False
        line.want = count
        self._allot()

    def _allot(self) -> None:
        """Give free slots to those who want them."""
        free = self._free
        while free > 0 and (wanting := [line for line in self._lines if line.want > line.granted]):
            line = next_line(wanting, self._concurrency)
            self._clock = line.passed
            line.passed += 1 / line.weight
            line.slots += 1
            line.granted += 1
            line.woken.set()
            free -= 1

    @property
    def _free(self) -> int:
        return self._concurrency - sum(line.slots for line in self._lines)

    async def _granted(self, line: Line, most: int) -> int:
        """Wait for slots; how many may be used now."""
        while not line.granted:
            line.woken.clear()
            await line.woken.wait()
        count = min(line.granted, most)
        line.granted -= count
        line.want = max(0, line.want - count)
        return count

    def _leave(self, line: Line, unused: int = 0) -> None:
        """The queue has nothing more: others may have what it was granted, and ``unused`` slots that it took."""
        unused += line.granted
        line.idle, line.want, line.granted = True, 0, 0
        line.slots -= unused
        line.passed -= unused / line.weight
        self._allot()

    # -- claiming ------------------------------------------------------------------------------------------------------

    async def _fetch(self, line: Line) -> None:
        """Claim for one queue until it is closed."""
        alone = len(self._lines) == 1
        try:
            while True:
                if not await self._ask(line, None if alone else 0) and not alone:
                    await self._listen(line)
        except Closed:
            pass
        finally:
            self._leave(line)

    async def _ask(self, line: Line, timeout: float | None) -> bool:
        """Claim as many items as there are slots for; whether there may be more.

        The slots are kept until the answer is there.
        """
        self._want(line, self._concurrency)
        count = await self._granted(line, TAKE_MAX)
        claims: list[Claim[Any]] = []
        try:
            claims = await line.queue.pop_many(count, timeout=timeout)
        except (ConfigError, Unavailable):  # the claiming task reports it; the listener waits until it is over
            pass
        finally:
            for claim in claims:
                self._start(line, claim)
            if len(claims) < count:
                self._leave(line, count - len(claims))
        return len(claims) == count

    async def _listen(self, line: Line) -> None:
        """Wait until an idle queue has items; no slots are kept for them meanwhile."""
        while True:
            self._leave(line)
            total = sum(line.weight for line in self._lines)
            share = math.floor(self._concurrency * line.weight / total)
            count = max(1, min(share, self._free, TAKE_MAX))
            claims = await line.queue.pop_many(count)
            full = len(claims) == count
            self._want(line, len(claims))
            try:
                async with asyncio.timeout(HOLD_SECONDS):
                    while claims:
                        for _ in range(await self._granted(line, len(claims))):
                            self._start(line, claims.pop(0))
            except TimeoutError:
                full = True
            finally:
                self._hand_back(line, claims, delivered=False)
            if full:
                return

    def _hand_back(self, line: Line, claims: Iterable[Claim[Any]], *, delivered: bool) -> None:
        for claim in claims:
            lease_of(claim).delivered = delivered
            task = asyncio.create_task(_release(line, claim), name=f"zkrq worker: hand back to {line.queue.name}")
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    # -- working -------------------------------------------------------------------------------------------------------

    def _start(self, line: Line, claim: Claim[Any]) -> None:
        job = _Job(line, claim)
        line.running += 1
        task = asyncio.create_task(self._work(job), name=f"zkrq worker: {line.queue.name} {claim.id}")
        self._jobs[task] = job
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(task)
        job.line.running -= 1
        job.line.slots -= 1
        if not job.entered:
            self._hand_back(job.line, [job.claim], delivered=False)
        elif not task.cancelled() and (error := task.exception()):
            job.line.log.error("item %s: the worker failed", job.claim.id, exc_info=error)
        self._allot()

    async def _work(self, job: _Job) -> None:
        """One delivery, from the hook before it to the hook behind it."""
        job.entered = True
        line, claim = job.line, job.claim
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        cancelled: asyncio.CancelledError | None = None
        raised: list[Exception] = []
        try:
            async with claim:
                await self._run_hook(line, claim, line.before and partial(line.before, claim))
                if claim.settled is None:
                    await self._handle(job, raised)
                while claim.settled is None:
                    await _ack(claim)
        except asyncio.CancelledError as reason:
            error = cancelled = reason
        except Exception as reason:
            error = reason
        if raised and (error is None or cancelled):
            error = raised[0]
        outcome = Outcome(_ending(claim), error, loop.time() - began)
        line.endings[COUNTED_AS[outcome.ending]] += 1
        _tell(line, claim, outcome, failed=bool(raised))
        await self._run_hook(line, claim, line.after and partial(line.after, claim, outcome))
        if cancelled:
            raise cancelled
        if job.thread:
            await asyncio.wait([job.thread])

    async def _handle(self, job: _Job, raised: list[Exception]) -> None:
        """The handler, within its time; what it raises is also put into ``raised``."""
        task = asyncio.current_task()
        assert task is not None
        limit = asyncio.timeout(job.line.time_limit)
        try:
            try:
                async with limit:
                    await self._call(job)
            except TimeoutError as error:
                if limit.expired() and error.__cause__ is not None:
                    reason = f"the handler was stopped at its time limit of {job.line.time_limit:g} s"
                    raise TimeoutError(reason) from None
                raise
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                raise RuntimeError("the handler was cancelled by itself") from error
        except Exception as error:
            raised.append(error)
            raise

    async def _call(self, job: _Job) -> None:
        if not job.line.in_thread:
            await cast("Awaitable[object]", job.line.call(job.claim))
            return
        scope = anyio.CancelScope()

        async def in_thread() -> object:
            with scope:
                return await anyio.to_thread.run_sync(job.line.call, job.claim, limiter=self._limiter)

        job.thread = thread = asyncio.create_task(in_thread(), name=f"zkrq worker: thread for {job.claim.id}")
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            scope.cancel()  # only the thread itself can find out, by check_cancelled()
            thread.add_done_callback(partial(_ended_late, job.line, job.claim.id))
            raise
        job.thread = None
        if inspect.isawaitable(result):
            await result

    async def _run_hook(self, line: Line, claim: Claim[Any], hook: Callable[[], object] | None) -> None:
        if hook is None:
            return
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        except Exception:
            line.log.exception("item %s: a hook failed", claim.id)


async def work(
    queue: Source[T],
    handler: Handler[T],
    *,
    concurrency: int = 10,
    grace: Duration = 30.0,
    time_limit: Duration | None = None,
    before: Before | None = None,
    after: After | None = None,
) -> None:
    """Work on a queue's items until this is cancelled or the cluster is closed; see ``Worker``, ``add`` and ``run``."""
    worker = Worker(concurrency=concurrency, grace=grace, before=before, after=after)
    await worker.add(queue, handler, time_limit=time_limit).run()


def _ending(claim: Claim[Any]) -> Ending:
    return Ending.LOST if claim.lost else ENDINGS[claim.settled]


async def _ack(claim: Claim[Any]) -> None:
    """Once; where it is not known to be done, after a pause it may be tried again."""
    try:
        await claim.ack()
    except (ConfigError, OutcomeUnknown, Unavailable):
        await asyncio.sleep(ACK_PAUSE)


async def _release(line: Line, claim: Claim[Any]) -> None:
    try:
        await claim.release()
    except ZkrqError as error:
        line.log.info("item %s could not be handed back, it comes back by itself: %s", claim.id, error)


_ENDED = {
    Ending.ACKED: "it is done all the same",
    Ending.RETRIED: "it will be delivered again",
    Ending.BURIED: "it is a dead letter now",
    Ending.RELEASED: "it was handed back",
    Ending.LOST: "its claim was lost",
    Ending.UNKNOWN: "what became of it is not known; unless it is done, it comes back by itself",
}


def _tell(line: Line, claim: Claim[Any], outcome: Outcome, *, failed: bool) -> None:
    """One line in the log for what did not go well."""
    if failed and not isinstance(outcome.error, RetryLater | Reject):
        line.log.error("item %s failed, %s", claim.id, _ENDED[outcome.ending], exc_info=outcome.error)
    elif outcome.ending is not Ending.ACKED:
        line.log.info("item %s: %s (raised: %r)", claim.id, _ENDED[outcome.ending], outcome.error)


def _ended_late(line: Line, id: str, thread: asyncio.Task[object]) -> None:
    if not thread.cancelled():
        line.log.info("item %s: the handler that was given up has ended: %s", id, thread.exception() or "well")


async def _wait_ended(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    left = list(tasks)
    if left:
        await asyncio.wait(left, timeout=seconds)
