"""Run the handlers of a worker in children: give each item to a child, hear how it ended, and replace children.

The parent claims, extends and settles; a child knows no server.  A handler that blocks or computes loses no claim, for
the parent's event loop is free to extend it.  A child that dies takes its own items along and no others; the parent
fails them, as if their handlers had raised an error that names the signal.

A call is stopped in two steps: a frame with the reason and SIGTERM, then SIGKILL.  It ends when its child has answered
or is gone, so the item is not handed back while its handler may still work on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zkrq.base.checks import in_seconds
from zkrq.base.errors import (
    ClaimLost,
    ConfigError,
    HandlerError,
    OutcomeUnknown,
    Unavailable,
    ZkrqError,
)
from zkrq.base.pauses import doubled
from zkrq.consuming.claims import Claim, lease_of, stored_headers_of
from zkrq.consuming.lease import EncodedResult
from zkrq.pool import records
from zkrq.pool import states as life
from zkrq.pool.counts import PoolStatistics, Shown, Tally, running
from zkrq.pool.frames import (
    UP_MAX,
    BadFrame,
    Frames,
    Kind,
    Told,
    Work,
    decode_done,
    decode_up,
    encode_down,
    encode_work,
)
from zkrq.pool.setup import READ_BYTES, PooledHandler, Setup, check_found, modules_of
from zkrq.pool.starting import Starting, main_of_program
from zkrq.pool.states import COUNTED, GIVEN, ChildState, Row
from zkrq.pool.verdicts import end_in_words, error_of, payload_of, settle_as_told, why_unsaved
from zkrq.pool.writing import Writer

if TYPE_CHECKING:
    from zkrq.pool.settings import Processes

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds before another child is started if one has died before it was ready; doubled with each that does."""

GONE_SECONDS = 1.5
"""Seconds from SIGKILL until a child is not waited for any more."""

WAIT_SECONDS = 5.0
"""Seconds that an item waits for a child while none can be started; then it is handed back."""

CLOSED_SECONDS = 1.0
"""Seconds that a child has to end once it has closed its connection."""

STARTER_GONE = "the process that starts the handlers' processes has ended"

_log = logging.getLogger("zkrq.pool")


@dataclass(eq=False, slots=True)
class _Job:
    """An item that is in a child."""

    number: int
    claim: Claim[Any]
    child: _Child
    ended: asyncio.Future[None]
    """Ends when there is an outcome.  A call that is cancelled cancels it, and waits for another one."""
    outcome: bytes | Told | HandlerError | None = None
    """What the child said, or that it died."""

    def end(self, outcome: bytes | Told | HandlerError) -> None:
        """Note how the work has ended."""
        self.outcome = outcome
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(eq=False, slots=True)
class _Child:
    """A child, as its parent sees it."""

    number: int
    end: socket.socket
    writer: Writer
    gone: asyncio.Future[str]
    """Ends when it has ended, with how."""
    state: ChildState = ChildState.STARTING
    process: int = 0
    jobs: dict[int, _Job] = field(default_factory=dict[int, _Job])
    items: int = 0
    frames: Frames = field(default_factory=lambda: Frames(UP_MAX))
    successor: _Child | None = None
    """The child that is to take its place; while it starts, this one goes on."""
    why_killed: str = ""
    timer: asyncio.TimerHandle | None = None
    """Kills it unless it ends in time."""
    is_open: bool = True

    def move(self, row: Row) -> None:
        """Go on to the next state."""
        self.state = row[self.state]


class Pool:
    """The children of a worker."""

    def __init__(self, settings: Processes, concurrency: int) -> None:
        self.settings = settings
        self.count = -(-concurrency // settings.slots)
        """Children that there are to be."""
        self._kill_after = in_seconds(settings.kill_after)
        self._handlers: list[PooledHandler] = []
        self._children: dict[int, _Child] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._numbers = 0
        self._starter: Starting | None = None
        self._setup: Setup | None = None
        self._ready = asyncio.Event()
        """Set when a child has been ready."""
        self._failures = 0
        """Children that died before they were ready, since the last one that was."""
        self._timer: asyncio.TimerHandle | None = None
        self._calls = set[asyncio.Task[None]]()
        self._is_running = False
        self._was_unfit = False
        """Whether the starter ends because of what it imported."""
        self._tally = Tally()
        self.clusters = set[str]()
        """Names of the clusters whose queues are served."""

    def add(self, handler: PooledHandler, name: str) -> Callable[[Claim[Any]], Coroutine[Any, Any, object]]:
        """Add a handler; return a function that calls it with a claim, in a child.  Raises ``ConfigError``."""
        if self.settings.slots > 1 and not handler.is_async:
            raise ConfigError(f"{name} is a plain function, and a child runs one at a time: slots must be 1")
        check_found(handler, name)
        number = len(self._handlers)
        self._handlers.append(handler)

        async def call(claim: Claim[Any]) -> object:
            return await self._call(number, claim)

        return call

    def statistics(self) -> PoolStatistics:
        """Count the children; call this on the event loop."""
        return self._tally.statistics((child.state, child.process) for child in self._children.values())

    # -- running -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start the children, wait until one is ready, and end them when this is left."""
        self._setup = self._make_setup()
        self._ready, self._failures, self._timer = asyncio.Event(), 0, None
        self._is_running = True
        shown = Shown(frozenset(self.clusters), self.statistics)
        running.append(shown)
        try:
            self._fill()
            await self._ready.wait()
            yield
        finally:
            self._is_running = False
            try:
                await self._aclose()
            finally:
                running.remove(shown)

    def _make_setup(self) -> Setup:
        wanted = self.settings.preload
        preload = list(modules_of(self._handlers) if wanted is None else wanted)
        main, is_file = main_of_program()
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        return Setup(
            path=list(sys.path),
            arguments=list(sys.argv),
            main=main,
            main_is_file=is_file,
            preload=preload,
            handlers=pickle.dumps(self._handlers),
            loop="uvloop" if loop == "uvloop" else "asyncio",
            levels=records.levels(),
            measures=self.settings.max_memory is not None,
        )

    async def _aclose(self) -> None:
        """End the children, those that still work by force."""
        if self._timer:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        for child in [*self._children.values()]:
            self._let_go(child)
        try:
            left = [child.gone for child in self._children.values() if not child.jobs]
            if left:
                await asyncio.wait(left, timeout=self._kill_after)
        finally:
            starter, self._starter = self._starter, None
            try:
                if starter:
                    await starter.aclose()
            finally:
                for child in [*self._children.values()]:
                    self._bury(child, "the worker ended")

    # -- children ------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start as many children as are missing, unless they fail again and again: then one, after a pause."""
        if not self._is_running or self._timer:
            return
        missing = self.count - sum(child.state in COUNTED for child in self._children.values())
        if missing > 0 and self._failures:
            pause = doubled(FIRST_PAUSE, self._failures - 1, most=MAX_PAUSE)
            self._timer = asyncio.get_running_loop().call_later(pause, self._try_again)
            return
        for _ in range(missing):
            if self._start() is None:
                return

    def _try_again(self) -> None:
        self._timer = None
        if not any(child.state is ChildState.STARTING for child in self._children.values()):
            self._start()

    def _start(self) -> _Child | None:
        """Start a child.  None: no process or descriptor is left on this machine; it is tried again."""
        assert self._setup
        loop = asyncio.get_running_loop()
        try:
            if self._starter is None:
                self._starter = Starting(self._setup, self._hear_starter, self._lose_starter)
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._note_failure(f"none could be started ({error})")
            self._fill()
            return None
        ours.setblocking(False)
        self._numbers += 1
        child = self._children[self._numbers] = _Child(self._numbers, ours, Writer(ours), loop.create_future())
        with theirs:
            self._starter.fork(child.number, theirs)
        loop.add_reader(ours, self._read, child)
        self._tally.started += 1
        return child

    def _hear_starter(self, kind: int, told: Told) -> None:
        child = self._children.get(told.number("child"))
        if kind == Kind.UNFIT and self._setup:
            text = "modules that handlers need %s, so each child imports them itself: see preload"
            _log.warning(text, told.text("why"))
            self._setup = self._setup._replace(preload=[])
            self._was_unfit = True
        elif child is None:
            return
        elif kind == Kind.FORKED:
            child.process = told.number("process")
        elif kind == Kind.ENDED:
            self._read(child, at_the_end=True)
            self._tally.spend(told.seconds("seconds") or 0.0)
            if error := told.text("error"):
                self._die(child, f"could not be started ({error})")
            else:
                self._die(child, *end_in_words(told.number("code")))

    def _lose_starter(self) -> None:
        """Go on with another starter: its children have died with it."""
        self._starter = None
        was_unfit, self._was_unfit = self._was_unfit, False
        for child in [*self._children.values()]:
            self._read(child, at_the_end=True)
            if was_unfit and child.state is ChildState.STARTING:
                self._bury(child, STARTER_GONE)
            else:
                if sys.platform != "linux" and child.process:  # there the kernel has killed it
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(child.process, signal.SIGKILL)
                self._die(child, f"ended: {STARTER_GONE}", "starter")
        self._fill()

    def _die(self, child: _Child, how: str, by: str = "not started") -> None:
        """Note that a child has ended, and start another one if it is missing.  ``by``: what it is counted under."""
        if child.state is ChildState.DEAD:
            return
        was = child.state
        self._bury(child, f"the handler's process {child.why_killed or how}")
        if was is not ChildState.STOPPING:
            self._tally.die(by)
        if was is ChildState.STARTING:
            self._note_failure(how)
        elif was is not ChildState.STOPPING and not child.jobs:
            _log.warning("process %d of the pool %s; another one is started", child.process, how)
        self._fill()

    def _note_failure(self, how: str) -> None:
        self._failures += 1
        if self._failures == 1:
            _log.error("a process of the pool %s before it was ready; more are tried, after growing pauses", how)

    def _bury(self, child: _Child, reason: str) -> None:
        """Forget a child that has ended, and end the calls that it had."""
        child.move(life.DIE)
        if child.timer:
            child.timer.cancel()
        self._children.pop(child.number, None)
        for each in self._children.values():
            if each.successor is child:  # its next item above the bound starts another one
                each.successor = None
        self._close(child)
        for job in child.jobs.values():
            job.end(HandlerError(reason))
        if not child.gone.done():
            child.gone.set_result(reason)

    def _close(self, child: _Child) -> None:
        if child.is_open:
            child.is_open = False
            asyncio.get_running_loop().remove_reader(child.end)
            child.writer.detach()
            child.end.close()

    def _let_go(self, child: _Child) -> None:
        """Give a child nothing more, and have it end when it has nothing left; if it does not, kill it."""
        child.move(life.STOP)
        if not child.jobs and child.is_open:
            self._send(child, encode_down(Kind.END))
            self._kill_later(child, self._kill_after, "was killed, because it did not end")

    def _kill(self, child: _Child, why: str) -> None:
        if child.state is ChildState.DEAD:
            return
        child.move(life.STOP)
        if not child.why_killed:
            child.why_killed = why
            self._tally.killed += 1
            _log.warning("process %d of the pool %s", child.process, why)
        if self._starter:
            self._starter.signal(child.number, signal.SIGKILL)

    def _kill_later(self, child: _Child, seconds: float, why: str) -> None:
        """Kill a child unless it ends within these seconds."""
        if child.timer is None:
            child.timer = asyncio.get_running_loop().call_later(seconds, self._kill, child, why)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _call(self, handler: int, claim: Claim[Any]) -> object:
        """Call a handler in a child; return what it returned, encoded.  Raises what it raised."""
        job: _Job | None = None
        while job is None:
            child = self._take() or await self._wait(claim)
            if child is None:
                return None  # handed back
            job = self._give(child, handler, claim)
        try:
            await job.ended
        except asyncio.CancelledError:
            await self._stop(job)
            outcome = job.outcome
            if outcome is None or isinstance(outcome, HandlerError):
                raise
            if isinstance(outcome, Told) and outcome.flag("stopped"):
                raise
        outcome = job.outcome
        if isinstance(outcome, HandlerError):
            raise outcome
        if isinstance(outcome, Told):
            raise error_of(outcome, self._handlers[handler], claim)
        return EncodedResult(outcome) if outcome else None

    def _take(self) -> _Child | None:
        """Return the child that may be given an item and has least of them, None if there is none."""
        slots, found = self.settings.slots, None
        for child in self._children.values():
            if child.state is ChildState.IDLE:
                return child
            if child.state in GIVEN and len(child.jobs) < slots and (not found or len(child.jobs) < len(found.jobs)):
                found = child
        return found

    async def _wait(self, claim: Claim[Any]) -> _Child | None:
        """Wait for a child that may be given an item; None: none can be started, and the item was handed back."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_SECONDS
        while (child := self._take()) is None:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await asyncio.wait([waiter], timeout=max(0.1, until - loop.time()))
            finally:
                if waiter.done():  # if this is cancelled, another one may use the child
                    self._offer()
                else:
                    self._waiters.remove(waiter)
            if self._failures and loop.time() >= until:
                with suppress(OutcomeUnknown, Unavailable):
                    await claim.release()
                    return None
        return child

    def _offer(self) -> None:
        """Wake a call that waits for a child, if one may be given an item."""
        if self._waiters and self._take():
            self._waiters.popleft().set_result(None)

    def _give(self, child: _Child, handler: int, claim: Claim[Any]) -> _Job | None:
        """Give an item to a child; None: it has just died, and has not got it."""
        lease = lease_of(claim)
        grant, loop = lease.grant, asyncio.get_running_loop()
        self._numbers += 1
        job = child.jobs[self._numbers] = _Job(self._numbers, claim, child, loop.create_future())
        child.move(life.GIVE)
        child.items += 1
        work = Work(
            number=job.number,
            handler=handler,
            id=lease.id,
            bundle=grant.bundle,
            position=lease.position,
            owner=grant.owner,
            request=grant.request,
            packed=grant.packed,
            seconds=lease.deadline_at - loop.time(),
            headers=dict(stored_headers_of(claim) or {}) or None,
            saved=grant.saved_at(lease.position),
            unsaved=why_unsaved(lease),
        )
        if not self._send(child, encode_work(work, payload_of(claim, self._handlers[handler]))):
            del child.jobs[job.number]
            child.move(life.STOP)
            return None
        if self.settings.max_items is not None and child.items >= self.settings.max_items:
            child.move(life.STOP)  # the next one starts while it works on its last item
            self._tally.replaced += 1
            self._fill()
        return job

    async def _stop(self, job: _Job) -> None:
        """Stop the work on an item, and wait until it has ended; if this is cancelled, kill its child."""
        if job.outcome is not None:
            return
        loop, child, loss = asyncio.get_running_loop(), job.child, lease_of(job.claim).loss
        job.ended = loop.create_future()
        self._send(child, encode_down(Kind.STOP, job.number, loss.reason if loss else "", bool(loss)))
        if self.settings.slots == 1:
            child.move(life.STOP)
            if self._starter:
                self._starter.signal(child.number, signal.SIGTERM)
            self._fill()
        why = "was killed, because a handler in it did not stop"
        timer = loop.call_later(self._kill_after, self._kill, child, why)
        until = loop.time() + self._kill_after + GONE_SECONDS
        try:
            while job.outcome is None and (left := until - loop.time()) > 0:
                try:
                    await asyncio.wait([job.ended], timeout=left)
                except asyncio.CancelledError:
                    self._kill(child, why)
                    until = loop.time() + GONE_SECONDS
        finally:
            timer.cancel()

    def _end(self, child: _Child, number: int, verdict: bytes | Told, memory: int) -> None:
        """Note how the work on an item has ended."""
        job = child.jobs.pop(number, None)
        if job is None:
            return
        job.end(verdict)
        if not child.jobs:
            child.move(life.REST)
        most = self.settings.max_memory
        if most is not None and memory > most and child.state in GIVEN and child.successor is None:
            child.successor = self._start()
        if child.state is ChildState.STOPPING:
            self._let_go(child)
        else:
            self._offer()

    # -- what children say ---------------------------------------------------------------------------------------------

    def _send(self, child: _Child, data: bytes) -> bool:
        """Send a frame; False: the child has closed its end, so it has died, and the starter tells how."""
        return child.is_open and child.writer.send(data)

    def _read(self, child: _Child, *, at_the_end: bool = False) -> None:
        """Read what a child has sent; ``at_the_end``: all that is left of it."""
        while child.is_open:
            try:
                data = child.end.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(child)
                if not at_the_end:  # it ends, and the starter tells how; or a handler has closed its connection
                    self._kill_later(child, CLOSED_SECONDS, "was killed, because it closed its connection")
                return
            try:
                for kind, body in child.frames.feed(data):
                    self._hear(child, kind, body)
            except BadFrame as error:
                self._close(child)
                self._kill(child, f"was killed, because it sent {error}")
                return
            if not at_the_end:
                return

    def _hear(self, child: _Child, kind: int, body: bytes) -> None:
        if kind == Kind.DONE:
            number, memory, result = decode_done(body)
            self._end(child, number, result, memory)
            return
        told = decode_up(body)
        if kind == Kind.FAILED:
            self._end(child, told.number("number"), told, told.number("memory"))
        elif kind == Kind.PROGRESS:
            if job := child.jobs.get(told.number("number")):
                share, _, text = told.text("text").partition(" ")
                with suppress(ValueError, ZkrqError):
                    job.claim.progress(float(share) if share else None, text)
        elif kind == Kind.RECORD:
            records.handle(told, child.process)
        elif kind == Kind.CALL:
            if job := child.jobs.get(told.number("number")):
                task = asyncio.create_task(self._answer(job, told), name="zkrq pool: a call of a handler")
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
        elif kind == Kind.READY:
            self._begin(child)
        elif kind == Kind.BROKEN and self._failures == 0:
            text = "handlers cannot be imported in a process: %s\n%s"
            _log.error(text, told.text("message"), told.text("traceback"))

    def _begin(self, child: _Child) -> None:
        """Note that a child is ready."""
        if child.state is not ChildState.STARTING:
            return
        child.move(life.READY)
        if self._failures:
            _log.info("a process of the pool is ready again, after %d that were not", self._failures)
            self._failures = 0
        self._ready.set()
        for worn in [each for each in self._children.values() if each.successor is child]:
            self._tally.replaced += 1
            self._let_go(worn)
        self._fill()
        self._offer()

    async def _answer(self, job: _Job, told: Told) -> None:
        """Do what a handler wants done with its claim, and tell it how that ended."""
        kind = text = ""
        try:
            await settle_as_told(job.claim, told)
        except ClaimLost as error:
            kind, text = "ClaimLost", "in doubt" if error.in_doubt else ""
        except ZkrqError as error:
            kind, text = type(error).__name__, str(error)
        self._send(job.child, encode_down(Kind.ANSWER, job.number, told.number("call"), kind, text))
