"""Be a child: work on the items that the parent sends, and tell it how each ended.

Plain handlers run on the main thread, one at a time, so a signal can stop them: SIGTERM raises ``CancelledError``
there.  ``async`` ones run on one event loop, which lives as long as the child.

A SIGTERM counts only after a frame that says to stop, because a service manager may send one to every process: the
parent drains then, and its handlers are to finish.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, cast

from zkrq.base import forks
from zkrq.base.codecs import codec_of_item
from zkrq.base.errors import CodecError, ConfigError, message_of, reason_of, text_of
from zkrq.base.retry import interrupts, judge
from zkrq.pool.claim import ChildIssuer, PooledClaim
from zkrq.pool.counts import used_by
from zkrq.pool.frames import (
    DOWN_MAX,
    TEXT_MAX,
    Frames,
    Kind,
    Work,
    decode_down,
    decode_work,
    encode_done,
    encode_up,
)
from zkrq.pool.records import Records, working
from zkrq.pool.setup import IGNORED, READ_BYTES, PooledHandler, Setup, load_main


class _Job:
    """Work on one item."""

    __slots__ = ("claim", "handler", "is_stopped", "number", "task")

    def __init__(self, number: int, handler: PooledHandler, claim: PooledClaim) -> None:
        self.number = number
        self.handler = handler
        self.claim = claim
        self.is_stopped = False
        self.task: asyncio.Task[Any] | None = None


def run_child(setup: Setup, end: socket.socket) -> int:
    """Work until the parent says to end, or closes the connection; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            # A line leaves in one piece, also where nothing is to be buffered (``PYTHONUNBUFFERED``).
            cast("Any", stream).reconfigure(line_buffering=True, write_through=False)
    channel = Channel(end)
    try:
        if b"__main__" in setup.handlers:
            load_main(setup)
        handlers = cast("list[PooledHandler]", pickle.loads(setup.handlers))  # noqa: S301 - the parent's
        Records(channel.send).install(setup.levels)
        child = _Child(setup, channel, handlers)
    except BaseException as error:
        told = "".join(traceback.format_exception(error))[-TEXT_MAX:]
        channel.send(encode_up(Kind.BROKEN, message=message_of(error), traceback=told))
        return 1
    with (
        forks.undone_in_forks(partial(_undo, channel)),
        suppress(BrokenPipeError, ConnectionResetError),  # the parent has gone
    ):
        child.run()
        vars(atexit)["_run_exitfuncs"]()
    return 0


def _undo(channel: Channel) -> None:
    """Let signals end a process that a handler forks, and keep it from the connection: its frames would mix with the
    child's, and what it reads the child would miss."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_DFL)
    logging.root.handlers[:] = [logging.StreamHandler()]
    channel.end.close()


class Channel:
    """The connection to the parent.  Any thread may send."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.frames = Frames(DOWN_MAX)
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self.sending = False
        """Whether the main thread sends: a signal must not cut a frame off."""
        self.sent: Callable[[], None] = lambda: None
        """Called on the main thread when it has sent something."""

    def send(self, data: bytes) -> None:
        """Send frames.  Raises ``OSError`` if the parent has gone."""
        if threading.get_ident() != self._main:
            with self._lock:
                self.end.sendall(data)
            return
        self.sending = True
        try:
            with self._lock:
                self.end.sendall(data)
        finally:
            self.sending = False
        self.sent()


class _Child:
    def __init__(self, setup: Setup, channel: Channel, handlers: list[PooledHandler]) -> None:
        self._channel = channel
        self._handlers = handlers
        self._measures = setup.measures
        self._issuers = [ChildIssuer(each, channel.send, self) for each in handlers]
        self._jobs: dict[int, _Job] = {}
        self._plain: list[tuple[_Job, PooledClaim]] = []
        """Jobs that wait for the main thread."""
        self._current: _Job | None = None
        """The plain handler that runs, as long as a signal may stop it."""
        self._is_signalled = False
        self._is_waiting = False
        """Whether the handler on the main thread waits for an answer, and reads by itself what the parent says."""
        self._is_raised = False
        """Whether the handler that runs has been stopped."""
        self._has_ended = False
        self._factory = cast("Any", import_module(setup.loop)).new_event_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        channel.sent = self._raise_late
        for number in IGNORED:  # by a handler, because what is ignored would be ignored in a user's subprocess, too
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def run(self) -> None:
        """Work until the end."""
        if any(each.is_async for each in self._handlers):
            self._make_loop().add_reader(self._channel.end, self._read_on_loop)
        self._channel.send(encode_up(Kind.READY))
        while not self._has_ended:
            if self._plain:
                self._run_plain(*self._plain.pop(0))
            elif self._loop is not None:
                self._loop.run_forever()
            else:
                self._read()
        if self._loop is not None:
            self._loop.close()

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, made when it is first needed."""
        if self._loop is None:
            loop: asyncio.AbstractEventLoop = self._factory()
            self._loop = loop
            for issuer in self._issuers:
                issuer.own_loop.loop = loop
        return self._loop

    # -- what the parent says ------------------------------------------------------------------------------------------

    def _read_on_loop(self) -> None:
        self._read()
        if self._plain or self._has_ended:
            cast("asyncio.AbstractEventLoop", self._loop).stop()

    def _read(self, flags: int = 0) -> None:
        data = self._channel.end.recv(READ_BYTES, flags)
        if not data:
            self._has_ended = True
            if self._current:  # nobody wants to know how it ends
                raise SystemExit
            return
        for kind, body in self._channel.frames.feed(data):
            if kind == Kind.ITEM:
                self._begin(*decode_work(body))
            elif kind == Kind.STOP:
                self._stop(*decode_down(body))
            elif kind == Kind.ANSWER:
                number, call, error, text = decode_down(body)
                if job := self._jobs.get(number):
                    job.claim.answer(call, error, text)
            elif kind == Kind.END:
                self._has_ended = True

    def _begin(self, work: Work, payload: bytes) -> None:
        handler = self._handlers[work.handler]
        claim = PooledClaim(self._issuers[work.handler], work)
        job = self._jobs[work.number] = _Job(work.number, handler, claim)
        try:
            claim.item = codec_of_item(handler.codec, work.id).decode(payload)
        except BaseException as error:  # of any codec
            what = text_of(error) if isinstance(error, CodecError) else message_of(error)
            self._tell_failed(job, error, undecodable=what)
            return
        if handler.is_async:
            loop = cast("asyncio.AbstractEventLoop", self._loop)
            job.task = loop.create_task(self._run_async(job))
        else:
            self._plain.append((job, claim))

    def _stop(self, number: int, reason: str, is_lost: bool) -> None:
        """Stop the work on an item, if there still is any."""
        job = self._jobs.get(number)
        if job is None:
            return
        job.is_stopped = True
        if is_lost:
            job.claim.lose(reason)
        if job.task:
            job.task.cancel()

    def _receive(self, number: int, frame: object) -> None:
        """See on SIGTERM whether the handler on the main thread is to stop."""
        self._is_signalled = True
        if self._current and not self._channel.sending and not self._is_waiting:
            self._look()

    def _raise_late(self) -> None:
        """Stop the handler on the main thread if a signal came while it sent something."""
        if self._is_signalled and self._current and not self._is_waiting:
            self._look()

    def _look(self) -> None:
        self._is_signalled = False
        with suppress(BlockingIOError):
            self._read(socket.MSG_DONTWAIT)
        if self._current and self._current.is_stopped and not self._is_raised:
            self._is_raised = True
            raise asyncio.CancelledError

    def check(self) -> None:
        """Raise ``ConfigError`` unless this is the thread of a plain handler; see ``Waits``."""
        if self._current is None or threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "the claim of a handler in a process is called on its own thread, or on its own event loop"
            )

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Read what the parent says until it is done; see ``Waits``."""
        self._is_waiting = True
        try:
            while not is_done():
                self._read()
                if self._current and self._current.is_stopped and not self._is_raised:
                    self._is_raised = True
                    raise asyncio.CancelledError
        finally:
            self._is_waiting = False

    # -- handlers ------------------------------------------------------------------------------------------------------

    def _run_plain(self, job: _Job, claim: PooledClaim) -> None:
        error: BaseException | None = None
        result: object = None
        self._is_raised = False
        working.set(claim)
        try:
            try:
                self._current = job
                if self._is_signalled:
                    self._look()
                result = _call(job)
            finally:
                self._current = None
            if inspect.isawaitable(result):
                result = self._run_awaitable(job, result)
        except BaseException as raised:
            self._current = None
            error = raised
        self._end(job, error, result)

    def _run_awaitable(self, job: _Job, result: Awaitable[object]) -> object:
        """Await what a plain handler has returned."""
        loop = self._make_loop()
        loop.add_reader(self._channel.end, self._read_on_loop)
        job.task = loop.create_task(_awaited(result))
        if job.is_stopped:
            job.task.cancel()
        return loop.run_until_complete(job.task)

    async def _run_async(self, job: _Job) -> None:
        error: BaseException | None = None
        result: object = None
        working.set(job.claim)
        try:
            result = await _awaited(cast("Awaitable[object]", _call(job)))
        except BaseException as raised:
            error = raised
        self._end(job, error, result)

    def _end(self, job: _Job, error: BaseException | None, result: object) -> None:
        """Tell the parent how a handler ended."""
        kept = b""
        if error is None and job.handler.results is not None and result is not None:
            try:
                kept = job.handler.results.encode(result)
            except BaseException as raised:  # of any codec
                error = raised
        if error is None:
            memory = resident_bytes() if self._measures else 0
            self._jobs.pop(job.number, None)
            self._channel.send(encode_done(job.number, memory, kept))
        else:
            self._tell_failed(job, error)

    def _tell_failed(self, job: _Job, error: BaseException, *, undecodable: str = "") -> None:
        self._jobs.pop(job.number, None)
        is_stopped = job.is_stopped and interrupts(error, cancelled=True)
        if isinstance(error, asyncio.CancelledError) and not is_stopped:
            error = RuntimeError("the handler cancelled itself")
        failed = judge(error)
        data = encode_up(
            Kind.FAILED,
            number=job.number,
            stopped=is_stopped,
            undecodable=undecodable,
            message=message_of(error),
            reason=reason_of(error) if not failed.is_wish else failed.reason,
            traceback=_traceback_of(error),
            kinds=[f"{each.__module__}.{each.__qualname__}"[:200] for each in type(error).__mro__[:20]],
            wish=failed.is_wish,
            final=failed.is_final,
            snooze=failed.is_snooze,
            delay=failed.delay,
            memory=resident_bytes() if self._measures else 0,
        )
        self._channel.send(data)


def _traceback_of(error: BaseException) -> str:
    """Return the traceback from the handler on, its end if it is long."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))[-TEXT_MAX:]
    except Exception:  # of its __str__
        return ""


def _call(job: _Job) -> object:
    """Call a handler.  A process that it forks ends where it comes back, or it would read items like this one."""
    handler, claim, begun = job.handler, job.claim, forks.depth
    try:
        return handler.call(claim.item, claim) if handler.takes_claim else handler.call(claim.item)
    finally:
        if forks.depth != begun:
            forks.end_child(sys.exception())


async def _awaited(result: Awaitable[Any]) -> object:
    begun = forks.depth
    try:
        return await result
    finally:
        if forks.depth != begun:
            forks.end_child(sys.exception())


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes: now on Linux, elsewhere the most that it was."""
    if now := used_by(os.getpid()).memory:
        return now
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
