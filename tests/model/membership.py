"""The view as a client of the model knows it: read again, and changed by compare-and-set.

A client is a generator.  It yields the requests that it sends together, and is sent the answers to all of them; the
schedule decides when they arrive.  Between two yields nothing else happens.  A yield without requests lets others go
first: where a client talks to ZooKeeper or takes its time.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tests.levels import LATER
from tests.model.altered import NOW, AlteredEvicting, AlteredWitness
from tests.model.promises import check_consistent
from tests.model.rules import Rule
from tests.model.server import Request
from tests.model.world import World
from zkrq.protocol.calls import Call
from zkrq.protocol.levels import SPOKEN
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Answers, NothingDone
from zkrq.protocol.view import Life, ServerId, View, ViewChange, check_view

T = TypeVar("T")
Steps = Generator[Sequence[Request], Sequence[Answer], T]

OLD = 0.5
"""Part of the clients that is of the release before, where there are two."""

PAUSE: Sequence[Request] = ()


class Refused(Exception):
    """The level of the view is not one that this client speaks: it does nothing more."""


class Member:
    """One client's part in the membership."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = world.on
        self.name = world.nonce()
        self.witness = AlteredWitness(self.name, world)
        self.evicting = AlteredEvicting(self.witness)
        self.speaks = LATER
        """The latest level that it speaks."""
        if world.levels and world.chance(OLD):
            self.speaks = SPOKEN.highest
        self.view = world.view

    @property
    def view(self) -> View:
        """The latest view that this client knows."""
        return self._view

    @view.setter
    def view(self, view: View) -> None:
        if view.level > self.speaks and Rule.LEVEL_IS_READ_WITH_THE_VIEW in self.on:
            raise Refused
        self._view = view
        self.witness.follow(view, NOW)
        self._check_consistent()

    def _check_consistent(self) -> None:
        """Raise ``Broken`` if what this client knows is inconsistent, which it may be without one of the rules."""
        if self.world.has_all_rules:
            check_consistent(partial(check_view, self.view), self.witness.check_invariants)

    def refresh(self) -> Steps[View]:
        """Read the view again."""
        yield PAUSE
        self._read()
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
        if swapped and not self.world.has_ended:
            self.world.change_view(new)
        self._read()
        return swapped

    def _read(self) -> None:
        if self.world.has_ended:
            raise NothingDone("the shard was removed")
        self.view = self.world.view

    # -- requests ----------------------------------------------------------------------------------------------------

    def requests(self, servers: Collection[ServerId], call: Call[Any]) -> Sequence[Request]:
        """The same call for several servers of the view."""
        return [Request(id, self.view.receivers[id], self.view.epoch, call) for id in servers]

    def note_heard(self, lives: Mapping[ServerId, Life], answers: Answers) -> None:
        """Note which servers of the view have answered this client in the lives that the view names."""
        for id, answer in answers.items():
            if answer.status in (Status.OK, Status.STALE) and self.view.receivers.get(id) == lives[id]:
                self.witness.heard(id, lives[id])
        self._check_consistent()
