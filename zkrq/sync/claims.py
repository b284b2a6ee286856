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
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from zkrq.consuming import claims
from zkrq.sync.blocking import blocking

if TYPE_CHECKING:
    from zkrq.base.checks import Headers
    from zkrq.consuming.lease import Verb
    from zkrq.sync.portal import Opened

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


claim_of = cast("Callable[[Claim[Any]], claims.Claim[Any]]", attrgetter("_claim"))
"""Return the asynchronous claim inside, for internal use."""
