"""Supervise the processes of a worker: start them, restart them when they crash, pass signals on.

Each is this same command, with its end of a socket pair (see ``control``).  It is in a process group of its own, so
that Ctrl-C in a terminal reaches it only through its parent; and since a service manager may signal all processes of a
service, a repeated SIGTERM changes nothing there.  The second signal is passed on as SIGQUIT.  A process says when it
is ready, and systemd hears of it when all are.  Probes are answered for all of them on one port.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process, create_subprocess_exec
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import cast

from zkrq.base.errors import ConfigError
from zkrq.base.pauses import doubled
from zkrq.base.tasks import wait_set
from zkrq.process.control import CONTROL, Line
from zkrq.process.exits import Exit
from zkrq.process.gathering import Gathering
from zkrq.process.listening import Address, Listener
from zkrq.process.notify import NOTIFY_SOCKET, READY, STOPPING, notify

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds before a process that crashed is started again, doubled from the first value up to the second ..."""

STABLE_SECONDS = 60.0
"""... and from the first again if it had run for this long."""

KILL_SECONDS = 5.0
"""Seconds from the second signal until processes that are still there are killed."""

_log = logging.getLogger("zkrq.supervisor")


class Supervisor:
    """Run the processes of this command."""

    def __init__(self, processes: int, *, reload: bool, burst: bool, listen: Address | None) -> None:
        """``listen``: where to answer probes for all processes, None: nowhere.

        Raises ``ConfigError`` for options that exclude each other, or if ``watchfiles`` is not installed."""
        if reload and (processes > 1 or burst):
            raise ConfigError("--reload is for development: one process, and no --burst")
        self._watch = _watcher() if reload else None
        self._count = processes
        self._burst = burst
        self._where = listen
        self._lines = [Line() for _ in range(processes)]
        self._children: dict[int, Process] = {}
        self._ready = set[int]()
        self._codes: list[int] = []
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._second: int | None = None

    async def run(self) -> int:
        """Run until a signal, or the end of the burst; return the exit code.

        If this process is killed, the others notice and drain.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._receive, number)
        with ExitStack() as stack:
            if self._where is not None:
                gathering = Gathering({str(slot): line.connect for slot, line in enumerate(self._lines)})
                listener = stack.enter_context(Listener(self._where, gathering.respond))
                _log.info("probes are answered on %s", listener.address)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._reload()) if self._watch else None
                keepers = [tasks.create_task(self._keep(slot)) for slot in range(self._count)]
                await asyncio.wait(keepers)
                if watching:
                    watching.cancel()
        return self._code()

    def _code(self) -> int:
        if self._second:
            return Exit.SIGNAL + self._second
        for code in (Exit.USAGE, Exit.CUT_OFF):
            if code in self._codes:
                return code
        # SIGTERM ends a process that has not yet come so far as to drain.
        return Exit.TROUBLE if set(self._codes) - {Exit.DONE, -signal.SIGTERM} else Exit.DONE

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _keep(self, slot: int) -> None:
        """Start a process, and start it again whenever it ends without being told to."""
        crashes = 0
        while not self._stopping.is_set():
            began = asyncio.get_running_loop().time()
            ended, code = await self._run_one(slot)
            if self._stopping.is_set() or (self._burst and code == Exit.DONE):
                self._codes.append(code)
                return
            if self._watch:
                await self._until_changed(ended)
                continue
            if code == Exit.USAGE:
                self._codes.append(code)
                self._stop()
                return
            crashes = 0 if asyncio.get_running_loop().time() - began > STABLE_SECONDS else crashes
            pause = doubled(FIRST_PAUSE, crashes, most=MAX_PAUSE)
            crashes += 1
            _log.error("%s; another one is started in %g s", ended, pause)
            await wait_set(self._stopping, pause)

    async def _run_one(self, slot: int) -> tuple[str, int]:
        """Run a process to its end; return what became of it, for people, and its exit code."""
        try:
            with self._lines[slot].opened() as (ours, theirs):
                process = await _start(theirs)
                self._children[slot] = process
                if self._stopping.is_set():  # meanwhile
                    _send(process, signal.SIGTERM)
                with self._hearing(slot, ours):
                    code = await process.wait()
        except OSError as error:  # no process, no memory or no descriptor is left on this machine
            return f"no process could be started ({error})", Exit.TROUBLE
        del self._children[slot]
        return f"process {process.pid} ended with code {code}", code

    def _receive(self, number: int) -> None:
        if not self._stopping.is_set():
            _log.info("%s: %d processes drain", signal.Signals(number).name, len(self._children))
            self._stop()
        elif self._second is None:
            self._second = number
            self._send_all(signal.SIGQUIT)
            asyncio.get_running_loop().call_later(KILL_SECONDS, self._send_all, signal.SIGKILL)

    def _stop(self) -> None:
        self._stopping.set()
        self._changed.set()
        notify(STOPPING)
        self._send_all(signal.SIGTERM)

    def _send_all(self, number: signal.Signals) -> None:
        for process in self._children.values():
            _send(process, number)

    # -- readiness -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _hearing(self, slot: int, end: socket.socket) -> Generator[None]:
        """Hear what a process says."""
        loop = asyncio.get_running_loop()
        loop.add_reader(end, self._hear, slot, end)
        try:
            yield
        finally:
            loop.remove_reader(end)

    def _hear(self, slot: int, end: socket.socket) -> None:
        said = self._lines[slot].hear(end)
        if said is None:
            asyncio.get_running_loop().remove_reader(end)
        elif READY in said and slot not in self._ready:
            self._ready.add(slot)
            if len(self._ready) == self._count:
                notify(READY)

    # -- reloading -----------------------------------------------------------------------------------------------------

    async def _reload(self) -> None:
        assert self._watch
        async for changes in self._watch():
            _log.info("changed: %s", ", ".join(sorted(path for _, path in changes)))
            self._changed.set()
            self._send_all(signal.SIGTERM)

    async def _until_changed(self, ended: str) -> None:
        if not self._changed.is_set():
            _log.warning("%s; another one is started when a file changes", ended)
        await self._changed.wait()
        self._changed.clear()


async def _start(end: socket.socket) -> Process:
    """Start a process with its end of the pair.  Raises ``OSError``."""
    environment = {**os.environ, CONTROL: str(end.fileno())}
    environment.pop(NOTIFY_SOCKET, None)  # this process tells the service manager
    command = (sys.executable, "-m", "zkrq", *sys.argv[1:])
    with end:
        return await create_subprocess_exec(
            *command, stdin=DEVNULL, env=environment, process_group=0, pass_fds=[end.fileno()]
        )


def _send(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _watcher() -> Callable[[], AsyncGenerator[set[tuple[object, str]]]]:
    """Return a function that yields the changed Python files below the current directory."""
    try:
        watchfiles = import_module("watchfiles")
    except ImportError as error:
        raise ConfigError("--reload needs watchfiles: pip install 'zkrq[reload]'") from error
    return cast(
        "Callable[[], AsyncGenerator[set[tuple[object, str]]]]",
        partial(watchfiles.awatch, ".", watch_filter=watchfiles.PythonFilter(), recursive=True),
    )
