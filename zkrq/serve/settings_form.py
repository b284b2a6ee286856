"""The settings of a queue as a form of the page: what it shows, and what was sent with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from zkrq.base.errors import ConfigError
from zkrq.base.limits import NAMED_GROUPS_MAX, QueueSettings, origins_of
from zkrq.client.changing import from_value
from zkrq.client.declaring import read_shared
from zkrq.client.queue import parts_of
from zkrq.operations.settings import STORED
from zkrq.serve.actions import read_fields

if TYPE_CHECKING:
    from zkrq.client.queue import Queue

FIELDS_MAX = 20 + 4 * (NAMED_GROUPS_MAX + 1)
"""Fields of a form; one with more is refused."""


class Field(NamedTuple):
    """A field of the form: its place in the value of the settings, joined by a dot, and what is said beside it."""

    name: str
    label: str
    kind: type[int | float | bool] = int


FORM: Mapping[str, tuple[str, Sequence[Field]]] = {
    "limits": (
        "All workers together",
        (
            Field("limits.concurrency", "items claimed at once"),
            Field("limits.rate", "rate: claims begun"),
            Field("limits.seconds", "within seconds", float),
        ),
    ),
    "groups": (
        "Each group",
        (
            Field("groups.concurrency", "items of a group claimed at once"),
            Field("groups.rate", "rate: claims of a group begun"),
            Field("groups.seconds", "within seconds", float),
            Field("groups.ordered", "in the order of the pushes", bool),
        ),
    ),
    "size": ("Size", (Field("max_size", "items at most"),)),
    "history": ("History", (Field("history", "ended items kept"),)),
    "letters": (
        "Dead letters",
        (
            Field("dead_letters.max_count", "dead letters kept"),
            Field("dead_letters.max_age", "kept for seconds", float),
            Field("dead_letters.expired", "expired items among them", bool),
        ),
    ),
    "results": ("Results", (Field("results_ttl", "results kept for seconds", float),)),
}
"""The fields of each section, with its title."""

OF_A_GROUP = (
    Field("concurrency", "items claimed at once"),
    Field("rate", "rate: claims begun"),
    Field("seconds", "within seconds", float),
)
"""The fields of a group that has limits of its own, beside its name."""


class Changed(NamedTuple):
    """What a form wants: the settings that it was made of, and those that are wanted; what it was sent with."""

    read: QueueSettings
    wanted: QueueSettings
    fields: Mapping[str, str]

    @property
    def is_confirmed(self) -> bool:
        """Whether the question was answered."""
        return self.fields.get("confirmed") == "yes"


async def shown(queue: Queue[bytes], settings: QueueSettings) -> dict[str, Any]:
    """Return what the tab shows.  Raises ``Unavailable``."""
    value = STORED.tell(settings)
    sections = (await read_shared(parts_of(queue).everywhere.shards.first.replicas, queue.name)).sections
    return {
        "form": FORM,
        "given": {field.name: _at(value, field.name) for _, fields in FORM.values() for field in fields},
        "origins": origins_of(sections),
        "named": list(value["groups"]["named"].items()) + [("", {})] * (len(settings.groups.named) < NAMED_GROUPS_MAX),
        "of_a_group": OF_A_GROUP,
        "read": json.dumps(value),
    }


def read(body: bytes) -> Changed:
    """Read a form.  Raises ``ConfigError``."""
    if (fields := read_fields(body, FIELDS_MAX)) is None:
        raise ConfigError("the form has too many fields")
    first = {name: values[0].strip() for name, values in fields.items()}
    value: dict[str, Any] = {}
    for field in (field for _, fields in FORM.values() for field in fields):
        section, _, name = field.name.rpartition(".")
        (value.setdefault(section, {}) if section else value)[name] = _value(field, first.get(field.name, ""))
    value["groups"]["named"] = named = _named(first)
    for each in (value["limits"], value["groups"], *named.values()):
        each["seconds"] = None if each["rate"] is None else each["seconds"] or 1.0
    value["history"] = value["history"] or 0
    try:
        before = from_value(json.loads(first.get("read", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("the form does not say what it was made of: open it again") from error
    return Changed(before, from_value(value), first)


def _named(fields: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the limits of single groups by name; without a name, they are taken away."""
    groups = {n: name for n in range(NAMED_GROUPS_MAX + 1) if (name := fields.get(f"named.{n}.group"))}
    return {
        name: {field.name: _value(field, fields.get(f"named.{n}.{field.name}", "")) for field in OF_A_GROUP}
        for n, name in groups.items()
    }


def question(queue: str, change: Changed) -> str | None:
    """Return what is asked before a change; None: nothing is changed."""
    if change.wanted == change.read:
        return None
    before, after = (str(each) or "the defaults" for each in (change.read, change.wanted))
    return f"Change the settings of {queue} from {before} to {after}? They hold for all programs."


def _value(field: Field, text: str) -> Any:
    if field.kind is bool:
        return text == "yes"
    try:
        return field.kind(text) if text else None
    except ValueError:
        raise ConfigError(f"{field.label}: {text[:40]!r} is no number") from None


def _at(value: Mapping[str, Any], name: str) -> Any:
    section, _, field = name.rpartition(".")
    return value[section][field] if section else value[field]
