"""Recurring pushes: every process that declares one walks the same moments, and pushes under the same ids.

See ``moments.py`` for why no process is elected, and ``protocol/recurring.py`` for which moments are pushed.  A
schedule with a name is stored, too (``timetable.py``), so that operators see it, change it and pause it: its processes
follow what is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, cast

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
from zkrq.client.moments import (
    ID_CATCH_UP,
    WINDOW_MORE,
    Schedule,
    check_catch_up,
    check_missed,
    check_span,
    from_ms,
    key_of,
    latest,
    moment_id,
    to_ms,
    walk,
)
from zkrq.client.queue import encode_with, push_encoded
from zkrq.client.timetable import ITEM_MAX, Key, StoredSchedule, check_options, mark_of, moments_of
from zkrq.client.walker import Walker
from zkrq.operations.push import RepeatedOptions, once
from zkrq.operations.schedules import CATCH_UP, OPTIONS
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.recurring import LOSSES_MAX, Course, Loss, Missed, Terms

if TYPE_CHECKING:
    from zkrq.base.errors import Receipt
    from zkrq.base.tasks import Tasks
    from zkrq.client.moment_reports import MomentReports
    from zkrq.client.queue import Queue
    from zkrq.client.schedule_store import ScheduleStore
    from zkrq.operations.push import PushOptions

T = TypeVar("T")

LOOK_SECONDS = 30.0
"""Seconds after which a process that waits for a moment looks at the clock again, because it may have been set."""

FIRST_PAUSE, MAX_PAUSE = 0.25, 5.0
"""Seconds before a push is retried, doubled from the first value up to the second."""

SET_BACK_MS = 1_000
"""Milliseconds by which the clock has to be set back for moments to be decided again."""

PUSHES_MAX = 50
"""Moments of a schedule of which the pushes are in flight at the same time."""

ID_CATCH_UP_MS = round(ID_CATCH_UP * 1000)

_LASTING = (ConfigError, CodecError, PayloadTooLarge)
"""Errors that a retry of the same push would meet again."""

_log = logging.getLogger("zkrq.producing.schedules")


@dataclass(frozen=True, slots=True)
class _Plan(Generic[T]):
    """What is pushed and when, by ``clock``."""

    schedule: Schedule
    item: T | Callable[[datetime], T]
    name: str
    options: RepeatedOptions
    terms: Terms
    clock: Callable[[], datetime] = now
    payload: bytes | None = None
    """The encoded item that an operator has given, instead of ``item``."""
    since: datetime | None = None
    """Moments up to this one are not pushed."""

    @property
    def is_keyed(self) -> bool:
        """Whether moments may be late for their ids, so that each has a key."""
        return self.terms.catch_up > ID_CATCH_UP_MS

    def item_of(self, moment: datetime) -> T:
        """Return the item of a moment, which the user's function may make."""
        return cast("Callable[[datetime], T]", self.item)(moment) if callable(self.item) else self.item


class Recurring(Generic[T]):
    """A declared schedule.  It pushes at each moment until it is cancelled or the cluster is closed.

    ``async with`` cancels it at its end.
    """

    def __init__(
        self,
        queue: Queue[T],
        plan: _Plan[T],
        tasks: Tasks,
        reports: MomentReports | None,
        forget: Callable[[], object],
        stored: Stored | None,
    ) -> None:
        """Start pushing.  Users declare one with ``Cluster.every``.

        ``forget`` is called when it is cancelled.  ``stored``: what is stored of it, None: nothing.  ``reports``: where
        losses are reported, None: nowhere.
        """
        self.name = name = plan.name
        self.queue = queue
        self.last: datetime | None = None
        """The last moment that this process pushed or gave up.  None: none yet, or the clock was set back since."""
        self._walker = Walker(queue, name, stored and stored.entry.key, plan.is_keyed, self._look_at_clock)
        self._declared = self._plan = plan
        self._stored = stored
        self._halted = False
        self._changed = asyncio.Event()
        self._extra = {"queue": queue.name}
        self._forget: Callable[[], object] | None = forget
        self._tasks = tasks
        self._reports = reports
        self._pushes = dict[int, asyncio.Task[Any]]()
        self._latest = 0
        """The latest time that the clock has shown."""
        self._task = tasks.supervise(self._run, f"recurring {name}")
        if reports:
            reports.add(self._walker)

    def __repr__(self) -> str:
        state = "cancelled" if self._task.done() else "paused" if self._halted else "running"
        return f"<Recurring {self.name!r} into {self.queue.name!r}, {self._plan.schedule}, {state}>"

    def cancel(self) -> None:
        """Push no more.  Idempotent.  A push in flight may still arrive; other processes continue."""
        self._task.cancel()
        self._stop_pushes()
        if self._forget:
            forget, self._forget = self._forget, None
            forget()
            if self._reports:
                self._reports.remove(self._walker)

    def _stop_pushes(self) -> None:
        for push in self._pushes.values():
            push.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()
        await asyncio.wait([self._task, *self._pushes.values()])

    async def _run(self) -> None:
        stop = self._stored.store.follow(self._changed.set) if self._stored else None
        try:
            if self._stored:
                await self._enter(self._stored)
            await self._walk()
        finally:
            self._stop_pushes()
            if stop:
                stop()

    # -- what is stored ------------------------------------------------------------------------------------------------

    async def _enter(self, stored: Stored) -> None:
        """Store the declaration before the first push, because an operator may have paused the schedule; read up to
        when its moments are done."""
        failures = 0
        while self._stored:
            try:
                if stored.entry.declared:
                    # What ZooKeeper has lost begins where this process was, so no moment in between is left out.
                    since = from_ms(self._walker.course.done) if self._walker.course else self._plan.clock()
                    await stored.store.declare(replace(stored.entry, since=since))
                    stored.begun = stored.store.begun
                await self._read_progress(stored)
                break
            except (NotLetIn, Unavailable) as error:
                _log.warning("recurring %s: nothing is pushed yet: %s", self.name, error, extra=self._extra)
            except ConfigError:
                _log.exception("recurring %s: it cannot be paused or changed", self.name, extra=self._extra)
                self._stored = self._walker.key = None
                break
            await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
            failures += 1

    async def _read_progress(self, stored: Stored) -> None:
        """Begin after the moments that are done.  Raises ``Unavailable``, ``NotLetIn``."""
        if self._reports is None:
            return
        try:
            progress = (await self._reports.read()).get(stored.entry.key)
        except ConfigError:
            _log.exception("recurring %s: up to when it has pushed is not known", self.name, extra=self._extra)
            return
        bound = to_ms(self._plan.clock()) + PUT_WINDOW_MS
        if progress and progress.done <= bound:
            self._walker.course = self._walker.course or Course(progress.done)
            self._walker.course.learn(progress, bound)

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
                options=_options_of(entry),
                terms=terms_of(entry.catch_up, entry.missed),
                payload=None if entry.payload == stored.entry.payload and entry.declared else entry.payload,
                since=entry.since,
            )
        except ConfigError:  # of another client's cron expression, for which this process lacks what it needs
            _log.exception("recurring %s: its moments are not known here", self.name, extra=self._extra)
            self._halted = True
            return
        stored.followed, self._walker.is_keyed = entry, self._plan.is_keyed

    # -- the walk ------------------------------------------------------------------------------------------------------

    async def _walk(self) -> None:
        if self._walker.course:
            self._walker.course.resume()
        while True:
            self._changed.clear()
            if self._stored and self._stored.is_lost:
                await self._enter(self._stored)
            if self._stored:
                self._look(self._stored)
            room = PUSHES_MAX - len(self._pushes)
            if self._halted or room <= 0:
                await wait_set(self._changed, LOOK_SECONDS)
                continue
            present = to_ms(self._plan.clock())
            course = self._follow(present)
            if self._take(course, present, room):
                await asyncio.sleep(0)
                continue
            ahead = to_ms(self._plan.schedule.after(from_ms(max(course.walked, present)))) - present
            await wait_set(self._changed, min(ahead / 1000, LOOK_SECONDS))

    def _follow(self, present: int) -> Course:
        """Return the course of the moments, as it is to go on at present."""
        plan, course = self._plan, self._walker.course
        reach = min(plan.terms.catch_up, ID_CATCH_UP_MS)
        if course is None and plan.since:
            course = self._walker.course = Course(to_ms(plan.since))
        elif course is None:
            # Nothing says which moments were pushed before this process began, so the last one is, once more.
            last = latest(plan.schedule, from_ms(present - reach), from_ms(present))
            course = self._walker.course = Course(to_ms(last) - 1 if last else present)
        if present < self._latest - SET_BACK_MS:
            at = from_ms(self._latest)
            _log.warning("recurring %s: the clock was set back from %s", self.name, at, extra=self._extra)
            course.go_back(present, reach)
            self.last, self._latest = None, present
            self._changed.set()
        self._latest = max(self._latest, present)
        if plan.since:
            course.skip_to(to_ms(plan.since))
        return course

    def _look_at_clock(self) -> None:
        self._follow(to_ms(self._plan.clock()))

    def _take(self, course: Course, present: int, room: int) -> bool:
        """Begin to push moments that have come; return whether there are more."""
        terms, schedule, time = self._plan.terms, self._plan.schedule, asyncio.get_running_loop().time()
        had_losses = course.found_at is not None
        late = schedule.row(course.walked, present - terms.latest)
        if late and late.size > LOSSES_MAX:
            course.skip(late, time)
        due, more = walk(schedule, course.walked, present, room)
        for moment in course.take(due, present, terms, now=time, more=more):
            self._tasks.start(self._carry(course, moment), f"push of {self.name}")
        if course.found_at is not None and not had_losses:
            self._call_reports()
        return more

    def _call_reports(self) -> None:
        if self._reports:
            self._reports.call()

    # -- one moment ----------------------------------------------------------------------------------------------------

    async def _carry(self, course: Course, moment: int) -> None:
        """Push the item of a moment, and retry that until the moment is overdue."""
        failures, task = 0, asyncio.current_task()
        assert task
        self._pushes[moment] = task
        try:
            while not await self._push(course, moment):
                await asyncio.sleep(doubled(FIRST_PAUSE, failures, most=MAX_PAUSE))
                failures += 1
                plan, present = self._plan, to_ms(self._plan.clock())
                is_expected = not self._halted and (plan.since is None or from_ms(moment) > plan.since)
                if not is_expected or moment <= course.known:
                    return course.drop(moment)
                if loss := course.overdue(moment, present, plan.terms):
                    self._lose(course, moment, loss)
                    break
            at = from_ms(moment)
            self.last = at if self.last is None else max(self.last, at)
        finally:
            del self._pushes[moment]
            self._changed.set()

    async def _push(self, course: Course, moment: int) -> bool:
        """Push the item of a moment; return whether the moment needs no more work."""
        at, is_first = from_ms(moment), moment == min(self._pushes)
        try:
            receipt = await self._push_item(at)
            course.pushed(moment)
            # Of a key that the schedule has, the duplicate may be of a moment that no process has stored yet.
            is_of_another = self._plan.is_keyed if receipt.duplicate else receipt.new is False
            if not is_of_another:  # which stores it
                self._call_reports()
        except Closed:
            self.cancel()
        except NotLetIn as error:  # until a password is corrected, or is valid on all servers
            return self._failed(at, error, is_first)
        except _LASTING:
            _log.exception("recurring %s: nothing was pushed here for %s", self.name, at, extra=self._extra)
            self._lose(course, moment, Loss.FAILED)
        except ZkrqError as error:  # full, too few servers, no answer: all of these may pass
            return self._failed(at, error, is_first)
        except Exception:  # of the user's function
            _log.exception("recurring %s: nothing was pushed here for %s", self.name, at, extra=self._extra)
            self._lose(course, moment, Loss.FAILED)
        return True

    def _failed(self, at: datetime, error: ZkrqError, is_first: bool) -> bool:
        if is_first:  # the others fail for the same reason
            _log.warning("recurring %s: pushing %s failed, retrying: %s", self.name, at, error, extra=self._extra)
        return False

    def _lose(self, course: Course, moment: int, loss: Loss) -> None:
        course.lose(moment, loss, asyncio.get_running_loop().time())
        self._call_reports()

    async def _push_item(self, moment: datetime) -> Receipt:
        plan = self._plan
        options: PushOptions = {**plan.options, "id": moment_id(self.name, moment)}
        if plan.is_keyed:
            key = key_of(self.name, moment)
            options |= once(key, plan.terms.catch_up / 1000 + WINDOW_MORE)
            if to_ms(plan.clock()) - to_ms(moment) > ID_CATCH_UP_MS:
                options["id"] = key
        if plan.payload is not None:
            return await push_encoded(self.queue, plan.payload, **options)
        return await self.queue.push(_item_of(plan, moment), **options)


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


class DeclareOptions(RepeatedOptions, total=False):
    """Options of a declaration; their meanings are those of ``Cluster.every``.  ``clock``: for tests."""

    catch_up: Duration
    missed: Missed
    clock: Callable[[], datetime]


def _options_of(entry: StoredSchedule) -> RepeatedOptions:
    return cast("RepeatedOptions", {**entry.options})


def terms_of(catch_up: float, missed: Missed) -> Terms:
    """Return how late moments may be, given in seconds."""
    return Terms(round(catch_up * 1000), missed)


class Schedules:
    """Keep the schedules that one cluster object has declared."""

    def __init__(self, tasks: Tasks, store: ScheduleStore | None = None, reports: MomentReports | None = None) -> None:
        """``store``: of the schedules of the namespace; None: none is stored.  ``reports``: of their moments."""
        self._tasks = tasks
        self._store = store
        self._reports = reports
        self._declared: dict[Key, Recurring[Any]] = {}

    async def aclose(self) -> None:
        """End all of them, and store up to when their moments are done.  Raises ``ZkrqError`` if that is not stored."""
        for recurring in tuple(self._declared.values()):
            recurring.cancel()
        if self._reports:
            await self._reports.flush()

    def declare(
        self,
        schedule: Schedule,
        queue: Queue[T],
        item: T | Callable[[datetime], T],
        *,
        name: str | None = None,
        **options: Unpack[DeclareOptions],
    ) -> Recurring[T]:
        """Declare a schedule and start it; see ``Cluster.every``."""
        late, missed = check_catch_up(options.get("catch_up", CATCH_UP)), check_missed(options.get("missed", "last"))
        check_span(schedule, late)
        given = {each: value for each, value in options.items() if each in OPTIONS.by_name}
        pushes = cast("RepeatedOptions", check_options(given, late))
        named = name is not None
        name = _name(schedule, item) if name is None else check_id("name", name)
        key = Key(queue.name, name)
        if key in self._declared:
            raise ConfigError(f"{name!r} is declared for queue {queue.name!r} here already: it would be pushed once")
        terms, clock = terms_of(late, missed), options.get("clock", now)
        plan = _Plan(schedule, item, name, pushes, terms, clock)
        stored = self._stored(queue, plan) if named else None
        recurring = Recurring(queue, plan, self._tasks, self._reports, lambda: self._declared.pop(key, None), stored)
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
            catch_up=plan.terms.catch_up / 1000,
            missed=plan.terms.missed,
            options=dict(plan.options),
            payload=payload,
        )
        return Stored(self._store, replace(entry, mark=mark_of(entry)))

    def run_stored(self, queue: Queue[Any], entry: StoredSchedule) -> Recurring[Any]:
        """Push the items of a schedule that was added at run time, until this is cancelled."""
        terms = terms_of(entry.catch_up, entry.missed)
        plan: _Plan[Any] = _Plan(entry.schedule, None, entry.name, _options_of(entry), terms)
        store = cast("ScheduleStore", self._store)
        return Recurring(queue, plan, self._tasks, self._reports, lambda: None, Stored(store, replace(entry, mark="")))


def _name(schedule: Schedule, item: object) -> str:
    """Make a name that is the same in every process."""
    try:
        text = item.hex() if isinstance(item, bytes) else json.dumps(item, sort_keys=True)
    except (TypeError, ValueError):
        raise ConfigError(
            "give it a name: a name that is the same in every process can be made only for bytes and JSON values"
        ) from None
    return f"{schedule}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"
