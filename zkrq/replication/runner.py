"""Carries out the protocol's operations on real servers: the only place that waits, and that knows what time it is.

An operation (see ``protocol/steps.py``) says what to do next; the runner does it and sends it what came of that.  When
the operation's time is up, the runner throws ``TimeUp`` into it, and the operation says what that means: nothing
happened, or nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from zkrq.errors import (
    ClaimLost,
    NotEnoughReplicas,
    NotLetIn,
    OutcomeUnknown,
    Unavailable,
    ZkrqError,
)
from zkrq.protocol.calls import ApplyNew, Call, Claim, Push, PutAll, Room
from zkrq.protocol.clocks import Clocks
from zkrq.protocol.replies import Status
from zkrq.protocol.steps import (
    Answers,
    Ask,
    Begin,
    Denied,
    Evict,
    Failure,
    Fenced,
    Hurry,
    Look,
    NothingDone,
    Obstacles,
    Operation,
    Refresh,
    Rest,
    StepFailed,
    TimeUp,
    TooFewMembers,
    Unknown,
)
from zkrq.protocol.view import View
from zkrq.replication.membership import RETRY_PAUSE, Membership

T = TypeVar("T")

NEEDS_MEMORY = (PutAll, Push, ApplyNew, Room)
"""Calls that a full server refuses."""


class _Time:
    """The time that one operation has."""

    __slots__ = ("loop", "until")

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.until = self.loop.time() + seconds


class Runner:
    """Runs operations over the view of a ``Membership``."""

    def __init__(self, membership: Membership, *, operation_timeout: float) -> None:
        self.membership = membership
        self.operation_timeout = operation_timeout
        self._clocks = Clocks()

    async def run(self, operation: Operation[T]) -> T:
        """Carry an operation out within ``operation_timeout``.  Raises ``ZkrqError``.

        Cancelled in the middle, what was sent may be executed; nothing else is done.
        """
        time = _Time(self.operation_timeout)
        try:
            step = operation.send(None)
            while True:
                try:
                    if isinstance(step, Ask):
                        result = await self._ask(step)
                    elif isinstance(step, Look):
                        result = self.membership.view
                    else:
                        result = await self._carry_out(step, time)
                except (ZkrqError, TimeUp) as error:
                    step = operation.throw(error if isinstance(error, TimeUp) else StepFailed(error))
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return stop.value
        except Failure as failure:
            raise translate(failure) from _cause(failure)
        finally:
            operation.close()

    async def _carry_out(self, step: Begin | Hurry | Evict | Refresh | Rest, time: _Time) -> object:
        match step:
            case Begin(view):
                if time.loop.time() >= time.until:
                    raise TimeUp
                kept_out = await self.membership.kept_out(view)
                return Obstacles(kept_out, tuple(self.membership.full.among(view)))
            case Hurry(seconds):
                time.until = min(time.until, time.loop.time() + seconds)
                return None
            case Evict() | Refresh() | Rest():
                return await self._wait_for(step, time)

    async def _wait_for(self, step: Evict | Refresh | Rest, time: _Time) -> View | None:
        try:
            async with asyncio.timeout_at(time.until):
                match step:
                    case Evict(view, failed, answered):
                        return await self.membership.evict(view, failed, set(answered))
                    case Refresh(view):
                        return await self.membership.refresh(view)
                    case Rest():
                        await asyncio.sleep(RETRY_PAUSE)
                        return None
        except TimeoutError:
            raise TimeUp from None

    async def _ask(self, step: Ask) -> Answers:
        call = step.call
        if isinstance(call, Claim):
            return await self._claim(step, call)
        answers = await self._send(step, call)
        if isinstance(call, NEEDS_MEMORY):
            self.membership.full.note(self.membership.view, answers)
        return answers

    def _send(self, step: Ask, call: Call[Any]) -> Awaitable[Answers]:
        words = call.words()
        return self.membership.fleet.ask(step.epoch, step.lives, call.script, call.queue, words, once=step.once)

    async def _claim(self, step: Ask, call: Claim) -> Answers:
        """Tell the primary what its clock should say by now, so that it notices when its clock is set."""
        ((server, life),) = step.lives.items()
        sent_at = asyncio.get_running_loop().time()
        known = self.membership.fleet.servers.get(server)
        first = known.first_reading if known else None
        call = call.at_clock(self._clocks.expected(call.queue, server, life, sent_at, first))
        answers = await self._send(step, call)
        answer = answers[server]
        if answer.status is Status.OK:
            self._clocks.note(call.queue, server, life, call.read(answer.body).clock, sent_at)
        return answers


def _cause(failure: Failure) -> BaseException | None:
    cause = failure.__cause__
    return cause.error if isinstance(cause, StepFailed) else cause


def translate(failure: Failure) -> ZkrqError:
    """The error for the caller of an operation."""
    match failure:
        case StepFailed(error=ZkrqError() as error):
            return error
        case NothingDone():
            return Unavailable(str(failure))
        case Unknown():
            return OutcomeUnknown(str(failure))
        case TooFewMembers(members=members, needed=needed):
            return NotEnoughReplicas(members, needed)
        case Fenced():
            return ClaimLost("this consumer was declared dead: its claims are lost")
        case Denied():
            return NotLetIn(str(failure))
        case _:
            return Unavailable(f"nothing happened: {failure}")
