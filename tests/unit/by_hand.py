"""Carries out an operation of the protocol by hand: servers that answer as they are told, a register and a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from zkrq.protocol.calls import Call, Enrol
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.server_info import ServerInfo
from zkrq.protocol.steps import (
    Ask,
    Change,
    Evict,
    Evicted,
    Identify,
    Jitter,
    Log,
    Look,
    Monotonic,
    Nonce,
    NoteClocks,
    Now,
    Operation,
    ReadRegister,
    Register,
    Seen,
    Step,
    Swap,
    Wait,
    WriteRegister,
)
from zkrq.protocol.view import Life, ServerId, View

T = TypeVar("T")

A, B, C = map(ServerId, "abc")
OK = Answer(Status.OK)


def answer(status: Status) -> Answer:
    return Answer(status, (), status.value)


def life(server: ServerId, turn: int = 1) -> Life:
    return Life(f"run-{server}-{turn}", f"generation-{server}-{turn}")


def info(server: ServerId, *, epoch: int = 0, queues: int = 0, name: str = "", ahead: float = 0.0) -> ServerInfo:
    """A server in its first life, new unless it is said otherwise."""
    return ServerInfo(
        run_id=life(server).run_id,
        version=(7, 0),
        role="master",
        maxmemory_policy="noeviction",
        cluster=False,
        generation="",
        epoch=epoch,
        name=name,
        deployment="",
        queues=queues,
        clock_us=0,
        ahead=ahead,
        maxmemory=0,
        used_memory=0,
    )


def view_of(*members: ServerId, epoch: int = 7, min_replicas: int = 2, learners: Mapping[ServerId, Life] = {}) -> View:
    """A view of a, b and c in their first lives."""
    return View(
        epoch=epoch,
        members={id: life(id) for id in members},
        learners=learners,
        eligible={},
        servers={id: f"redis://{id}" for id in (A, B, C)},
        min_replicas=min_replicas,
        by="before",
    )


@dataclass
class Hand:
    """What an operation meets.  ``overtake`` is called before a view is written, to have another client write first."""

    view: View | None = None
    version: int = 1
    now: float = 1000.0
    answers: dict[ServerId, Answer] = field(default_factory=dict[ServerId, Answer])
    """How a server answers every call; OK unless it is named."""
    infos: dict[ServerId, ServerInfo | Answer] = field(default_factory=dict[ServerId, ServerInfo | Answer])
    overtake: Callable[[], object] = lambda: None
    asked: list[tuple[ServerId, Call[Any]]] = field(default_factory=list[tuple[ServerId, Call[Any]]])
    steps: list[Step[Any]] = field(default_factory=list[Step[Any]])
    nonces: Callable[[], int] = field(default_factory=lambda: count(1).__next__)

    def run(self, operation: Operation[T]) -> T:
        """Carry out the steps, and record them."""
        try:
            step = operation.send(None)
            while True:
                self.steps.append(step)
                step = operation.send(self.answer(step))
        except StopIteration as stop:
            return stop.value

    def seen(self, kind: type[T]) -> list[T]:
        """The steps of one kind."""
        return [step for step in self.steps if isinstance(step, kind)]

    def answer(self, step: Step[Any]) -> object:
        match step:
            case Look():
                return self.view
            case Ask(lives=lives, call=call):
                self.asked += [(id, call) for id in lives]
                if isinstance(call, Enrol):
                    return {id: self.enrol(id, life, call) for id, life in lives.items()}
                return {id: self.answers.get(id, OK) for id in lives}
            case Monotonic():
                return self.now
            case Nonce():
                return f"nonce {self.nonces()}"
            case Now():
                return round(self.now * 1000)
            case Swap(view):
                return self.swap(view)
            case Change(_, change):
                assert self.view is not None
                return self.swap(change(self.view, by="changed"))
            case Seen(view):
                return view
            case Identify(servers):
                return {id: self.infos[id] for id in servers}
            case ReadRegister():
                return Register(self.view, self.version if self.view else -1)
            case WriteRegister(view, version):
                self.overtake()
                if version == (self.version if self.view else -1):
                    self.view, self.version = view, self.version + 1
                return None
            case Evict(view):
                return view
            case Evicted() | Jitter() | Log() | NoteClocks() | Wait():
                return None
            case _:
                raise AssertionError(f"not expected: {step}")

    def enrol(self, id: ServerId, life: Life, call: Enrol) -> Answer:
        """Compare and set the generation of a server, if it is one of ``infos``."""
        info, told = self.infos.get(id), self.answers.get(id, OK)
        if told is OK and isinstance(info, ServerInfo) and info.generation != life.generation:
            if info.generation != call.expected:
                return answer(Status.MISMATCH)
            self.infos[id] = replace(info, generation=life.generation)
        return told

    def swap(self, view: View) -> View | None:
        before = self.version
        self.overtake()
        if self.version == before:
            self.view, self.version = view, self.version + 1
        return self.view
