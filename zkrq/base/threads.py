"""Run blocking calls in a few threads of this package's own, apart from the event loop's default executor.

User code fills that executor with ``asyncio.to_thread``.  A client whose own calls waited there behind handlers would
take servers for dead that it has not even tried to reach.

The threads are daemons, because a call may hang for longer than the process is to live, and a thread of
``concurrent.futures`` is joined at exit.  A thread ends as soon as no call waits, so an idle process has none of them,
and a forked one lacks none.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from zkrq.base.forks import call_in_forks

T = TypeVar("T")


class ThreadCall(Generic[T]):
    """A call that was given to a thread, and the event loops that wait for its end."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self.has_ended = False
        self._value: T
        self._error: BaseException | None = None
        self._waiters = dict[asyncio.Future[None], asyncio.AbstractEventLoop]()

    def run(self) -> None:
        """Make the call, in the thread."""
        try:
            self._value = self._context.run(self._act)
        except BaseException as error:  # of a function of the user's; raised again where it is waited for
            self._error = error
        with self._lock:
            self.has_ended = True
            waiters = list(self._waiters.items())
        for waiter, loop in waiters:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_wake, waiter)

    async def result(self) -> T:
        """Wait until it has ended, on any event loop; return or raise what it does.  A cancelled wait does not end the
        call."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        with self._lock:
            if self.has_ended:
                waiter.set_result(None)
            else:
                self._waiters[waiter] = loop
        try:
            await waiter
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)
        if self._error:
            raise self._error
        return self._value


class Threads:
    """Threads for one kind of call, at most ``most`` at the same time; further calls wait in line."""

    def __init__(self, name: str, *, most: int) -> None:
        self._name = name
        self._most = most
        self._forget()
        call_in_forks(self._forget)

    def _forget(self) -> None:
        """Begin without threads and without calls: a forked process has none of its parent's."""
        self._lock = threading.Lock()
        self._running = 0
        self._line = deque[ThreadCall[Any]]()

    def start(self, act: Callable[[], T]) -> ThreadCall[T]:
        """Make a call in a thread.  Raises ``OSError`` if there is none and none can be started."""
        call = ThreadCall(act)
        with self._lock:
            self._line.append(call)
            if self._running >= self._most:
                return call
            self._running += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the host has no thread left, or the interpreter ends
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._line.remove(call)
                    raise OSError(f"no thread: {error}") from error
        return call

    async def run(self, act: Callable[[], T]) -> T:
        """Make a call in a thread and wait for it.  A call that is given up before it began is not made."""
        call = self.start(act)
        try:
            return await call.result()
        finally:
            with self._lock, suppress(ValueError):
                self._line.remove(call)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._line:
                    self._running -= 1
                    return
                call = self._line.popleft()
            call.run()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
