"""Compute the moments of a schedule, and the ids of its items, without a clock.

The id of such an item is made of the schedule's name and the moment.  So the item exists once, however many processes
push it, and no process has to be elected.  The id carries its moment as other ids carry the time at which they were
made.  The servers refuse it when it comes too late (see ``ids.py``), and they remember removed items for longer than
that.  So a process that was asleep cannot repeat a moment whose item is done (the receipt says ``done``).

A schedule whose ``catch_up`` is longer than such an id is accepted (``ID_CATCH_UP``) pushes every item under a key of
its moment, with a window that is longer than ``catch_up``: whatever becomes of the item, no second one of that moment
is accepted.  A moment that is too late for its id is pushed under another id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from zkrq.base.checks import Duration, check_duration, check_moment
from zkrq.base.errors import ConfigError
from zkrq.base.ids import MARK, id_of_copy
from zkrq.operations.schedules import ID_CATCH_UP, MIN_PERIOD, PUT_SCHEDULE
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.recurring import Missed, Row

WINDOW_MORE = 2 * PUT_WINDOW
"""Seconds by which the window of a moment's key outlasts ``catch_up``: clocks differ, and pushes are in flight."""

CATCH_UP_MOMENTS = 10_080
"""Moments that a ``catch_up`` of more than ``ID_CATCH_UP`` spans at most: those of a week, once a minute."""

PATTERN = 70
"""Moments of a cron expression by which it is judged how close together they come."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(Protocol):
    """Define a series of moments."""

    def after(self, moment: datetime, /) -> datetime:
        """Return the first one that is later than this."""
        ...

    @property
    def closest(self) -> float:
        """Least number of seconds between two moments, as far as is known without a look at all of them."""
        ...

    def row(self, after: int, until: int, /) -> Row | None:
        """Return the moments after one and up to another, in milliseconds; None: none, or they have to be walked."""
        ...


@dataclass(frozen=True, slots=True)
class Period:
    """The multiples of a period since 1970, in UTC, plus an offset."""

    period_ms: int
    offset_ms: int

    def __str__(self) -> str:
        offset = f" + {self.offset_ms / 1000:g} s" if self.offset_ms else ""
        return f"every {self.period_ms / 1000:g} s{offset}"

    def after(self, moment: datetime, /) -> datetime:
        since_ms = (moment - EPOCH) // timedelta(milliseconds=1) - self.offset_ms
        count = since_ms // self.period_ms + 1
        return EPOCH + timedelta(milliseconds=count * self.period_ms + self.offset_ms)

    @property
    def closest(self) -> float:
        return self.period_ms / 1000

    def row(self, after: int, until: int, /) -> Row | None:
        first, last = ((edge - self.offset_ms) // self.period_ms for edge in (after, until))
        if last <= first:
            return None
        return Row((first + 1) * self.period_ms + self.offset_ms, last * self.period_ms + self.offset_ms, last - first)


@dataclass(frozen=True, slots=True)
class Cron:
    """The moments of a cron expression, by the clocks of a time zone."""

    expression: str
    zone: tzinfo

    def __str__(self) -> str:
        return f"{self.expression} ({self.zone})"

    def after(self, moment: datetime, /) -> datetime:
        # Compare in UTC, because Python compares two times of one zone by their wall clocks.  After a clock is set
        # back, the iterator may begin with a moment that has passed.
        start = moment.astimezone(UTC)
        for found in _cronsim(self.expression, moment.astimezone(self.zone)):
            if found.astimezone(UTC) > start:
                return found
        raise ConfigError(f"{self.expression!r} has no moment within 50 years")

    @property
    def closest(self) -> float:
        first = list(islice(_cronsim(self.expression, EPOCH), PATTERN))
        return min((later - earlier).total_seconds() for earlier, later in pairwise(first))

    def row(self, after: int, until: int, /) -> Row | None:
        return None


def _cronsim(expression: str, start: datetime) -> Iterator[datetime]:
    try:
        import cronsim
    except ImportError as error:
        raise ConfigError("cron expressions need cronsim: install zkrq[cron]") from error
    try:
        return cronsim.CronSim(expression, start)
    except cronsim.CronSimError as error:
        raise ConfigError(f"{expression!r} is not a cron expression: {error}") from error


def read_schedule(when: Duration | str, *, offset: Duration = 0.0, zone: tzinfo | str | None = None) -> Schedule:
    """Read the schedule that ``every`` describes.  Raises ``ConfigError``."""
    offset_seconds = check_duration("offset", offset)
    if isinstance(when, str):
        if offset_seconds:
            raise ConfigError("offset is for a period in seconds, not for a cron expression")
        cron = Cron(" ".join(when.split()), _read_zone(zone))
        cron.after(EPOCH)
        return cron
    if zone is not None:
        raise ConfigError("zone is for a cron expression, not for a period in seconds")
    seconds = check_duration("the period", when)
    if seconds < MIN_PERIOD:
        raise ConfigError(f"the period is {seconds:g} s: must be at least {MIN_PERIOD:g} s")
    if offset_seconds >= seconds:
        raise ConfigError(f"offset is {offset_seconds:g} s: must be less than the period, {seconds:g} s")
    return Period(round(seconds * 1000), round(offset_seconds * 1000))


def _read_zone(zone: tzinfo | str | None) -> tzinfo:
    """Return a time zone, or the one of this name.  Raises ``ConfigError``."""
    if not isinstance(zone, str):
        return zone or UTC
    try:
        return ZoneInfo(zone)
    except (OSError, ValueError, ZoneInfoNotFoundError) as error:
        raise ConfigError(
            f"zone is {zone!r}: no time zone of that name is known here; a name is like 'Europe/Berlin', and a system "
            "without time zones needs `pip install tzdata`"
        ) from error


def next_moments(
    when: Duration | str, after: datetime, count: int = 1, *, offset: Duration = 0.0, zone: tzinfo | str | None = None
) -> list[datetime]:
    """Return the first ``count`` moments of a schedule that are later than ``after``, as ``Cluster.every`` would push.

    Raises ``ConfigError`` for a bad schedule, or an ``after`` without a time zone.
    """
    schedule = read_schedule(when, offset=offset, zone=zone)
    moments: list[datetime] = []
    moment = check_moment("after", after)
    while len(moments) < count:
        moment = schedule.after(moment)
        moments.append(moment)
    return moments


def latest(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """Return the last moment that is later than ``after`` and not later than ``until``, or None."""
    found: datetime | None = None
    until = until.astimezone(UTC)
    while (moment := schedule.after(found or after)) <= until:
        found = moment
    return found


def walk(schedule: Schedule, after: int, until: int, most: int) -> tuple[list[int], bool]:
    """Return the first moments after one and up to another, at most ``most``, and whether there are more."""
    found: list[int] = []
    moment, end = from_ms(after), from_ms(until)
    while (moment := schedule.after(moment)) <= end:
        if len(found) == most:
            return found, True
        found.append(to_ms(moment))
    return found, False


def to_ms(moment: datetime) -> int:
    """Return the milliseconds since 1970."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def from_ms(ms: int) -> datetime:
    """Return the moment that is these milliseconds after 1970 began, in UTC."""
    return EPOCH + timedelta(milliseconds=ms)


def moment_id(name: str, moment: datetime) -> str:
    """Return the id under which a schedule of this name pushes the item of a moment.

    It carries the moment: servers refuse it when it comes more than 300 seconds late, and remember for longer that its
    item is done.  So any number of programs that push under it push one item.  Moments differ by milliseconds at least.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{MARK}{to_ms(moment):011x}-{digest[:8]}-{digest[8:24]}"


def key_of(name: str, moment: datetime) -> str:
    """Make the key of a schedule's item, which is also its id where it is too late for ``moment_id``."""
    return id_of_copy("schedule", name, moment.astimezone(UTC).isoformat())


def check_catch_up(seconds: Duration) -> float:
    """Return the seconds by which a moment may be late.  Raises ``ConfigError``."""
    return PUT_SCHEDULE.by_name["catch_up"].kind.check("catch_up", seconds)


def check_span(schedule: Schedule, catch_up: float) -> None:
    """Raise ``ConfigError`` if more moments are within ``catch_up`` than the servers are to remember the keys of."""
    if catch_up <= ID_CATCH_UP:
        return
    count = catch_up / schedule.closest
    if count > CATCH_UP_MOMENTS:
        most = max(ID_CATCH_UP, CATCH_UP_MOMENTS * schedule.closest)
        raise ConfigError(
            f"catch_up is {catch_up:g} s, in which {count:,.0f} moments may come ({schedule}), and at most "
            f"{CATCH_UP_MOMENTS:,} are remembered: give at most {most:g} s"
        )


def check_missed(missed: str) -> Missed:
    """Return which missed moments are pushed late.  Raises ``ConfigError``."""
    return PUT_SCHEDULE.by_name["missed"].kind.check("missed", missed)
