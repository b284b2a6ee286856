"""Tell how deliveries ended: to hooks, in the worker's log and in its counts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zkrq.claims import Claim
from zkrq.consuming.lease import Verb


class Ending(enum.StrEnum):
    """What became of a delivery."""

    ACKED = "acked"
    RETRIED = "retried"
    """It failed and will be delivered again."""
    BURIED = "buried"
    """It was moved to the dead letters."""
    RELEASED = "released"
    """It was handed back, without counting a failure."""
    LOST = "lost"
    """The claim was lost: another consumer may have the item."""
    UNKNOWN = "unknown"
    """The servers could not be reached, or did not answer.  Unless it is settled, the item comes back by itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a delivery ended.

    ``error`` is the exception that was raised, None if there was none.  ``seconds`` includes the settling.
    """

    ending: Ending
    error: BaseException | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Count deliveries since the worker was made: those that run, and by their endings those that have ended.

    ``failed``: retried or buried.  ``released``: handed back, or ended in a way that is not known.
    """

    running: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True)
class WorkerStatistics(Counts):
    """The counts of all queues together, and ``by_queue``: of each by its name."""

    by_queue: Mapping[str, Counts] = field(default_factory=dict[str, Counts])


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
        """Count one that has ended."""
        self._ended[_COUNTED_AS[ending]] += 1

    def counts(self) -> Counts:
        """Return what was counted so far."""
        return Counts(running=self.running, **self._ended)


def add_up(by_queue: Mapping[str, Counts]) -> WorkerStatistics:
    """Sum up the counts of all queues."""
    return WorkerStatistics(
        running=sum(counts.running for counts in by_queue.values()),
        done=sum(counts.done for counts in by_queue.values()),
        failed=sum(counts.failed for counts in by_queue.values()),
        lost=sum(counts.lost for counts in by_queue.values()),
        released=sum(counts.released for counts in by_queue.values()),
        by_queue=by_queue,
    )


def ending_of(claim: Claim[Any]) -> Ending:
    """Return how the delivery of a claim ended, by what is known of the claim."""
    return Ending.LOST if claim.lost else _ENDINGS[claim.settled]
