"""A batch: claims of one queue that one consumer works on together, and settles by one call.

::

    async for batch in queue.pop_batches(100):
        async with batch:            # no exception: acks what the body has not settled; an exception: nacks it
            await insert(batch.items)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import Self, TypeVar, overload

from zkrq.base.checks import Duration, check_count, check_duration, check_text
from zkrq.base.errors import ClaimLost, ConfigError, OutcomeUnknown, ZkrqError, add_note
from zkrq.base.retry import interrupts, judge
from zkrq.base.tasks import wait_ended
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.core.lease import ANSWER, DELIVER, EXTENDED, HOLDING, LOSSES, SETTLE
from zkrq.consuming.core.pace import CLAIM_MAX
from zkrq.consuming.lease import RELEASE_TIMEOUT, Issuer, Lease, Refused, Verb

T = TypeVar("T")

BATCH_MAX = CLAIM_MAX
"""Claims in one batch: as many as one request can claim."""

WITHIN_MAX = 60.0
"""Seconds that a batch may wait for more than its first claim."""

RESULTS_AT_ONCE = 1 << 20
"""Bytes of the results that one call sends."""

IDS_SHOWN = 5
"""Lost items that an error names."""


def check_batch(size: int, within: Duration) -> tuple[int, float]:
    """Return the size of batches, and the seconds that one waits for more.  Raises ``ConfigError``."""
    seconds = check_duration("within", within)
    if seconds > WITHIN_MAX:
        raise ConfigError(f"within is {seconds:g} s: must be at most {WITHIN_MAX:g} s")
    return check_count("the size of a batch", size, least=1, most=BATCH_MAX), seconds


class Batch(Sequence[Claim[T]]):
    """Claims of one queue, to be settled together: a sequence of ``Claim``, and a context manager.

    Where the body of ``async with batch`` ends without an exception, all claims that it has not settled are acked by
    one call.  An exception settles them as it would settle a single claim, each by its own attempts: ``Reject`` buries
    them, ``RetryLater`` and any other nacks them, a cancellation hands them back uncounted.  For verdicts of its own
    the body settles single claims: ``await batch[3].nack()``.  Each claim is extended until it is settled.

    A claim that is lost does not stop the body, because the others still hold; look at ``claim.holds`` before work
    that takes long.  Once no claim is left that holds, the body is cancelled.  In both cases ``ClaimLost`` is raised
    where the body ends: the other claims are settled, and ``lost`` has those that are not.

    If the process crashes, the items that were not settled can be claimed again.
    """

    __slots__ = ("_body", "_claims", "_leases", "_wanted")

    def __init__(self, claims: Sequence[Claim[T]], *, wanted: int = 0) -> None:
        """Made by ``pop_batches``.  ``wanted``: items that the consumer will want next, once it has settled these."""
        self._claims = claims
        self._leases = list(map(lease_of, claims))
        self._wanted = wanted
        self._body: _Body | None = None

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} of queue {self.queue}: {len(self._unsettled())} held>"

    # -- looking -------------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, at: int) -> Claim[T]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Claim[T]]: ...

    def __getitem__(self, at: int | slice) -> Claim[T] | Sequence[Claim[T]]:
        return self._claims[at]

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[Claim[T]]:
        return iter(self._claims)

    @property
    def items(self) -> list[T]:
        """The items, in the order of the claims."""
        return [claim.item for claim in self._claims]

    @property
    def queue(self) -> str:
        """Name of the queue that the items are in."""
        return self._claims[0].queue

    @property
    def lost(self) -> list[Claim[T]]:
        """Claims that were lost, as far as is known here: other consumers may have their items."""
        return [claim for claim, lease in zip(self._claims, self._leases, strict=True) if lease.state in LOSSES]

    def _unsettled(self) -> list[Lease]:
        return [lease for lease in self._leases if lease.state in HOLDING]

    # -- settling ------------------------------------------------------------------------------------------------------

    async def ack(self, results: Sequence[object] | None = None) -> list[Claim[T]]:
        """Ack all claims that are not settled, by one call; return those that were lost, ``[]`` if there are none.

        ``results``: one for each claim of the batch, in its order, if the queue has ``results``; None: none.  Results
        of more than 1 MiB together are sent by several calls.  For a result that cannot be kept nothing is acked; see
        ``Claim.ack``.
        When this returns, the items of all others are never delivered again.  Raises ``OutcomeUnknown`` if some may
        have been acked, ``Unavailable`` or ``ConfigError`` if some were not: ack again.  The same holds if it is
        cancelled.
        """
        if results is not None:
            keep_results(self._leases, results)
        await ack_together(self._leases, self._wanted)
        return self.lost

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> list[Claim[T]]:
        """Nack all claims that are not settled, each as ``Claim.nack`` does; return those that were lost.

        Raises as ``ack`` does.
        """
        wanted = None if delay is None else check_duration("delay", delay)
        text = check_text("reason", reason or "nack")
        return await self._settle_each(lambda lease: lease.fail(wanted, text))

    async def release(self, delay: Duration | None = None) -> list[Claim[T]]:
        """Return the items of all claims that are not settled to the queue, uncounted; return those that were lost.

        ``delay``: seconds until they are delivered again, each as with ``Claim.release``.  Raises as ``ack`` does.
        """
        if delay is None:
            return await self._settle_each(lambda lease: lease.settle(Verb.RELEASE))
        wanted = check_duration("delay", delay)
        return await self._settle_each(lambda lease: lease.put_off(wanted))

    async def _settle_each(self, settle: Callable[[Lease], Awaitable[None]]) -> list[Claim[T]]:
        """Settle all claims that are not settled; return those that were lost.  Raises the first other error."""
        for problem in await self._problems(settle):
            if not isinstance(problem, ClaimLost):
                raise problem
        return self.lost

    async def _problems(self, settle: Callable[[Lease], Awaitable[None]]) -> list[BaseException]:
        """Settle all claims that are not settled; return the errors."""
        results = await asyncio.gather(*map(settle, self._unsettled()), return_exceptions=True)
        return [result for result in results if result is not None]

    # -- context manager -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin the work.  Raises ``ClaimLost`` if no claim holds any more."""
        issuer = self._leases[0].grant.issuer
        issuer.own_loop.check()
        task = asyncio.current_task()
        assert task is not None
        now, held = asyncio.get_running_loop().time(), False
        # One expired claim does not end the batch, as one that is lost later does not: only the others are worked on
        # and acked, and this one is in ``lost``.
        for lease in self._leases:
            if lease.deadline_at <= now:
                lease.lose("it expired before the work began")
            held = held or lease.state in HOLDING
        if not held and self.lost:
            raise self._error()
        # A loss stops the body through its claim's lease, so claims that hold need no watcher, and cost no call each.
        self._body = body = _Body(self._leases, task)
        for lease in self._leases:
            lease.state, lease.batch = DELIVER[lease.state], body
        if issuer.observers.deliveries:
            for claim in self._claims:
                issuer.observers.before_delivery(claim)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        body, self._body = self._body, None
        assert body is not None
        observers = self._leases[0].grant.issuer.observers
        if observers.deliveries:
            # In the reverse order, because a trace that began last is the current one, and ends first.
            for claim in reversed(self._claims):
                observers.after_delivery(claim, error)
        # Before the first await: a loss from here on is found by the ack, and must not cancel the caller.
        for lease in self._leases:
            lease.batch = None
        if body.has_ended(kind):
            raise self._error()
        try:
            if kind is None:
                if await self.ack():
                    raise self._error()
                return False
            return await self._leave(error, body.cancelling)
        finally:
            # Whatever happened, no claim is extended any more: at worst it expires and the item is delivered again.
            for lease in self._leases:
                if lease.state in EXTENDED:
                    lease.stop_extending()

    async def _leave(self, error: BaseException | None, cancelling: int) -> bool:
        """Settle the claims as the exception says; return whether the exception is swallowed.

        ``cancelling``: cancellations of the task before the body."""
        task = asyncio.current_task()
        assert task is not None
        if error is None or interrupts(error, cancelled=task.cancelling() > cancelling):
            # Sent without an await, so a second cancellation cannot prevent it.
            sent = [lease.send_back() for lease in self._unsettled()]
            await wait_ended([answer for answer in sent if answer], RELEASE_TIMEOUT)
            return False
        failed = judge(error)
        if failed.is_wish:
            lost = await self._settle_each(lambda lease: lease.fail_as(failed))
        else:
            if problems := await self._problems(lambda lease: lease.fail_as(failed)):
                text = f"{len(problems)} items could not be nacked, they come back by themselves: {problems[0]}"
                add_note(error, f"zkrq: {text}")
            return False
        if lost:
            raise self._error()
        return True

    def _error(self) -> ClaimLost:
        """Return the error that names the lost claims."""
        lost = self.lost
        if len(lost) == 1:
            return lease_of(lost[0]).error()
        names = ", ".join(claim.id for claim in lost[:IDS_SHOWN]) + (", ..." if len(lost) > IDS_SHOWN else "")
        reason = lease_of(lost[0]).lost.reason
        return ClaimLost(f"{len(lost)} of {len(self)} claims of a batch are lost ({names}): {reason}")


class _Body:
    """The task inside ``async with batch``.  It is cancelled when no claim of the batch holds any more."""

    __slots__ = ("_leases", "_struck", "_task", "cancelling")

    def __init__(self, leases: Sequence[Lease], task: asyncio.Task[object]) -> None:
        self._leases = leases
        self._task = task
        self.cancelling = task.cancelling()
        self._struck = False

    def stop(self) -> None:
        """Cancel the body if the claim that was lost was the last one."""
        # From the end, because claims that are lost together are lost in their order: most calls see one claim.
        if self._struck or any(lease.state in HOLDING for lease in reversed(self._leases)):
            return
        if self._task is not asyncio.current_task():
            self._struck = True
            self._task.cancel()

    def has_ended(self, kind: type[BaseException] | None) -> bool:
        """Tell whether the body ended because of that, and not by its caller's cancellation or an error of its own."""
        return (
            self._struck
            and self._task.uncancel() <= self.cancelling
            and (kind is None or kind is asyncio.CancelledError)
        )


async def ack_together(leases: Iterable[Lease], wanted: int | None = None) -> None:
    """Ack the leases that are neither settled nor lost.  Those that the servers refuse are lost afterwards.

    ``wanted``: items that their consumer is expected to want next, None: as many.  Raises as ``Lease.settle`` does,
    ``ClaimLost`` excepted, once all calls have ended; then, and if it is cancelled, leases without an answer may be
    acked again.
    """
    # A queue has an issuer for each shard, and the caller may give claims of several queues.
    by_issuer: dict[Issuer, list[Lease]] = {}
    for lease in leases:
        if lease.state in HOLDING:
            by_issuer.setdefault(lease.grant.issuer, []).append(lease)
    errors: list[BaseException] = []
    sent: list[tuple[Sequence[Lease], asyncio.Future[Refused]]] = []
    for issuer, some in chain.from_iterable(map(_portions, by_issuer.items())):
        try:
            sent.append((some, issuer.ack_together(some, len(some) if wanted is None else wanted)))
        except ZkrqError as error:
            errors.append(error)  # nothing happened to these; the others are still sent
            continue
        # Noted before the await, so a second settlement in the meantime is an error and not a second call.
        for lease in some:
            lease.state, lease.settled = SETTLE[lease.state], Verb.ACK
        if wanted:  # the consumer comes back once, whichever shard has its next items
            wanted = 0
    # Each in turn, so that no error leaves the other claims without a note; and awaited directly, because a worker
    # frees its slot for the next request only while few outcomes are on their way.
    try:
        for _, answer in sent:
            with suppress(Exception):
                await answer
    finally:
        errors += [error for some, answer in sent if (error := _take_answer(some, answer))]
    # Where one outcome is unknown, the call as a whole may have had an effect, and says so.
    if errors:
        raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])


def keep_results(leases: Sequence[Lease], results: Sequence[object]) -> None:
    """Note the result that each ack is to leave.  Raises ``ConfigError`` unless there is one for each, and as
    ``Lease.keep_result`` does."""
    if len(results) != len(leases):
        raise ConfigError(f"{len(results)} results for {len(leases)} claims: give one for each")
    for lease, result in zip(leases, results, strict=True):
        if result is not None:
            lease.keep_result(result)


def _portions(held: tuple[Issuer, list[Lease]]) -> Sequence[tuple[Issuer, list[Lease]]]:
    """Divide the acks of one issuer, so that the results of one call have ``RESULTS_AT_ONCE`` at most."""
    issuer, leases = held
    if not issuer.keeps_results:
        return [held]
    portions, size = [(issuer, list[Lease]())], 0
    for lease in leases:
        length = len(getattr(lease, "result", b""))
        if size + length > RESULTS_AT_ONCE:
            portions.append((issuer, []))
            size = 0
        portions[-1][1].append(lease)
        size += length
    return portions


def _take_answer(leases: Sequence[Lease], answer: asyncio.Future[Refused]) -> BaseException | None:
    """Note what became of the leases; return the error for those whose outcome is not known."""
    answer.cancel()  # changes nothing once it is there
    error = None if answer.cancelled() else answer.exception()
    if error is None and not answer.cancelled():
        refused = answer.result()
        for lease in leases:
            if refused and (lease.grant, lease.position) in refused:
                lease.refuse()
                continue
            lease.state = ANSWER[lease.state]
            if lease.timer:
                lease.stop_extending()
        return None
    for lease in leases:
        lease.have_failed()
    return error
