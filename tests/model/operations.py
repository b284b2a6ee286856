"""What clients do, as generators.

They yield the requests that they send at once, and are sent the answers to all of them.  Between two yields nothing
else happens.  A yield without requests lets others go first: where a client talks to ZooKeeper or takes its time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from tests.model.rules import Rule
from tests.model.server import (
    EVICTING,
    PUSHED,
    Answer,
    Item,
    Records,
    Request,
    Server,
    Status,
    Token,
)
from tests.model.world import World
from zkrq.replication.view import Life, ServerId, View, evict

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Answer], T]

PAUSE: Sequence[Request] = ()

TRIES = 12
"""Rounds of one operation, before its time is up."""

QUEUE = "queue"


class Outcome(enum.Enum):
    DONE = "done"
    NOTHING = "nothing to claim"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Client:
    """What all clients have in common: a view that may be old, and the operations over it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = world.on
        self.view = world.view
        self.decided: Records = {}
        self.tokens: list[Token] = []

    def work(self) -> Steps[None]:
        raise NotImplementedError

    # -- the view ----------------------------------------------------------------------------------------------------

    def refresh(self) -> Steps[None]:
        yield PAUSE
        self.view = self.world.view

    def swap(self, old: View, new: View) -> Steps[bool]:
        yield PAUSE
        if self.world.view is not old and Rule.VIEW_BY_COMPARE_AND_SET in self.on:
            return False
        self.world.change_view(new)
        return True

    def evict(self, failed: Iterable[ServerId], answered: Iterable[ServerId]) -> Steps[None]:
        old = self.view
        yield PAUSE
        if self.world.view is old or Rule.VIEW_BY_COMPARE_AND_SET not in self.on:
            gone = set(failed)
            silent = [id for id in old.members if id not in gone and id not in answered]
            if silent and Rule.SURVIVORS_ANSWER in self.on:
                answers = yield [self.request(id, Server.seal) for id in silent]
                gone |= {id for id, answer in zip(silent, answers, strict=True) if answer.status in EVICTING}
            if old.members.keys() - gone:
                yield from self.swap(old, evict(old, gone, by=self.world.nonce()))
        self.view = self.world.view

    @property
    def receivers(self) -> Mapping[ServerId, Life]:
        return self.view.receivers if Rule.LEARNERS_GET_EVERY_WRITE in self.on else self.view.members

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, server: ServerId, script: Callable[..., Answer], *arguments: object) -> Request:
        return Request(server, self.view.receivers[server], self.view.epoch, script, arguments)

    def all_well(self, servers: Sequence[ServerId], answers: Sequence[Answer]) -> Steps[bool]:
        """Whether all answers are good; if not, the view is another one now, or it is time to try again."""
        stale = False
        failed: list[ServerId] = []
        for server, answer in zip(servers, answers, strict=True):
            if answer.status is Status.STALE:
                stale = True
            elif answer.status in EVICTING:
                failed.append(server)
        if stale:
            yield from self.refresh()
        elif failed:
            yield from self.evict(failed, [server for server in servers if server not in failed])
        return not (stale or failed)

    # -- put ---------------------------------------------------------------------------------------------------------

    def put(self, item: Item) -> Steps[bool]:
        """Apply a new item everywhere at once; False when nobody knows what became of it."""
        covered: set[tuple[ServerId, Life]] = set()
        for _ in range(TRIES):
            if len(self.view.members) < self.view.min_replicas and Rule.PUSH_NEEDS_MIN_REPLICAS in self.on:
                yield from self.refresh()
                continue
            missing = {id: life for id, life in self.receivers.items() if (id, life) not in covered}
            if not missing:
                return True
            answers = yield [self.request(id, Server.apply, {item: PUSHED}) for id in missing]
            stale = False
            failed: list[ServerId] = []
            for (id, life), answer in zip(missing.items(), answers, strict=True):
                if answer.status is Status.STALE:
                    stale = True
                elif answer.status in EVICTING:
                    failed.append(id)
                else:
                    covered.add((id, life))
            if failed:
                yield from self.evict(failed, [id for id in missing if id not in failed])
                if not stale and Rule.LAST_VIEW_IS_COVERED not in self.on:
                    return True
            elif stale:
                yield from self.refresh()
        return False

    # -- decide, then apply ------------------------------------------------------------------------------------------

    def decide(self, script: Callable[..., Answer], *arguments: object, fenced: Token | None = None) -> Steps[Outcome]:
        """Have the primary decide and all others apply, within one view.  ``decided`` are the records afterwards."""
        claiming = script is Server.claim
        answer: Answer | None = None
        for _ in range(TRIES):
            primary = self.view.primary(QUEUE)
            others = list(self.receivers)
            if answer is None or Rule.DECIDED_AGAIN in self.on:
                (answer,) = yield [self.request(primary, script, *arguments)]
                others.remove(primary)
                if not (yield from self.all_well([primary], [answer])):
                    answer = None
                    continue
            self.decided = answer.records
            outcome = Outcome.REFUSED if answer.status is Status.LOST else Outcome.DONE
            if outcome is Outcome.REFUSED and not (self.decided and Rule.REFUSAL_IS_SPREAD in self.on):
                return outcome
            if claiming and not self.decided:
                return Outcome.NOTHING
            if not others or (claiming and Rule.CLAIM_IS_EVERYWHERE not in self.on):
                return outcome
            answers = yield [self.request(id, Server.apply, self.decided, fenced) for id in others]
            if (yield from self.all_well(others, answers)):
                if claiming and any(answer.status is Status.SUPERSEDED for answer in answers):
                    return Outcome.REFUSED
                return outcome
        return Outcome.UNKNOWN

    def fence(self, token: Token) -> Steps[None]:
        outcome = yield from self.decide(Server.fence, token, fenced=token)
        if outcome is Outcome.DONE:
            self.world.ledger.fence_completed(token)
