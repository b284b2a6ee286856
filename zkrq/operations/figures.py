"""What handlers did in the last hours and days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkrq.base.periods import MINUTE, PERIOD_MAX, USUAL, check_step
from zkrq.operations.kinds import ByName, Count, Many, Moment, Number, Seconds
from zkrq.operations.operation import PYTHON, Field, Operation, Parameter, Record, Rule, Wording

SPREAD = Record(
    "Spread",
    "Seconds of many items.",
    (
        Field("count", Count(), "Number of items."),
        Field("p50", Seconds(), "Seconds that half of the items did not exceed.", nullable=True),
        Field("p95", Seconds(), "Seconds that 95 of 100 items did not exceed.", nullable=True),
        Field("longest", Seconds(), "Seconds of the longest.", nullable=True),
        Field(
            "counts",
            Many(Count()),
            "Items by class: below 1 ms, below 2, below 4, and so on; the last class has no end.",
        ),
    ),
)

_OF_ANY = (
    Field("begun", Count(), "Claims that were given out."),
    Field("done", Count(), "Items that were acked."),
    Field("failed", Count(), "Deliveries that failed."),
    Field("dead", Count(), "Items that became dead letters."),
    Field("failure_rate", Number(0, 1), "Part of the ended deliveries that failed.", nullable=True),
    Field("waits", SPREAD, "From when an item was due until its first claim."),
    Field("durations", SPREAD, "From the claim until the item was acked or had failed."),
)

TASK_FIGURES = Record("TaskFigures", "What handlers did for one task in a time.", _OF_ANY)

WORK_FIGURES = Record(
    "WorkFigures",
    "What handlers did in a time, over all processes.",
    (
        Field("at", Moment(), "When the time began."),
        Field("seconds", Seconds(), "How long it is; the last one has only begun."),
        *_OF_ANY,
        Field("tasks", ByName(TASK_FIGURES), "The same by task; `*`: those that are not told apart."),
        Field("ready", Count(), "Items that were ready at the last report; null: there was none.", nullable=True),
    ),
)

WORK_TOLD = Record(
    "WorkTold",
    "What handlers did, time by time.",
    (Field("figures", Many(WORK_FIGURES), "The oldest first."),),
)


@dataclass(frozen=True, slots=True)
class _Steps(Rule):
    """A record is of whole minutes, or of whole hours where only these are kept."""

    name: str = "step"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        check_step(given.get("since", USUAL), given["step"])


FIGURES_OF_WORK = Operation(
    "figures",
    "Tell what handlers did in the last hours and days: items done and failed, how long they waited and took.",
    (
        Parameter(
            "since",
            Seconds(least=1, most=PERIOD_MAX),
            "The last seconds, at most 35 days.",
            "3600",
            default=USUAL,
            example=21_600,
        ),
        Parameter(
            "step",
            Seconds(least=MINUTE, most=PERIOD_MAX),
            "Seconds of each record: a multiple of 60 for the last 26 hours, of 3600 for more.",
            "60, or 3600",
            example=600,
        ),
    ),
    (_Steps(),),
    result=WORK_TOLD,
    method="GET",
    path="/queues/{queue}/figures",
    command="figures",
    subject="figures",
)
