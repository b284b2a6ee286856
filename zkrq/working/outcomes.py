"""How deliveries end, as a worker tells it: to hooks, in its log and in its counts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """The claim was lost meanwhile: others may have the item."""
    UNKNOWN = "unknown"
    """The servers could not be told, or did not answer: if nothing happened, the item comes back by itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a delivery ended: ``error`` is what was raised, None if nothing was; ``seconds`` includes the settling."""

    ending: Ending
    error: BaseException | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Deliveries since the worker was made: those that run, and by their endings those that do not.

    ``failed`` are those that were retried or buried, ``released`` those that were handed back or whose ending is
    unknown.
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


COUNTED_AS = {
    Ending.ACKED: "done",
    Ending.RETRIED: "failed",
    Ending.BURIED: "failed",
    Ending.LOST: "lost",
    Ending.RELEASED: "released",
    Ending.UNKNOWN: "released",
}

ENDINGS = {
    None: Ending.UNKNOWN,
    Verb.ACK: Ending.ACKED,
    Verb.NACK: Ending.RETRIED,
    Verb.BURY: Ending.BURIED,
    Verb.RELEASE: Ending.RELEASED,
}
