"""Describe the schedules that a namespace stores, as one value: what each call makes of it, without I/O.

The value is the content of one register, so two operators that change it at the same time exclude each other.  A
schedule is identified by its queue and its name, as its items are.  There are two kinds:

* One that was *added* at run time holds all that is needed to push.  Every process that runs schedules pushes its
  items.
* One that code *declares* (``Cluster.every`` with a name) is pushed by the processes that declare it.  The code gives
  the defaults.  The stored schedule says what holds now, and has the *mark* of the declaration that it was made of.  A
  declaration with this mark changes nothing, so what an operator has changed survives every restart.  One with another
  mark comes from changed code, and replaces the schedule.  A pause holds in both cases, until it is ended.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zoneinfo import ZoneInfo

from zkrq.base.checks import Duration, check_id, check_name
from zkrq.base.clock import now
from zkrq.base.errors import ConfigError, PayloadTooLarge
from zkrq.client.moments import (
    Cron,
    Period,
    Schedule,
    check_catch_up,
    check_missed,
    check_span,
    from_ms,
    read_schedule,
)
from zkrq.operations.push import RepeatedOptions
from zkrq.operations.schedules import CATCH_UP, OPTIONS, PUT_SCHEDULE

if TYPE_CHECKING:
    from zkrq.protocol.recurring import Missed, Progress

SCHEDULES_MAX = 1_000
"""Schedules that a namespace stores."""

ITEM_MAX = 16 * 1024
"""Bytes of a stored schedule's encoded item."""


class ScheduleOptions(RepeatedOptions, total=False):
    """Options of a schedule; their meanings are those of ``Cluster.every``."""

    offset: Duration
    zone: str | None
    catch_up: Duration
    missed: Missed


class Key(NamedTuple):
    """Identify a schedule."""

    queue: str
    name: str

    def __str__(self) -> str:
        return f"schedule {self.name!r} of queue {self.queue!r}"


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule that a namespace stores.

    ``when``, ``offset``, ``zone``, ``catch_up``, ``missed``: as for ``Cluster.every``.  ``options``: those of each push
    that are given, by name.  ``payload``: the item, encoded; None if the code that declares the schedule makes it.
    ``paused``: whether nothing is pushed until ``resume``.  ``since``: moments up to this one are not pushed, because
    the schedule was added, first declared, changed or resumed then; None: no such bound.  ``mark``: of the declaration
    in code, empty for a schedule that was added at run time.

    ``last``: the last moment that was pushed.  ``last_loss``: the last one that was not (event ``MomentsLost``), and
    ``losses``: how many were not.  The processes that push store these within seconds.
    """

    queue: str
    name: str
    when: float | str
    offset: float = 0.0
    zone: str | None = None
    catch_up: float = CATCH_UP
    missed: Missed = "last"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    payload: bytes | None = None
    paused: bool = False
    since: datetime | None = None
    mark: str = field(default="", repr=False)
    last: datetime | None = field(default=None, compare=False)
    last_loss: datetime | None = field(default=None, compare=False)
    losses: int = field(default=0, compare=False)

    @property
    def key(self) -> Key:
        """The queue and the name."""
        return Key(self.queue, self.name)

    @property
    def priority(self) -> int:
        """Priority of the items, 0 to 9."""
        return self.options.get("priority", 0)

    @property
    def declared(self) -> bool:
        """Whether code declares it; only processes that do push its items."""
        return bool(self.mark)

    @property
    def schedule(self) -> Schedule:
        """The moments.  Raises ``ConfigError`` where they cannot be read, for instance without the extra ``cron``."""
        return read_schedule(self.when, offset=self.offset, zone=self.zone)

    def next(self, after: datetime) -> datetime | None:
        """Return the first moment that is later than ``after``, None while the schedule is paused.

        Raises ``ConfigError`` as ``schedule`` does.
        """
        return None if self.paused else self.schedule.after(max(after, self.since) if self.since else after)

    @property
    def upcoming(self) -> datetime | None:
        """The next moment from now on, None while the schedule is paused, or if its moments cannot be read here."""
        try:
            return self.next(now())
        except ConfigError:
            return None

    def __str__(self) -> str:
        if isinstance(self.when, str):
            return f"{self.when} ({self.zone or 'UTC'})"
        return f"every {self.when:g} s{f' + {self.offset:g} s' if self.offset else ''}"


def checked(entry: StoredSchedule) -> StoredSchedule:
    """Return a schedule with all values checked and in their usual form.

    Raises ``ConfigError``, ``PayloadTooLarge``.
    """
    check_name("the queue's name", entry.queue)
    check_id("a schedule's name", entry.name)
    if entry.payload is not None and len(entry.payload) > ITEM_MAX:
        size = len(entry.payload)
        text = f"the encoded item has {size} bytes, a stored schedule's has at most {ITEM_MAX}; nothing was written"
        raise PayloadTooLarge(size, ITEM_MAX, text)
    moments = moments_of(entry.schedule)
    if moments is None:
        raise ConfigError(f"{entry.key} cannot be stored: give its zone by name, such as 'Europe/Berlin'")
    catch_up = check_catch_up(entry.catch_up)
    check_span(entry.schedule, catch_up)
    options = check_options(entry.options, catch_up)
    return replace(entry, **moments, catch_up=catch_up, missed=check_missed(entry.missed), options=options)


def check_options(options: Mapping[str, Any], catch_up: float) -> dict[str, Any]:
    """Return the options of each push of a schedule that say more than their absence.  Raises ``ConfigError``."""
    known = PUT_SCHEDULE.check({**options, "catch_up": catch_up})
    return {name: value for name, value in known.items() if name in OPTIONS.by_name}


def divided(what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a schedule, those of each push together as ``options``.

    Raises ``TypeError`` for others, given to ``what``.
    """
    PUT_SCHEDULE.check_names(what, options)
    own = {name: value for name, value in options.items() if name not in OPTIONS.by_name}
    return {**own, "options": {name: value for name, value in options.items() if name in OPTIONS.by_name}}


def with_progress(entry: StoredSchedule, progress: Progress) -> StoredSchedule:
    """Return the same schedule with what is stored of its moments."""
    last, lost = (None if ms is None else from_ms(ms) for ms in (progress.last, progress.lost))
    return replace(entry, last=last, last_loss=lost, losses=progress.losses)


def moments_of(schedule: Schedule) -> dict[str, Any] | None:
    """Return ``when``, ``offset`` and ``zone`` of a schedule, None if these cannot be stored."""
    match schedule:
        case Period(period_ms, offset_ms):
            return {"when": period_ms / 1000, "offset": offset_ms / 1000, "zone": None}
        case Cron(expression, ZoneInfo(key=str(zone))):
            return {"when": expression, "offset": 0.0, "zone": zone}
        case Cron(expression, zone) if zone is UTC:
            return {"when": expression, "offset": 0.0, "zone": None}
        case _:
            return None


def mark_of(entry: StoredSchedule) -> str:
    """Return the mark of a declaration in code: another one if anything of it is changed."""
    options = json.dumps(dict(entry.options), sort_keys=True)
    said = repr((entry.when, entry.offset, entry.zone, entry.catch_up, entry.missed, options, entry.payload))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Timetable:
    """All schedules that a namespace stores.  Every change makes another value.

    ``unknown``: fields of the whole that a later release has added, ``unknown_of``: those of a schedule, while there is
    one of its name; kept when this release writes.  ``unreadable``: stored schedules that cannot be read, kept until
    one of that name is stored or removed.  The changes raise ``ConfigError`` for what is there already, or is not, and
    for too many schedules.
    """

    entries: Mapping[Key, StoredSchedule] = field(default_factory=dict[Key, StoredSchedule])
    unknown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unknown_of: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict[Key, Mapping[str, Any]])
    unreadable: Sequence[object] = ()

    def get(self, key: Key) -> StoredSchedule:
        """Return a schedule.  Raises ``ConfigError`` if there is none."""
        if (entry := self.entries.get(key)) is None:
            names = ", ".join(repr(each.name) for each in self.entries if each.queue == key.queue) or "none"
            raise ConfigError(f"there is no {key}; that queue has: {names}; nothing was changed")
        return entry

    def added(self, entry: StoredSchedule, *, replacing: bool = False) -> Timetable:
        """Add a schedule under a name that is free, or in the place of the one of that name, whose pause holds."""
        if replacing and (old := self.entries.get(entry.key)):
            new = replace(entry, paused=old.paused, mark=old.mark)
            return self if replace(new, since=old.since) == old else self._with(new)
        if old := self.entries.get(entry.key):
            if old == entry:  # by this call itself, whose answer was lost: no other has its ``since``
                return self
            raise ConfigError(f"there is a {entry.key} already: change it, or use another name; nothing was changed")
        return self._with(entry)

    def changed(self, key: Key, changes: Mapping[str, Any], at: datetime) -> Timetable:
        """Change a schedule; moments up to ``at`` are not pushed any more."""
        old = self.get(key)
        if "when" in changes:  # an offset and a zone belong to one kind of schedule, so they do not outlive the other
            changes = {"offset": 0.0, "zone": None, **changes}
        changes = {**changes, "options": {**old.options, **changes.get("options", {})}}
        return self._with(checked(replace(old, **changes, since=at)))

    def paused(self, key: Key) -> Timetable:
        """Pause a schedule."""
        return self._with(replace(self.get(key), paused=True))

    def resumed(self, key: Key, at: datetime) -> Timetable:
        """End the pause of a schedule, if there is one; moments up to ``at`` are not pushed any more."""
        old = self.get(key)
        return self._with(replace(old, paused=False, since=at)) if old.paused else self

    def removed(self, key: Key, *, seen: bool = False) -> Timetable:
        """Remove a schedule.  ``seen``: it was there when this call began, so it need not be there any more."""
        unreadable = self._unreadable_but(key)
        if key not in self.entries and len(unreadable) < len(self.unreadable):
            return replace(self, unreadable=unreadable)
        if seen and key not in self.entries:
            return self
        self.get(key)
        entries, unknown_of = dict(self.entries), dict(self.unknown_of)
        unknown_of.pop(key, None)
        del entries[key]
        return replace(self, entries=entries, unknown_of=unknown_of, unreadable=unreadable)

    def declared(self, entry: StoredSchedule) -> Timetable:
        """Store what code declares, unless the schedule was made of the same declaration; a pause holds.

        ``entry.since``: the present, from which on a new schedule, or one with other moments, is pushed.
        """
        old = self.entries.get(entry.key)
        if old is None:
            return self._with(entry)
        if old.mark == entry.mark:
            return self
        is_as_before = (old.when, old.offset, old.zone) == (entry.when, entry.offset, entry.zone)
        return self._with(replace(entry, paused=old.paused, since=old.since if is_as_before else entry.since))

    def _with(self, entry: StoredSchedule) -> Timetable:
        unreadable = self._unreadable_but(entry.key)
        table = replace(self, entries={**self.entries, entry.key: entry}, unreadable=unreadable)
        if len(table.entries) > SCHEDULES_MAX:
            raise ConfigError(
                f"this namespace stores {SCHEDULES_MAX:,} schedules, which is the most: remove some that are no longer "
                "needed (`zkrq schedules list`, `zkrq schedules remove`); nothing was changed"
            )
        return table

    def _unreadable_but(self, key: Key) -> Sequence[object]:
        """Return the schedules that cannot be read, without those of this queue and name."""
        return tuple(each for each in self.unreadable if _key_of(each) != key)


def _key_of(value: object) -> tuple[object, object] | None:
    """Return the queue and the name in a schedule that cannot be read, None if it has none."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, object]", value)
    return fields.get("queue"), fields.get("name")
