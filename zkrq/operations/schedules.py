"""The schedules that a namespace stores: when each pushes, with which options, and what a reply says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from zkrq.base.checks import MAX_ID, Duration, check_duration, check_id, read_duration
from zkrq.base.errors import ConfigError
from zkrq.operations.kinds import Choice, Content, Count, Flag, Kind, Many, Moment, Seconds, Text
from zkrq.operations.operation import PYTHON, Failure, Field, Operation, Parameter, Record, Rule, Section, Wording
from zkrq.operations.push import LIFE, PUSH, RECEIPT, WINDOW
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.recurring import MISSED

MIN_PERIOD = 0.1
"""Least number of seconds between two moments."""

CRON_MAX = 200
"""Characters of a cron expression."""

ZONE_MAX = 64
"""Characters in the name of a time zone."""

ID_CATCH_UP = PUT_WINDOW - 60
"""Seconds by which a moment may be late under its id; later, servers whose clocks are ahead would refuse the push."""

MIN_CATCH_UP, CATCH_UP, MAX_CATCH_UP = 1.0, ID_CATCH_UP, 7 * 86_400.0
"""Bounds of the seconds by which a moment may be late, and in between the default."""


@dataclass(frozen=True, slots=True)
class When(Kind[float | str]):
    """Seconds between two moments, or a cron expression."""

    metavar: ClassVar[str] = "WHEN"

    def check(self, name: str, value: Duration | str) -> float | str:
        if not isinstance(value, str):
            return check_duration(name, value)
        if len(value) > CRON_MAX:
            raise ConfigError(f"{name} has {len(value)} characters: a cron expression has at most {CRON_MAX}")
        return value

    def parse(self, text: str) -> float | str:
        try:
            return read_duration(text)
        except ValueError:
            return text


@dataclass(frozen=True, slots=True)
class _MomentsHaveKeys(Rule):
    """A moment that may be late for its id has a key, and an item has one key."""

    name: str = "key"

    def check(self, given: Mapping[str, Any], wording: Wording = PYTHON) -> None:
        if given.get("catch_up", CATCH_UP) > ID_CATCH_UP:
            raise ConfigError(
                f"{wording.name('key')} excludes {wording.name('catch_up')} of more than {ID_CATCH_UP:g} s: beyond "
                f"that each item has the key of its moment; leave one out, or give at most {ID_CATCH_UP:g} s"
            )


LEFT_OUT: Mapping[str, str] = {
    "id": "each moment has its own",
    "delay": "the moments say when",
    "at": "the moments say when",
    "at_latest": "the moments say when",
    "replace": "several processes push, so an older moment could take the place of a newer one",
}
"""Options of a push that pushes of a schedule do not have, and why."""

_SENTENCES: Mapping[str, str] = {"key_window": WINDOW, "ttl": f"{LIFE}."}
"""What options do, where the push also says how they go with those that are left out."""

OPTIONS = Section(
    "SchedulePushes",
    "The options that each push of a schedule has.",
    tuple(replace(each, sentence=_SENTENCES.get(each.name, each.sentence)) for each in PUSH.without(LEFT_OUT)),
)


def of_push(option: Parameter) -> Field:
    """Return the field of a schedule that has an option of its pushes."""

    def find(schedule: Any) -> Any:
        return schedule.options.get(option.name, option.default)

    return Field(option.name, option.kind, option.help, nullable=option.default is None, source=find)


def _check_name(name: str, value: Any) -> str:
    return check_id("a schedule's name", value)


NAME = Parameter("name", Text(MAX_ID, checked=_check_name), "The schedule's name.", required=True)

WHEN = Parameter(
    "when",
    When(),
    f"Seconds between two moments, at least {MIN_PERIOD:g}, or a cron expression.",
    required=True,
)

MOMENTS = (
    WHEN,
    Parameter("offset", Seconds(), "Seconds after each multiple of the period since 1970.", "0", default=0.0),
    Parameter("zone", Text(ZONE_MAX), "The time zone of a cron expression, such as `Europe/Berlin`.", "UTC"),
    Parameter(
        "catch_up",
        Seconds(MIN_CATCH_UP, MAX_CATCH_UP),
        f"Seconds by which a moment may be pushed late, {MIN_CATCH_UP:g} to {MAX_CATCH_UP:.0f}.",
        f"{CATCH_UP:g}",
        default=CATCH_UP,
    ),
    Parameter(
        "missed",
        Choice(MISSED),
        "Which of several moments that are due are pushed: all, the last, or none that is 10 seconds late.",
        "last",
        default="last",
    ),
)
"""When a schedule pushes."""

SCHEDULE = Record(
    "Schedule",
    "A schedule that the namespace stores.",
    (
        Field("queue", Text(), "The queue into which it pushes."),
        Field("name", Text(), "Its name in that queue."),
        *(Field(each.name, each.kind, each.help, nullable=each.name == "zone") for each in MOMENTS),
        *map(of_push, OPTIONS.parameters),
        Field("paused", Flag(), "Whether nothing is pushed until it is resumed."),
        Field("declared", Flag(), "Whether code declares it; then the processes of that code push its items."),
        Field("next", Moment(), "Its next moment; null while it is paused.", nullable=True, source="upcoming"),
        Field("last", Moment(), "The last moment that was pushed; null: none was.", nullable=True),
        Field("last_loss", Moment(), "The last moment that was lost: not pushed; null: none was.", nullable=True),
        Field("losses", Count(), "How many moments were lost."),
        Field("item", Content(), "The item; null if the code makes it.", source="payload"),
    ),
)

UNKNOWN = Failure("NoSuchSchedule", "The queue has no schedule of this name.")

LIST_SCHEDULES = Operation(
    "list_schedules",
    "List the schedules that were added at run time, and those that code declares with a name.",
    result=Record("Schedules", "The schedules, by queue and name.", (Field("schedules", Many(SCHEDULE)),)),
    method="GET",
    path="/schedules",
    on="namespace",
    command="schedules list",
    subject="schedules",
)

PUT_SCHEDULE = Operation(
    "put_schedule",
    "Add a schedule, or replace the one of that name, from the next moment on. A pause holds.",
    (*MOMENTS, *OPTIONS.parameters),
    (*PUSH.rules, _MomentsHaveKeys()),
    result=SCHEDULE,
    method="PUT",
    path="/queues/{queue}/schedules/{name}",
    has_item=True,
    command="schedules add",
    subject="schedules",
)

GET_SCHEDULE = Operation(
    "get_schedule",
    "Look up one schedule.",
    result=SCHEDULE,
    failures=(UNKNOWN,),
    method="GET",
    path="/queues/{queue}/schedules/{name}",
    subject="schedules",
)


def _on_schedule(verb: str, sentence: str) -> Operation:
    """Describe a change of one schedule that is there."""
    return Operation(
        f"{verb}_schedule",
        sentence,
        result=SCHEDULE,
        failures=(UNKNOWN,),
        method="POST",
        path=f"/queues/{{queue}}/schedules/{{name}}/{verb}",
        command=f"schedules {verb}",
        subject="schedules",
    )


PAUSE_SCHEDULE = _on_schedule("pause", "Push nothing more for a schedule, until `resume`; also if code declares it.")

RESUME_SCHEDULE = _on_schedule("resume", "Push again for a schedule, at the moments that come.")

RUN_SCHEDULE_NOW = Operation(
    "run_schedule_now",
    "Push the item of a schedule now, also while it is paused; its moments stay as they are.",
    result=RECEIPT,
    failures=(UNKNOWN,),
    method="POST",
    path="/queues/{queue}/schedules/{name}/run-now",
    repeatable=False,
    command="schedules run-now",
    subject="schedules",
)

REMOVE_SCHEDULE = Operation(
    "remove_schedule",
    "Remove a schedule, if there is one. What it has pushed stays.",
    result=Record("Removed", "Whether the schedule is removed.", (Field("removed", Flag(), "Whether there was one."),)),
    method="DELETE",
    path="/queues/{queue}/schedules/{name}",
    command="schedules remove",
    subject="schedules",
)

SCHEDULES: Mapping[str, Operation] = {
    each.name: each
    for each in (
        LIST_SCHEDULES,
        GET_SCHEDULE,
        PUT_SCHEDULE,
        PAUSE_SCHEDULE,
        RESUME_SCHEDULE,
        RUN_SCHEDULE_NOW,
        REMOVE_SCHEDULE,
    )
}
"""The operations on schedules, by name."""
