"""Provide the schedules that a namespace stores: list, add, change, pause, resume and remove them at run time."""

from __future__ import annotations

import logging
from asyncio import Event
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast

from zkrq.base.checks import Duration, check_id, check_name
from zkrq.base.clock import now
from zkrq.base.errors import ConfigError
from zkrq.base.tasks import wait_set
from zkrq.client.queue import Queue, encode_with, push_encoded
from zkrq.client.timetable import Key, ScheduleOptions, StoredSchedule, Timetable, checked, divided, with_progress

if TYPE_CHECKING:
    from zkrq.base.errors import Receipt
    from zkrq.client.client import Client
    from zkrq.client.schedules import Recurring
    from zkrq.operations.push import PushOptions

T = TypeVar("T")

UNCHANGED = cast("Any", object())
"""Stands for an argument of ``change`` that is not given."""

LOOK_SECONDS = 30.0
"""Seconds after which a schedule that could not be read is tried again."""

_log = logging.getLogger("zkrq.producing.schedules")


class Named(Protocol):
    """Anything with the name of a queue: one of ``zkrq.Queue``, or of ``zkrq.sync.Queue``."""

    @property
    def name(self) -> str: ...


class StoredSchedules:
    """The schedules of a namespace.  Made by ``Cluster.schedules``.

    A schedule belongs to a queue and has a name there.  ZooKeeper stores it: at most 1,000 schedules, with items of up
    to 16 KiB.  Each moment's item is pushed once, however many processes push it.

    One that is **added** here is pushed by every process that runs schedules: ``zkrq worker``, ``zkrq serve``,
    ``zkrq schedules run``, and a program within ``run``.  One that **code declares** (``Cluster.every`` with a name)
    is pushed by the processes that declare it.  The code gives the defaults: a pause and a change made here hold, also
    when those processes are restarted.  When the code itself declares it otherwise than before, that replaces a change
    made here (event ``ScheduleChanged``), but a pause holds until ``resume``.  The last declaration holds for all
    processes.  One that is removed here comes back when a process that declares it starts; so pause it, or remove it
    from the code first.

    Changes reach the processes within a second.  One without ZooKeeper goes on with what it knows.  Of each schedule
    is stored up to when its moments are done: what passed while no process was there is pushed late, or reported as
    lost (``MomentsLost``).

    Every call raises ``Unavailable`` without ZooKeeper: a change may have been made, and may be repeated.  It raises
    ``ConfigError`` for bad arguments and for a schedule that there is not: nothing was changed.
    """

    def __init__(self, client: Client, open_queue: Callable[[str], Queue[Any]]) -> None:
        self._client = client
        self._open_queue = open_queue

    def __repr__(self) -> str:
        return f"<StoredSchedules of {self._client.namespace!r}>"

    async def list(self) -> Sequence[StoredSchedule]:
        """Return all of them, by queue and name."""
        self._client.check_open()
        entries = (await self._client.schedule_store.read()).entries.values()
        return sorted(await self._with_progress(*entries), key=lambda entry: entry.key)

    async def get(self, queue: Named | str, name: str) -> StoredSchedule | None:
        """Return one of them, None if there is none of that name."""
        key = self._key(queue, name)
        entry = (await self._client.schedule_store.read()).entries.get(key)
        return entry and (await self._with_progress(entry))[0]

    async def add(
        self,
        queue: Queue[T],
        name: str,
        when: Duration | str,
        item: T,
        *,
        replace: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> StoredSchedule:
        """Add a schedule: ``item`` is pushed at every moment that comes from now on.

        ``replace``: in the place of one of that name, if there is one, whose pause holds; repeated it changes nothing.

        ``when``: seconds or a cron expression; ``offset``, ``zone`` (by name), ``catch_up``, ``missed`` and the options
        of each push as for ``Cluster.every``.  Raises ``ConfigError`` if the queue has a schedule of that name and
        ``replace`` is false, ``CodecError``, ``PayloadTooLarge`` for an item of more than 16 KiB.
        """
        key = self._key(queue, name)
        at = now()
        given = divided("add()", {"when": when, **options})
        made = StoredSchedule(*key, **given, payload=encode_with(queue, item), since=at)
        entry = checked(made)
        return await self._change(key, lambda table: table.added(entry, replacing=replace))

    async def keep(self, entry: StoredSchedule) -> StoredSchedule:
        """Store a schedule whose items a program of yours pushes, in the place of one of that name, whose pause holds.

        The program recognises it by its ``mark``, which must not be empty: zkrq's own processes push nothing for it.
        Raises as ``add``.
        """
        if not entry.mark:
            raise ConfigError(f"{entry.key}: give it a mark, by which your program recognises it; nothing was changed")
        key = self._key(entry.queue, entry.name)
        kept = checked(replace(entry, since=now()))
        return await self._change(key, lambda table: table.added(kept, replacing=True))

    async def change(
        self,
        queue: Queue[T],
        name: str,
        *,
        when: Duration | str = UNCHANGED,
        item: T = UNCHANGED,
        **options: Unpack[ScheduleOptions],
    ) -> StoredSchedule:
        """Change what is given of a schedule, from now on.

        A new ``when`` without ``offset`` and ``zone`` has none.  An option of each push that is None has no value any
        more.  Of one that code declares an ``item`` replaces what
        the code pushes.  Raises as ``add``.
        """
        key = self._key(queue, name)
        changes = divided("change()", options if when is UNCHANGED else {"when": when, **options})
        if not changes["options"]:
            del changes["options"]
        if item is not UNCHANGED:
            changes["payload"] = encode_with(queue, item)
        if not changes:
            raise ConfigError(f"{key}: say what is to be changed; nothing was changed")
        at = now()
        return await self._change(key, lambda table: table.changed(key, changes, at))

    async def pause(self, queue: Named | str, name: str) -> StoredSchedule:
        """Push nothing more for a schedule, until ``resume``; also if code declares it."""
        key = self._key(queue, name)
        return await self._change(key, lambda table: table.paused(key))

    async def resume(self, queue: Named | str, name: str) -> StoredSchedule:
        """Push again for a schedule, at the moments that come from now on."""
        key, at = self._key(queue, name), now()
        return await self._change(key, lambda table: table.resumed(key, at))

    async def run_now(self, queue: Named | str, name: str) -> Receipt:
        """Push the item of a schedule now, with its options, whether it is paused or not; its moments stay as they are.

        Raises as ``push``; ``ConfigError`` also if code makes the item, which only a program that has that code can.
        """
        key = self._key(queue, name)
        entry = (await self._client.schedule_store.read()).entries.get(key)
        if entry is None:
            raise ConfigError(f"{key} is not stored; nothing was pushed")
        if entry.payload is None:
            raise ConfigError(f"{key}: code makes its item: give it one by change()")
        return await push_encoded(self._open_queue(key.queue), entry.payload, **cast("PushOptions", entry.options))

    async def remove(self, queue: Named | str, name: str) -> None:
        """Remove a schedule.  Items that were pushed stay."""
        key = self._key(queue, name)
        seen = False

        def remove(table: Timetable) -> Timetable:
            nonlocal seen
            after = table.removed(key, seen=seen)
            seen = True
            return after

        await self._client.schedule_store.change(remove)
        with suppress(ConfigError):  # one that cannot be read says nothing of any schedule
            await self._client.moment_store.forget(key)

    @asynccontextmanager
    async def run(self, *, queue: Callable[[str], Queue[Any]] | None = None) -> AsyncGenerator[None]:
        """Push the items of all schedules that were added at run time, while this is entered.

        Any number of processes may do so: every moment's item exists once.  ``queue``: returns the queue of a name,
        None: ``Cluster.queue`` does, so a program that gives its queues options calls that for each of them before.
        """
        self._client.check_open()
        runner = _Runner(self._client, queue or self._open_queue)
        task = self._client.tasks.supervise(runner.run, "run the schedules")
        try:
            yield
        finally:
            task.cancel()
            runner.stop()

    def _key(self, queue: Named | str, name: str) -> Key:
        self._client.check_open()
        of = check_name("the queue's name", queue) if isinstance(queue, str) else queue.name
        return Key(of, check_id("a schedule's name", name))

    async def _change(self, key: Key, change: Callable[[Timetable], Timetable]) -> StoredSchedule:
        _, after = await self._client.schedule_store.change(change)
        return (await self._with_progress(after.entries[key]))[0]

    async def _with_progress(self, *entries: StoredSchedule) -> Sequence[StoredSchedule]:
        """Return these with what is stored of their moments, if that can be read."""
        try:
            known = await self._client.moment_store.read()
        except ConfigError as error:
            _log.error("last moments of schedules are not known: %s", error, extra={"cluster": self._client.namespace})
            return entries
        return [with_progress(each, known[each.key]) if each.key in known else each for each in entries]


class _Runner:
    """Keep one pushing task for each schedule that was added at run time."""

    def __init__(self, client: Client, open_queue: Callable[[str], Queue[Any]]) -> None:
        self._client = client
        self._open_queue = open_queue
        self._running = dict[Key, "Recurring[Any]"]()
        self._changed = Event()

    async def run(self) -> None:
        """Follow the stored schedules until cancelled."""
        store = self._client.schedule_store
        stop = store.follow(self._changed.set)
        try:
            while True:
                self._changed.clear()
                self._adjust(store.known.entries)
                await wait_set(self._changed, LOOK_SECONDS)
        finally:
            stop()
            self.stop()

    def _adjust(self, entries: Mapping[Key, StoredSchedule]) -> None:
        for key in [key for key in self._running if key not in entries or entries[key].declared]:
            self._running.pop(key).cancel()
        for key, entry in entries.items():
            if key not in self._running and not entry.declared:
                try:
                    queue = self._open_queue(entry.queue)
                    self._running[key] = self._client.schedules.run_stored(queue, entry)
                except ConfigError as error:  # of a cron expression, where what reads it is missing
                    _log.error("%s is not run here: %s", key, error, extra={"cluster": self._client.namespace})

    def stop(self) -> None:
        """Push no more."""
        while self._running:
            self._running.popitem()[1].cancel()
