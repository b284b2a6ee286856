"""A claim: one item in the hands of one consumer, until it is settled, its deadline passes, or its owner dies.

::

    async with claim:           # well: ack; exception: nack or dead letter; cancelled: release
        await work(claim.item)
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio

from zkrq import clock
from zkrq.checks import Duration, check_duration, check_lease, check_text
from zkrq.errors import ClaimLost, ZkrqError
from zkrq.home import Home, running_loop
from zkrq.protocol.records import VERSION_BYTES, Record, unpack, version_of
from zkrq.reasons import reason_of
from zkrq.retry import Again, Reject, RetryLater

T = TypeVar("T")

RELEASE_TIMEOUT = 5.0
"""Seconds that a cancelled handler waits for its item to be handed back; it is handed back all the same."""


EXTENSION_REFUSED = "its extension was refused"


class Verb(enum.StrEnum):
    """What may become of a claim; ``lua/settle.lua`` knows these names."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    BURY = "bury"
    EXTEND = "extend"


class Holder(Protocol):
    """What a claim needs from the queue that it came from."""

    claim_timeout: float
    home: Home

    def settle(self, claim: Claim[T], verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[bool]:
        """Have it decided; False: the claim is lost."""
        ...

    def let_go(self, claim: Claim[T]) -> None:
        """Extend it no longer."""
        ...

    def after_failure(self, record: Record, delay: float | None, reason: str) -> Again | str:
        """The retry policy's word: a delay, or the reason to bury."""
        ...


class Lost:
    """A flag: false while the claim holds.  ``await claim.lost`` waits until it does not."""

    __slots__ = ("_reason", "_waiters")

    def __init__(self) -> None:
        self._reason = ""
        self._waiters: list[asyncio.Future[str]] = []

    def __bool__(self) -> bool:
        return bool(self._reason)

    def __repr__(self) -> str:
        return f"<Lost: {self._reason}>" if self._reason else "<Lost: no>"

    @property
    def reason(self) -> str:
        """Why the claim is lost; empty while it holds."""
        return self._reason

    def __await__(self) -> Generator[object, None, str]:
        if self._reason:
            return self._reason
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return (yield from waiter)
        finally:
            self._waiters.remove(waiter)

    def set(self, reason: str) -> None:
        """Say that the claim is lost; the first reason stays."""
        if not self._reason:
            self._reason = reason
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(reason)


class Claim(Generic[T]):
    """An item that this consumer holds.  Settle it once, or use it as a context manager.

    A crash of the process, or of any server, leaves the item where it can be claimed again.
    """

    __slots__ = (
        "__weakref__",
        "_cancelling",
        "_holder",
        "_lost",
        "_packed",
        "_record",
        "_settled",
        "_struck",
        "_task",
        "deadline_at",
        "delivered",
        "id",
        "item",
        "kept",
        "owner",
        "request",
        "timer",
    )

    def __init__(
        self, holder: Holder, id: str, packed: bytes, item: T, owner: str, request: str, deadline_at: float
    ) -> None:
        self.id = id
        self.item = item
        self.owner = owner
        self.request = request
        """Names the claim request that this claim came from; settling shows it."""
        self.deadline_at = deadline_at
        """By ``loop.time()``: until then the claim certainly holds, unless the owner is fenced."""
        self.timer: asyncio.TimerHandle | None = None
        self.kept = True
        """Whether it is to be extended."""
        self._holder = holder
        self._packed = packed
        self._record: Record | None = None
        self._lost: Lost | None = None
        self._settled: Verb | None = None
        self.delivered = False
        """Whether it was handed to a consumer, or only claimed ahead for one."""
        self._task: asyncio.Task[object] | None = None
        self._struck = False
        self._cancelling = 0

    def __repr__(self) -> str:
        state = f"lost: {self.lost.reason}" if self.lost else (self._settled or "held")
        return f"<Claim {self.id} {state}>"

    @property
    def record(self) -> Record:
        """The item's record as the claim was decided."""
        if self._record is None:
            self._record = unpack(self._packed)
        return self._record

    @property
    def packed_version(self) -> bytes:
        """The version as servers keep it; settling shows it."""
        return self._packed[VERSION_BYTES]

    @property
    def key(self) -> str | None:
        """The key under which the item is unique while it is queued, or None."""
        return self.record.key or None

    @property
    def priority(self) -> int:
        """0 to 9, higher is delivered first."""
        return self.record.priority

    @property
    def attempts(self) -> int:
        """Deliveries that count against ``max_attempts``, this one included: those that failed, and those that no one
        settled, because the holder died or the deadline passed.  One that was released does not count."""
        return self.record.attempts

    @property
    def failures(self) -> int:
        """How often a handler failed on it before."""
        return self.record.failures

    @property
    def pushed_at(self) -> datetime:
        """When it was pushed, by the producer's clock."""
        return datetime.fromtimestamp(self.record.pushed_at_ms / 1000, UTC)

    @property
    def deadline(self) -> datetime:
        """When the claim ends unless it is extended, by this machine's clock."""
        left = self.deadline_at - asyncio.get_running_loop().time()
        return clock.now() + timedelta(seconds=left)

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token: of two claims of one item, the later one has the greater token.  Hand it to a database
        that refuses writes under a smaller one than it has seen."""
        return version_of(self._packed)

    @property
    def settled(self) -> Verb | None:
        """What it was settled with, None while it was not."""
        return self._settled

    @property
    def holds(self) -> bool:
        """Whether the claim is neither settled nor lost, as far as is known here."""
        return self.holds_at(asyncio.get_running_loop().time())

    def holds_at(self, now: float) -> bool:
        """The same, for who knows what ``loop.time()`` is."""
        return self._settled is None and self.deadline_at > now and not self._lost

    @property
    def lost(self) -> Lost:
        """False while the claim holds; ``await`` it to learn of its loss."""
        if self._lost is None:
            self._lost = Lost()
        return self._lost

    # -- settling --------------------------------------------------------------------------------------------------

    async def ack(self) -> None:
        """The work is done: remove the item.  When this returns, it is never delivered again.

        Raises ``ClaimLost`` when the claim no longer holds; ``OutcomeUnknown`` when it may have been acked and
        ``Unavailable`` when it was not: ack again.  ``ConfigError`` names a server that does not let this client in:
        ack again once it does.
        """
        await self._settle(Verb.ACK)

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """The work failed: deliver the item again after ``delay`` seconds, behind those that wait.

        None leaves it to the queue's retry policy, which may also move the item to the dead letters.
        Raises as ``ack`` does.
        """
        wanted = None if delay is None else check_duration("delay", delay)
        await self._settle(*self._failure(wanted, check_text("reason", reason or "nack")))

    async def release(self) -> None:
        """Hand the item back where it stood; neither a failure nor the delivery is counted.  Raises as ``ack`` does."""
        await self._settle(Verb.RELEASE)

    async def bury(self, reason: str) -> None:
        """Move the item to the dead letters.  Raises as ``ack`` does."""
        await self._settle(Verb.BURY, 0, check_text("reason", reason))

    async def extend(self, seconds: Duration | None = None) -> None:
        """Hold the item for ``seconds`` from now (None: the queue's ``claim_timeout``).

        Needed only for more than the automatic extension gives.  Raises as ``ack`` does.
        """
        wanted = self._holder.claim_timeout if seconds is None else check_lease("seconds", seconds)
        self._check_held()
        await self.extended(wanted)

    async def extended(self, seconds: float) -> None:
        """The extension itself."""
        started = asyncio.get_running_loop().time()
        # From here on it may end as early as that, whether its answer is heard or not.
        self.deadline_at = min(self.deadline_at, started + seconds)
        if not await self._holder.settle(self, Verb.EXTEND, max(1, round(seconds * 1000))):
            if self._settled is None:
                self.lose(EXTENSION_REFUSED)
                raise ClaimLost(id=self.id)
            return
        self.deadline_at = started + seconds
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def _loss(self) -> ClaimLost:
        return ClaimLost(f"the claim on item {self.id} is lost: {self.lost.reason}", id=self.id)

    def _check_held(self) -> None:
        if self._lost:
            raise self._loss()
        if self._settled:
            raise ClaimLost(f"the claim on item {self.id} was settled before: {self._settled}", id=self.id)

    async def _settle(self, verb: Verb, ms: int = 0, text: str = "") -> None:
        if self._lost or self._settled:
            self._check_held()
        self._settled = verb
        try:
            holds = await self._holder.settle(self, verb, ms, text)
        except BaseException:
            self._settled = None
            if self.deadline_at <= asyncio.get_running_loop().time():
                self.lose(f"its time ran out while its {verb} was under way")
            raise
        self._holder.let_go(self)
        if not holds:
            self._settled = None
            self.lose(f"its {verb} was refused")
            raise ClaimLost(id=self.id)

    def _failure(self, delay: float | None, reason: str) -> tuple[Verb, int, str]:
        verdict = self._holder.after_failure(self.record, delay, reason)
        if isinstance(verdict, Again):
            return Verb.NACK, round(verdict.delay * 1000), reason
        return Verb.BURY, 0, verdict

    # -- losing ----------------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Note that the claim no longer holds, and stop the handler that is inside ``async with claim``."""
        if self._settled or self._lost:
            return
        self.lost.set(reason)
        self._holder.let_go(self)
        if self._task is not None and self._task is not asyncio.current_task():
            self._struck = True
            self._task.cancel()

    # -- context manager -------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if running_loop() is not self._holder.home.loop:
            raise self._holder.home.elsewhere()
        if not self.holds_at(asyncio.get_running_loop().time()):
            self.lose("its time had run out before the work began")
            self._check_held()
        self.delivered = True
        task = self._task = asyncio.current_task()
        assert task is not None
        self._cancelling = task.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        if self._struck and task.uncancel() <= self._cancelling and (kind is None or kind is asyncio.CancelledError):
            raise self._loss()
        if kind is None and not self._settled and not self._lost:
            try:
                await self._settle(Verb.ACK)
            except BaseException:
                self._holder.let_go(self)
                raise
            return False
        if self._settled or self._lost:
            if kind is None and self._lost:
                raise self._loss()
            return isinstance(error, RetryLater | Reject)
        try:
            return await self._leave(error)
        finally:
            # Whatever happened: from here on it is not extended, so at worst it expires and is delivered again.
            self._holder.let_go(self)

    async def _leave(self, error: BaseException | None) -> bool:
        match error:
            case Reject():
                await self._settle(Verb.BURY, 0, error.reason)
                return True
            case RetryLater():
                await self._settle(*self._failure(error.delay, error.reason or "RetryLater"))
                return True
            case Exception():
                try:
                    await self._settle(*self._failure(None, reason_of(error)))
                except ZkrqError as problem:
                    error.add_note(f"zkrq: item {self.id} could not be nacked, it comes back by itself: {problem}")
            case _:
                await self._hand_back()
        return False

    async def _hand_back(self) -> None:
        """Release while being cancelled: the call is on its way whatever happens here."""
        self._settled = Verb.RELEASE
        try:
            returned = self._holder.settle(self, Verb.RELEASE)
        except ZkrqError:
            return  # closed: the item comes back when the owner is gone
        returned.add_done_callback(_retrieve)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([returned], timeout=RELEASE_TIMEOUT)


def _retrieve(future: asyncio.Future[bool]) -> None:
    if not future.cancelled():
        future.exception()
