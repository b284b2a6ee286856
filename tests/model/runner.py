"""Carries out the library's own operations: the third runner, beside asyncio and the simulation.

The library's operations yield steps; here a step becomes requests of the model's clients, or nothing but a pause.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from tests.model.altered import NOW, AlteredOperations
from tests.model.content import QUEUE, Item, Token, owner_of
from tests.model.membership import PAUSE, Member, Steps
from tests.model.server import Request
from tests.model.world import World
from zkrq.base.errors import ZkrqError
from zkrq.protocol import calls
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Answers,
    Ask,
    Begin,
    Change,
    CheckTime,
    ConfirmPlace,
    Evict,
    Evicted,
    Failure,
    Hurry,
    Identify,
    Look,
    Monotonic,
    Nonce,
    NoteClocks,
    Now,
    Obstacles,
    Operation,
    ReadRegister,
    Refresh,
    Register,
    Removed,
    Report,
    Seen,
    Step,
    StepFailed,
    Swap,
    TimeUp,
    WriteRegister,
)
from zkrq.protocol.view import ServerId
from zkrq.replication.runner import Confirm, nowhere

T = TypeVar("T")

TRIES = 12
"""Attempts of one operation, before its time is up."""

NO_OBSTACLES = Obstacles({}, ())


class Client(Member):
    """What all clients have in common: operations over a view that may be old."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tokens: list[Token] = []
        self.operations = AlteredOperations(world.on)
        self._removed: dict[Item, bytes] = {}
        self.tries = TRIES
        self._is_changing = False

    def work(self) -> Steps[None]:
        raise NotImplementedError

    def run(self, operation: Operation[T], confirm: Confirm = nowhere) -> Steps[T]:
        """Carry an operation out; ``confirm``: of a push.  Raises a ``Failure``."""
        yield from self._cut()
        return (yield from self._run(operation, confirm))

    def _run(self, operation: Operation[T], confirm: Confirm = nowhere) -> Steps[T]:
        tries = self.tries
        try:
            step = operation.send(None)
            while True:
                if isinstance(step, Begin | CheckTime):
                    tries -= 1
                    step = operation.throw(TimeUp()) if tries < 0 else operation.send(NO_OBSTACLES)
                elif isinstance(step, Ask):
                    step = operation.send((yield from self.ask(step)))
                else:
                    try:
                        if isinstance(step, ConfirmPlace):
                            result = yield from confirm(step.map_number).__await__()
                        else:
                            result = yield from self._carry_out(step)
                    except (Failure, ZkrqError) as failure:
                        step = operation.throw(StepFailed(failure))
                    else:
                        step = operation.send(result)
        except StopIteration as stop:
            return stop.value
        finally:
            operation.close()

    def fence(self, token: Token) -> Steps[None]:
        """Declare the owner of a token dead, which has this one only."""
        try:
            yield from self.run(self.operations.fence(QUEUE, owner_of(token)))
        except Failure:
            return
        self.world.ledger.fence_completed(token)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _carry_out(self, step: Step[Any]) -> Steps[object]:
        match step:
            case Look():
                return self.view
            case Seen(view):
                return view
            case Evict(view, failed, answered):
                return (yield from self._alone(self._run(self.evicting.evict(view, failed, answered))))
            case Swap(view):
                yield from self.swap(view)
                return self.view
            case Monotonic():
                return NOW
            case Refresh():
                return (yield from self._alone(self.refresh()))
            case Identify(servers):
                return (yield from self._identify(servers))
            case Change(view, change):
                return (yield from self._alone(self.change(view, change)))
            case Nonce():
                return self.world.nonce()
            case ReadRegister():
                yield PAUSE
                known = self.world.view if self.world.version >= 0 else None
                return Register(known, self.world.version)
            case WriteRegister(view, version):
                yield PAUSE
                self.world.found(view, version)
            case Removed(_, items):
                self._removed |= dict(items)
            case Evicted(failed):
                askew = any(answer.status is Status.ASKEW for answer in failed.values())
                self.world.ledger.counts["clock evictions"] += askew
            case Now() | Hurry() | Report() | NoteClocks():
                return 0
            case _:
                yield PAUSE
        return None

    def _alone(self, steps: Steps[T]) -> Steps[T]:
        """Look at the view, or change it, once no other operation of this client does."""
        while self._is_changing:
            yield PAUSE
        self._is_changing = True
        try:
            return (yield from steps)
        finally:
            self._is_changing = False

    def ask(self, step: Ask) -> Steps[Answers]:
        if not step.lives:
            return {}
        requests = [Request(id, life, step.epoch, step.call, step.once) for id, life in step.lives.items()]
        answer_of = dict(zip(step.lives, (yield requests), strict=True))
        self.note_heard(step.lives, answer_of)
        return answer_of

    def _identify(self, servers: Collection[ServerId]) -> Steps[dict[ServerId, ServerInfo | Answer]]:
        met: dict[ServerId, ServerInfo | Answer] = {}
        for id in servers:
            yield PAUSE
            met[id] = self.world.identify(id)
        return met

    def _cut(self) -> Steps[None]:
        """Have payloads dropped that no server needs any more."""
        if self._removed:
            call = calls.Cut(QUEUE, [calls.Gone(*each) for each in self._removed.items()])
            self._removed = {}
            yield self.requests(self.view.receivers, call)
