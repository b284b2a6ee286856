"""Run an asynchronous cluster on an event loop in a thread of its own, and let any other thread call it.

A ``Portal`` outlives its cluster: it opens one at the first call, and again after a fork, because threads and
connections do not survive one.  An ``Opened`` is one such cluster, and belongs to the process that opened it.

Anyio's blocking portal starts and ends the thread.  Calls go to the loop by ``run_coroutine_threadsafe``: it hands over
to the loop once instead of twice, which halves the cost of a call, and leaves no moment in which an interrupted caller
cannot cancel what it has started.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from anyio.from_thread import start_blocking_portal

from zkrq.base.errors import Closed, Unavailable, WrongLoop, ZkrqError
from zkrq.base.forks import call_in_forks
from zkrq.base.loop import running_loop
from zkrq.client.cluster import Cluster

if TYPE_CHECKING:
    from zkrq.consuming.observing import Observer

R = TypeVar("R")
S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)

Make = Callable[[], AbstractAsyncContextManager[Cluster]]

CLOSE_SECONDS = 30.0
"""A thread waits at most so long until another one has closed the same cluster, which takes some seconds at most."""


class Stream(Protocol[R_co]):
    """Iterate asynchronously, until ``aclose``."""

    def __anext__(self) -> Awaitable[R_co]: ...

    def aclose(self) -> Awaitable[None]: ...


class _Thread(threading.local):
    runs_loop = False


_this_thread = _Thread()


def _check_thread() -> None:
    """Raise ``WrongLoop`` on the event loop of a blocking cluster, which would wait for itself."""
    if _this_thread.runs_loop:
        raise WrongLoop("a blocking call from the cluster's own event loop, as in `on_event`: call from another thread")


def _note_loop() -> asyncio.AbstractEventLoop:
    _this_thread.runs_loop = True
    return asyncio.get_running_loop()


class _Carried(Exception):
    """Carries what user code raised on the event loop, such as ``SystemExit`` of a codec, to the thread that called."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} on the event loop")
        self.error = error


class Opened:
    """One open cluster, its event loop, and the thread of that loop."""

    def __init__(self, make: Make, observers: Iterable[Observer] = ()) -> None:
        """Open a cluster.  Raises as it does, and ``Unavailable`` if no thread can be started."""
        self._removers: dict[Observer, Callable[[], None]] = {}
        self._process = os.getpid()
        self._submitting = threading.RLock()  # reentrant: a signal handler may push, too
        self._closer: int | None = None  # the thread that closes it, or has closed it
        self._ended = threading.Event()
        with ExitStack() as stack:
            try:
                portal = stack.enter_context(start_blocking_portal())
            except RuntimeError as error:  # too many threads, or the interpreter is shutting down
                raise Unavailable(f"no thread could be started for the event loop: {error}") from error
            self._loop = portal.call(_note_loop)
            self.cluster = stack.enter_context(portal.wrap_async_context_manager(make()))
            self._stack = stack.pop_all()
        for observer in observers:
            self.observe(observer)

    def observe(self, observer: Observer) -> None:
        """Let an observer see the cluster."""
        self._removers[observer] = self.read(lambda: self.cluster.observe(observer))

    def stop_observing(self, observer: Observer) -> None:
        """Remove an observer."""
        self.read(self._removers.pop(observer))

    def call(self, act: Callable[[], Awaitable[R]]) -> R:
        """Await ``act()`` on the event loop; return its result.

        If the calling thread is interrupted, by Ctrl-C for instance, ``act()`` is cancelled.
        Raises what it raises, ``Closed``, and ``WrongLoop`` in a forked process.
        """
        _check_thread()
        future = self.start(act)
        try:
            return future.result()
        except _Carried as carried:
            raise carried.error from None
        except concurrent.futures.CancelledError as error:  # the loop ended in the middle
            raise Closed() from error
        finally:
            future.cancel()  # does nothing unless this thread was interrupted

    def start(self, act: Callable[[], Awaitable[R]]) -> concurrent.futures.Future[R]:
        """Await ``act()`` on the event loop, without waiting for it.  Raises ``Closed``, ``WrongLoop``."""
        if self._process != os.getpid():
            raise WrongLoop(f"made by process {self._process}, before a fork: pop a claim in the process that uses it")

        async def run() -> R:
            try:
                return await act()
            except (SystemExit, KeyboardInterrupt) as error:  # would end the loop, and with it all other calls
                raise _Carried(error) from error

        with self._submitting:
            if self._closer is not None:
                raise Closed()
            return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def read(self, look: Callable[[], R]) -> R:
        """Return ``look()``, called on the event loop.  Raises as ``call`` does."""

        async def run() -> R:
            return look()

        return self.call(run)

    def iterate(self, stream: Stream[R], show: Callable[[R], S]) -> Generator[S]:
        """Iterate over what a stream yields, each as ``show`` makes it; leaving the loop closes the stream."""
        end = object()
        try:
            while True:
                item = self.call(lambda: anext(stream, end))
                if item is end:
                    return
                yield show(cast("R", item))
                del item  # a claim that the user has dropped must not be extended
        finally:
            # The garbage collector may close the generator in any thread, and after the cluster.
            with suppress(Closed, WrongLoop):
                self.call(stream.aclose)

    def close(self) -> None:
        """Close the cluster, end its loop and its thread; calls in other threads raise ``Closed``.  Idempotent.

        While a thread closes it, others that close it wait for that, at most ``CLOSE_SECONDS``.  What would wait for
        itself returns at once: a signal handler in that thread, and the loop; so does a forked process, which has no
        copy of that thread.
        """
        me = threading.get_ident()
        with self._submitting:
            closer, self._closer = self._closer, self._closer or me
        if closer is None:
            try:
                self._stack.close()
            finally:
                self._ended.set()
        elif closer != me and os.getpid() == self._process and not _this_thread.runs_loop:
            self._ended.wait(CLOSE_SECONDS)


def _warn_of_blocking() -> None:
    """Warn the caller's line once, as Python does, that it stops the event loop that runs in its thread."""
    frame, level = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "zkrq":
        frame, level = frame.f_back, level + 1
    text = (
        "zkrq.sync is called on a running event loop, which stands still until the call returns: use zkrq.connect() "
        "and await, or call this in a thread (asyncio.to_thread)"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=level)


class Portal:
    """Open a cluster at the first call of each process, and pass calls on to it."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._opened: concurrent.futures.Future[Opened] | None = None
        self._closed = False
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Let an observer see the cluster of this process, and those that forked processes open.

        Returns a function that removes it.
        """
        self._observers.append(observer)
        if self.is_open:
            self.open().observe(observer)

        def remove() -> None:
            self._observers.remove(observer)
            if self.is_open:
                self.open().stop_observing(observer)

        return remove

    def open(self) -> Opened:
        """Return the open cluster of this process; open it if there is none.

        While a thread opens it, the others wait, and get the same error if it fails; a later call tries again.
        """
        _check_thread()
        if running_loop() is not None:
            _warn_of_blocking()
        with self._lock:
            if self._closed:
                raise Closed()
            opened, is_mine = self._opened, self._opened is None
            if opened is None:
                opened = self._opened = concurrent.futures.Future()
                _in_use.add(self)
        if is_mine:
            self._open(opened)
        return opened.result()

    def _open(self, opened: concurrent.futures.Future[Opened]) -> None:
        try:
            opened.set_result(Opened(self._make, self._observers))
        except BaseException as error:
            self._opened = None
            _in_use.discard(self)
            failure = error if isinstance(error, Exception) else Unavailable("the thread that opened it was stopped")
            opened.set_exception(failure)
            raise

    def call(self, act: Callable[[Cluster], Awaitable[R]]) -> R:
        """Await ``act(cluster)`` on the event loop; see ``Opened.call``."""
        opened = self.open()
        return opened.call(lambda: act(opened.cluster))

    @property
    def is_open(self) -> bool:
        """Whether the cluster is open in this process."""
        return self._opened is not None and self._opened.done() and not self._closed

    def close(self) -> None:
        """Close the cluster of this process, for good.  Idempotent."""
        with self._lock:
            self._closed = True
            opened = self._opened
        if opened is not None:
            with suppress(ZkrqError):  # it could not be opened
                opened.result().close()
        _in_use.discard(self)

    def forget(self) -> None:
        """Let a forked process open a cluster of its own."""
        if self._opened is not None:
            _inherited.append(self._opened)
        self._opened = None
        self._lock = threading.RLock()


_in_use = set[Portal]()
"""Portals with an open cluster in this process, or one that is being opened."""

_inherited: list[object] = []
"""What a forked process has of its parent's clusters: kept, because finalizing it could reach the parent's sockets."""


def _close_all() -> None:
    for portal in list(_in_use):
        portal.close()


def _forget_all() -> None:
    for portal in _in_use:
        portal.forget()
    _in_use.clear()


# The loop's thread is a daemon, so it is still alive here: exit handlers of users that were registered later have run.
atexit.register(_close_all)
call_in_forks(_forget_all)
