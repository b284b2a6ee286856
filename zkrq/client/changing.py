"""Change some settings of a queue and leave the others as they are, for the command line and the HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from zkrq.base.errors import ConfigError
from zkrq.base.limits import DeadLetters, Groups, History, Limits, QueueSettings, ResultTtl, Size
from zkrq.client.declaring import SECTIONS, BadSettings, SettingsChanged
from zkrq.client.queue import parts_of

if TYPE_CHECKING:
    from zkrq.base.limits import Declared
    from zkrq.client.queue import Queue

Named = Mapping[str, Mapping[str, Any]]
"""The settings to change: by section (``limits``, ``groups``, ``history``, ``size``, ``letters``, ``results``), and by
field of its class."""


TRIES = 5
"""Times that settings are written while others change them."""


def changed(settings: QueueSettings, named: Named) -> QueueSettings:
    """Return the settings with what is named in place of what was there.  Raises ``BadSettings``.

    An order takes away the concurrency of groups, which would contradict it, unless that is named, too.
    """
    of_groups = named.get("groups", {})
    if of_groups.get("ordered"):
        of_groups = {"concurrency": None, **of_groups}
    try:
        if "named" in of_groups:
            of_groups = {**of_groups, "named": _changed_groups(settings.groups.named, of_groups["named"])}
        return QueueSettings(
            replace(settings.limits, **named.get("limits", {})),
            replace(settings.groups, **of_groups),
            replace(History(settings.history), **named.get("history", {})).count,
            replace(Size(settings.max_size), **named.get("size", {})).max,
            replace(settings.dead_letters, **named.get("letters", {})),
            replace(ResultTtl(settings.results_ttl), **named.get("results", {})).in_seconds,
        )
    except ConfigError as error:
        raise BadSettings(str(error)) from error


def _changed_groups(
    before: Mapping[str, Limits], given: Mapping[str, Mapping[str, Any] | None] | None
) -> Mapping[str, Limits]:
    """Return the limits of named groups with what is given; None takes one away, or all."""
    if given is None:
        return {}
    stay = {name: limits for name, limits in before.items() if name not in given}
    changes = {name: fields for name, fields in given.items() if fields is not None}
    return stay | {name: replace(before.get(name, Limits()), **fields) for name, fields in changes.items()}


async def change_settings(queue: Queue[Any], named: Named) -> QueueSettings:
    """Change the settings that are named, again if others have changed the same section meanwhile; return all of them.

    Raises ``BadSettings`` if they contradict those that stay, ``SettingsChanged`` if others change them all the time,
    and as ``Queue.set_limits`` does.
    """
    for left in reversed(range(TRIES)):
        read = await queue.settings()
        settings = changed(read, named)
        try:
            await write_settings(queue, settings, named, read)
        except SettingsChanged:
            if not left:
                raise
        else:
            return settings
    raise AssertionError


async def write_settings(queue: Queue[Any], settings: QueueSettings, named: Named, read: QueueSettings) -> None:
    """Give a queue the settings of those sections that are named, in place of those that were read.

    Raises ``SettingsChanged`` if a section is another one by now, and as ``Queue.set_limits`` does; sections that come
    before the one that failed may have changed.
    """
    parts = parts_of(queue)
    parts.check_open()
    before = sections_in(read)
    for name, declared in sections_in(settings).items():
        if name in named:
            await parts.context.declare_limits(declared, before[name])


def sections_in(settings: QueueSettings) -> dict[str, Declared]:
    """Return settings by section."""
    every: tuple[Declared, ...] = (
        settings.limits,
        settings.groups,
        History(settings.history),
        Size(settings.max_size),
        settings.dead_letters,
        ResultTtl(settings.results_ttl),
    )
    return {SECTIONS[type(each)]: each for each in every}


_NO_LIMITS: dict[str, Any] = {"concurrency": None, "rate": None}


def named_in(given: Mapping[str, Any]) -> Named:
    """Name what a part of such values changes, as ``CHANGE_SETTINGS`` has checked it; None takes away."""
    named: dict[str, Mapping[str, Any]] = {}
    for field, value in given.items():
        match field:
            case "limits":
                named["limits"] = _in_limits(_NO_LIMITS if value is None else value)
            case "groups":
                named["groups"] = _in_limits(_NO_LIMITS | {"ordered": None, "named": None} if value is None else value)
            case "history":
                named["history"] = {"count": value or 0}
            case "max_size":
                named["size"] = {"max": value}
            case "dead_letters":
                named["letters"] = asdict(DeadLetters()) if value is None else value
            case _:
                named["results"] = {"seconds": value}
    return named


def _in_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in given.items() if name != "seconds"}
    if fields.get("rate") is not None:
        fields["rate"] = fields["rate"], given.get("seconds", 1.0)
    if fields.get("named") is not None:
        fields["named"] = {name: each and _in_limits(each) for name, each in fields["named"].items()}
    return fields | ({"ordered": bool(fields["ordered"])} if "ordered" in fields else {})


def from_value(value: Mapping[str, Any]) -> QueueSettings:
    """Return the settings of which ``STORED`` tells such values.

    Raises ``ConfigError``, ``KeyError``, ``TypeError`` for anything else.
    """
    groups = _with_rate(value["groups"])
    groups["named"] = {name: Limits(**_with_rate(each)) for name, each in groups["named"].items()}
    return QueueSettings(
        Limits(**_with_rate(value["limits"])),
        Groups(**groups),
        History(value["history"]).count,
        Size(value["max_size"]).max,
        DeadLetters(**value["dead_letters"]),
        ResultTtl(value["results_ttl"]).in_seconds,
    )


def _with_rate(told: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(told)
    count, seconds = fields.pop("rate"), fields.pop("seconds")
    fields["rate"] = None if count is None else (count, seconds)
    return fields


def differing(settings: QueueSettings, present: QueueSettings) -> Named:
    """Name the sections of settings that are others than the present ones."""
    before = sections_in(present)
    return {name: {} for name, declared in sections_in(settings).items() if declared != before[name]}
