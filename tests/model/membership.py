"""The view as a client of the model knows it: read again, changed by compare-and-set, servers evicted from it.

A client is a generator.  It yields the requests that it sends together, and is sent the answers to all of them; the
schedule decides when they arrive.  Between two yields nothing else happens.  A yield without requests lets others go
first: where a client talks to ZooKeeper or takes its time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence, Set
from typing import Any, TypeVar

from tests.model.rules import Rule
from tests.model.server import Request
from tests.model.world import World
from zkrq.protocol.calls import Call, Seal
from zkrq.protocol.replies import IMPRESSIONS, Answer, Verdict
from zkrq.protocol.steps import Answers
from zkrq.protocol.view import Life, ServerId, Silence, View, ViewChange, accuse, evict, weigh_silence

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Answer], T]

PAUSE: Sequence[Request] = ()


class Member:
    """One client's part in the membership."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = world.on
        self.view = world.view
        self.name = world.nonce()
        self.met: dict[ServerId, Life] = {}
        self.evicted: dict[ServerId, str] = {}

    def refresh(self) -> Steps[View]:
        """Read the view again."""
        yield PAUSE
        self.view = self.world.view
        return self.view

    def change(self, known: View, change: ViewChange) -> Steps[View]:
        """Write what ``change`` makes of the view; returns the view to go on with."""
        if self.view.epoch > known.epoch:
            return self.view
        # Accusations change nothing but the view's content.
        view = self.view if Rule.VIEW_BY_COMPARE_AND_SET in self.on else known
        yield from self.swap(change(view, by=self.world.nonce()))
        return self.view

    def swap(self, new: View) -> Steps[bool]:
        """Compare and set."""
        old = self.view
        yield PAUSE
        swapped = self.world.view is old or Rule.VIEW_BY_COMPARE_AND_SET not in self.on
        if swapped:
            self.world.change_view(new)
        self.view = self.world.view
        return swapped

    # -- eviction ----------------------------------------------------------------------------------------------------

    def evict(self, known: View, failed: Answers, answered: Set[ServerId]) -> Steps[View]:
        """Take servers that failed under ``known`` out of the view; returns the view to go on with."""
        yield PAUSE
        if self.world.view is not known and Rule.VIEW_BY_COMPARE_AND_SET in self.on:
            self.view = self.world.view
            return self.view
        gone = dict(failed)
        silent = [id for id in known.members if id not in gone and id not in answered]
        if silent and Rule.SURVIVORS_ANSWER in self.on:
            told = yield [Request(id, known.receivers[id], known.epoch, Seal()) for id in silent]
            gone |= {id: answer for id, answer in zip(silent, told, strict=True) if answer.verdict is Verdict.EVICT}
        if known.members.keys() - gone.keys():
            self.view = known
            quiet = [id for id, answer in gone.items() if answer.status in IMPRESSIONS]
            accusing = self.world.links and (yield from self._accuse(quiet))
            if not accusing and (yield from self.swap(evict(known, gone, by=self.world.nonce()))):
                self._note_evicted(known, quiet)
        self.view = self.world.view
        return self.view

    def _accuse(self, quiet: Sequence[ServerId]) -> Steps[bool]:
        """Judge servers by their silence; whether it needs more than that."""
        if Rule.SILENCE_NEEDS_STANDING not in self.on:
            return False
        silences = {id: self._weigh(id) for id in quiet}
        unheard = [id for id, silence in silences.items() if silence is Silence.ACCUSE]
        if unheard:
            self.world.ledger.counts["accusations"] += 1
            yield from self.swap(accuse(self.view, unheard, client=self.name))
        return any(silence is not Silence.EVICT for silence in silences.values())

    def _weigh(self, server: ServerId) -> Silence:
        view = self.view
        run_id = view.receivers[server].run_id
        lately = self.evicted.get(server) == run_id and Rule.EVICTING_COSTS_STANDING in self.on
        standing = self.met.get(server) == view.receivers[server] and not lately
        accused = server in view.accusations and not view.accusations[server].refuted
        heard = self.world.is_reached(server) and Rule.ACCUSATION_IS_REFUTED in self.on
        over = accused and not heard
        return weigh_silence(view, server, self.name, standing=standing, seconds=math.inf if over else 0)

    def _note_evicted(self, view: View, quiet: Sequence[ServerId]) -> None:
        """Remember the servers that this client evicted for their silence, and report those that others reach."""
        if not self.world.links:
            return
        for id in quiet:
            life = view.receivers[id]
            self.evicted[id] = life.run_id
            server = self.world.servers[id]
            if self.world.links.is_watched() and server.life == life and not server.paused:
                self.world.ledger.evicted_wrongly(self.name, id, life.run_id)

    # -- requests ----------------------------------------------------------------------------------------------------

    def requests(self, servers: Collection[ServerId], call: Call[Any]) -> Sequence[Request]:
        """The same call for several servers of the view."""
        return [Request(id, self.view.receivers[id], self.view.epoch, call) for id in servers]

    def note_met(self, lives: Mapping[ServerId, Life], answers: Answers) -> None:
        """Remember in which lives the servers of the view have answered this client."""
        for id, answer in answers.items():
            if answer.verdict is not Verdict.EVICT and self.view.receivers.get(id) == lives[id]:
                self.met[id] = lives[id]
