"""Deliver one item: hook, handler within its time limit, settle, hook.  The claim decides how the delivery ends."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import anyio
import anyio.to_thread

from zkrq.base.errors import ConfigError, OutcomeUnknown, Unavailable
from zkrq.base.retry import Reject, RetryLater
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

    call: Callable[[Claim[Any]], object]
    in_thread: bool
    time_limit: float | None
    before: Before | None
    after: After | None
    log: Log
    name: str
    """Name of the handler, for logs."""
    tally: Tally = field(default_factory=Tally)


class Delivery:
    """Work on one item."""

    __slots__ = ("_failure", "_handled", "_handling", "_limiter", "_thread", "claim", "entered", "has_slot")

    def __init__(
        self,
        handling: Handling,
        claim: Claim[Any],
        limiter: anyio.CapacityLimiter | None,
        handled: Callable[[], object] = lambda: None,
    ) -> None:
        """``handled`` is called when the handler has ended, before its outcome is settled."""
        self.claim = claim
        self._handled = handled
        self.has_slot = True
        """Whether it occupies a slot of the worker."""
        self.entered = False
        """Whether ``run`` has begun.  If its task is cancelled earlier, the worker has to hand the claim back."""
        self._handling = handling
        self._limiter = limiter
        self._failure: Exception | None = None
        """Exception of the handler, even if the claim's own exception hides it."""
        self._thread: asyncio.Task[object] | None = None

    async def run(self) -> None:
        """Deliver the item, from the hook before it to the hook after it.  Lasts as long as the handler's thread.

        Cancelled, it hands the item back and raises ``CancelledError``.
        """
        self.entered = True
        handling, claim = self._handling, self.claim
        loop = asyncio.get_running_loop()
        began = loop.time()
        error: BaseException | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            async with claim:
                await self._run_hook(handling.before and partial(handling.before, claim))
                try:
                    if claim.settled is None:
                        await self._handle()
                finally:
                    if not self._thread:  # one that was abandoned keeps its slot
                        self._handled()
                await ack_while_held(claim)
        except asyncio.CancelledError as reason:
            error = cancelled = reason
        except Exception as reason:
            error = reason
        if self._failure and (error is None or cancelled):
            error = self._failure
        outcome = Outcome(ending_of(claim), error, loop.time() - began)
        handling.tally.add(outcome.ending)
        self._log(outcome)
        await self._run_hook(handling.after and partial(handling.after, claim, outcome))
        if cancelled:
            raise cancelled
        if self._thread:
            await asyncio.wait([self._thread])

    async def _handle(self) -> None:
        """Call the handler within its time limit.  Its exception is also stored in ``_failure``."""
        task = asyncio.current_task()
        assert task is not None
        limit = asyncio.timeout(self._handling.time_limit)
        try:
            try:
                async with limit:
                    await self._call()
            except TimeoutError as error:
                if limit.expired() and error.__cause__ is not None:
                    reason = f"the handler was stopped at its time limit of {self._handling.time_limit:g} s"
                    raise TimeoutError(reason) from None
                raise
            except asyncio.CancelledError as error:
                if task.cancelling():
                    raise
                raise RuntimeError("the handler cancelled itself") from error
        except Exception as error:
            self._failure = error
            raise

    async def _call(self) -> None:
        """Call the handler, on the event loop or in a thread."""
        if not self._handling.in_thread:
            await cast("Awaitable[object]", self._handling.call(self.claim))
            return
        scope = anyio.CancelScope()

        async def in_thread() -> object:
            with scope:
                return await anyio.to_thread.run_sync(self._handling.call, self.claim, limiter=self._limiter)

        self._thread = thread = asyncio.create_task(in_thread(), name=f"zkrq worker: thread for {self.claim.id}")
        in_threads.add(thread)
        thread.add_done_callback(in_threads.discard)
        try:
            result = await asyncio.shield(thread)
        except asyncio.CancelledError:
            scope.cancel()  # the thread can notice only by check_cancelled()
            thread.add_done_callback(partial(_log_late_end, self._handling.log, self.claim.id))
            raise
        self._thread = None
        if inspect.isawaitable(result):
            await result

    async def _run_hook(self, hook: Callable[[], object] | None) -> None:
        if hook is None:
            return
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        except Exception:
            self._handling.log.exception("item %s: a hook failed", self.claim.id, extra={"item": self.claim.id})

    def _log(self, outcome: Outcome) -> None:
        """Log one line about a delivery that did not end with an ack, or whose handler failed."""
        log, claim, error = self._handling.log, self.claim, outcome.error
        about = {"item": claim.id}
        item = f"item {claim.id} of queue {claim.queue}"
        consequence = _CONSEQUENCES[outcome.ending]
        if outcome.ending is Ending.RETRIED:
            consequence += f" in {getattr(lease_of(claim), 'retry_in', 0.0):.1f} s"
        if self._failure and not isinstance(error, RetryLater | Reject):
            text = "%s failed in %s at attempt %d, %s"
            log.error(text, item, self._handling.name, claim.attempts, consequence, exc_info=error, extra=about)
        elif outcome.ending is not Ending.ACKED:
            log.info("%s: %s (%s raised: %r)", item, consequence, self._handling.name, error, extra=about)


async def settle_while_held(claim: Claim[T], settle: Callable[[Claim[T]], Awaitable[None]]) -> None:
    """Settle a claim by ``settle(claim)`` unless it is settled; repeat it after an unknown outcome as long as the claim
    holds.

    Raises ``ClaimLost``, ``Closed``.
    """
    while claim.settled is None:
        try:
            await settle(claim)
        except (ConfigError, OutcomeUnknown, Unavailable):
            await asyncio.sleep(ACK_PAUSE)


def ack_while_held(claim: Claim[Any]) -> Coroutine[Any, Any, None]:
    """Ack as ``settle_while_held`` does."""
    return settle_while_held(claim, lambda claim: claim.ack())


_CONSEQUENCES = {
    Ending.ACKED: "but it was acked",
    Ending.RETRIED: "it will be delivered again",
    Ending.BURIED: "it is now a dead letter",
    Ending.RELEASED: "it was handed back",
    Ending.LOST: "its claim was lost",
    Ending.UNKNOWN: "its outcome is unknown; unless it is settled, it comes back by itself",
}


def _log_late_end(log: Log, id: str, thread: asyncio.Task[object]) -> None:
    if not thread.cancelled():
        how = thread.exception() or "no error"
        log.info("item %s: the thread of its abandoned handler has ended: %s", id, how, extra={"item": id})
