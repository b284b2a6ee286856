"""Say which items a search looks for."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from zkrq.base.checks import check_group, check_id, check_moment, check_task, check_text
from zkrq.base.errors import ConfigError
from zkrq.base.meant import unknown_option
from zkrq.client.cursors import Source
from zkrq.operations.states import STATE

if TYPE_CHECKING:
    from zkrq.client.items import Item, ItemState


PAGE_MAX = 500
"""Items of a page."""


class ByContent(TypedDict, total=False):
    """What ``find`` takes beside a state."""

    key: str | None
    header: tuple[str, str] | None
    error: str | None
    group: str | None
    id_prefix: str | None
    text: str | None
    since: datetime | None
    until: datetime | None
    task: str | None


class Where(ByContent, total=False):
    """What ``find`` takes."""

    state: ItemState | None


class Conditions(NamedTuple):
    """Say which items are looked for: those of which all of these hold.  None: any; see ``Finding.find``."""

    key: str | None = None
    header: tuple[str, str] | None = None
    error: str | None = None
    state: ItemState | None = None
    group: str | None = None
    id_prefix: str | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    task: str | None = None

    @property
    def sources(self) -> Sequence[Source]:
        """What has to be read: the index of keys knows no dead letter."""
        if self.state == "dead":
            return (Source.DEAD,)
        if self.key is not None:
            return (Source.KEYED, Source.DEAD) if self.state is None else (Source.KEYED,)
        return (Source.ALL,)

    def check_any(self, queue: str) -> None:
        """Check that there is a condition, beside the state.  Raises ``ConfigError``."""
        if self == Conditions(state=self.state):
            state = "" if self.state is None else repr(self.state)
            raise ConfigError(
                f"find() needs one of {', '.join(f'{name}=' for name in BESIDE_STATE)}; for all items of queue "
                f"{queue!r}: scan({state}), or `zkrq export {queue}`"
            )

    def hold(self, item: Item[Any]) -> bool:
        """Tell whether this is one of the items."""
        return (
            self.state in (None, item.state)
            and self.key in (None, item.key)
            and self.group in (None, item.group)
            and self.task in (None, item.task)
            and (self.header is None or item.headers.get(self.header[0]) == self.header[1])
            and (self.error is None or self.error.casefold() in (item.reason or "").casefold())
            and (self.id_prefix is None or item.id.startswith(self.id_prefix))
            and (self.since is None or moment_of(item) >= self.since)
            and (self.until is None or moment_of(item) < self.until)
            and (self.text is None or has_text(item.payload, self.text))
        )


BESIDE_STATE = tuple(name for name in Conditions._fields if name != "state")
"""Names of the conditions by which items are found, whatever their state."""


def moment_of(item: Item[Any]) -> datetime:
    """Return the moment that ``since`` and ``until`` are about: a dead letter's death, of other items the push."""
    return item.died_at or item.pushed_at


def has_text(payload: bytes, text: str) -> bool:
    """Tell whether a payload contains a text, in upper or lower case, as it is or as JSON writes it in a string."""
    stored = payload.decode(errors="replace").casefold()
    return any(form in stored for form in _forms_of(text))


@functools.lru_cache(maxsize=16)
def _forms_of(text: str) -> frozenset[str]:
    """Return the forms in which a text may stand in a payload, because each item of a search is compared with them."""
    return frozenset((text.casefold(), json.dumps(text, ensure_ascii=False)[1:-1].casefold()))


def read_conditions(what: str, given: Where | ByContent) -> Conditions:
    """Return the conditions that a call was given, checked.

    ``what``: the call.  Raises ``ConfigError``, ``TypeError`` for a name that is no condition.
    """
    if unknown := given.keys() - {*Conditions._fields}:
        raise unknown_option(what, min(unknown), Conditions._fields)
    return check_conditions(Conditions(**cast("Where", given)))


def check_conditions(conditions: Conditions) -> Conditions:
    """Return the conditions.  Raises ``ConfigError``."""
    if conditions.key is not None:
        check_id("key", conditions.key)
    if conditions.group is not None:
        check_group("group", conditions.group)
    if conditions.task is not None:
        check_task("task", conditions.task)
    if conditions.header is not None:
        pair = isinstance(conditions.header, tuple | list) and len(conditions.header) == 2  # pyright: ignore[reportUnnecessaryIsInstance]
        if not pair:
            raise ConfigError(f"header is {conditions.header!r}: must be a name and a value, as a tuple of two str")
        for part in conditions.header:
            check_text("header", part)
    for name, what in (("error", "the reason"), ("text", "the payload"), ("id_prefix", "the id")):
        value: str | None = getattr(conditions, name)
        if value is not None and not check_text(name, value):
            verb = "begins with" if name == "id_prefix" else "contains"
            raise ConfigError(f"{name} is empty: must be a text that {what} {verb}")
    for name in ("since", "until"):
        if (moment := getattr(conditions, name)) is not None:
            check_moment(name, moment)
    if conditions.state is not None:
        STATE.check("state", conditions.state)
    return conditions
