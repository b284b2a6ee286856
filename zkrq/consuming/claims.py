"""A claim: one item in the hands of one consumer, until it is settled, its deadline passes, or its owner dies.

::

    async with claim:           # no exception: ack; an exception: nack or dead letter; cancelled: release
        await work(claim.item)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from zkrq.base import clock
from zkrq.base.checks import Duration, Headers, check_duration, check_lease, check_text, task_of, without_task
from zkrq.base.codecs import Codec, codec_of_item
from zkrq.base.errors import CodecError, ZkrqError, add_note, message_of
from zkrq.base.loop import running_loop
from zkrq.base.progress import encode_report
from zkrq.base.retry import interrupts, is_wish, judge
from zkrq.consuming.core.lease import DELIVER, HOLDING, LOSSES, LeaseState
from zkrq.consuming.lease import Grant, Lease, Lost, Verb
from zkrq.consuming.saving import Saving, Step
from zkrq.protocol.records import token_of

if TYPE_CHECKING:
    from zkrq.consuming.flow import Flow

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Claim(Generic[T]):
    """One item that this consumer holds.  Settle it once, or use it as a context manager.

    If the process or any server crashes, the item can be claimed again.
    """

    __slots__ = ("__weakref__", "_cancelling", "_headers", "_lease", "_saving", "item")

    _saving: Saving
    """What is saved of the item.  Set only if it is asked for, to save memory."""

    def __init__(
        self, item: T, grant: Grant, position: int, deadline_at: float, headers: Headers | None = None
    ) -> None:
        """Make a claim for a supplier; users get claims from ``pop``."""
        self.item = item
        self._headers = headers
        self._lease = lease = Lease(self)
        lease.begin(grant, position, deadline_at)
        self._cancelling = 0

    def __repr__(self) -> str:
        lost = self._lease.loss
        return f"<Claim {self.id} {f'lost: {lost.reason}' if lost else self.settled or 'held'}>"

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The item's id."""
        return self._lease.id

    @property
    def queue(self) -> str:
        """Name of the queue that the item is in."""
        return self._lease.issuer.queue

    @property
    def headers(self) -> Headers:
        """Texts that were pushed with the item, by name."""
        return without_task(self._headers) if self._headers else {}

    @property
    def task(self) -> str | None:
        """Name of the task that the item was pushed for, or None."""
        return task_of(self._headers) if self._headers else None

    @property
    def owner(self) -> str:
        """Owner id under which this process claims, as listed by ``cluster.consumers()``."""
        return self._lease.grant.owner

    @property
    def key(self) -> str | None:
        """Key under which the item is unique while it is queued or claimed, or None."""
        return self._lease.record.key or None

    @property
    def group(self) -> str | None:
        """Group that the item was pushed into, or None."""
        return self._lease.record.group or None

    @property
    def priority(self) -> int:
        """Priority from 0 to 9.  Higher is delivered first."""
        return self._lease.record.priority

    @property
    def attempts(self) -> int:
        """Deliveries that count against ``max_attempts``, including this one.

        Failed deliveries count, and so do those that were never settled because the holder died or the deadline passed.
        Released ones do not.
        """
        return self._lease.record.attempts

    @property
    def failures(self) -> int:
        """How many earlier deliveries of the item failed."""
        return self._lease.record.failures

    @property
    def pushed_at(self) -> datetime:
        """When the item was pushed, by the producer's clock."""
        return clock.at_ms(self._lease.record.pushed_at_ms)

    @property
    def deadline(self) -> datetime:
        """When the claim ends unless it is extended, by this machine's clock."""
        left = self._lease.deadline_at - asyncio.get_running_loop().time()
        return clock.now() + timedelta(seconds=left)

    @property
    def token(self) -> tuple[int, int]:
        """Fencing token: a later claim of the same item has a greater one, and of the same group if that is ordered.

        Pass it to a database that refuses writes with a smaller token than it has seen: two numbers, compared in their
        order.  The second one needs 64 bits.
        """
        return token_of(self._lease.grant.packed)

    @property
    def flow(self) -> Flow | None:
        """The flow of which the item is a member, or whose end it followed; None: of no flow.

        It has begun already, so a handler pushes further members: ``await claim.flow.push(link)``.
        """
        name = self._lease.grant.flow
        return self._lease.issuer.flow_of(name) if name else None

    @property
    def settled(self) -> Verb | None:
        """How the claim was settled, None if it was not."""
        return self._lease.settled

    @property
    def holds(self) -> bool:
        """Whether the claim is neither settled nor lost, as far as is known here."""
        return self._lease.holds

    @property
    def lost(self) -> Lost:
        """False while the claim holds.  ``await claim.lost`` waits for its loss and returns the reason."""
        return self._lease.lost

    def on_lost(self, callback: Callable[[str], object]) -> None:
        """Call ``callback(reason)`` on the event loop when the claim is lost, or soon if it is lost already.

        For work that is not inside ``async with claim``, whose body would be cancelled.  Not called once the claim is
        settled.  A call-back that refers to the claim keeps it, and so has it extended: refer to its id.
        """
        self._lease.when_lost(callback)

    # -- settling --------------------------------------------------------------------------------------------------

    async def ack(self, *, result: object = None) -> None:
        """Remove the item: the work is done.  When this returns, the item is never delivered again.

        ``result``: what callers of ``queue.result`` get, if the queue has ``results``; every in-sync server has it when
        this returns.  ``CodecError``, ``PayloadTooLarge`` (more than 32 KiB), ``ConfigError`` (the queue keeps no
        results): it was not acked.
        Raises ``ClaimLost`` if the claim no longer holds, ``OutcomeUnknown`` if it may have been acked, and
        ``Unavailable`` if it was not: ack again.  ``ConfigError`` names a server that does not let this client in: ack
        again once it does.  After one of these three the claim is extended no more, except inside ``async with claim``:
        it holds for ``claim_timeout`` at most, and unless an ack succeeds by then, the item is delivered again.
        """
        if result is not None:
            self._lease.keep_result(result)
        await self._lease.settle(Verb.ACK)

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Deliver the item again after ``delay`` seconds, because the work failed.  It queues up after items that are
        ready.

        None leaves the delay to the queue's retry policy, which may also move the item to the dead letters.
        Raises as ``ack`` does.
        """
        wanted = None if delay is None else check_duration("delay", delay)
        await self._lease.fail(wanted, check_text("reason", reason or "nack"))

    async def release(self, delay: Duration | None = None) -> None:
        """Return the item to its place in the queue, or with ``delay``, deliver it again after as many seconds.  This
        counts neither as a failure nor as a delivery.

        With a delay an item that has reached ``Retry(max_age=...)`` becomes a dead letter, and one that is the first of
        an ordered group holds its group until it is delivered again.  Raises as ``ack`` does.
        """
        if delay is None:
            await self._lease.settle(Verb.RELEASE)
        else:
            await self._lease.put_off(check_duration("delay", delay))

    async def bury(self, reason: str) -> None:
        """Move the item to the dead letters.  Raises as ``ack`` does."""
        await self._lease.settle(Verb.BURY, 0, check_text("reason", reason))

    async def extend(self, seconds: Duration | None = None) -> None:
        """Hold the item for ``seconds`` from now, None: for the queue's ``claim_timeout``.

        Needed only to hold the item for longer than the automatic extension does.  Raises as ``ack`` does.
        """
        wanted = self._lease.issuer.claim_timeout if seconds is None else check_lease("seconds", seconds)
        self._lease.check_held()
        await self._lease.extend(wanted)

    # -- saving ----------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> Any:
        """What was saved of the item, by this claim or an earlier one; None: nothing.

        Raises ``CodecError`` if it cannot be read.
        """
        saving = self._saves()
        return saving.decoded(saving.known.state)

    async def save(self, state: object, *, extend: bool = True) -> None:
        """Save a state of the work: when this returns, every later delivery of the item is given it, as ``saved``.

        It takes the place of the state before, and goes with the item.  ``extend``: also hold the item for
        ``claim_timeout`` from now.  At most 32 KiB, together with the values of steps.
        Raises ``CodecError``, ``PayloadTooLarge``, and ``ConfigError`` if the level is not raised yet: nothing was
        saved.  ``ClaimLost`` if the claim no longer holds; ``OutcomeUnknown`` if it may have been saved, and
        ``Unavailable`` if it was not: the claim still holds, save again.
        """
        await self._saves().save(state, extend=extend)

    @overload
    def step(self, name: str) -> Step[Any]: ...

    @overload
    def step(self, name: str, fn: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...

    @overload
    def step(self, name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...

    def step(self, name: str, fn: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Step[Any]:
        """Do one step of the work once: ``receipt = await claim.step("charge", charge, order)``.

        Returns the value that an earlier delivery has saved under this name, or calls ``fn`` and saves what it returns.
        A step that has run, and whose process died before its value was saved, runs again: pass ``step.key`` or
        ``claim.token`` to others that can refuse to do a thing twice, in a block: see ``Step``.
        Raises what ``fn`` raises, and as ``save`` does; ``ConfigError`` for a name that this delivery had before, and
        for an item of a batch.
        """
        return Step(self._saves(), name, partial(fn, *args, **kwargs) if fn else None)

    def _saves(self) -> Saving:
        if not hasattr(self, "_saving"):
            self._saving = Saving(self._lease)
        return self._saving

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report how far the work is: ``claim.progress(0.4, "page 12 of 30")``.  Returns immediately, in any thread.

        ``fraction``: 0 to 1, None: unknown.  ``text``: its first 200 characters are kept.  At most one report a second
        is sent of each claim, and the latest one is sent in the end unless the claim has ended by then.  ``Queue.get``,
        ``result`` and the page show it while the item is claimed.  One server keeps it, and no other: it is lost with
        that server, until the next report.  Raises ``ConfigError``, and ``ClaimLost`` as ``extend`` does.
        """
        lease = self._lease
        said = encode_report(fraction, text)
        if running_loop() is lease.issuer.own_loop.loop:
            lease.check_held()
        lease.issuer.report(lease, said)

    # -- context manager -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        lease = self._lease
        loop = running_loop()
        if loop is None or loop is not lease.grant.issuer.own_loop.loop:
            raise lease.issuer.own_loop.elsewhere()
        if lease.state not in HOLDING or lease.deadline_at <= loop.time():  # as holds_at, without the call
            lease.lose("it expired before the work began")
            lease.check_held()
        lease.state = DELIVER[lease.state]
        task = lease.task = asyncio.current_task()
        assert task is not None
        self._cancelling = task.cancelling()
        if lease.grant.issuer.observers.deliveries and lease.batch is None:  # its batch has told
            lease.grant.issuer.observers.before_delivery(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        lease = self._lease
        task, lease.task = lease.task, None
        assert task is not None
        if lease.grant.issuer.observers.deliveries and lease.batch is None:
            lease.grant.issuer.observers.after_delivery(self, error)
        if (
            lease.state is LeaseState.STRUCK
            and task.uncancel() <= self._cancelling
            and (kind is None or kind is asyncio.CancelledError)
        ):
            raise lease.error()
        if kind is None and lease.state in HOLDING:
            try:
                await lease.settle(Verb.ACK)
            except BaseException:
                lease.stop_extending()
                raise
            return False
        if lease.state not in HOLDING:
            if kind is None and lease.state in LOSSES:
                raise lease.error()
            return is_wish(error)
        try:
            return await self._leave(error)
        finally:
            # Whatever happened, the claim is not extended any more: at worst it expires and the item is delivered
            # again.
            lease.stop_extending()

    async def _leave(self, error: BaseException | None) -> bool:
        """Settle the claim as the exception says; return whether the exception is swallowed."""
        task = asyncio.current_task()
        assert task is not None
        if error is None or interrupts(error, cancelled=task.cancelling() > self._cancelling):
            await self._lease.hand_back()
            return False
        failed = judge(error)
        if failed.is_wish:
            await self._lease.fail_as(failed)
            return True
        try:
            await self._lease.fail_as(failed)
        except ZkrqError as problem:
            add_note(error, f"zkrq: item {self.id} could not be nacked, it comes back by itself: {problem}")
        return False


class UndecodedClaim(Claim[T]):
    """A claim whose item is decoded when it is first asked for; ``payload`` are its bytes."""

    __slots__ = ("_codec", "_decoded", "payload")

    def __init__(
        self,
        payload: bytes,
        codec: Codec[T],
        grant: Grant,
        position: int,
        deadline_at: float,
        headers: Headers | None = None,
    ) -> None:
        self._decoded: list[T] = []
        super().__init__(cast("T", None), grant, position, deadline_at, headers)
        self._codec = codec
        self.payload = payload

    @property
    def item(self) -> T:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The item.  Raises ``CodecError`` if it cannot be decoded."""
        if not self._decoded:
            try:
                self._decoded.append(codec_of_item(self._codec, self.id).decode(self.payload))
            except (CodecError, KeyboardInterrupt):
                raise
            except BaseException as error:  # of any codec
                raise CodecError(f"cannot be decoded as {self._codec.name}: {message_of(error)}") from error
        return self._decoded[0]

    @item.setter
    def item(self, item: T) -> None:
        """Take what the constructor sets for nothing."""


lease_of = cast("Callable[[Claim[Any]], Lease]", attrgetter("_lease"))
"""Return the lease of a claim, for internal use.  Implemented in C, so a call per item costs almost nothing."""


def stored_headers_of(claim: Claim[Any]) -> Headers | None:
    """Return the headers as they are stored, with that of the task; None: there are none."""
    return claim._headers  # pyright: ignore[reportPrivateUsage]


async def ack_keeping(claim: Claim[Any], result: bytes, ttl_ms: int) -> None:
    """Ack a claim with an encoded result, kept for ``ttl_ms``, though this process has no results for the queue.

    For clients that say so for each item; they check the size.  Raises as ``Claim.ack`` does.
    """
    lease = lease_of(claim)
    lease.result = result
    await lease.settle(Verb.ACK, ttl_ms)
