"""Provide the clock that a test moves: of its event loop, of the servers in this process, and of zkrq's wall clock.

It runs like real time from where the test has moved it, so a ``timeout`` ends even if the test moves nothing.  While it
is being moved, it jumps from timer to timer and stands still in between.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from weakref import WeakSet

from zkrq.base import clock as wall
from zkrq.base.checks import Duration, check_duration, check_moment
from zkrq.base.errors import ConfigError
from zkrq.base.tasks import in_threads

REST_TIMEOUT = 10.0
"""Seconds of real time within which the event loop must become idle."""

THREAD_PATIENCE = 1.0
"""Seconds of real time that the clock waits for a handler in a thread before it continues without it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_in_use: list[Clock] = []
"""Clocks in use; the last one is the wall clock, because a process has only one."""


class Clock:
    """The time of one event loop.  All timers of that loop follow it: zkrq's and the test's own.

    It never goes back: a loop whose clock was moved stays ahead of real time, which no timer notices.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if not isinstance(loop, asyncio.BaseEventLoop):
            name = type(loop).__module__.partition(".")[0]
            raise ConfigError(f"the clock of the event loop of {name} cannot be moved: test on asyncio's own")
        self._loop: Any = loop
        self._real_time = loop.time
        self._ahead = 0.0
        self._held_at: float | None = None
        self._wall_us = 0
        self._users = 0
        self._advancing = asyncio.Lock()
        self._left_behind: WeakSet[asyncio.Task[object]] = WeakSet()

    def __repr__(self) -> str:
        return f"<Clock {self.now().isoformat()}>"

    def now(self) -> datetime:
        """Return the moment, in UTC: the servers' time, and the base of ``at=`` and schedules."""
        return _EPOCH + timedelta(microseconds=self.now_us())

    def now_us(self) -> int:
        """Return microseconds since 1970."""
        return self._wall_us + round(self._time() * 1e6)

    async def advance(self, seconds: Duration) -> None:
        """Move the clock by this much; return when everything that is due by then has run.

        Moves from timer to timer: in ten minutes a schedule of once a minute fires ten times, and a claim is extended
        while its handler sleeps.  ``advance(0)`` waits until nothing is left to do now.  Handlers in threads are
        awaited, for up to a second of real time; sockets and other processes are not. Raises ``TimeoutError`` if
        something keeps the event loop busy without ever waiting.
        """
        length = check_duration("seconds", seconds)
        async with self._advancing:
            usual = self._loop.slow_callback_duration
            self._loop.slow_callback_duration = math.inf  # in debug mode, each step would count as a slow callback
            self._hold()
            try:
                await self._rest()
                await self._advance_to(self._time() + length)
            finally:
                self._go_on()
                self._loop.slow_callback_duration = usual

    async def _advance_to(self, end: float) -> None:
        while (following := self._next_timer()) <= end:
            self._held_at = following
            await self._rest()
        self._held_at = max(self._time(), end)

    async def _rest(self) -> None:
        """Wait until nothing is ready, and no timer is due."""
        until = time.monotonic() + REST_TIMEOUT
        while True:
            await asyncio.sleep(0)  # resumes after all that was ready, and after the selector's events
            if not self._loop._ready and self._next_timer() > self._time() and not await self._threads_ended():
                return
            if time.monotonic() > until:
                raise TimeoutError(f"the event loop is still busy after {REST_TIMEOUT:g} s: does a task never wait?")

    async def _threads_ended(self) -> bool:
        """Wait for handlers in threads, in real time; return whether there were any."""
        threads = {task for task in in_threads.copy() if task.get_loop() is self._loop}
        threads.difference_update(self._left_behind)
        if threads:
            self._go_on()
            _, running = await asyncio.wait(threads, timeout=THREAD_PATIENCE)
            self._left_behind.update(running)
            self._hold()
        return bool(threads)

    def _next_timer(self) -> float:
        timers = self._loop._scheduled  # a heap
        if timers and not timers[0].cancelled():
            return timers[0].when()
        return min((timer.when() for timer in timers if not timer.cancelled()), default=math.inf)

    def _time(self) -> float:
        return self._real_time() + self._ahead if self._held_at is None else self._held_at

    def _hold(self) -> None:
        self._held_at = self._time()

    def _go_on(self) -> None:
        if self._held_at is not None:
            self._ahead, self._held_at = self._held_at - self._real_time(), None

    # -- in use --------------------------------------------------------------------------------------------------------

    def begin(self, start: datetime | None) -> None:
        """Add a user of the clock; the first one may set its time."""
        if self._users and start is not None:
            raise ConfigError("start cannot be set: other servers already use the clock of this event loop")
        if not self._users:
            shown = wall.machine_us() if start is None else (check_moment("start", start) - _EPOCH) // _MICROSECOND
            self._wall_us = shown - round(self._time() * 1e6)
            self._loop.time = self._time
            _in_use.append(self)
            wall.go_by(self.now_us)
        self._users += 1

    def end(self) -> None:
        """Remove a user.  After the last one, the loop's clock is the real one again unless it was moved."""
        self._users -= 1
        if not self._users:
            _in_use.remove(self)
            wall.go_by(_in_use[-1].now_us if _in_use else wall.machine_us)
            if self._ahead <= 0:
                del self._loop.time


@contextmanager
def running_clock(start: datetime | None) -> Generator[Clock]:
    """Return the clock of the running event loop; ``start`` is the moment that it shows, None: the present.

    Raises ``ConfigError`` for a loop whose clock cannot be moved, and for a ``start`` while it is in use.
    """
    loop = asyncio.get_running_loop()
    owner = getattr(loop.time, "__self__", None)
    clock = owner if isinstance(owner, Clock) else Clock(loop)
    clock.begin(start)
    try:
        yield clock
    finally:
        clock.end()
