"""One claim as this process holds it: settle it once, extend it while its consumer has it, lose it at most once."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Generator
from typing import Protocol
from weakref import ref

import anyio

from zkrq.errors import ClaimLost, ZkrqError
from zkrq.home import Home
from zkrq.protocol.records import Record, unpack
from zkrq.retry import Again

RELEASE_TIMEOUT = 5.0
"""Seconds that a cancelled handler waits for the answer to its release, which is on its way in any case."""

EXTENSION_REFUSED = "its extension was refused"


class Verb(enum.StrEnum):
    """Name what a holder may do with a claim, in the words of ``settle.lua``."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    BURY = "bury"
    EXTEND = "extend"


class Lost:
    """Tell whether a claim is lost: false while it holds.  ``await claim.lost`` waits for the loss."""

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

    def _set(self, reason: str) -> None:
        self._reason = reason
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(reason)


class Issuer(Protocol):
    """Settle the leases of one queue: what a lease needs from ``Leases``."""

    claim_timeout: float
    home: Home

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[bool]:
        """Send it with the next batch.  False: the claim is lost."""
        ...

    def after_failure(self, record: Record, delay: float | None, reason: str) -> Again | str:
        """Apply the retry policy: return a delay, or the reason to bury."""
        ...


class Lease(ref[object]):
    """Hold one claim for the inside, while ``Claim`` shows it to the user.

    A lease is itself the weak reference to its claim, and the claim refers to it strongly.  It is extended only while
    the claim exists, so an item whose claim was dropped is delivered again when its deadline has passed.  One object
    for both purposes keeps an item at two objects.
    """

    __slots__ = (
        "_record",
        "deadline_at",
        "delivered",
        "extending",
        "id",
        "issuer",
        "loss",
        "owner",
        "packed",
        "request",
        "settled",
        "struck",
        "task",
        "timer",
    )

    issuer: Issuer
    id: str
    packed: bytes
    """The item's record as the claim was decided."""
    owner: str
    request: str
    """The claim request that returned this claim.  Settling shows it to the servers."""
    deadline_at: float
    """By ``loop.time()``.  The claim certainly holds until then, unless its owner is fenced."""
    extending: bool
    """Whether it is to be extended."""
    timer: asyncio.TimerHandle | None
    """Fires at the deadline while an extension is in flight."""
    delivered: bool
    """Whether a consumer has it, or it is only claimed ahead for one."""
    settled: Verb | None
    loss: Lost | None
    """None until it is lost, or until somebody asks for it."""
    task: asyncio.Task[object] | None
    """The task inside ``async with claim``.  A loss cancels it ..."""
    struck: bool
    """... and this says that it did."""
    _record: Record | None

    def begin(self, issuer: Issuer, id: str, packed: bytes, owner: str, request: str, deadline_at: float) -> None:
        """Take over what a claim request returned.  (A weak reference takes no further arguments when it is made.)"""
        self.issuer = issuer
        self.id = id
        self.packed = packed
        self.owner = owner
        self.request = request
        self.deadline_at = deadline_at
        self.extending = True
        self.timer = None
        self.delivered = False
        self.settled = None
        self.loss = None
        self.task = None
        self.struck = False
        self._record = None

    def __repr__(self) -> str:
        state = f"lost: {self.loss.reason}" if self.loss else (self.settled or "held")
        return f"<Lease of {self.id} {state}>"

    @property
    def record(self) -> Record:
        """The same as ``packed``, unpacked when it is asked for."""
        if self._record is None:
            self._record = unpack(self.packed)
        return self._record

    @property
    def lost(self) -> Lost:
        """False while the claim holds; ``await`` it to learn of its loss."""
        if self.loss is None:
            self.loss = Lost()
        return self.loss

    def holds_at(self, now: float) -> bool:
        """Tell whether it is neither settled nor lost, as far as is known here.  ``now`` is by ``loop.time()``."""
        return self.settled is None and self.deadline_at > now and not self.loss

    @property
    def holds(self) -> bool:
        """Whether it holds now."""
        return self.holds_at(asyncio.get_running_loop().time())

    def check_held(self) -> None:
        """Raise ``ClaimLost`` if it is lost or settled."""
        if self.loss:
            raise self.error()
        if self.settled:
            raise ClaimLost(f"the claim on item {self.id} was settled before: {self.settled}", id=self.id)

    def error(self) -> ClaimLost:
        """Return the error that says why it is lost."""
        return ClaimLost(f"the claim on item {self.id} is lost: {self.lost.reason}", id=self.id)

    # -- settling --------------------------------------------------------------------------------------------------

    async def settle(self, verb: Verb, ms: int = 0, text: str = "") -> None:
        """Settle it once.  Raises ``ClaimLost``; after any other error it may be settled again.

        A call that fails after the deadline loses the claim, because by then another consumer may have the item.
        """
        if self.loss or self.settled:
            self.check_held()
        self.settled = verb
        try:
            holds = await self.issuer.settle(self, verb, ms, text)
        except BaseException:
            self.settled = None
            if self.deadline_at <= asyncio.get_running_loop().time():
                self.lose(f"its time ran out while its {verb} was in flight")
            raise
        self.stop_extending()
        if not holds:
            self.settled = None
            self.lose(f"its {verb} was refused")
            raise ClaimLost(id=self.id)

    async def fail(self, delay: float | None, reason: str) -> None:
        """Nack or bury it, as the retry policy says.  ``delay`` is in seconds, None: the policy's own.

        Raises as ``settle`` does.
        """
        decided = self.issuer.after_failure(self.record, delay, reason)
        if isinstance(decided, Again):
            await self.settle(Verb.NACK, round(decided.delay * 1000), reason)
        else:
            await self.settle(Verb.BURY, 0, decided)

    async def hand_back(self) -> None:
        """Release it while the caller is being cancelled.  The call is sent first, so a second cancellation is safe."""
        self.settled = Verb.RELEASE
        try:
            returned = self.issuer.settle(self, Verb.RELEASE)
        except ZkrqError:
            return  # closed: the item comes back when the owner is fenced
        returned.add_done_callback(_retrieve)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([returned], timeout=RELEASE_TIMEOUT)

    # -- extending -------------------------------------------------------------------------------------------------

    async def extend(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now.  Raises ``ClaimLost`` if a server refuses.

        Whether the answer arrives or not, a server may carry the call out.  So a deadline that moves closer counts from
        now, and one that moves away only once it is answered.
        """
        started = asyncio.get_running_loop().time()
        self.deadline_at = min(self.deadline_at, started + seconds)
        if not await self.issuer.settle(self, Verb.EXTEND, max(1, round(seconds * 1000))):
            if self.settled is None:
                self.lose(EXTENSION_REFUSED)
                raise ClaimLost(id=self.id)
            return
        self.deadline_at = started + seconds
        if self.timer:
            self.timer.cancel()
            self.timer = None

    def stop_extending(self) -> None:
        """Extend it no more; at worst it expires and the item is delivered again."""
        self.extending = False
        if self.timer:
            self.timer.cancel()
            self.timer = None

    # -- losing ----------------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Note that the claim no longer holds, and cancel the handler inside ``async with claim``.

        Does nothing if it is settled or lost already: the first reason stays.
        """
        if self.settled or self.loss:
            return
        self.lost._set(reason)  # pyright: ignore[reportPrivateUsage]
        self.stop_extending()
        if self.task is not None and self.task is not asyncio.current_task():
            self.struck = True
            self.task.cancel()


def _retrieve(future: asyncio.Future[bool]) -> None:
    if not future.cancelled():
        future.exception()
