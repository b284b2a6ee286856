"""Recurring pushes: every process that declares one computes the same moments, and pushes under the same ids.

The id of such an item is made of the schedule's name and the moment.  So the item exists once, however many processes
push it, and no process has to be elected.  The id carries its moment as other ids carry the time at which they were
made.  The servers refuse it when it comes too late (see ``ids.py``), and they remember removed items for longer than
that.  So a process that was asleep cannot repeat a moment whose item is done (the receipt says ``done``); hence the
bound of ``catch_up``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from zkrq.base.checks import Duration, check_duration, check_id, check_moment
from zkrq.base.clock import now
from zkrq.base.errors import Closed, CodecError, ConfigError, NotLetIn, PayloadTooLarge, ZkrqError
from zkrq.base.ids import MARK
from zkrq.base.pauses import doubled
from zkrq.protocol.clocks import PUT_WINDOW

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.client.queue import Queue

T = TypeVar("T")

MIN_PERIOD = 0.1
"""Least number of seconds between two moments."""

MIN_CATCH_UP, MAX_CATCH_UP = 1.0, PUT_WINDOW - 60
"""Bounds of the seconds by which a moment may be late; later, servers whose clocks are ahead would refuse the push."""

LOOK_SECONDS = 30.0
"""Seconds after which a process that waits for a moment looks at the clock again, because it may have been set."""

FIRST_PAUSE, MAX_PAUSE = 0.25, 5.0
"""Seconds before a push is retried, doubled from the first value up to the second."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LASTING = (ConfigError, CodecError, PayloadTooLarge)
"""Errors that a retry of the same push would meet again."""

_log = logging.getLogger("zkrq.producing.schedules")


# -- moments, without a clock --------------------------------------------------------------------------------------


class Schedule(Protocol):
    """Define a series of moments."""

    def after(self, moment: datetime, /) -> datetime:
        """Return the first one that is later than this."""
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


def id_of(name: str, moment: datetime) -> str:
    """Make the id of a schedule's item, in the format of ``ids.py``, so that it carries the moment."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{MARK}{(moment - EPOCH) // timedelta(milliseconds=1):011x}-{digest[:8]}-{digest[8:24]}"


# -- pushing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan(Generic[T]):
    """What is pushed and when; ``catch_up``: how late at most, by ``clock``."""

    schedule: Schedule
    item: T | Callable[[datetime], T]
    name: str
    priority: int
    catch_up: timedelta
    clock: Callable[[], datetime]

    def item_of(self, moment: datetime) -> T:
        """Return the item of a moment, which the user's function may make."""
        return cast("Callable[[datetime], T]", self.item)(moment) if callable(self.item) else self.item


class Recurring(Generic[T]):
    """A declared schedule.  It pushes at each moment until it is cancelled or the cluster is closed.

    ``async with`` cancels it at its end.
    """

    def __init__(self, queue: Queue[T], plan: _Plan[T], tasks: Tasks, forget: Callable[[], object]) -> None:
        """Start pushing; ``forget`` is called when it is cancelled.  Users declare one with ``Cluster.every``."""
        self.name = name = plan.name
        self.queue = queue
        self.last: datetime | None = None
        """The last moment that this process pushed or gave up.  None: none yet, or the clock was set back since."""
        self._plan = plan
        self._extra = {"queue": queue.name}
        self._forget: Callable[[], object] | None = forget
        self._task = tasks.supervise(self._run, f"recurring {name}")

    def __repr__(self) -> str:
        state = "cancelled" if self._task.done() else "running"
        return f"<Recurring {self.name!r} into {self.queue.name!r}, {self._plan.schedule}, {state}>"

    def cancel(self) -> None:
        """Push no more.  Idempotent.  A push in flight may still arrive; other processes continue."""
        self._task.cancel()
        if self._forget:
            forget, self._forget = self._forget, None
            forget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        await asyncio.wait([self._task])

    def _due(self, present: datetime) -> datetime | None:
        """Return the moment to push now: the last one, unless it was pushed or is too long ago.

        A pushed moment in the future was read from a clock that has been set back since, so it is forgotten.  Moments
        that were pushed by that clock may be pushed again: their ids prevent duplicates.
        """
        if self.last and self.last > present:
            _log.warning("recurring %s: the clock was set back from %s", self.name, self.last, extra=self._extra)
            self.last = None
        start = present - self._plan.catch_up
        return latest(self._plan.schedule, max(self.last, start) if self.last else start, present)

    async def _run(self) -> None:
        failures = 0
        tried: datetime | None = None
        while True:
            present = self._plan.clock()
            moment = self._due(present)
            if tried and tried != moment:
                _log.warning("recurring %s: %s was missed here", self.name, tried, extra=self._extra)
                tried, failures = None, 0
            if moment is None:
                ahead = self._plan.schedule.after(max(self.last, present) if self.last else present) - present
                await asyncio.sleep(min(ahead.total_seconds(), LOOK_SECONDS))
            elif await self._push(moment):
                self.last, tried, failures = moment, None, 0
            else:  # before the retry a later moment may take its place
                tried = moment
                await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
                failures += 1

    async def _push(self, moment: datetime) -> bool:
        """Push the item of a moment; return whether the moment needs no more work."""
        try:
            item = (
                cast("Callable[[datetime], T]", self._plan.item)(moment)
                if callable(self._plan.item)
                else self._plan.item
            )
            await self.queue.push(item, id=id_of(self.name, moment), priority=self._plan.priority)
        except Closed:
            self.cancel()
        except NotLetIn as error:  # until a password is corrected, or is valid on all servers
            _log.warning("recurring %s: pushing %s failed, retrying: %s", self.name, moment, error, extra=self._extra)
            return False
        except _LASTING:
            _log.exception("recurring %s: nothing was pushed here for %s", self.name, moment, extra=self._extra)
        except ZkrqError as error:  # full, too few servers, no answer: all of these may pass
            _log.warning("recurring %s: pushing %s failed, retrying: %s", self.name, moment, error, extra=self._extra)
            return False
        except Exception:  # of the user's function
            _log.exception("recurring %s: nothing was pushed here for %s", self.name, moment, extra=self._extra)
        return True


class Schedules:
    """Keep the schedules that one cluster object has declared."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._declared: dict[tuple[str, str], Recurring[Any]] = {}

    def declare(
        self,
        schedule: Schedule,
        queue: Queue[T],
        item: T | Callable[[datetime], T],
        *,
        name: str | None = None,
        catch_up: Duration = MAX_CATCH_UP,
        priority: int = 0,
        clock: Callable[[], datetime] = now,
    ) -> Recurring[T]:
        """Declare a schedule and start it; see ``Cluster.every``."""
        late = check_duration("catch_up", catch_up)
        if not MIN_CATCH_UP <= late <= MAX_CATCH_UP:
            raise ConfigError(f"catch_up is {late:g} s: must be {MIN_CATCH_UP:g} to {MAX_CATCH_UP:g} s")
        name = _name(schedule, item) if name is None else check_id("name", name)
        key = queue.name, name
        if key in self._declared:
            raise ConfigError(f"{name!r} is declared for queue {queue.name!r} here already: it would be pushed once")
        plan = _Plan(schedule, item, name, priority, timedelta(seconds=late), clock)
        recurring = Recurring(queue, plan, self._tasks, lambda: self._declared.pop(key, None))
        self._declared[key] = recurring
        return recurring


def _name(schedule: Schedule, item: object) -> str:
    """Make a name that is the same in every process."""
    try:
        text = item.hex() if isinstance(item, bytes) else json.dumps(item, sort_keys=True)
    except (TypeError, ValueError):
        raise ConfigError(
            "give it a name: a name that is the same in every process can be made only for bytes and JSON values"
        ) from None
    return f"{schedule}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"
