"""What clients do, as generators.

They yield the requests that they send at once, and are sent the answers to all of them.  Between two yields nothing
else happens.  A yield without requests lets others go first: where a client talks to ZooKeeper or takes its time.
"""

from __future__ import annotations

import enum
import math
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
from zkrq.protocol.view import Life, ServerId, Silence, View, accuse, evict, weigh_silence

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
        self.name = world.nonce() if world.links else ""
        self.met: dict[ServerId, Life] = {}
        self.evicted: dict[ServerId, str] = {}

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

    def evict(self, failed: Mapping[ServerId, Answer], answered: Iterable[ServerId]) -> Steps[None]:
        old = self.view
        yield PAUSE
        if self.world.view is old or Rule.VIEW_BY_COMPARE_AND_SET not in self.on:
            gone = dict(failed)
            silent = [id for id in old.members if id not in gone and id not in answered]
            if silent and Rule.SURVIVORS_ANSWER in self.on:
                answers = yield [self.request(id, Server.seal) for id in silent]
                gone |= {id: told for id, told in zip(silent, answers, strict=True) if told.status in EVICTING}
            if old.members.keys() - gone.keys():
                quiet = [id for id, told in gone.items() if told.status is Status.TIMED_OUT]
                accusing = self.world.links and (yield from self.accuse(old, quiet))
                if not accusing and (yield from self.swap(old, evict(old, gone, by=self.world.nonce()))):
                    self.note_evicted(old, quiet)
        self.view = self.world.view

    def accuse(self, view: View, quiet: Sequence[ServerId]) -> Steps[bool]:
        """Judge servers by their silence; whether it needs more than that."""
        if Rule.SILENCE_NEEDS_STANDING not in self.on:
            return False
        silences = {id: self.weigh(view, id) for id in quiet}
        unheard = [id for id, silence in silences.items() if silence is Silence.ACCUSE]
        if unheard:
            self.world.ledger.counts["accusations"] += 1
            yield from self.swap(view, accuse(view, unheard, client=self.name))
        return any(silence is not Silence.EVICT for silence in silences.values())

    def weigh(self, view: View, server: ServerId) -> Silence:
        run_id = view.receivers[server].run_id
        lately = self.evicted.get(server) == run_id and Rule.EVICTING_COSTS_STANDING in self.on
        standing = self.met.get(server) == view.receivers[server] and not lately
        accused = server in view.accusations and not view.accusations[server].refuted
        heard = self.world.is_reached(server) and Rule.ACCUSATION_IS_REFUTED in self.on
        over = accused and not heard
        return weigh_silence(view, server, self.name, standing=standing, seconds=math.inf if over else 0)

    def note_evicted(self, view: View, quiet: Sequence[ServerId]) -> None:
        """Who was evicted by this client for its silence, and whether it was reached by others."""
        if not self.world.links:
            return
        for id in quiet:
            life = view.receivers[id]
            self.evicted[id] = life.run_id
            server = self.world.servers[id]
            if self.world.links.is_watched() and server.life == life and not server.paused:
                self.world.ledger.evicted_wrongly(self.name, id, life.run_id)

    def note_met(self, server: ServerId, answer: Answer) -> None:
        if answer.status not in EVICTING and server in self.view.receivers:
            self.met[server] = self.view.receivers[server]

    @property
    def receivers(self) -> Mapping[ServerId, Life]:
        return self.view.receivers if Rule.LEARNERS_GET_EVERY_WRITE in self.on else self.view.members

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, server: ServerId, script: Callable[..., Answer], *arguments: object) -> Request:
        return Request(server, self.view.receivers[server], self.view.epoch, script, arguments)

    def all_well(self, servers: Sequence[ServerId], answers: Sequence[Answer]) -> Steps[bool]:
        """Whether all answers are good; if not, the view is another one now, or it is time to try again."""
        stale = False
        failed: dict[ServerId, Answer] = {}
        for server, answer in zip(servers, answers, strict=True):
            self.note_met(server, answer)
            if answer.status is Status.STALE:
                stale = True
            elif answer.status in EVICTING:
                failed[server] = answer
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
            failed: dict[ServerId, Answer] = {}
            for (id, life), answer in zip(missing.items(), answers, strict=True):
                self.note_met(id, answer)
                if answer.status is Status.STALE:
                    stale = True
                elif answer.status in EVICTING:
                    failed[id] = answer
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
