"""The push of an item: its options, and what a receipt tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from zkrq.base import clock
from zkrq.base.checks import (
    MAX_GROUP,
    MAX_ID,
    MAX_TASK,
    Duration,
    Headers,
    check_duration,
    check_group,
    check_id,
    check_name,
    check_task,
)
from zkrq.base.errors import ConfigError
from zkrq.base.flows import MEMBER_NAME_MAX
from zkrq.base.ids import check_push_id
from zkrq.base.meant import HOMES
from zkrq.operations.kinds import Count, Flag, Many, Moment, Seconds, Text, Texts
from zkrq.operations.operation import (
    PYTHON,
    Arguments,
    Excludes,
    Field,
    Needs,
    Operation,
    Parameter,
    Record,
    Rule,
    Section,
    Wording,
)
from zkrq.protocol.records import PRIORITIES


class RepeatedOptions(TypedDict, total=False):
    """The options of a push that each push of a schedule may have."""

    key: str | None
    key_window: Duration | None
    group: str | None
    priority: int
    ttl: Duration | None
    headers: Headers | None
    task: str | None


class PushOptions(RepeatedOptions, total=False):
    """The arguments of ``Queue.push`` beside the item."""

    id: str | None
    replace: bool
    delay: Duration | None
    at: datetime | None
    at_latest: Duration | None


class ManyOptions(TypedDict, total=False):
    """The arguments of ``Queue.push_many`` beside the items."""

    delay: Duration | None
    at: datetime | None
    priority: int
    ttl: Duration | None
    headers: Headers | None
    group: str | None
    task: str | None


class MemberOptions(PushOptions, total=False):
    """The arguments of ``Flow.push`` beside the item and its queue."""

    name: str | None


def once(key: str, seconds: float) -> PushOptions:
    """Return the options of a push after which no other one with this key is accepted for these seconds."""
    return {"key": key, "key_window": seconds}


def seconds_until(at: datetime, name: str = "at") -> float:
    """Return the seconds from now until a moment, 0 for one that has passed.  Raises ``ConfigError`` if it is too far
    away."""
    return check_duration(name, max(0.0, (at - clock.now()).total_seconds()))


def wait_of(options: Mapping[str, Any]) -> float:
    """Return the seconds until an item with these options, which are checked, may first be delivered."""
    return seconds_until(options["at"]) if "at" in options else options.get("delay", 0.0)


KEY = Text(MAX_ID, checked=check_id)

GROUP = Text(MAX_GROUP, checked=check_group)

TASK = Text(MAX_TASK, checked=check_task)


def _check_id(name: str, id: Any) -> str:
    check_push_id(id, name)
    return id


@dataclass(frozen=True, slots=True)
class _IsNear(Rule):
    """A moment is bounded like the delay until it."""

    name: str = "at"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        seconds_until(given["at"], wording.name("at"))


@dataclass(frozen=True, slots=True)
class _OutlivesItsDelay(Rule):
    """An item that ended before it is due would never be delivered."""

    name: str = "ttl"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        wait = wait_of(given)
        if given["ttl"] <= wait:
            ttl = f"{wording.name('ttl')} is {given['ttl']:g} s"
            raise ConfigError(f"{ttl}, not longer than the delay of {wait:g} s: never delivered")


@dataclass(frozen=True, slots=True)
class _EndsAfterItsDelay(Rule):
    """An end before the delay would be the delay."""

    name: str = "at_latest"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        wait = wait_of(given)
        if given["at_latest"] < wait:
            end = f"{wording.name('at_latest')} is {given['at_latest']:g} s"
            raise ConfigError(f"{end}, less than the delay of {wait:g} s")


RECEIPT = Record(
    "Receipt",
    "What a push did.",
    (
        Field("id", Text(), "The item's id; of a duplicate, of the item that has the key or began its window."),
        Field("replicas", Count(), "Servers that hold the item."),
        Field("duplicate", Flag(), "Nothing was pushed: another item has the key, or its window is not over."),
        Field(
            "done",
            Flag(),
            "Nothing was pushed: an item with this id was pushed before and is already gone; with `duplicate`, the one "
            "that began the window.",
        ),
        Field(
            "new",
            Flag(),
            "Whether this push put the item into the queue; false also if an item with this id is there already. null: "
            "not known, because a server died or a connection broke, and the push was repeated.",
            nullable=True,
        ),
        Field("replaced", Many(Text()), "Ids of the queued items in whose place this one was pushed."),
    ),
)

WINDOW = (
    "With `key`: seconds, 1 to 2592000, for which other pushes with this key and a window push nothing either, "
    "whatever becomes of this item."
)
"""What ``key_window`` does, wherever a push has it."""

LIFE = "Seconds from the push after which the item is no longer delivered"
"""What ``ttl`` is, wherever a push has it."""

RULES: tuple[Rule, ...] = (
    Excludes("delay", "at"),
    _IsNear(),
    _OutlivesItsDelay(),
    Needs("replace", "key", "user-42"),
    Needs("at_latest", "replace", True),
    _EndsAfterItsDelay(),
    Needs("key_window", "key", "user-42"),
    Excludes(
        "key_window",
        "replace",
        "{name} and {other} exclude each other: the first item of a window is kept, or the last one; use {name} alone, "
        "or {other} with a delay",
    ),
)
"""Between the options; they hold wherever a push begins."""

PUSH = Operation(
    "push",
    "Push one item. After the call it is on every server that is in sync.",
    (
        Parameter(
            "id",
            Text(MAX_ID, checked=_check_id),
            "Makes the push repeatable: pushed several times within 300 seconds under one id, the item exists once.",
        ),
        Parameter(
            "key",
            KEY,
            "While another item with this key is queued, scheduled or claimed, nothing is pushed.",
        ),
        Parameter(
            "replace",
            Flag(),
            "With `key`: the item is pushed in the place of queued and scheduled ones with this key. One that is "
            "claimed goes on, and this one is delivered as well.",
            "false",
            default=False,
        ),
        Parameter(
            "key_window",
            # The least one keeps the versions of the key's record below the clock, at which they begin again once it
            # was dropped.
            Seconds(1.0, 30 * 86400.0),
            f"{WINDOW} Not together with `replace`.",
            "the key is free once the item is done or dead",
        ),
        Parameter(
            "group",
            GROUP,
            "The tenant, user or job that the item belongs to; groups take turns.",
            "none",
        ),
        Parameter("delay", Seconds(), "Seconds until the item may first be delivered.", "0"),
        Parameter("at", Moment(), "When the item may first be delivered, with a time zone; excludes `delay`."),
        Parameter(
            "at_latest",
            Seconds(0.001, 30 * 86400.0),
            "With `replace`: seconds from the first push after which the item is due at the latest, however often and "
            "with which delay it is replaced.",
            "no end",
        ),
        Parameter(
            "priority",
            Count(PRIORITIES.start, PRIORITIES.stop - 1),
            f"{PRIORITIES.start} to {PRIORITIES.stop - 1}, higher is delivered first.",
            "0",
            default=0,
        ),
        Parameter(
            "ttl",
            Seconds(positive=True),
            f"{LIFE}; must be longer than `delay`.",
            "no limit",
        ),
        Parameter("headers", Texts(), "Short texts beside the item, by name: 4,096 bytes in all."),
        Parameter(
            "task",
            TASK,
            "The name of the handler that the item is for, in workers that have several for one queue: at most "
            f"{MAX_TASK} letters, digits, underscores, dots, colons and dashes.",
            "none",
        ),
    ),
    RULES,
    RECEIPT,
    "POST",
    "/queues/{queue}/push",
    repeatable=False,
    has_item=True,
    command="push",
    subject="push",
)
"""``repeatable``: with an ``id``."""


def _check_member_name(name: str, given: Any) -> str:
    return check_name(name, given, most=MEMBER_NAME_MAX)


PUSH_MEMBER = Section(
    "member",
    "Push one item as a member of a flow.",
    (
        *PUSH.parameters,
        Parameter(
            "name",
            Text(MEMBER_NAME_MAX, checked=_check_member_name),
            "Makes the push repeatable while the flow runs: the item's id is the flow's name, a dot and this one. "
            "Excludes `id`.",
        ),
    ),
    (
        *RULES,
        Excludes("name", "id", "{name} and {other} exclude each other: the name of a member makes its id"),
    ),
)
"""The push of a member: only ``Flow.push`` has its name."""

PUSH_MAX = 1_000
"""Items of one request to push many."""

OUTCOMES = Record(
    "PushedMany",
    "What a push of many did, if it did all: an outcome for each item, in order.",
    (Field("outcomes", Many(RECEIPT)),),
)

PUSH_MANY = Operation(
    "push_many",
    "Push many items. If some cannot be pushed, the others still are.",
    (
        Parameter(
            "items", Many(Arguments(PUSH), PUSH_MAX, 1), "Items to push, each as in a push of one.", required=True
        ),
    ),
    result=OUTCOMES,
    method="POST",
    path="/queues/{queue}/push-many",
    repeatable=False,
    more="Then the error is the worst one, unknown if any outcome is unknown, and its `outcomes` tell of each item.",
    subject="push",
)

HOMES["push()"] = sorted(PUSH.by_name)
