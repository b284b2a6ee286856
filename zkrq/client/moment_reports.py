"""Store up to when the moments of this process's schedules are done, and report those that are lost.

One task does so for all schedules of a client: soon after a push, every minute otherwise, and half a minute after a
loss was found.  See ``protocol/recurring.py`` for what is a loss.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from zkrq.base.clock import now_ms
from zkrq.base.errors import ConfigError, NotLetIn, Unavailable, ZkrqError
from zkrq.base.events import MomentsLost
from zkrq.base.tasks import wait_set
from zkrq.client.moments import from_ms
from zkrq.client.queue import parts_of
from zkrq.protocol.calls import Read
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.records import states_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zkrq.base.events import Events
    from zkrq.base.tasks import Tasks
    from zkrq.client.moment_store import MomentStore
    from zkrq.client.queue import Queue
    from zkrq.client.timetable import Key
    from zkrq.client.walker import Walker
    from zkrq.protocol.recurring import Course, Progress
    from zkrq.replication.replicas import Replicas

STORE_SECONDS = 5.0
"""Seconds between two writes of what is done."""

LOOK_SECONDS = 60.0
"""Seconds after which what another process should have stored is stored by this one."""

REPORT_SECONDS = 20.0
"""Seconds from when a loss is found until it is reported: longer than a push takes that is in flight elsewhere.  Up to
twice as long, so that one of the processes that have found it does so before the others."""

ASKED_AT_ONCE = 150
"""Ids of items that one call asks for."""

_log = logging.getLogger("zkrq.producing.schedules")


class MomentReports:
    """Store and report for all schedules of one client."""

    def __init__(
        self,
        tasks: Tasks,
        events: Events,
        cluster: str,
        store: MomentStore,
        check_clock: Callable[[], Awaitable[object]],
    ) -> None:
        """``check_clock``: raises ``ConfigError`` if the clock of this process is wrong, by which all is judged."""
        self._tasks = tasks
        self._events = events
        self._cluster = cluster
        self._store = store
        self._check_clock = check_clock
        self._walkers: dict[Walker, None] = {}
        self._leaving: set[Walker] = set()
        self._called = asyncio.Event()
        self._lock = asyncio.Lock()
        self._trouble = ""
        self._has_begun = False
        self._delay = REPORT_SECONDS

    def add(self, walker: Walker) -> None:
        """Store and report for a schedule from now on."""
        if not self._has_begun:
            self._has_begun = True
            self._delay = REPORT_SECONDS * random.uniform(1, 2)  # noqa: S311
            self._tasks.supervise(self._run, "report moments of schedules")
        self._walkers[walker] = None

    def remove(self, walker: Walker) -> None:
        """Store what is new of a schedule, and then no more."""
        self._leaving.add(walker)
        self._called.set()

    def call(self) -> None:
        """Store what is new, soon."""
        self._called.set()

    async def read(self) -> Mapping[Key, Progress]:
        """Read what is stored.  Raises ``Unavailable``, ``ConfigError``."""
        return await self._store.read()

    async def _run(self) -> None:
        while True:
            await wait_set(self._called, self._seconds_left())
            self._called.clear()
            try:
                await self.flush()
                self._trouble = ""
            except ZkrqError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    text = "moments of schedules are not stored and reported at present: %s"
                    _log.warning(text, error, extra={"cluster": self._cluster})
            await asyncio.sleep(STORE_SECONDS)

    def _seconds_left(self) -> float:
        present = asyncio.get_running_loop().time()
        found = [course.found_at for each in self._walkers if (course := each.course)]
        first = min((at for at in found if at is not None), default=present + LOOK_SECONDS)
        return max(0.0, min(LOOK_SECONDS, first + self._delay - present))

    async def flush(self) -> None:
        """Report the losses that were found long enough ago, and store what is new.

        Raises ``Unavailable``, ``NotLetIn``, ``ConfigError``: what is left is stored and reported next time.
        """
        async with self._lock:
            leaving, self._leaving = self._leaving, set()
            until = asyncio.get_running_loop().time() - self._delay
            found = [(each, course.found_at) for each in self._walkers if (course := each.course)]
            trouble: ZkrqError | None = None
            try:
                if reported := [each for each, at in found if at is not None and at <= until]:
                    await self._report(reported, until)
            except (ConfigError, NotLetIn, Unavailable) as error:
                trouble = error
            try:
                await self._store_news()
            finally:
                for each in leaving:
                    self._walkers.pop(each, None)
            if trouble:
                raise trouble

    async def _store_news(self) -> None:
        courses = [(each.key, course) for each in self._walkers if each.key and (course := each.course)]
        news = [(key, course, new) for key, course in courses if (new := course.news)]
        together: dict[Key, Progress] = {}
        for key, _, new in news:  # one that was cancelled and declared again has two courses
            together[key] = together[key].merged(new) if key in together else new
        if not together:
            return
        after = await self._store.advance(together)
        for key, course, new in news:
            course.stored(new)
            course.learn(after[key], _latest())

    async def _report(self, walkers: Sequence[Walker], until: float) -> None:
        await self._check_clock()
        known: Mapping[Key, Progress] = await self._store.read() if any(each.key for each in walkers) else {}
        for each in walkers:
            course = each.course
            assert course
            if each.key and each.key in known:
                course.learn(known[each.key], _latest())
            ids = {id: moment for moment in course.losses for id in each.ids_of(moment)}
            for id in await find_known(each.queue, list(ids)):
                course.forgive(ids[id])
            each.look()
            self._tell(each, course, until)

    def _tell(self, walker: Walker, course: Course, until: float) -> None:
        for loss, (row, some) in course.report(until).items():
            event = MomentsLost(
                self._cluster,
                walker.queue.name,
                walker.name,
                row.size,
                from_ms(row.first),
                from_ms(row.last),
                tuple(map(from_ms, some)),
                loss.value,
            )
            self._events.tell(event, logging.WARNING)


def _latest() -> int:
    return now_ms() + PUT_WINDOW_MS


async def find_known(queue: Queue[Any], ids: Sequence[str]) -> set[str]:
    """Return those of the ids under which an item was pushed, as far as the servers remember.  Raises
    ``Unavailable``."""
    parts = parts_of(queue)
    found = set[str]()
    for start in range(0, len(ids), ASKED_AT_ONCE):
        some = ids[start : start + ASKED_AT_ONCE]

        async def ask(replicas: Replicas, some: Sequence[str] = some) -> None:
            copies = await replicas.ask(Read(queue.name, some))
            found.update(each.id.decode() for each in copies.items if states_of(each.record) != b"F")
            found.update(id.decode() for id in (*copies.beyond, *copies.damaged))

        await parts.everywhere.each(ask)
    return found
