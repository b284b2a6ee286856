"""Recurring pushes: every process that declares one computes the same moments, and pushes under the same ids.

See ``moments.py`` for why no process is elected.  A schedule with a name is stored, too (``timetable.py``), so that
operators see it, change it and pause it: its processes follow what is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from zkrq.base.checks import Duration, check_id
from zkrq.base.clock import now
from zkrq.base.errors import (
    Closed,
    CodecError,
    ConfigError,
    NotLetIn,
    PayloadTooLarge,
    Unavailable,
    ZkrqError,
    message_of,
)
from zkrq.base.pauses import doubled
from zkrq.base.tasks import wait_set
from zkrq.client.moments import MAX_CATCH_UP, Schedule, check_catch_up, id_of, latest
from zkrq.client.queue import encode_with, push_encoded
from zkrq.client.timetable import ITEM_MAX, Key, StoredSchedule, mark_of, moments_of

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.client.queue import Queue
    from zkrq.client.schedule_store import ScheduleStore

T = TypeVar("T")

LOOK_SECONDS = 30.0
"""Seconds after which a process that waits for a moment looks at the clock again, because it may have been set."""

FIRST_PAUSE, MAX_PAUSE = 0.25, 5.0
"""Seconds before a push is retried, doubled from the first value up to the second."""

_LASTING = (ConfigError, CodecError, PayloadTooLarge)
"""Errors that a retry of the same push would meet again."""

_log = logging.getLogger("zkrq.producing.schedules")


@dataclass(frozen=True, slots=True)
class _Plan(Generic[T]):
    """What is pushed and when; ``catch_up``: how late at most, by ``clock``."""

    schedule: Schedule
    item: T | Callable[[datetime], T]
    name: str
    priority: int
    catch_up: timedelta
    clock: Callable[[], datetime] = now
    payload: bytes | None = None
    """The encoded item that an operator has given, instead of ``item``."""
    since: datetime | None = None
    """Moments up to this one are not pushed."""

    def item_of(self, moment: datetime) -> T:
        """Return the item of a moment, which the user's function may make."""
        return cast("Callable[[datetime], T]", self.item)(moment) if callable(self.item) else self.item


class Recurring(Generic[T]):
    """A declared schedule.  It pushes at each moment until it is cancelled or the cluster is closed.

    ``async with`` cancels it at its end.
    """

    def __init__(
        self, queue: Queue[T], plan: _Plan[T], tasks: Tasks, forget: Callable[[], object], stored: Stored | None
    ) -> None:
        """Start pushing.  Users declare one with ``Cluster.every``.

        ``forget`` is called when it is cancelled.  ``stored``: what is stored of it, None: nothing.
        """
        self.name = name = plan.name
        self.queue = queue
        self.last: datetime | None = None
        """The last moment that this process pushed or gave up.  None: none yet, or the clock was set back since."""
        self._declared = self._plan = plan
        self._stored = stored
        self._halted = False
        self._changed = asyncio.Event()
        self._extra = {"queue": queue.name}
        self._forget: Callable[[], object] | None = forget
        self._task = tasks.supervise(self._run, f"recurring {name}")

    def __repr__(self) -> str:
        state = "cancelled" if self._task.done() else "paused" if self._halted else "running"
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
        if self._plan.since:
            start = max(start, self._plan.since)
        return latest(self._plan.schedule, max(self.last, start) if self.last else start, present)

    async def _run(self) -> None:
        if self._stored is None:
            return await self._push_all()
        stop = self._stored.store.follow(self._changed.set)
        try:
            await self._enter(self._stored)
            await self._push_all()
        finally:
            stop()

    async def _enter(self, stored: Stored) -> None:
        """Store the declaration, before the first push, because an operator may have paused the schedule."""
        failures = 0
        while self._stored and stored.entry.declared:
            try:
                # What ZooKeeper has lost begins where this process was, so no moment of meanwhile is left out.
                await stored.store.declare(replace(stored.entry, since=self.last or self._plan.clock()))
                stored.begun = stored.store.begun
                break
            except (NotLetIn, Unavailable) as error:
                _log.warning("recurring %s: nothing is pushed yet: %s", self.name, error, extra=self._extra)
            except ConfigError:
                _log.exception("recurring %s: it cannot be paused or changed", self.name, extra=self._extra)
                self._stored = None
                break
            await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
            failures += 1

    def _look(self, stored: Stored) -> None:
        """Follow what is stored: the plan, and whether nothing is to be pushed."""
        entry = stored.store.known.entries.get(stored.entry.key)
        if entry is None or entry.paused or (entry.declared and not stored.entry.declared):
            self._halted = True
            return
        self._halted = False
        if entry == stored.followed:
            return
        try:
            self._plan = replace(
                self._declared,
                schedule=entry.schedule,
                priority=entry.priority,
                catch_up=timedelta(seconds=entry.catch_up),
                payload=None if entry.payload == stored.entry.payload and entry.declared else entry.payload,
                since=entry.since,
            )
        except ConfigError:  # of another client's cron expression, for which this process lacks what it needs
            _log.exception("recurring %s: its moments are not known here", self.name, extra=self._extra)
            self._halted = True
            return
        stored.followed = entry

    async def _push_all(self) -> None:
        failures = 0
        tried: datetime | None = None
        while True:
            self._changed.clear()
            if self._stored and self._stored.is_lost:
                await self._enter(self._stored)
            if self._stored:
                self._look(self._stored)
            if self._halted:
                await wait_set(self._changed, LOOK_SECONDS)
                continue
            present = self._plan.clock()
            moment = self._due(present)
            if tried and tried != moment:
                _log.warning("recurring %s: %s was missed here", self.name, tried, extra=self._extra)
                tried, failures = None, 0
            if moment is None:
                ahead = self._plan.schedule.after(max(self.last, present) if self.last else present) - present
                await wait_set(self._changed, min(ahead.total_seconds(), LOOK_SECONDS))
            elif await self._push(moment):
                self.last, tried, failures = moment, None, 0
            else:  # before the retry a later moment may take its place
                tried = moment
                await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
                failures += 1

    async def _push(self, moment: datetime) -> bool:
        """Push the item of a moment; return whether the moment needs no more work."""
        try:
            await self._push_item(id_of(self.name, moment), moment)
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

    async def _push_item(self, id: str, moment: datetime) -> None:
        plan = self._plan
        if plan.payload is None:
            await self.queue.push(_item_of(plan, moment), id=id, priority=plan.priority)
        else:
            await push_encoded(self.queue, plan.payload, id=id, priority=plan.priority)


def _item_of(plan: _Plan[T], moment: datetime) -> T:
    """Make the item of a moment.

    What the user's function raises beside exceptions would end the task, or the loop.  A ``Closed`` that it raises is
    that of another cluster, and would end this schedule.
    """
    try:
        return plan.item_of(moment)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, Closed):
            raise
        raise RuntimeError(f"the function of the item raised {message_of(error)}") from error


@dataclass(slots=True)
class Stored:
    """What is stored of a schedule: where, and as its code declares it.  ``followed``: what a process pushes by.

    ``begun``: ``ScheduleStore.begun`` when it was declared.
    """

    store: ScheduleStore
    entry: StoredSchedule
    followed: StoredSchedule | None = None
    begun: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether ZooKeeper has lost what code declared, so that nobody has removed it."""
        return self.entry.declared and self.begun != self.store.begun


class Schedules:
    """Keep the schedules that one cluster object has declared."""

    def __init__(self, tasks: Tasks, store: ScheduleStore | None = None) -> None:
        """``store``: of the schedules of the namespace; None: none is stored."""
        self._tasks = tasks
        self._store = store
        self._declared: dict[Key, Recurring[Any]] = {}

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
        late = check_catch_up(catch_up)
        named = name is not None
        name = _name(schedule, item) if name is None else check_id("name", name)
        key = Key(queue.name, name)
        if key in self._declared:
            raise ConfigError(f"{name!r} is declared for queue {queue.name!r} here already: it would be pushed once")
        plan = _Plan(schedule, item, name, priority, timedelta(seconds=late), clock)
        stored = self._stored(queue, plan) if named else None
        recurring = Recurring(queue, plan, self._tasks, lambda: self._declared.pop(key, None), stored)
        self._declared[key] = recurring
        return recurring

    def _stored(self, queue: Queue[T], plan: _Plan[T]) -> Stored | None:
        """Return what is stored of a plan, None if nothing is: an operator could not name its zone."""
        moments = moments_of(plan.schedule)
        if self._store is None or moments is None:
            return None
        payload = None
        if not callable(plan.item):
            with suppress(CodecError, PayloadTooLarge):  # which each push reports
                payload = encode_with(queue, plan.item)
        if payload is not None and len(payload) > ITEM_MAX:
            payload = None  # the code has it
        entry = StoredSchedule(
            queue.name,
            plan.name,
            **moments,
            catch_up=plan.catch_up.total_seconds(),
            priority=plan.priority,
            payload=payload,
        )
        return Stored(self._store, replace(entry, mark=mark_of(entry)))

    def run_stored(self, queue: Queue[Any], entry: StoredSchedule) -> Recurring[Any]:
        """Push the items of a schedule that was added at run time, until this is cancelled."""
        late = timedelta(seconds=entry.catch_up)
        plan: _Plan[Any] = _Plan(entry.schedule, None, entry.name, entry.priority, late)
        store = cast("ScheduleStore", self._store)
        return Recurring(queue, plan, self._tasks, lambda: None, Stored(store, replace(entry, mark="")))


def _name(schedule: Schedule, item: object) -> str:
    """Make a name that is the same in every process."""
    try:
        text = item.hex() if isinstance(item, bytes) else json.dumps(item, sort_keys=True)
    except (TypeError, ValueError):
        raise ConfigError(
            "give it a name: a name that is the same in every process can be made only for bytes and JSON values"
        ) from None
    return f"{schedule}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"
