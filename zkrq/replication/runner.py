"""Run the protocol's operations on real servers: the only place that waits, and that reads clocks.

An operation (see ``protocol/steps.py``) says what to do next; the runner does it and sends it the result.  When the
operation's time is up, the runner throws ``TimeUp`` into it, and the operation says what that means: nothing happened,
or the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zkrq.base import clock
from zkrq.base.errors import (
    ClaimLost,
    ConfigError,
    NotEnoughReplicas,
    NotLetIn,
    OutcomeUnknown,
    Unavailable,
    ZkrqError,
)
from zkrq.base.events import Events, ServerEvicted
from zkrq.coordination.coordinator import no_namespace
from zkrq.protocol.calls import ApplyNew, Call, Carrying, Clocked, PushDecided, PushPlain, Room
from zkrq.protocol.clocks import Clocks
from zkrq.protocol.enrolment import HOLD_MS
from zkrq.protocol.replies import Status, Why
from zkrq.protocol.steps import (
    Answers,
    Ask,
    Begin,
    Breathe,
    Change,
    CheckTime,
    ConfirmPlace,
    DecisionNeeded,
    Denied,
    Evict,
    Evicted,
    Failure,
    Fenced,
    Hurry,
    Identify,
    Invalid,
    Jitter,
    Log,
    Look,
    Misplaced,
    Monotonic,
    NoNamespace,
    Nonce,
    NoteClocks,
    NothingDone,
    NotNow,
    Now,
    Obstacles,
    Operation,
    ReadRegister,
    Refresh,
    Removed,
    Report,
    Rest,
    Seen,
    Step,
    StepFailed,
    Swap,
    TimeUp,
    TooFewMembers,
    Unknown,
    Wait,
    WriteRegister,
)
from zkrq.replication.causes import UNKNOWN, Causes

if TYPE_CHECKING:
    from zkrq.base.settings import Settings
    from zkrq.protocol.eviction import Evicting
    from zkrq.protocol.view import View
    from zkrq.replication.cutting import Cutter
    from zkrq.replication.membership import Membership
    from zkrq.replication.obstacles import KnownObstacles

T = TypeVar("T")

NEEDS_MEMORY = (PushPlain, PushDecided, ApplyNew, Room)
"""Calls that a full server refuses."""


NO_OBSTACLES = Obstacles({}, ())

RETRY_PAUSE = 0.1
"""Seconds between two attempts under the same view, for instance while an eviction has to wait."""

REST = 10.0
"""Factor by which a scrub rests longer than it works, so that it takes at most a tenth of a server's time."""

_log = logging.getLogger("zkrq.view")


class MapChanged(Unavailable):
    """The shards have changed meanwhile, and nothing was pushed; retry."""


class PrimaryDecides(Unavailable):
    """Nothing was pushed, because of the settings of the queue: have the primary decide.  ``why``: which."""

    def __init__(self, text: str, why: Why) -> None:
        super().__init__(text)
        self.why = why


Reporter = Callable[[int, int], None]
"""Called with the number of items copied so far, and the approximate total."""


Confirm = Callable[[int], Awaitable[int]]
"""Called with the number of a shard map; returns the number of the map, this one or a newer one, by which a push
belongs on this shard, or 0 if that cannot be told yet.  Raises ``ZkrqError`` if the push belongs elsewhere."""


async def nowhere(needed: int) -> int:
    """Confirm nothing."""
    raise Unavailable(f"the shards have changed: map {needed} is needed")


class _Running:
    """One operation that is being run: the limit of its time, what it has spent, where its progress is reported, and
    what knows whether its push belongs here."""

    __slots__ = ("confirm", "loop", "report", "reserved_at", "until", "worked_since")

    def __init__(self, seconds: float, report: Reporter | None = None, confirm: Confirm | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.worked_since = self.reserved_at = self.loop.time()
        self.until = self.worked_since + seconds
        self.report = report
        self.confirm = confirm or nowhere

    def check(self) -> None:
        """Raise ``TimeUp`` if no time is left."""
        if self.loop.time() >= self.until:
            raise TimeUp

    def hurry(self, seconds: float) -> None:
        self.until = min(self.until, self.loop.time() + seconds)

    async def in_time(self, work: Awaitable[T]) -> T:
        """Await something.  Raises ``TimeUp`` when no time is left."""
        try:
            async with asyncio.timeout_at(None if math.isinf(self.until) else self.until):
                return await work
        except TimeoutError:
            raise TimeUp from None

    def reported(self, copied: int, total: int) -> bool:
        """Report progress; return whether half of the time of a reservation is over."""
        if self.report:
            self.report(copied, total)
        now = self.loop.time()
        if now - self.reserved_at <= HOLD_MS / 2000:
            return False
        self.reserved_at = now
        return True

    async def wait(self, seconds: float) -> None:
        """Wait without counting the time as work."""
        await asyncio.sleep(seconds)
        self.worked_since += seconds

    async def breathe(self) -> None:
        await asyncio.sleep(REST * max(0.0, self.loop.time() - self.worked_since))
        self.worked_since = self.loop.time()


class Runner:
    """Run operations over the view of a ``Membership``."""

    def __init__(
        self,
        membership: Membership,
        obstacles: KnownObstacles,
        evicting: Evicting,
        *,
        settings: Settings,
        events: Events,
        cutter: Cutter,
        causes: Causes,
    ) -> None:
        """``cutter`` gets the items that every server of the view knows to be gone.  ``causes``: what errors say about
        servers that are not in sync."""
        self.membership = membership
        self.operation_timeout = settings.operation_timeout
        self._namespace = settings.namespace
        self._obstacles = obstacles
        self._evicting = evicting
        self._events = events
        self.cutter = cutter
        self._causes = causes
        self._clocks = Clocks()
        self._steps = self._table()

    def _table(self) -> Mapping[type[Step[Any]], Callable[[Any, _Running], object]]:
        """Return what carries out each step, except the four that ``_run`` carries out itself."""
        membership = self.membership
        rows = (
            Removed.by(_Running, lambda step, _: self.cutter.note(step.queue, step.items)),
            Hurry.by(_Running, lambda step, running: running.hurry(step.seconds)),
            Rest.by(_Running, lambda _, running: running.in_time(self._rest())),
            Seen.by(_Running, lambda step, _: membership.seen(step.view)),
            ConfirmPlace.by(_Running, lambda step, running: running.in_time(running.confirm(step.map_number))),
            Refresh.by(_Running, lambda step, running: running.in_time(membership.refresh(step.view))),
            Evict.by(_Running, lambda step, running: running.in_time(self._evict(step, running))),
            Monotonic.by(_Running, lambda _, running: running.loop.time()),
            Swap.by(_Running, lambda step, _: membership.swap(step.view)),
            Evicted.by(_Running, self._tell_evicted),
            NoteClocks.by(_Running, lambda step, _: self._obstacles.note_clocks(step.compared)),
            ReadRegister.by(_Running, lambda step, _: membership.read(even_damaged=step.even_damaged)),
            WriteRegister.by(_Running, lambda step, _: self._write(step)),
            Log.by(_Running, self._log),
            Identify.by(_Running, lambda step, _: membership.fleet.identify(step.servers)),
            Change.by(_Running, lambda step, _: membership.change(step.view, step.change)),
            Report.by(_Running, lambda step, running: running.reported(step.copied, step.total)),
            Nonce.by(_Running, lambda _, __: secrets.token_hex(8)),
            Now.by(_Running, lambda _, __: clock.now_ms()),
            Wait.by(_Running, lambda step, running: running.wait(step.seconds)),
            Breathe.by(_Running, lambda _, running: running.breathe()),
            Jitter.by(_Running, lambda step, running: running.wait(random.uniform(0, step.seconds))),  # noqa: S311
        )
        return dict(rows)

    def run(self, operation: Operation[T], confirm: Confirm | None = None) -> Awaitable[T]:
        """Run an operation within ``operation_timeout``.  ``confirm``: of a push.  Raises ``ZkrqError``.

        If this is cancelled, calls that were sent may still be executed; nothing else is done.
        """
        return self._run(operation, _Running(self.operation_timeout, None, confirm))

    def repair(self, operation: Operation[T], report: Reporter | None = None) -> Awaitable[T]:
        """Run a repair, however long it takes.  Raises ``NotNow``, ``ZkrqError``."""
        return self._run(operation, _Running(math.inf, report))

    async def _run(self, operation: Operation[T], running: _Running) -> T:
        try:
            # Not every server may have heard of the epoch in which the level was raised, and a level is never lowered.
            if self.membership.refusal:
                raise ConfigError(self.membership.refusal)
            step = operation.send(None)
            while True:
                try:
                    # In the order of their frequency.  These four are in the hot path of every push, where a row of
                    # the table would cost a call of Python for each.
                    if isinstance(step, Ask):
                        result = await self._ask(step)
                    elif isinstance(step, Look):
                        result = self.membership.view
                    elif isinstance(step, CheckTime):
                        running.check()
                        result = None
                    elif isinstance(step, Begin):
                        running.check()
                        hindered = self._obstacles.any
                        result = await self._obstacles.find(step.view) if hindered else NO_OBSTACLES
                    else:
                        result = self._steps[type(step)](step, running)
                        if isinstance(result, CoroutineType):
                            result = await cast("Awaitable[object]", result)
                # The operation decides what a failed step means; here nothing is known of what was written before.
                except (ZkrqError, TimeUp) as error:
                    step = operation.throw(error if isinstance(error, TimeUp) else StepFailed(error))
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return stop.value
        except NotNow:
            raise
        except Failure as failure:
            raise translate(failure, self._causes) from _cause(failure)
        finally:
            # Also after a cancellation: the generator's own cleanup runs now, and not whenever it is collected.
            operation.close()

    async def _rest(self) -> None:
        if self.membership.fleet.is_dropped:
            raise TimeUp
        await asyncio.sleep(RETRY_PAUSE)

    async def _evict(self, step: Evict, running: _Running) -> View:
        if self.membership.only_looks:
            self.membership.overlook(step.failed)
            return self.membership.view
        # One eviction at a time.  The next operation that waits here finds the view changed and evicts no server.
        async with self.membership.changing:
            return await self._run(self._evicting.evict(step.view, step.failed, step.answered), running)

    def _tell_evicted(self, step: Evicted, running: _Running) -> None:
        for id, answer in sorted(step.failed.items()):
            self._causes.outside[id] = answer.reason  # until a repair has looked, too
            self._events.tell(ServerEvicted(self._namespace, id, answer.reason, step.epoch), logging.WARNING)

    async def _write(self, step: WriteRegister) -> None:
        await self.membership.write(step.view, step.version)

    def _log(self, step: Log, running: _Running) -> None:
        extra = {"cluster": self._namespace} | ({"server": step.server} if step.server else {})
        _log.log(logging.WARNING if step.warns else logging.INFO, "%s", step.text, extra=extra)

    def _ask(self, step: Ask) -> Awaitable[Answers]:
        # No coroutine of its own, which would be resumed with each answer.
        call = step.call
        if isinstance(call, Carrying):
            call = self.cutter.load(call, step.lives)
        if isinstance(call, Clocked):
            return self._ask_with_clock(step, call)
        if isinstance(call, NEEDS_MEMORY):
            return self._ask_with_room(step, call)
        return self._send(step, call)

    def _send(self, step: Ask, call: Call[Any]) -> Awaitable[Answers]:
        fleet = self.membership.fleet
        if step.anew:
            return fleet.ask_anew(step.epoch, step.lives, call)
        return fleet.ask(step.epoch, step.lives, call, once=step.once)

    async def _ask_with_room(self, step: Ask, call: Call[Any]) -> Answers:
        """Make a call, and note which servers have room for it."""
        answers = await self._send(step, call)
        self._obstacles.note_room(self.membership.view, answers)
        return answers

    async def _ask_with_clock(self, step: Ask, call: Clocked[Any]) -> Answers:
        """Make a call with the expected time of the server's clock, so that the server notices if its clock was set."""
        ((server, life),) = step.lives.items()
        sent_at = asyncio.get_running_loop().time()
        known = self.membership.fleet.servers.get(server)
        first = known.first_reading if known else None
        # What this client expects the server's clock to show.  If it shows a second more, the clock was set forward,
        # and the server gives every claim one full lease instead of letting all of them expire together.
        call = call.at_clock(self._clocks.expected(call.queue, server, life, sent_at, first))
        answers = await self._send(step, call)
        answer = answers[server]
        if answer.status is Status.OK:
            self._clocks.note(call.queue, server, life, call.clock_of(answer.body), sent_at)
        return answers


def _cause(failure: Failure) -> BaseException | None:
    cause = failure.__cause__
    return cause.error if isinstance(cause, StepFailed) else cause


def translate(failure: Failure, causes: Causes = UNKNOWN) -> ZkrqError:
    """Return the error for the caller of an operation.  ``causes``: what it says about servers that are not in sync."""
    text = causes.add_to(str(failure), failure)
    match failure:
        case StepFailed(error=ZkrqError() as error):
            return error
        # Nothing was written: the pusher reads the newer map and places the push again.
        case Misplaced():
            return MapChanged(str(failure))
        case DecisionNeeded():
            return PrimaryDecides(str(failure), failure.why)
        case NothingDone():
            return Unavailable(text)
        case Unknown():
            return OutcomeUnknown(text)
        case TooFewMembers(members=members, needed=needed):
            return NotEnoughReplicas(members, needed, causes.sentences(), step=causes.next_step(failure))
        case Fenced():
            return ClaimLost("this consumer was declared dead: its claims are lost")
        case Invalid():
            return ConfigError(str(failure))
        case NoNamespace():
            return no_namespace(failure.namespace)
        case Denied():
            return NotLetIn(str(failure))
        case _:
            return Unavailable(f"nothing happened: {text}")
