"""Define the result of an item: its state, and the value that its handler returned."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from zkrq.base.errors import NoResult

if TYPE_CHECKING:
    from zkrq.base.progress import WorkProgress

R = TypeVar("R")


class ResultState(enum.StrEnum):
    """The end of an item, or its present state."""

    DONE = "done"
    """A consumer has acked it."""
    DEAD = "dead"
    """It is a dead letter, until it is redriven or discarded."""
    CANCELLED = "cancelled"
    """It was removed by ``cancel``, ``clear``, ``discard`` or ``delete``, or replaced by a push with its key."""
    EXPIRED = "expired"
    """Its ``ttl`` ended before it was claimed, or it was a dead letter too many or too old."""
    QUEUED = "queued"
    """It has not ended: it is ready, or scheduled for later."""
    CLAIMED = "claimed"
    """It has not ended: a consumer holds it."""
    UNKNOWN = "unknown"
    """No server knows it: it was never pushed, or its result is no longer kept."""

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended."""
        return self not in (ResultState.QUEUED, ResultState.CLAIMED, ResultState.UNKNOWN)


_NEXT_STEPS = {
    ResultState.DONE: "it was acked without one: give the queue's consumers results=Results(...), too",
    ResultState.DEAD: "look at queue.dead_letters(), and redrive or discard it",
    ResultState.CANCELLED: "it was removed before it was done; push it again if it is still wanted",
    ResultState.EXPIRED: "its time to live was over before it was done; push it again if it is still wanted",
    ResultState.QUEUED: "no consumer has claimed it in time; wait longer with queue.result(id)",
    ResultState.CLAIMED: "its consumer has not settled it in time; wait longer with queue.result(id)",
    ResultState.UNKNOWN: "it was never pushed to this queue, or its result is no longer kept",
}


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """The result of one item.

    ``value``: what its handler returned, if ``has_value``; otherwise None.  ``reason`` and ``traceback``: why it is
    dead, None otherwise.  ``owner``: the owner id of the consumer that holds it, None unless it is claimed.
    ``progress``: what the holder of a claimed item has reported, None: nothing.
    ``is_lost``: it is done, but its result is lost, because primary and consumer died during the ack.
    """

    id: str
    state: ResultState
    value: R | None = None
    has_value: bool = False
    reason: str | None = None
    traceback: str | None = None
    owner: str | None = None
    is_lost: bool = False
    progress: WorkProgress | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended.  Otherwise it was still queued or claimed at the end of the wait, or unknown."""
        return self.state.has_ended

    def get(self) -> R:
        """Return the value.  Raises ``NoResult``, which names the item's state, if there is none."""
        if self.has_value:
            return cast("R", self.value)
        why = f" by {self.owner}" if self.owner else f" ({self.reason})" if self.reason else ""
        next_step = "its consumer died in the middle of the ack" if self.is_lost else _NEXT_STEPS[self.state]
        raise NoResult(f"item {self.id} has no result, it is {self.state}{why}: {next_step}", id=self.id)
