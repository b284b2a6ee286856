"""Describe how deliveries ended: for hooks, for the worker's log and for its counts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zkrq.consuming.lease import Verb

if TYPE_CHECKING:
    from zkrq.consuming.claims import Claim


class Ending(enum.StrEnum):
    """The way in which a delivery ended."""

    ACKED = "acked"
    RETRIED = "retried"
    """The handler failed, and the item will be delivered again."""
    BURIED = "buried"
    """The item was moved to the dead letters."""
    RELEASED = "released"
    """The item was handed back, without counting a failure."""
    LOST = "lost"
    """The claim was lost: another consumer may have the item."""
    UNKNOWN = "unknown"
    """The servers could not be reached, or did not answer.  Unless the item is settled, it comes back by itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a delivery.

    ``error``: the exception that was raised, None if there was none.  ``seconds``: the duration, including the
    settling.
    """

    ending: Ending
    error: BaseException | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of deliveries since the worker was made: running ones, and ended ones by their ending.

    ``failed``: retried or buried.  ``released``: handed back, or ended in an unknown way.
    """

    running: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStatistics(Counts):
    """Counts of all queues together, and ``by_queue``: of each queue by its name.

    ``cut_off``: handlers that were cancelled because they did not finish within the grace of a drain.
    """

    by_queue: Mapping[str, Counts] = field(default_factory=dict[str, Counts])
    cut_off: int = 0


_COUNTED_AS = {
    Ending.ACKED: "done",
    Ending.RETRIED: "failed",
    Ending.BURIED: "failed",
    Ending.LOST: "lost",
    Ending.RELEASED: "released",
    Ending.UNKNOWN: "released",
}

_ENDINGS = {
    None: Ending.UNKNOWN,
    Verb.ACK: Ending.ACKED,
    Verb.NACK: Ending.RETRIED,
    Verb.BURY: Ending.BURIED,
    Verb.RELEASE: Ending.RELEASED,
}


class Tally:
    """Count the deliveries of one queue."""

    def __init__(self) -> None:
        self.running = 0
        self._ended = dict.fromkeys(_COUNTED_AS.values(), 0)

    def add(self, ending: Ending) -> None:
        """Count a delivery that has ended."""
        self._ended[_COUNTED_AS[ending]] += 1

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(running=self.running, **self._ended)


def add_up(by_queue: Mapping[str, Counts], cut_off: int) -> WorkerStatistics:
    """Sum up the counts of all queues."""
    return WorkerStatistics(
        running=sum(counts.running for counts in by_queue.values()),
        done=sum(counts.done for counts in by_queue.values()),
        failed=sum(counts.failed for counts in by_queue.values()),
        lost=sum(counts.lost for counts in by_queue.values()),
        released=sum(counts.released for counts in by_queue.values()),
        by_queue=by_queue,
        cut_off=cut_off,
    )


def ending_of(claim: Claim[Any]) -> Ending:
    """Derive the ending of a delivery from the state of its claim."""
    return Ending.LOST if claim.lost else _ENDINGS[claim.settled]
