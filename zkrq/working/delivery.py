"""Deliver one item: hook, handler within its time limit, settle, hook.  The claim decides how the delivery ends.

``batches.py`` delivers several items together, in the same steps.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

from zkrq.base.errors import (
    ClaimLost,
    CodecError,
    ConfigError,
    HandlerError,
    OutcomeUnknown,
    PayloadTooLarge,
    Unavailable,
    message_of,
)
from zkrq.base.retry import Retry, interrupts, is_wish
from zkrq.base.tasks import in_threads
from zkrq.consuming.claims import Claim, lease_of
from zkrq.working.outcomes import Ending, Outcome, Tally, ending_of

if TYPE_CHECKING:
    from zkrq.base.log import Log

T = TypeVar("T")

ACK_PAUSE = 0.1
"""Seconds before an ack with an unknown outcome is repeated."""

Before: TypeAlias = Callable[[Claim[Any]], object]
"""A hook, called with the claim before the handler.  If it settles the claim, the handler is skipped."""

After: TypeAlias = Callable[[Claim[Any], Outcome], object]
"""A hook, called when the delivery has ended."""


@dataclass(frozen=True, slots=True)
class Handling:
    """Settings by which the items of one queue are handled."""

    call: Callable[[Any], object]
    """The handler, called with a claim, or with a batch."""
    in_thread: bool
    time_limit: float | None
    before: Before | None
    after: After | None
    log: Log
    name: str
    """Name of the handler, for logs."""
    tally: Tally = field(default_factory=Tally)
    retry: Retry | None = None
    """Policy after a failure, None: that of the queue."""


class Delivery:
    """Work on one item."""

    __slots__ = (
        "_failure",
        "_handled",
        "_handling",
        "_limiter",
        "_result",
        "_thread",
        "claims",
        "entered",
        "has_slot",
        "work",
    )

    def __init__(
        self,
        handling: Handling,
        claims: Sequence[Claim[Any]],
        limiter: anyio.CapacityLimiter | None,
        handled: Callable[[], object] = lambda: None,
    ) -> None:
        """``claims``: the claim on the item; of a batch, several.

        ``handled`` is called when the handler has ended, before its outcome is settled.
        """
        self.claims = claims
        self.work: AbstractAsyncContextManager[object, bool] = claims[0]
        """The claim, or the batch, which decides how the delivery ends."""
        self._handled = handled
        self.has_slot = True
        """Whether it occupies a slot of the worker."""
        self.entered = False
        """Whether ``run`` has begun.  If its task is cancelled earlier, the worker has to hand the claim back."""
        self._handling = handling
        self._limiter = limiter
        self._result: object = None
        """What the handler has returned."""
        self._failure: BaseException | None = None
        """Exception of the handler, even if the claim's own exception hides it."""
        self._thread: asyncio.Task[object] | None = None

    def __repr__(self) -> str:
        return f"item {self.claims[0].id}"

    async def run(self) -> None:
        """Deliver the item, from the hook before it to the hook after it.  Lasts as long as the handler's thread.

        Cancelled, or interrupted by Ctrl-C, it hands the item back and raises that.  It raises nothing else.
        """
        self.entered = True
        handling = self._handling
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        interrupted: BaseException | None = None
        try:
            async with self.work:
                for claim in self.claims if handling.before else ():
                    await self._run_hook(handling.before and partial(handling.before, claim))
                try:
                    if (work := self._left()) is not None:
                        await self._handle(work)
                finally:
                    if not self._thread:  # one that was abandoned keeps its slot
                        self._handled()
                await self._ack()
        except GeneratorExit:  # the task is destroyed, and must not wait for anything
            raise
        except BaseException as reason:
            error = reason
            if _failure_of(reason, asyncio.current_task()) is None:
                interrupted = reason if isinstance(reason, KeyboardInterrupt) else asyncio.CancelledError()
        if isinstance(error, _RESULT_NOT_KEPT):
            self._failure = error
        if self._failure is not None and (error is None or interrupted is not None):
            error = self._failure
        took = loop.time() - began
        outcomes = [Outcome(ending_of(claim), self._error_of(claim, error), took) for claim in self.claims]
        for outcome in outcomes:
            handling.tally.add(outcome.ending)
        if error is not None or not _ALL_ACKED.issuperset([outcome.ending for outcome in outcomes]):
            self._log(error, outcomes)
        for claim, outcome in zip(self.claims, outcomes, strict=True) if handling.after else ():
            await self._run_hook(handling.after and partial(handling.after, claim, outcome))
        if interrupted is not None:
            raise interrupted
        if self._thread:
            await asyncio.wait([self._thread])

    def _left(self) -> Any:
        """Return what is left for the handler after the first hook, None if nothing is."""
        claim = self.claims[0]
        return claim if claim.settled is None else None

    def _ack(self) -> Coroutine[Any, Any, None]:
        """Ack what the handler has not settled, as long as it holds, with what it has returned as the result."""
        claim = self.claims[0]
        if self._result is not None and claim.settled is None and self._keeps_results:
            lease_of(claim).keep_result(self._result)
        return ack_while_held(claim)

    @property
    def _keeps_results(self) -> bool:
        return lease_of(self.claims[0]).grant.issuer.keeps_results

    def _error_of(self, claim: Claim[Any], error: BaseException | None) -> BaseException | None:
        """Return the error that concerns a claim: the loss of another one of its batch does not."""
        is_of_others = isinstance(error, ClaimLost) and error is not self._failure and not claim.lost
        return None if is_of_others else error

    async def _handle(self, work: object) -> None:
        """Call the handler within its time limit.  Its exception is also stored in ``_failure``."""
        handling = self._handling
        call = (
            self._call_in_thread if handling.in_thread else cast("Callable[[object], Awaitable[object]]", handling.call)
        )
        task = asyncio.current_task()
        try:
            self._result = await (
                call(work) if handling.time_limit is None else self._within_limit(call, work, handling.time_limit)
            )
        except BaseException as error:
            if (failure := _failure_of(error, task)) is None:
                raise
            self._failure = failure
            if failure is error:
                raise
            raise failure from error

    async def _within_limit(self, call: Callable[[object], Awaitable[object]], work: object, seconds: float) -> object:
        """Call the handler, and cancel it after these seconds.  Then raises ``TimeoutError``."""
        is_own = False
        try:
            async with asyncio.timeout(seconds):
                try:
                    return await call(work)
                except TimeoutError:
                    is_own = True
                    raise
        except TimeoutError:
            if is_own:
                raise
            raise TimeoutError(f"the handler was stopped at its time limit of {seconds:g} s") from None

    async def _call_in_thread(self, work: object) -> object:
        """Call the handler in a thread."""
        scope = anyio.CancelScope()

        async def in_thread() -> object:
            # A task that raised these two would end the event loop, and everything on it.
            with scope:
                try:
                    return await anyio.to_thread.run_sync(self._handling.call, work, limiter=self._limiter)
                except (SystemExit, KeyboardInterrupt) as error:
                    return _Raised(error)

        self._thread = thread = asyncio.create_task(in_thread(), name=f"zkrq worker: thread for {self!r}")
        in_threads.add(thread)
        thread.add_done_callback(in_threads.discard)
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            scope.cancel()  # the thread can notice only by check_cancelled()
            thread.add_done_callback(partial(_log_late_end, self._handling.log, self))
            raise
        self._thread = None
        if isinstance(result, _Raised):
            raise result.error
        return await result if inspect.isawaitable(result) else result

    async def _run_hook(self, hook: Callable[[], object] | None) -> None:
        if hook is None:
            return
        task = asyncio.current_task()
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        except BaseException as error:
            if _failure_of(error, task) is None:
                raise
            self._handling.log.exception("%r: a hook failed", self, extra={"item": self.claims[0].id})

    def _has_failed(self, error: BaseException | None) -> bool:
        """Tell whether the handler failed, and did not merely say what is to become of the item."""
        return self._failure is not None and not is_wish(error)

    def _log(self, error: BaseException | None, outcomes: Sequence[Outcome]) -> None:
        """Log one line about a delivery that did not end with an ack, or whose handler failed."""
        log, claim, outcome = self._handling.log, self.claims[0], outcomes[0]
        about = {"item": claim.id}
        item = f"item {claim.id} of queue {claim.queue}"
        consequence = _CONSEQUENCES[outcome.ending]
        if outcome.ending is Ending.RETRIED:
            consequence += f" in {getattr(lease_of(claim), 'retry_in', 0.0):.1f} s"
        elif outcome.ending is Ending.RELEASED and hasattr(lease_of(claim), "retry_in"):
            consequence += f" for {lease_of(claim).retry_in:.1f} s"
        if self._has_failed(error):
            text = "%s failed in %s at attempt %d, %s"
            if isinstance(error, HandlerError):  # how it came here tells nothing: its note has the handler's traceback
                error = error.with_traceback(None)
            log.error(text, item, self._handling.name, claim.attempts, consequence, exc_info=error, extra=about)
        elif outcome.ending is not Ending.ACKED:
            log.info("%s: %s (%s raised: %s)", item, consequence, self._handling.name, in_words(error), extra=about)


async def settle_while_held(claim: Claim[T], settle: Callable[[Claim[T]], Awaitable[None]]) -> None:
    """Settle a claim by ``settle(claim)``, unless it is settled.

    After an unknown outcome it is repeated as long as the claim holds.  Raises ``ClaimLost``, ``Closed``.
    """
    while claim.settled is None and not await is_answered(settle(claim)):
        pass


async def is_answered(settling: Awaitable[object]) -> bool:
    """Wait for a settlement; tell whether its outcome is known.  If not, the pause before it is repeated has passed."""
    try:
        await settling
    except (ConfigError, OutcomeUnknown, Unavailable):
        await asyncio.sleep(ACK_PAUSE)
        return False
    return True


async def ack_while_held(claim: Claim[Any]) -> None:
    """Ack as ``settle_while_held`` does."""
    while claim.settled is None and not await is_answered(claim.ack()):
        pass


_ALL_ACKED = {Ending.ACKED}

_RESULT_NOT_KEPT = (CodecError, PayloadTooLarge, TypeError)
"""What acking with a result raises, and nothing else does: the handler has returned one that cannot be kept."""

_CONSEQUENCES = {
    Ending.ACKED: "but it was acked",
    Ending.RETRIED: "it will be delivered again",
    Ending.BURIED: "it is now a dead letter",
    Ending.RELEASED: "it was handed back",
    Ending.LOST: "its claim was lost",
    Ending.UNKNOWN: "its outcome is unknown; unless it is settled, it comes back by itself",
}


class _Raised:
    """What a handler in a thread has raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _failure_of(error: BaseException, task: asyncio.Task[Any] | None) -> BaseException | None:
    """Return the failure that an exception of user code in a task stands for; None: it interrupts the task."""
    assert task is not None
    if isinstance(error, GeneratorExit):
        # Where a task is destroyed, it is not the one that runs.
        return RuntimeError("the handler raised GeneratorExit") if asyncio.current_task() is task else None
    if interrupts(error, cancelled=task.cancelling() > 0):
        return None
    if isinstance(error, asyncio.CancelledError):
        return RuntimeError("the handler cancelled itself")
    return error


def in_words(error: BaseException | None) -> str:
    """Return an exception as a log tells it."""
    return "nothing" if error is None else message_of(error)


def _log_late_end(log: Log, delivery: Delivery, thread: asyncio.Task[object]) -> None:
    if not thread.cancelled():
        result = None if thread.exception() else thread.result()
        how = in_words(result.error if isinstance(result, _Raised) else thread.exception())
        extra = {"item": delivery.claims[0].id}
        log.info("%r: the thread of its abandoned handler has ended: %s", delivery, how, extra=extra)
