"""Run a worker as a program: open the cluster, work, drain at a signal, and exit with a code that says how it ended.

::

    def worker(cluster):
        return zkrq.Worker(concurrency=32).add(cluster.queue("emails"), send)

    if __name__ == "__main__":
        zkrq.run(worker)

The first SIGTERM or SIGINT drains: nothing more is claimed, handlers finish within the grace, claims go back, and the
session is closed, so no other process has to wait for its time-out.  The second one ends the grace.  Signals are
handled as the interpreter's own and not as the loop's, since a handler may block the loop; and a thread ends the
process when the time is over, whatever still runs.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import queue
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, cast

from zkrq.base.checks import Duration, check_duration, check_posix
from zkrq.base.errors import ConfigError, message_of
from zkrq.base.forks import undone_in_forks
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import connect
from zkrq.process.exits import Exit
from zkrq.process.listening import Address, Listener, Respond, read_address
from zkrq.process.notify import READY, STOPPING, notify
from zkrq.process.probes import Probes
from zkrq.working.worker import Worker

if TYPE_CHECKING:
    from zkrq.process.control import Supervised

LEAVE_SECONDS = 15.0
"""Seconds after the grace, for handing items back and closing; then the process ends."""

HURRY_SECONDS = 3.0
"""Seconds for the same after a second signal."""

HURRY_PAUSES = (0.1, 1.0)
"""Seconds from the second signal until the grace ends, and until handlers that were cancelled are left behind."""

Made: TypeAlias = Worker | AbstractAsyncContextManager[Worker]

MakeWorker: TypeAlias = Callable[[Cluster], Made | Awaitable[Made]]
"""A function that makes the worker on an open cluster.  It may be ``async``, or return an asynchronous context manager
of the worker, whose end then runs after the drain, while the cluster is still open."""

_log = logging.getLogger("zkrq.program")


def run(
    worker: MakeWorker,
    cluster: AbstractAsyncContextManager[Cluster] | None = None,
    *,
    grace: Duration | None = None,
    burst: bool = False,
    probes: str | None = None,
) -> None:
    """Run a worker until a signal; call it in the main thread of a script, outside any event loop.

    ``worker``: a function that makes the worker on the open cluster (see ``MakeWorker``).  ``cluster``: a cluster that
    is not open yet, None: ``connect()``, from the environment.  ``grace``: seconds that running handlers have to finish
    after SIGTERM or SIGINT, None: the worker's own.  ``burst``: return as soon as the queues are empty (see
    ``Worker.run``).  ``probes``: answer ``/livez``, ``/readyz`` and ``/metrics`` over HTTP on this ``port`` (of
    loopback) or ``host:port``, None: do not.  Uses uvloop if it is installed, calls ``gc.freeze()`` once everything is
    imported, and tells systemd (``NOTIFY_SOCKET``) when it is ready.  Pushes the items of stored schedules, too,
    unless in ``burst``; see ``Cluster.schedules``.

    Returns after a drain or a burst.  Raises ``SystemExit`` with code 3 if handlers were cut off, whose items were
    handed back, with 1 after a drain because a task other than the handlers' raised ``SystemExit``, and with 128 + n
    after a second signal n.  The process ends at most ``LEAVE_SECONDS`` after the grace,
    or ``HURRY_SECONDS`` after the second signal, even if a handler's thread still runs.  Raises the errors of
    ``connect()`` and of the worker.
    """
    where = None if probes is None else read_address(probes)
    code = run_program(worker, cluster if cluster is not None else connect(), grace=grace, burst=burst, listen=where)
    if code:
        raise SystemExit(code)


def run_program(
    worker: MakeWorker,
    cluster: AbstractAsyncContextManager[Cluster],
    *,
    grace: Duration | None = None,
    burst: bool = False,
    children: int | None = None,
    supervised: Supervised | None = None,
    listen: Address | None = None,
) -> int:
    """Run a worker; return the exit code, as ``run_until_signal`` does.

    ``children``: processes that its handlers run in, None: as the worker says.  ``listen``: where to answer probes; if
    the process is ``supervised``, its supervisor asks for them instead.
    """
    start = partial(_working, worker, cluster, burst, children)
    if listen is None:
        return run_until_signal(start(None), grace=grace, supervised=supervised)
    probes = Probes()
    with supervised.answering(probes.respond) if supervised else _listening(listen, probes.respond):
        draining = partial(probes.end, "draining")
        return run_until_signal(start(probes), grace=grace, supervised=supervised, draining=draining)


@contextmanager
def _listening(listen: Address, respond: Respond) -> Generator[None]:
    with Listener(listen, respond) as listener:
        _log.info("probes are answered on %s", listener.address)
        yield


class Running(Protocol):
    """What a program does until a signal: a worker's work, or a server's."""

    @property
    def grace(self) -> float:
        """Seconds that begun work has to finish."""
        ...

    async def run(self, grace: float) -> None:
        """Run until the end of the work; when cancelled, drain within ``grace`` seconds, which a second cancellation
        ends."""
        ...

    def was_cut_off(self) -> bool:
        """Tell whether begun work did not finish within the grace."""
        ...


def run_until_signal(
    start: AbstractAsyncContextManager[Running],
    *,
    grace: Duration | None = None,
    supervised: Supervised | None = None,
    draining: Callable[[], None] = lambda: None,
) -> int:
    """Enter and run a program; return the exit code.  Unless that is 0, the caller exits with it within
    ``HURRY_SECONDS``.

    ``grace``: seconds, None: those of the program.  ``supervised``: a supervisor forwards the signals of the
    service manager, which may have sent them to this process too.  So repeated ones change nothing, and the second one
    is SIGQUIT.  ``draining`` is called when the work is told to end.
    """
    check_posix("worker programs")
    seconds = None if grace is None else check_duration("grace", grace)
    with _LastResort() as last_resort:
        signals = _Signals(last_resort, supervised=supervised, draining=draining)
        with undone_in_forks(signals.undo), signals, asyncio.Runner(loop_factory=fastest_loop()) as runner:
            code = _run_through(runner.get_loop(), _run(start, signals, seconds), signals)
            if code:
                last_resort.set(HURRY_SECONDS, code)
        if not code:
            last_resort.cancel()
    return code


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed (extra ``uvloop``); None means asyncio's own."""
    try:
        return cast("Callable[[], asyncio.AbstractEventLoop]", import_module("uvloop").new_event_loop)
    except ImportError:
        return None


def _run_through(loop: asyncio.AbstractEventLoop, program: Coroutine[Any, Any, int], signals: _Signals) -> int:
    """Run a program; if a task of user code exits, drain it.

    asyncio stops the loop where any task raises ``SystemExit``, though its handler would catch it.  Left alone, that
    would cut off the handlers beside it, and end the process with a code that may say to start no other one.
    """
    main = loop.create_task(program)
    while True:
        try:
            return loop.run_until_complete(main)
        except SystemExit as error:
            if main.done():
                raise
            signals.exit(error)


async def _run(start: AbstractAsyncContextManager[Running], signals: _Signals, grace: float | None) -> int:
    """Run until a signal or the end of the work; return the exit code."""
    program: Running | None = None
    try:
        signals.attach()
        async with start as program:
            signals.grace = program.grace if grace is None else grace
            signals.tell(READY)
            gc.freeze()  # what has been imported stays as long as the program, so the collector need not look at it
            try:
                await program.run(signals.grace)
            except asyncio.CancelledError:
                if not signals.absorb():
                    raise
            signals.detach()
    except asyncio.CancelledError:
        if not signals.absorb():
            raise
    if signals.second:
        return Exit.SIGNAL + signals.second
    if signals.exits:
        return Exit.TROUBLE
    return Exit.CUT_OFF if program and program.was_cut_off() else Exit.DONE


class _Working:
    """A worker that runs as a program."""

    def __init__(self, worker: Worker, burst: bool) -> None:
        self._worker = worker
        self._burst = burst
        self.grace = worker.grace

    async def run(self, grace: float) -> None:
        await self._worker.run(burst=self._burst, grace=grace)

    def was_cut_off(self) -> bool:
        return bool(self._worker.statistics().cut_off)


@asynccontextmanager
async def _working(
    make: MakeWorker,
    cluster: AbstractAsyncContextManager[Cluster],
    burst: bool,
    children: int | None,
    probes: Probes | None,
) -> AsyncGenerator[Running]:
    if probes:
        probes.attach()
    async with cluster as opened, _made_by(make, opened) as worker:
        if children is not None:
            worker._use_processes(children)  # pyright: ignore[reportPrivateUsage]
        if probes:
            probes.begin(opened)
        async with nullcontext() if burst else opened.schedules().run():
            yield _Working(worker, burst)


@asynccontextmanager
async def _made_by(make: MakeWorker, cluster: Cluster) -> AsyncGenerator[Worker]:
    """Call the user's function.  Raises ``ConfigError`` if no worker comes of it."""
    made = cast("object", make(cluster))
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, AbstractAsyncContextManager) and not isinstance(made, Worker):
        async with cast("AbstractAsyncContextManager[object]", made) as entered:
            yield _check_worker(entered)
    else:
        yield _check_worker(made)


def _check_worker(made: object) -> Worker:
    if not isinstance(made, Worker):
        raise ConfigError(
            f"the function must return a zkrq.Worker, not {type(made).__name__}: it is called once, with the cluster; "
            "a handler is given to Worker.add in it"
        )
    return made


class _LastResort:
    """End the process after some seconds, from a thread, unless this is cancelled or set anew meanwhile.

    The thread is there from the beginning, because a signal's handler must not start one.
    """

    def __init__(self) -> None:
        self._wishes: queue.SimpleQueue[tuple[float, int] | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="zkrq last resort", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.cancel()

    def set(self, seconds: float, code: int) -> None:
        """Exit with ``code`` after ``seconds``, instead of what was set before."""
        self._wishes.put((seconds, code))

    def cancel(self) -> None:
        self._wishes.put(None)

    def _watch(self) -> None:
        wish = self._wishes.get()
        while wish is not None:
            seconds, code = wish
            try:
                wish = self._wishes.get(timeout=seconds)
            except queue.Empty:
                os.write(2, b"zkrq: something still runs, and the time to end is over: exit now\n")
                os._exit(code)


class _Signals:
    """Turn signals into the end of the work: the first one cancels it, the second one ends its grace as well."""

    def __init__(
        self, last_resort: _LastResort, *, supervised: Supervised | None, draining: Callable[[], None]
    ) -> None:
        self.grace = 0.0
        """Seconds that handlers have to finish; 0 before there is a worker."""
        self.first: int | None = None
        self.second: int | None = None
        self.exits = False
        """Whether a task of user code has raised ``SystemExit``."""
        self._last_resort = last_resort
        self._supervised = supervised is not None
        self.tell = supervised.tell if supervised else notify
        """Tells the supervisor or the service manager a state."""
        self._draining = draining
        self._previous: dict[int, Any] = {}
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._detached = False

    def __enter__(self) -> Self:
        handlers = {signal.SIGTERM: self._receive, signal.SIGINT: self._receive}
        if self._supervised:
            handlers[signal.SIGQUIT] = self._receive_second
        for number, handler in handlers.items():
            self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def undo(self) -> None:
        """Let signals end a forked child, unless they were ignored before they were handled here.

        Not by ``KeyboardInterrupt``, which would go through a copy of the parent's event loop.
        """
        signal.set_wakeup_fd(-1)  # the parent's loop reads its other end
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)

    def attach(self) -> None:
        """Cancel the current task from now on.  Raises ``CancelledError`` if a signal arrived before."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self.first:
            raise asyncio.CancelledError

    def detach(self) -> None:
        """Let the first signal cancel nothing any more, because the work has ended; the second one still does."""
        self._detached = True
        self.tell(STOPPING)
        self._draining()

    def absorb(self) -> bool:
        """Undo the cancellation that was caught, and return True, if a signal or ``exit`` is its cause."""
        if not (self.first or self.exits) or not self._task:
            return False
        while self._task.cancelling():
            self._task.uncancel()
        return True

    def exit(self, error: SystemExit) -> None:
        """Drain, as at the first signal, because a task of user code has raised this."""
        text = "a task raised %s, which ends this process: draining within %g s"
        _log.error(text, message_of(error), self.grace, exc_info=error)
        if not self.exits and self.first is None:
            self.exits = True
            self._last_resort.set(self.grace + LEAVE_SECONDS, Exit.CUT_OFF)
            self._end()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self.first = number
            self._last_resort.set(self.grace + LEAVE_SECONDS, Exit.CUT_OFF)
            self._soon(self._drain)
        elif not self._supervised:
            self._receive_second(number, frame)

    def _receive_second(self, number: int, frame: FrameType | None) -> None:
        if self.first is None:
            self._receive(number, frame)
        if self.second is None:
            self.second = number
            self._last_resort.set(HURRY_SECONDS, Exit.SIGNAL + number)
            self._soon(self._hurry)

    def _soon(self, act: Callable[[], None]) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _drain(self) -> None:
        _log.info("%s: draining within %g s", _name(self.first), self.grace)
        if not self.exits:  # that drains already
            self._end()

    def _end(self) -> None:
        self.tell(STOPPING)
        self._draining()
        if not self._detached and self._task:
            self._task.cancel()

    def _hurry(self) -> None:
        """End the grace; then whatever handler does not end, since closing the cluster hands its item back, too.

        After pauses, because cancellations that arrive together count as one.
        """
        _log.warning("%s: ending now", _name(self.second))
        if self._loop and self._task:
            for pause in HURRY_PAUSES:
                self._loop.call_later(pause, self._task.cancel)


def _name(number: int | None) -> str:
    return signal.Signals(number).name if number else "no signal"
