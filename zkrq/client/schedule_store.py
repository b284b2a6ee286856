"""Keep the schedules of a namespace in a register of the coordinator, and follow what other processes change there."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from zkrq.base.errors import ConfigError, Unavailable
from zkrq.base.events import ScheduleChanged, shorten
from zkrq.base.tasks import Rounds
from zkrq.client.registers import rewrite
from zkrq.client.timetable import Key, StoredSchedule, Timetable
from zkrq.client.timetable_form import decode, encode
from zkrq.protocol.levels import Feature

if TYPE_CHECKING:
    from zkrq.base.events import Events
    from zkrq.base.tasks import Tasks
    from zkrq.coordination.coordinator import Coordinator, Versioned
    from zkrq.protocol.levels import AtLevel

SCHEDULES = "schedules"
"""Name of the register that holds them."""

READ_SECONDS = 60.0
"""Seconds between two looks without notice of a change."""

_log = logging.getLogger("zkrq.producing.schedules")


class ScheduleStore:
    """Read, change and follow the stored schedules.  Costs nothing until it is used."""

    def __init__(
        self,
        coordinator: Coordinator,
        tasks: Tasks,
        events: Events,
        cluster: str,
        check_level: Callable[[AtLevel | None], object],
    ) -> None:
        """``check_level``: raises ``ConfigError`` in a client that does not speak the active level, and if that lacks a
        feature."""
        self.known = Timetable()
        """The schedules as this process read them last."""
        self.begun = 0
        """How often the register was seen to begin anew, because ZooKeeper has lost it: what code declares is declared
        again then."""
        self._coordinator = coordinator
        self._tasks = tasks
        self._events = events
        self._cluster = cluster
        self._check_level = check_level
        self._found: Versioned | None = None
        self._lock = asyncio.Lock()
        self._notices = dict[object, Callable[[], object]]()
        self._rounds: Rounds | None = None

    async def read(self) -> Timetable:
        """Read them.  Raises ``Unavailable`` without ZooKeeper, ``ConfigError`` if they cannot be read."""
        async with self._lock:
            self._take(await self._coordinator.read(SCHEDULES))
        return self.known

    async def change(self, change: Callable[[Timetable], Timetable]) -> tuple[Timetable, Timetable]:
        """Change them, if ``change`` does; return what they were, and what they are.

        Raises what ``change`` does, and ``Unavailable``: they may have been changed, and each call may be repeated.
        ``change`` may see what it has written itself, if the answer was lost and another client wrote after it.
        """
        self._check_level(None)
        before = self.known

        def write(found: Versioned) -> bytes | None:
            nonlocal before
            self._take(found)
            before = self.known
            after = change(before)
            if after is before:
                return None
            if _task_names(after) - _task_names(before):  # 0.2.0 would push the items without their task
                self._check_level(Feature.TASKS)
            return encode(after, secrets.token_hex(8))

        async with self._lock:
            if (written := await rewrite(self._coordinator, SCHEDULES, write)) is None:
                raise Unavailable("other clients change schedules at the same time: repeat it")
            self._take(written)
            return before, self.known

    async def declare(self, entry: StoredSchedule) -> None:
        """Store a schedule that code declares, and report it if that replaces what was stored of other code."""
        before, after = await self.change(lambda table: table.declared(entry))
        old, new = before.entries.get(entry.key), after.entries[entry.key]
        if old and old.mark != new.mark:
            told = ScheduleChanged(self._cluster, entry.queue, entry.name, str(old), str(new))
            self._events.tell(told, logging.WARNING)

    def follow(self, notice: Callable[[], object]) -> Callable[[], None]:
        """Call ``notice`` when they change, from now on; return what ends that."""
        if self._rounds is None:
            self._rounds = Rounds(self._look, seconds=READ_SECONDS)
            self._coordinator.follow(SCHEDULES)
            self._tasks.supervise(self._rounds.run, "follow the schedules")
        key = object()
        self._notices[key] = notice

        def stop() -> None:
            self._notices.pop(key, None)

        return stop

    def register_changed(self, register: str) -> None:
        """Read them again if it is their register that was written."""
        if register == SCHEDULES and self._rounds:
            self._rounds.call()

    async def _look(self) -> None:
        if not self._notices:
            return
        try:
            await self.read()
        except (Unavailable, ConfigError) as error:
            _log.warning("changes of schedules are not noticed at present: %s", error, extra={"cluster": self._cluster})

    def _take(self, found: Versioned) -> None:
        if found == self._found:  # the version is not enough: it begins again if ZooKeeper has lost its data
            return
        known = decode(found.data)
        if self._found and found.version <= self._found.version:  # versions only grow otherwise
            self.begun += 1
        self._tell_unreadable(known)
        self.known, self._found = known, found
        for notice in tuple(self._notices.values()):
            notice()

    def _tell_unreadable(self, table: Timetable) -> None:
        """Log schedules that cannot be read, if they are others than before."""
        if table.unreadable and table.unreadable != self.known.unreadable:
            named = shorten([f"{each!r:.80}" for each in table.unreadable])
            text = "stored schedules that cannot be read are not run: %s; add them again, or remove them"
            _log.error(text, named, extra={"cluster": self._cluster})


def _task_names(table: Timetable) -> set[tuple[Key, str]]:
    """Return the schedules that push for a task, each with its name."""
    return {(key, entry.options["task"]) for key, entry in table.entries.items() if "task" in entry.options}
