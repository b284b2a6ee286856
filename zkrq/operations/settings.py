"""The settings of a queue: what it promises, whichever program or operator has declared it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkrq.base.errors import ConfigError
from zkrq.base.limits import (
    CONCURRENCY_MAX,
    HISTORY_MAX,
    RATE_MAX,
    RATE_SECONDS,
    RESULT_TTL_LEAST,
    RESULT_TTL_MAX,
    DeadLetters,
    Groups,
    Limits,
)
from zkrq.operations.kinds import ByName, Count, Flag, Seconds
from zkrq.operations.operation import (
    PYTHON,
    Absent,
    Arguments,
    Field,
    Operation,
    Parameter,
    Record,
    Rule,
    Section,
    Wording,
)

SIZE_MAX = (1 << 53) - 1
"""Greatest limit of a queue's size: what every client reads exactly."""


def _rate_of(limits: Limits | Groups) -> int | None:
    return limits.rate and limits.rate[0]


def _seconds_of(limits: Limits | Groups) -> Any:
    return limits.rate and limits.rate[1]


def _max_age_of(letters: DeadLetters) -> float | None:
    return letters.max_age_ms / 1000 or None


_RATE = (
    Field("rate", Count(), "Claims begun within `seconds`, at most; null: no limit.", nullable=True, source=_rate_of),
    Field("seconds", Seconds(), "The time of `rate`; null without one.", nullable=True, source=_seconds_of),
)

LIMITS = Record(
    "QueueLimits",
    "Limits of a queue over all workers and processes.",
    (
        Field(
            "concurrency", Count(), "Items claimed at once over all workers, at most; null: no limit.", nullable=True
        ),
        *_RATE,
    ),
)

GROUP_LIMITS = Record(
    "GroupLimits",
    "Limits of the groups of a queue over all workers and processes.",
    (
        Field(
            "concurrency",
            Count(),
            "Items of a group claimed at once over all workers, at most; null: no limit.",
            nullable=True,
        ),
        *_RATE,
        Field("ordered", Flag(), "Whether each group keeps the order of its pushes."),
        Field("named", ByName(LIMITS), "Limits of single groups, by name, in place of those of each group."),
    ),
)

KEPT_LETTERS = Record(
    "KeptLetters",
    "Which dead letters a queue keeps.",
    (
        Field("max_count", Count(), "Dead letters that are kept, the latest ones; null: all.", nullable=True),
        Field(
            "max_age", Seconds(), "Seconds for which they are kept; null: for ever.", nullable=True, source=_max_age_of
        ),
        Field("expired", Flag(), "Whether items that outlive their `ttl` become dead letters."),
    ),
)

_KEPT = (
    Field("history", Count(), "Items that have ended last that are kept; 0: none."),
    Field(
        "max_size",
        Count(),
        "Items that it may have, queued, scheduled and claimed together; null: any number.",
        nullable=True,
    ),
    Field("dead_letters", KEPT_LETTERS, "Which dead letters are kept."),
    Field(
        "results_ttl",
        Seconds(),
        "Seconds for which results of items are kept; null: for as long as each ack says.",
        nullable=True,
    ),
)

STORED = Record(
    "StoredSettings",
    "What a queue promises, whichever program or operator has declared it.",
    (
        Field("limits", LIMITS, "Limits of the queue."),
        Field("groups", GROUP_LIMITS, "Limits and order of each group."),
        *_KEPT,
    ),
)

IN_FIGURES = (
    Field("limits", LIMITS, "Limits of the queue."),
    Field("group_limits", GROUP_LIMITS, "Limits and order of each group."),
    *_KEPT,
)
"""The settings, as the figures of a queue have them."""


@dataclass(frozen=True, slots=True)
class _OfARate(Rule):
    """A time alone is no rate."""

    name: str = "seconds"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        if given.get("rate") is None:
            raise ConfigError("seconds is the time of a rate: give rate too, or null to remove it")


RATE_RULES = (_OfARate(),)


def _kept(name: str, kind: Any, sentence: str, null: str = "") -> Parameter:
    """Describe a setting that stays as it is if it is left out."""
    return Parameter(name, kind, sentence, "as it is", Absent.KEEP, null=null)


_CHANGED_RATE = (
    _kept("rate", Count(1, RATE_MAX), "Claims begun within `seconds`, at most.", "no limit"),
    Parameter("seconds", Seconds(*RATE_SECONDS), "The time of `rate`, 0.1 to 3600, given together with it.", "1"),
)

CHANGED_LIMITS = Section(
    "ChangeLimits",
    "Limits to change; what is left out stays.",
    (
        _kept("concurrency", Count(1, CONCURRENCY_MAX), "Items claimed at once over all workers, at most.", "no limit"),
        *_CHANGED_RATE,
    ),
    RATE_RULES,
)

CHANGED_GROUP = Section(
    "ChangeGroup",
    "Limits of one group to change; what is left out stays, or is no limit if the group had none of its own.",
    (
        _kept("concurrency", Count(1, CONCURRENCY_MAX), "Items of it claimed at once, at most.", "no limit"),
        *_CHANGED_RATE,
    ),
    RATE_RULES,
)

CHANGED_GROUPS = Section(
    "ChangeGroups",
    "Limits and order of each group to change; what is left out stays.",
    (
        _kept(
            "concurrency",
            Count(1, CONCURRENCY_MAX),
            "Items of a group claimed at once over all workers, at most.",
            "no limit",
        ),
        *_CHANGED_RATE,
        _kept(
            "ordered",
            Flag(),
            "Each group keeps the order of its pushes, one item at a time; then without `concurrency`.",
            "no order",
        ),
        _kept(
            "named",
            ByName(Arguments(CHANGED_GROUP), nullable=True),
            "Limits of single groups, by name, in place of those of each group; a name with null: as each group.",
            "none",
        ),
    ),
    RATE_RULES,
)

CHANGED_LETTERS = Section(
    "ChangeLetters",
    "Which dead letters are kept, to change; what is left out stays.",
    (
        _kept("max_count", Count(1, SIZE_MAX), "Dead letters to keep, the latest ones.", "all"),
        _kept("max_age", Seconds(positive=True), "Seconds for which they are kept.", "for ever"),
        _kept("expired", Flag(), "Whether items that outlive their `ttl` become dead letters."),
    ),
)

SETTINGS = Operation(
    "settings",
    "Read what the queue promises: its limits, order, history, size, dead letters and results.",
    result=STORED,
    method="GET",
    path="/queues/{queue}/settings",
    command="queues show",
    subject="manage",
)

CHANGE_SETTINGS = Operation(
    "change_settings",
    "Change what is named, and leave the rest; null takes away. The settings hold for all programs.",
    (
        _kept("limits", Arguments(CHANGED_LIMITS), "Limits of the queue.", "no limits"),
        _kept("groups", Arguments(CHANGED_GROUPS), "Limits and order of each group.", "no limits and no order"),
        _kept("history", Count(0, HISTORY_MAX), "Items that have ended last to keep; 0: none.", "none"),
        _kept("max_size", Count(1, SIZE_MAX), "Items that it may have, queued, scheduled and claimed.", "any number"),
        _kept(
            "dead_letters",
            Arguments(CHANGED_LETTERS),
            "Which dead letters are kept.",
            "100,000 of any age, without expired items",
        ),
        _kept(
            "results_ttl",
            Seconds(RESULT_TTL_LEAST, RESULT_TTL_MAX),
            "Seconds for which results are kept.",
            "for as long as each ack says",
        ),
    ),
    result=STORED,
    method="PATCH",
    path="/queues/{queue}/settings",
    more="An order takes away the `concurrency` of groups. If it is unknown whether it happened, some of what was "
    "named may have changed: repeat the request.",
    command="queues set",
    subject="manage",
)
