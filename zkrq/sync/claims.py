"""Hold a claim in a thread.

::

    with claim:            # no exception: ack; an exception: nack or dead letter; Ctrl-C: release
        work(claim.item)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from zkrq.consuming import claims, saving
from zkrq.consuming.flow import full_name
from zkrq.sync.blocking import blocking
from zkrq.sync.flow import Flow, Within

if TYPE_CHECKING:
    from zkrq.base.checks import Headers
    from zkrq.consuming.lease import Verb
    from zkrq.sync.portal import Opened

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Claim(Generic[T]):
    """One item that this process holds; ``zkrq.Claim`` for threads, with the same meanings and errors.

    Nothing interrupts a thread, so a body whose claim is lost goes on: ``ClaimLost`` is raised where it ends.  Long
    work can look at ``lost``.  A claim may be passed to another thread, but not to another process.
    """

    __slots__ = ("_claim", "_opened", "item")

    def __init__(self, opened: Opened, claim: claims.Claim[T]) -> None:
        """Made by ``pop``."""
        self._opened = opened
        self._claim = claim
        self.item = claim.item

    def __repr__(self) -> str:
        return repr(self._claim)

    def _call(self, act: Callable[[claims.Claim[T]], Awaitable[R]]) -> R:
        return self._opened.call(lambda: act(self._claim))

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The item's id."""
        return self._claim.id

    @property
    def queue(self) -> str:
        """Name of the queue that the item is in."""
        return self._claim.queue

    @property
    def headers(self) -> Headers:
        """Texts that were pushed with the item, by name."""
        return self._claim.headers

    @property
    def task(self) -> str | None:
        """Name of the task that the item was pushed for, or None."""
        return self._claim.task

    @property
    def owner(self) -> str:
        """Owner id under which this process claims."""
        return self._claim.owner

    @property
    def key(self) -> str | None:
        """Key under which the item is unique while it is queued or claimed, or None."""
        return self._claim.key

    @property
    def group(self) -> str | None:
        """Group that the item was pushed into, or None."""
        return self._claim.group

    @property
    def priority(self) -> int:
        """Priority from 0 to 9.  Higher is delivered first."""
        return self._claim.priority

    @property
    def attempts(self) -> int:
        """Deliveries that count against ``max_attempts``, including this one."""
        return self._claim.attempts

    @property
    def failures(self) -> int:
        """How many earlier deliveries of the item failed."""
        return self._claim.failures

    @property
    def pushed_at(self) -> datetime:
        """When the item was pushed, by the producer's clock."""
        return self._claim.pushed_at

    @property
    def deadline(self) -> datetime:
        """When the claim ends unless it is extended, by this machine's clock."""
        return self._opened.read(lambda: self._claim.deadline)

    @property
    def token(self) -> tuple[int, int]:
        """Fencing token: a later claim of the same item has a greater one, and of the same group if that is ordered."""
        return self._claim.token

    @property
    def flow(self) -> Flow | None:
        """The flow of which the item is a member, or whose end it followed; None: of no flow."""
        found = self._claim.flow
        return Flow(Within(self._opened), full_name(found), lambda _: found) if found else None

    @property
    def settled(self) -> Verb | None:
        """How the claim was settled, None if it was not."""
        return self._claim.settled

    @property
    def holds(self) -> bool:
        """Whether the claim is neither settled nor lost, as far as is known here."""
        return self._opened.read(lambda: self._claim.holds)

    @property
    def lost(self) -> str:
        """Why the claim is lost; empty, and so false, while it holds."""
        return self._opened.read(lambda: self._claim.lost.reason)

    def on_lost(self, callback: Callable[[str], object]) -> None:
        """Call ``callback(reason)`` in the cluster's thread when the claim is lost, or soon if it is lost already.

        Not called once the claim is settled.  The call-back must not block, nor refer to the claim.
        """
        self._opened.read(lambda: self._claim.on_lost(callback))

    # -- saving --------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> Any:
        """What was saved of the item, as ``zkrq.Claim.saved`` says."""
        return self._opened.read(lambda: self._claim.saved)

    save = blocking(claims.Claim[T].save)

    @overload
    def step(self, name: str) -> Step[Any]: ...

    @overload
    def step(self, name: str, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def step(self, name: str, fn: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Do one step of the work once, in this thread: ``receipt = claim.step("charge", charge, order)``.

        Returns the value; without ``fn`` a block: ``with claim.step("charge") as step``.  Otherwise as
        ``zkrq.Claim.step``.
        """
        step = Step[Any](self._opened, self._opened.read(lambda: self._claim.step(name)))
        if fn is None:
            return step
        with step:
            if not step.done:
                step.value = fn(*args, **kwargs)
        return step.value

    def progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report how far the work is, as ``zkrq.Claim.progress`` does."""
        self._opened.read(lambda: self._claim.progress(fraction, text))

    # -- settling ------------------------------------------------------------------------------------------------------

    ack = blocking(claims.Claim[T].ack)
    nack = blocking(claims.Claim[T].nack)
    release = blocking(claims.Claim[T].release)
    bury = blocking(claims.Claim[T].bury)
    extend = blocking(claims.Claim[T].extend)

    # -- context manager -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._opened.call(self._claim.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._opened.call(lambda: self._claim.__aexit__(kind, error, traceback))


class Step(Generic[R]):
    """One step of the work on an item, whose value is kept; ``zkrq.Step`` for threads."""

    __slots__ = ("_opened", "_step")

    def __init__(self, opened: Opened, step: saving.Step[R]) -> None:
        """Made by ``claim.step``."""
        self._opened = opened
        self._step = step

    def __repr__(self) -> str:
        return repr(self._step)

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self._step.name

    @property
    def key(self) -> str:
        """The item's id and the step's name: the same at each delivery, for others that refuse to do a thing twice."""
        return self._step.key

    @property
    def done(self) -> bool:
        """Whether its value is saved."""
        return self._opened.read(lambda: self._step.done)

    @property
    def value(self) -> R:
        """Its value: that of an earlier delivery, or the one that was set; None without one."""
        return self._opened.read(lambda: self._step.value)

    @value.setter
    def value(self, value: R) -> None:
        self._opened.read(lambda: setattr(self._step, "value", value))

    def __enter__(self) -> Self:
        self._opened.call(self._step.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.call(lambda: self._step.__aexit__(kind, error, traceback))


claim_of = cast("Callable[[Claim[Any]], claims.Claim[Any]]", attrgetter("_claim"))
"""Return the asynchronous claim inside, for internal use."""
