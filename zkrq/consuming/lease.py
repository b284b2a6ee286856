"""Hold one claim inside the process: carry out what ``core/lease.py`` says of its life."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import ref

from zkrq.base.errors import ClaimLost, ZkrqError
from zkrq.base.flows import FlowName
from zkrq.base.limits import check_result
from zkrq.base.retry import Again, Failed, Retry
from zkrq.base.saved import edit_in, joined
from zkrq.base.tasks import wait_ended
from zkrq.consuming.core import lease as life
from zkrq.consuming.core.lease import EXTENDED, HOLDING, LOSSES, LeaseState
from zkrq.protocol.calls import item_id, read_saved
from zkrq.protocol.records import HELD, MEMBER, Bundle, ItemRecord, is_alone, unpack

if TYPE_CHECKING:
    from zkrq.base.codecs import Codec
    from zkrq.base.loop import OwnLoop
    from zkrq.consuming.flow import Flow

RELEASE_TIMEOUT = 5.0
"""Seconds that a cancelled handler waits for the answer to its release, which has been sent in any case."""

EXTENSION_REFUSED = "its extension was refused"

SAVE_REFUSED = "its save was refused"


LETS_GO_ON = "pass"
"""What a nack is to the servers if the group of the item goes on meanwhile (``Retry(holds_group=False)``)."""


SNOOZES = "snooze"
"""What a release with a delay is to the servers."""


class EncodedResult(bytes):
    """A result that is encoded already, by the process in which the handler ran."""


class Verb(enum.StrEnum):
    """Name what a holder may do with a claim, in the words of ``settle.lua``."""

    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    BURY = "bury"
    EXTEND = "extend"
    SAVE = "save"


FAILURES = (Verb.NACK, Verb.BURY)
"""Verbs by which a failure is reported."""


def edited_in(notes: bytes) -> Mapping[int, bytes]:
    """Return the contents that items have instead of those that were pushed, by position."""
    edits = {at: edit_in(text) for at, text in read_saved(notes).items()}
    return {at: edit.content for at, edit in edits.items() if edit}


class Lost:
    """Tell whether a claim is lost: false while it holds.  ``await claim.lost`` waits for the loss."""

    __slots__ = ("_callbacks", "_reason", "_waiters", "in_doubt")

    def __init__(self) -> None:
        self.in_doubt = False
        """Whether the settlement that found it lost may have been carried out before."""
        self._reason = ""
        self._waiters: list[asyncio.Future[str]] = []
        self._callbacks: list[Callable[[str], object]] = []

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

    def _call(self, callback: Callable[[str], object]) -> None:
        if self._reason:
            asyncio.get_running_loop().call_soon(callback, self._reason)
        else:
            self._callbacks.append(callback)

    def _set(self, reason: str) -> None:
        self._reason = reason
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(reason)
        for callback in self._callbacks:  # one that raises must not keep the others from being called
            asyncio.get_running_loop().call_soon(callback, reason)
        self._callbacks.clear()

    def _is_watched(self) -> bool:
        return bool(self._callbacks or self._waiters)


class DeliveryObservers(Protocol):
    """See when work on claims begins and ends; ``deliveries`` is empty where nobody looks."""

    @property
    def deliveries(self) -> Sequence[object]: ...

    def before_delivery(self, claim: object) -> None: ...

    def after_delivery(self, claim: object, error: BaseException | None) -> None: ...


class Issuer(Protocol):
    """Settle the leases of one queue: the interface that a lease needs from ``Leases``."""

    queue: str
    claim_timeout: float
    own_loop: OwnLoop

    @property
    def observers(self) -> DeliveryObservers: ...

    @property
    def keeps_results(self) -> bool:
        """Whether acks may leave a result."""
        ...

    def encode_result(self, result: object) -> bytes:
        """Return the bytes of a result.

        Raises ``CodecError``, ``PayloadTooLarge``, and ``ConfigError`` if the queue keeps none.
        """
        ...

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[Refused]:
        """Send the settlement with the next batch.  A result that is not empty: the claim is lost."""
        ...

    @property
    def saved_codec(self) -> Codec[Any]:
        """What encodes saved states."""
        ...

    def counts_each_step(self, lease: Lease) -> bool:
        """Tell whether a save begins the attempts anew (``Retry(per_step=True)``)."""
        ...

    def check_saves(self) -> None:
        """Raise ``ConfigError`` at a level that lacks saved states."""
        ...

    def save(self, lease: Lease, number: int, text: bytes, ms: int) -> asyncio.Future[Refused]:
        """Send what is to be saved of the item, as ``settle`` does.

        ``number``: of this save within the claim.  ``ms``: the lease from now on, 0: it stays.
        """
        ...

    def flow_of(self, flow: FlowName) -> Flow:
        """Return a flow that the record of an item names."""
        ...

    def report(self, lease: Lease, text: str) -> None:
        """Send a report of the progress of the work, from any thread."""
        ...

    def ack_together(self, leases: Sequence[Lease], returning: int) -> asyncio.Future[Refused]:
        """Send the acks of these leases, which are all of this issuer, as one call of the next batch.

        ``returning``: items that their consumer is expected to want next.
        """
        ...

    def after_failure(self, lease: Lease, delay: float | None, reason: str) -> Again | str:
        """Apply the retry policy: return a delay, or the reason to bury."""
        ...

    def after_snooze(self, lease: Lease, delay: float) -> Again | str:
        """Apply what the retry policy says of an item that did not fail, and comes again after ``delay`` seconds."""
        ...


class Grant:
    """Hold what the claims of one bundle by one request have in common."""

    __slots__ = (
        "_begun",
        "_unpacked",
        "began_at",
        "bundle",
        "is_large",
        "issuer",
        "notes",
        "owner",
        "packed",
        "request",
        "tasks",
    )

    notes: bytes
    """Texts beside the record.  Set only if it has fields, to save memory."""
    _begun: dict[int, bytes]
    """What was saved of items before they were pushed, by position.  Set only if there is some."""

    def __init__(self, issuer: Issuer, bundle: str, packed: bytes, owner: str, request: str) -> None:
        self.issuer = issuer
        self.bundle = bundle
        self.packed = packed
        """Record of the bundle as the claims were decided."""
        self.owner = owner
        self.request = request
        """Claim request that returned these claims.  Settling presents it to the servers."""
        self.is_large = False
        """Whether servers are to drop its payloads soon, once their items are gone."""
        self.began_at = 0.0
        """When they arrived here, by ``loop.time()``; 0: that was not noted."""
        self.tasks: dict[int, str] | None = None
        """The tasks that items are for, by position; None: none of them is for one."""
        self._unpacked: Bundle | None = None

    def id_of(self, position: int) -> str:
        """Return the id of an item."""
        return self.bundle if is_alone(self.packed) else item_id(self.bundle, position)

    def record_of(self, position: int) -> ItemRecord:
        """Return what is known of an item, unpacked on demand."""
        if self._unpacked is None:
            self._unpacked = unpack(self.packed)
        return self._unpacked.item(position)

    @property
    def flow(self) -> FlowName | None:
        """The flow of which the items are members, or whose end they followed."""
        if self._unpacked is None:
            self._unpacked = unpack(self.packed)
        fields = self._unpacked.fields
        name = fields.get(MEMBER) or fields.get(HELD, b"")[1:]  # behind the letter of what opened it
        return FlowName.of(name) if name else None

    def saved_at(self, position: int) -> bytes | None:
        """Return what was saved of an item when it was claimed, None: nothing."""
        saved = read_saved(getattr(self, "notes", b"")).get(position)
        return joined(saved, getattr(self, "_begun", {}).get(position))

    def note_begun(self, position: int, saved: bytes) -> None:
        """Note what was saved of an item before it was pushed: its payload has it."""
        if not hasattr(self, "_begun"):
            self._begun = {}
        self._begun[position] = saved

    def note_task(self, position: int, task: str) -> None:
        """Note the task that an item is for, which its payload names."""
        if self.tasks is None:
            self.tasks = {}
        self.tasks[position] = task

    def begin_attempts(self, position: int) -> None:
        """Note that this is the first delivery of an item since it was saved, which has not failed since."""
        record = self._unpacked or unpack(self.packed)
        attempts, own = list(record.attempts), dict(record.own)
        attempts[position] = 1
        if position in own:
            own[position] = own[position]._replace(failures=0)
        self._unpacked = record._replace(attempts=attempts, own=own)


Refused: TypeAlias = Mapping[tuple[Grant, int], bool]
"""Claims that a settlement found lost, by grant and position, and whether it may have been carried out before; empty if
all are settled."""


class Stoppable(Protocol):
    """Something that a loss stops: the body of ``async with batch``."""

    def stop(self) -> object:
        """Note that one of its claims was lost."""
        ...


class Lease(ref[object]):
    """Hold one claim internally, while ``Claim`` shows it to the user.

    A lease is itself the weak reference to its claim, and the claim refers to it strongly.  It is extended only while
    the claim exists, so an item whose claim was dropped is delivered again after its deadline.  One object for both
    purposes keeps the cost of an item at two objects.
    """

    __slots__ = (
        "batch",
        "deadline_at",
        "grant",
        "loss",
        "position",
        "result",
        "retry",
        "retry_in",
        "settled",
        "state",
        "task",
        "timer",
    )

    grant: Grant
    position: int
    """Position of the item in its bundle."""
    deadline_at: float
    """Deadline by ``loop.time()``.  The claim certainly holds until then, unless its owner is fenced."""
    state: LeaseState
    """Where it is in its life.  Assigned from a row of ``core.lease.LIFE`` and in no other way."""
    timer: asyncio.TimerHandle | None
    """Timer that fires at the deadline while an extension is in flight."""
    retry: Retry | None
    """Policy after a failure of the item, None: that of its queue."""
    retry_in: float
    """Seconds until the item is delivered again.  Set only when it fails or is put off, to save memory."""
    result: bytes
    """Encoded result that its ack is to leave.  Set only if there is one, to save memory."""
    settled: Verb | None
    """How it was settled, or is being settled."""
    loss: Lost | None
    """The loss, None until it happens or is asked for."""
    batch: Stoppable | None
    """Batch whose body works on the item, None outside of ``async with batch``."""
    task: asyncio.Task[object] | None
    """Task inside ``async with claim``.  A loss cancels it."""

    def begin(self, grant: Grant, position: int, deadline_at: float) -> None:
        """Take over the result of a claim request.  (The constructor of a weak reference takes no further
        arguments.)"""
        self.grant = grant
        self.position = position
        self.deadline_at = deadline_at
        self.state = LeaseState.GRANTED
        self.timer = None
        self.retry = None
        self.settled = None
        self.loss = None
        self.batch = None
        self.task = None

    def deliver(self) -> None:
        """Note that a consumer has the claim."""
        self.state = life.DELIVER[self.state]

    def take_back(self) -> None:
        """Note that the consumer has not begun with the item, only claimed ahead again: closing releases it."""
        self.state = life.TAKE_BACK[self.state]

    @property
    def id(self) -> str:
        """The item's id."""
        return self.grant.id_of(self.position)

    @property
    def issuer(self) -> Issuer:
        """What settles this lease."""
        return self.grant.issuer

    def __repr__(self) -> str:
        state = f"lost: {self.loss.reason}" if self.loss else (self.settled or "held")
        return f"<Lease of {self.id} {state} ({self.state})>"

    @property
    def record(self) -> ItemRecord:
        """What is known of the item."""
        return self.grant.record_of(self.position)

    @property
    def lost(self) -> Lost:
        """False while the claim holds; ``await`` it to wait for its loss."""
        if self.loss is None:
            self.loss = Lost()
        return self.loss

    def holds_at(self, now: float) -> bool:
        """Tell whether it is neither settled nor lost, as far as is known here.  ``now`` is by ``loop.time()``."""
        return self.state in HOLDING and self.deadline_at > now

    @property
    def holds(self) -> bool:
        """Whether the claim holds now."""
        return self.holds_at(asyncio.get_running_loop().time())

    @property
    def is_lost(self) -> bool:
        """Whether it was lost."""
        return self.state in LOSSES

    @property
    def extending(self) -> bool:
        """Whether to extend the claim."""
        return self.state in EXTENDED

    def check_held(self) -> None:
        """Raise ``ClaimLost`` if it is lost or settled."""
        if self.state in LOSSES:
            raise self.error()
        if self.state not in HOLDING:
            raise ClaimLost(f"the claim on item {self.id} was settled before: {self.settled}", id=self.id)

    def error(self) -> ClaimLost:
        """Return the error that says why it is lost."""
        text = f"the claim on item {self.id} is lost: {self.lost.reason}"
        return ClaimLost(text, id=self.id, in_doubt=self.lost.in_doubt)

    # -- settling --------------------------------------------------------------------------------------------------

    async def settle(self, verb: Verb, ms: int = 0, text: str = "") -> None:
        """Settle the claim once.  Raises ``ClaimLost``; after any other error it may be settled again.

        A call that fails after the deadline loses the claim, because by then another consumer may have the item.  One
        that fails before it stops the extension, unless the consumer follows the claim.
        """
        if self.state not in HOLDING:
            self.check_held()
        # Noted before the await, so a second settlement in the meantime is an error and not a second call.
        self.state, self.settled = life.SETTLE[self.state], verb
        try:
            refused = await self.grant.issuer.settle(self, verb, ms, text)
        except BaseException:
            self.have_failed()
            raise
        if refused:
            self.refuse(in_doubt=refused[self.grant, self.position])
            raise self.error() if self.lost.in_doubt else ClaimLost(id=self.id)
        self.state = life.ANSWER[self.state]
        if self.timer:  # seldom, so an ack does without the call
            self._stop_timer()

    def keep_result(self, result: object) -> None:
        """Note the result that its ack is to leave.

        Raises as ``Issuer.encode_result`` does.
        """
        is_encoded = isinstance(result, EncodedResult)
        self.result = check_result(result) if is_encoded else self.grant.issuer.encode_result(result)

    def refuse(self, *, in_doubt: bool = False) -> None:
        """Lose the claim, because the servers refused to settle it.

        ``in_doubt``: it may have been settled before, by an earlier try of the call.
        """
        verb, self.settled = self.settled, None
        self.lost.in_doubt = in_doubt
        doubt = f"its {verb} may have been carried out, and then another consumer got the item"
        self._end(life.REFUSE, doubt if in_doubt else f"its {verb} was refused")

    def have_failed(self) -> None:
        """Note that the outcome of the settlement in flight is not known.

        Unless its consumer follows the claim it has done with the item, and may not try again: a program that goes on
        with the next item, and keeps this claim in a variable, would keep the item from everybody for as long as it
        runs.
        """
        verb, self.settled = self.settled, None
        self._move(life.FAIL_FOLLOWED if self.is_watched else life.FAIL)
        # It may not be tried again after the deadline: the item may be another consumer's by now.
        if self.deadline_at <= asyncio.get_running_loop().time():
            self.lose(f"it expired while its {verb} was in flight")

    async def fail(self, delay: float | None, reason: str) -> None:
        """Nack or bury the item, as the retry policy says.  ``delay`` is in seconds, None: the policy's own.

        Raises as ``settle`` does.
        """
        decided = self.issuer.after_failure(self, delay, reason)
        if isinstance(decided, Again):
            self.retry_in = decided.delay
            await self.settle(Verb.NACK, round(decided.delay * 1000), reason)
        else:
            await self.settle(Verb.BURY, 0, decided)

    async def put_off(self, delay: float) -> None:
        """Release the item for ``delay`` seconds, or bury it if the retry policy says that it is too old.

        Raises as ``settle`` does.
        """
        decided = self.issuer.after_snooze(self, delay)
        if isinstance(decided, Again):
            self.retry_in = decided.delay
            await self.settle(Verb.RELEASE, round(decided.delay * 1000))
        else:
            await self.settle(Verb.BURY, 0, decided)

    async def fail_as(self, failed: Failed) -> None:
        """Settle the item as its handler's exception says.  Raises as ``settle`` does."""
        if failed.is_final:
            await self.settle(Verb.BURY, 0, failed.reason)
        elif failed.is_snooze:
            await self.put_off(failed.delay or 0.0)
        else:
            await self.fail(failed.delay, failed.reason)

    async def hand_back(self) -> None:
        """Release the item while the caller is being cancelled.  The call is sent first, so a second cancellation is
        safe."""
        if returned := self.send_back():
            await wait_ended([returned], RELEASE_TIMEOUT)

    def send_back(self) -> asyncio.Future[Refused] | None:
        """Send the release of the item; return what ends with its answer, None if the cluster is closed."""
        self.settled = Verb.RELEASE
        self._move(life.HAND_BACK)
        try:
            returned = self.issuer.settle(self, Verb.RELEASE)
        except ZkrqError:
            return None  # closed: the item is delivered again when the owner is fenced
        returned.add_done_callback(_retrieve)
        return returned

    # -- extending -------------------------------------------------------------------------------------------------

    async def extend(self, seconds: float) -> None:
        """Move the deadline to ``seconds`` from now.  Raises ``ClaimLost`` if a server refuses.

        An earlier deadline counts from now, because a server may execute the call at any moment; a later one only once
        it is answered, because it may never be executed.  So the claim never holds here for longer than there.
        """
        started = asyncio.get_running_loop().time()
        self.deadline_at = min(self.deadline_at, started + seconds)
        if await self.issuer.settle(self, Verb.EXTEND, max(1, round(seconds * 1000))):
            if self.settled is None:
                self.lose(EXTENSION_REFUSED)
                raise ClaimLost(id=self.id)
            return
        self.deadline_at = started + seconds
        self._stop_timer()

    async def save(self, number: int, text: bytes, *, extend: bool) -> None:
        """Save a text with the item; ``extend``: and move the deadline as ``extend`` does, to the queue's
        ``claim_timeout`` from now.

        Raises ``ClaimLost`` if a server refuses.
        """
        self.check_held()
        issuer, started = self.issuer, asyncio.get_running_loop().time()
        seconds = issuer.claim_timeout if extend else 0.0
        if extend:
            self.deadline_at = min(self.deadline_at, started + seconds)
        if await issuer.save(self, number, text, round(seconds * 1000)):
            if self.settled is None:
                self.lose(SAVE_REFUSED)
            self.check_held()
        if issuer.counts_each_step(self):
            self.grant.begin_attempts(self.position)
        if extend:
            self.deadline_at = started + seconds
            self._stop_timer()

    def stop_extending(self) -> None:
        """Stop extending the claim; at worst it expires and the item is delivered again."""
        self._move(life.LEAVE)

    def _move(self, row: life.Row) -> None:
        """Go on to the next state, and do what belongs to it."""
        self.state = row[self.state]
        if self.timer and self.state not in EXTENDED:
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    # -- losing ----------------------------------------------------------------------------------------------------

    def when_lost(self, callback: Callable[[str], object]) -> None:
        """Call ``callback(reason)`` soon after the loss, or soon if it is lost already."""
        self.lost._call(callback)  # pyright: ignore[reportPrivateUsage]

    @property
    def is_watched(self) -> bool:
        """Whether the consumer follows the claim: inside ``async with``, or waiting for its loss."""
        watched = self.loss is not None and self.loss._is_watched()  # pyright: ignore[reportPrivateUsage]
        return self.task is not None or self.batch is not None or watched

    def lose(self, reason: str) -> None:
        """Note that the claim no longer holds, and cancel the handler inside ``async with claim``.

        Does nothing if the claim is already settled or lost, so the first reason is kept.
        """
        self._end(life.LOSE, reason)

    def _end(self, row: life.Row, reason: str) -> None:
        """Lose the claim, unless the row says that it is too late for that."""
        before = self.state
        self._move(row)
        if self.state is before:
            return
        self.lost._set(reason)  # pyright: ignore[reportPrivateUsage]
        # The handler is cancelled from outside; the state lets it tell this cancellation from one of its own caller's.
        if self.task is not None and self.task is not asyncio.current_task():
            self._move(life.STRIKE)
            self.task.cancel()
        if self.batch is not None:
            self.batch.stop()

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks.

        - A reason is known of each claim that is lost, and of no other; the same holds for the verb of one that is
          settled, or is being settled.
        - A timer waits only for the extension of a claim that is being extended.
        """
        assert bool(self.loss) is self.is_lost, f"a reason, and not lost, or the other way round: {self!r}"
        assert (self.settled is not None) is (self.state in life.NAMING_A_VERB), f"{self.settled}: {self!r}"
        assert self.timer is None or self.extending, f"not extended, and a timer waits for that: {self!r}"
        assert self.position >= 0, f"position {self.position} in its bundle: {self!r}"


def _retrieve(future: asyncio.Future[Refused]) -> None:
    if not future.cancelled():
        future.exception()
