"""Own background tasks: start them, restart them after an error, end them; and wait for begun work to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from zkrq.base.errors import Closed, own

STOP_TIMEOUT = 5.0
"""Seconds that cancelled tasks have to end."""

T = TypeVar("T")

RESTART_PAUSE = 1.0
"""Seconds until a background loop that failed is started again."""

in_threads: set[asyncio.Task[object]] = set()
"""Tasks of all event loops that wait for a handler in a thread; a test's clock waits for those of its loop."""

on_loop: dict[asyncio.Task[None], str] = {}
"""Names of handlers in progress on event loops, by their tasks: one of them is to blame if its loop is blocked."""

_log = logging.getLogger("zkrq")


class Once:
    """Do something once, before any of those who wait for it goes on; after ``again`` once more."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        self._act = act
        self._lock = asyncio.Lock()
        self._begun = 0
        """Attempts so far."""
        self._error: Exception | None = None
        """Of the last one, if it has failed."""
        self.is_done = False
        self._is_wanted_again = False

    async def done(self) -> None:
        """Return when it is done: by this caller, if it is the first one.  If that fails, or is cancelled, the next one
        tries, for all who came before it began.  Raises what it does."""
        begun = self._begun
        async with self._lock:
            if self._error and self._begun > begun:
                raise own(self._error)
            if not self.is_done:
                self._begun, self._error, self._is_wanted_again = self._begun + 1, None, False
                try:
                    await self._act()
                except Exception as error:
                    self._error = error
                    raise
                self.is_done = not self._is_wanted_again

    def again(self) -> None:
        """Have it done again, also if it is being done now."""
        self.is_done, self._is_wanted_again = False, True


class Tasks:
    """Own background tasks: ``async with`` ends those that are left.

    A task that fails is logged and does not stop the others.  Unlike ``asyncio.TaskGroup``, this may be entered and
    left in different tasks of the user.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] | None = None

    async def __aenter__(self) -> Self:
        self._tasks = set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        tasks, self._tasks = tuple(self._tasks or ()), None
        for task in tasks:
            task.cancel()
        await wait_ended(tasks, STOP_TIMEOUT)
        if any(not task.done() for task in tasks):
            _log.error("%s: tasks did not end within %s s", self._name, STOP_TIMEOUT)

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run ``work`` until it ends or this is left.  Raises ``Closed``."""
        if self._tasks is None:
            work.close()
            raise Closed(f"{self._name} is closed")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(partial(_ended, self._tasks))
        return task

    def supervise(self, work: Callable[[], Coroutine[object, object, None]], name: str) -> asyncio.Task[None]:
        """Run ``work`` until this is left; start it again when it fails or returns."""
        return self.start(supervise(work, f"{self._name}: {name}"), name)


async def supervise(work: Callable[[], Coroutine[object, object, None]], name: str) -> None:
    """Run ``work`` until cancelled or ``Closed``; if another error ends it, log that and start it again."""
    while True:
        try:
            await work()
        except Closed:
            return
        except Exception:
            _log.exception("%s failed and is started again in %.1f s", name, RESTART_PAUSE)
        await asyncio.sleep(RESTART_PAUSE)


def _ended(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (error := task.exception()):
        _log.error("%s failed", task.get_name(), exc_info=error)


async def together(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of these and return their results; a single one without a task of its own."""
    every = list(awaitables)
    return [await every[0]] if len(every) == 1 else await asyncio.gather(*every)


class Rounds:
    """Repeat one action, after a pause or as soon as it is asked for."""

    def __init__(
        self,
        act: Callable[[], Coroutine[object, object, None]],
        *,
        seconds: float | None,
        stretched: Callable[[], float] = lambda: 1.0,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Repeat ``act``.  ``seconds``: the pause after each round, unless ``call`` ends it; None: until ``call`` does.
        ``stretched``: how many times that pause is, asked before each.
        ``delay``: seconds before a round that ``call`` asked for."""
        self._act = act
        self._seconds = seconds
        self._stretched = stretched
        self._delay = delay
        self._called = asyncio.Event()

    def call(self) -> None:
        """Start the next round as soon as the present one has ended."""
        self._called.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._called.clear()
            await self._act()
            if await wait_set(self._called, self._seconds and self._seconds * self._stretched()):
                await asyncio.sleep(self._delay())


async def wait_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most this many seconds (None: forever); return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def wait_ended(futures: Iterable[asyncio.Future[Any]], seconds: float) -> None:
    """Wait until all of these have ended, at most this many seconds.

    Cancel scopes of anyio, which cancel again and again, do not end the wait; ``cancel()`` of the waiting task does.
    """
    if waited := list(futures):
        with anyio.CancelScope(shield=True):
            await asyncio.wait(waited, timeout=seconds)


async def see_through(task: asyncio.Task[Any], *, cancelled: Callable[[], object] = lambda: None) -> None:
    """Wait until the task has ended, even if the caller is cancelled meanwhile; only then raise the cancellation.

    ``cancelled`` is called at each cancellation of the caller.  Anyio cancels again and again; a shield absorbs that.
    Raises what the task raised, unless the task itself was cancelled.
    """
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancellation = error
                cancelled()
    failure = None if task.cancelled() else task.exception()
    if cancellation:
        raise cancellation from failure
    if failure:
        raise failure
