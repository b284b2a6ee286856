"""Define what a caller is told of an item that has ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from zkrq.base.errors import NoResult

R = TypeVar("R")


class ResultState(enum.StrEnum):
    """What became of an item, or what it is at present."""

    DONE = "done"
    """A consumer has acked it."""
    DEAD = "dead"
    """It is a dead letter, unless somebody redrives or discards it."""
    CANCELLED = "cancelled"
    """It was removed by ``cancel``, ``clear``, ``discard`` or ``delete``."""
    EXPIRED = "expired"
    """Its ``ttl`` was over before it was claimed, or it was dropped as one of too many dead letters."""
    QUEUED = "queued"
    """It has not ended: it is ready, or scheduled for later."""
    CLAIMED = "claimed"
    """It has not ended: a consumer holds it."""
    UNKNOWN = "unknown"
    """No server knows it: it was never pushed, or it ended longer ago than its result is kept."""

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended."""
        return self not in (ResultState.QUEUED, ResultState.CLAIMED, ResultState.UNKNOWN)


_NEXT_STEPS = {
    ResultState.DONE: "it was acked without one: give the queue's consumers results=Results(...), too",
    ResultState.DEAD: "look at queue.dead_letters(), and redrive or discard it",
    ResultState.CANCELLED: "it was removed before it was done; push it again if it is still wanted",
    ResultState.EXPIRED: "its time to live was over before it was done; push it again if it is still wanted",
    ResultState.QUEUED: "no consumer has claimed it in time; wait on with queue.result(id)",
    ResultState.CLAIMED: "its consumer has not ended in time; wait on with queue.result(id)",
    ResultState.UNKNOWN: "it was never pushed to this queue, or ended longer ago than results are kept",
}


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    """What became of one item.

    ``value``: what its handler returned, if ``has_value``; otherwise None.  ``reason`` and ``traceback``: why it is
    dead, None otherwise.  ``owner``: the owner id of the consumer that holds it, None unless it is claimed.
    ``is_lost``: it is done, and the server and the consumer that knew the result died before the ack was complete.
    """

    id: str
    state: ResultState
    value: R | None = None
    has_value: bool = False
    reason: str | None = None
    traceback: str | None = None
    owner: str | None = None
    is_lost: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the item has ended.  Otherwise it was still queued or claimed at the end of the wait, or unknown."""
        return self.state.has_ended

    def get(self) -> R:
        """Return the value.  Raises ``NoResult`` if there is none, with what became of the item."""
        if self.has_value:
            return cast("R", self.value)
        why = f" by {self.owner}" if self.owner else f" ({self.reason})" if self.reason else ""
        next_step = "its consumer died in the middle of the ack" if self.is_lost else _NEXT_STEPS[self.state]
        raise NoResult(f"item {self.id} has no result, it is {self.state}{why}: {next_step}", id=self.id)
