"""Random histories of one queue over two shards whose items come home: movers that die anywhere, consumers, operators.

Each shard is one server here; what becomes of a decision on several servers is the model's affair.  Each rule of the
moves is switched off once, and must then be missed.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Collection, Iterator, Sequence

import pytest

from tests.lua.entries import Put
from tests.lua.one_server import Claimed, OneServer
from zkrq.protocol import calls

HISTORIES = 60
"""Histories in a run."""

SOON = 400
"""Histories in which a rule that is off is missed."""

STEPS = 60
ITEMS = 5
BUNDLE = "zkrq-1a-2b-3c@b"


class Rule(enum.Enum):
    """What the order of the steps is for."""

    HELD_ELSEWHERE = "nothing is handed out beside what is at home"
    HOME_FIRST = "home has an item before it leaves"
    NOT_DUE = "an adopted item is not due before it has left"
    ENDED_FOR_GOOD = "home forgets only what has ended for good"


class Broken(Exception):
    """A promise is broken."""


class World:
    """A queue on two servers, and what was promised about it."""

    def __init__(self, home: OneServer, there: OneServer, seed: int, off: Collection[Rule] = ()) -> None:
        self.home, self.there, self.off = home, there, off
        self.random = random.Random(seed)
        self.acked, self.cancelled = set[str](), set[str]()
        self.held: list[tuple[OneServer, Claimed]] = []
        self.movers: list[Iterator[None]] = []
        self.seq = itertools.count(1)
        self.call = itertools.count(1)
        home.reset()
        there.enrol()
        singles = [f"{n}" for n in range(ITEMS)]
        there.put(*singles, Put(BUNDLE, [b"0", b"1", b"2"]))
        home.put("at home")
        self.ids = [*singles, *(calls.item_id(BUNDLE, at) for at in range(3)), "at home"]
        for server in (home, there):
            server.declare("concurrency=1")

    # -- a mover -----------------------------------------------------------------------------------------------------

    def mover(self) -> Iterator[None]:
        """One round of a client that brings items home; it may be left after any step."""
        waiting = [id.decode() for id in self.home.ask(calls.Movable("q", 0)).adopted]
        yield
        if waiting:
            yield from self.leave(waiting)
        read_ms, found = self.home.now_ms(), self.there.ask(calls.Movable("q", 1 + self.random.randrange(4)))
        yield
        copies = {copied.id: copied for copied in found.copies.items}
        made = [calls.Adopted.of(copies[bundle], at) for bundle, at in found.places]
        items = [item for item in made if item]
        if items and Rule.HOME_FIRST in self.off:
            yield from self.leave([item.id for item in items], then=(read_ms, items))
        elif items:
            outcomes = self.adopt(read_ms, items)
            yield
            if Rule.NOT_DUE in self.off:
                self.admit({item.id: 1 for item in items})
                yield
            yield from self.leave([item.id for item, outcome in zip(items, outcomes, strict=True) if outcome in b"+KD"])

    def adopt(self, read_ms: int, items: Sequence[calls.Adopted]) -> Sequence[bytes]:
        return self.home.ask(calls.Adopt("q", read_ms, items)).outcomes

    def admit(self, has_come: dict[str, int]) -> None:
        if has_come:
            self.home.ask(calls.Admit("q", [*has_come.items()]))

    def leave(self, ids: Sequence[str], then: tuple[int, Sequence[calls.Adopted]] | None = None) -> Iterator[None]:
        states, _ = self.there.ask(calls.Cancel("q", "M", 0, f"{next(self.call):08x}", ids))
        yield
        if then:
            self.adopt(*then)
        ended = (b"X", b"C", b"D") if Rule.ENDED_FOR_GOOD in self.off else (b"X",)
        came = {id: 1 for id, state in zip(ids, states, strict=True) if state in (b"Q", b"M", b"")}
        self.admit(came | {id: 0 for id, state in zip(ids, states, strict=True) if state in ended})
        yield

    # -- others ------------------------------------------------------------------------------------------------------

    def claim(self, server: OneServer, *, is_early: bool = False) -> None:
        """``is_early``: by a request that was given its claims before the limit was known there."""
        elsewhere = server is self.there and Rule.HELD_ELSEWHERE not in self.off and not is_early
        claimed = server.claim(seq=next(self.seq), count=3, elsewhere=elsewhere)
        if not claimed.ids:
            return
        if wrong := (self.acked | self.cancelled) & {*claimed.ids}:
            raise Broken(f"{wrong} handed out after it has ended")
        if any(not early for _, _, early in self._holders()) and not is_early:
            raise Broken("more are claimed than the limit allows")
        if twice := {*claimed.ids} & {id for _, held in self.held for id in held.ids}:
            raise Broken(f"{twice} handed out twice")
        self.held.append((server, claimed))
        if is_early:
            self.early.add(id(claimed))

    def claim_without_limits(self) -> None:
        """The limits are removed, and declared again."""
        self.there.declare("")
        self.claim(self.there, is_early=True)
        self.there.declare("concurrency=1")

    def _holders(self) -> list[tuple[OneServer, Claimed, bool]]:
        return [(server, held, id(held) in self.early) for server, held in self.held]

    early: set[int]

    def settle(self, verb: str) -> None:
        if not self.held:
            return
        server, claimed = self.held.pop(self.random.randrange(len(self.held)))
        settled = server.settle(*claimed.settle(verb, 0))
        if verb == "ack":
            self.acked.update(claimed.ids if not any(settled.lost) else ())
        if verb == "bury":
            server.redrive(*claimed.ids)

    def cancel(self, named: str) -> None:
        """As the client does: where the id says, and then at home; not an item that is claimed together with others."""
        if any(named in held.ids and len(held.ids) > 1 for _, held in self.held):
            return
        for server in (self.there, self.home):
            states, _ = server.ask(calls.Cancel("q", "", 0, f"{next(self.call):08x}", [named]))
            if states[0] in (b"Q", b"D", b"C"):
                self.cancelled.add(named)
                self.held = [(at, held) for at, held in self.held if named not in held.ids]
                return

    def step(self) -> None:
        match self.random.randrange(12):
            case 0 | 1:
                self.movers.append(self.mover())
            case 2:
                self.claim(self.home)
            case 3:
                self.claim(self.there)
            case 4:
                self.settle(self.random.choice(("ack", "ack", "nack", "release", "bury")))
            case 5 if self.random.random() < 0.5:
                self.claim_without_limits()
            case 5 if self.random.random() < 0.5:
                self.cancel(self.random.choice(self.ids))
            case _ if self.movers:
                mover = self.random.choice(self.movers)
                if self.random.random() < 0.05 or next(mover, self) is self:
                    self.movers.remove(mover)
            case _:
                pass

    def run(self) -> None:
        self.early = set()
        if self.random.random() < 0.5:
            self.claim_without_limits()
        for _ in range(STEPS):
            self.step()
            assert self.home.contents().faults == []
            assert self.there.contents().faults == []
        for mover in self.movers if self.random.random() < 0.5 else ():
            any(mover)  # to its end
        while self.held:
            self.settle("ack")
        for _ in range(2 * len(self.ids) + 2):
            for _ in self.mover():
                pass
        for _ in self.ids:
            self.claim(self.home)
            self.settle("ack")
        if missing := {*self.ids} - self.acked - self.cancelled:
            raise Broken(f"{missing} lost")
        left = [server.count() for server in (self.home, self.there)]
        assert left == [(0, 0, 0, 0)] * 2, left


def test_each_item_is_handed_out_on_one_shard(server: OneServer, follower: OneServer) -> None:
    for seed in range(HISTORIES):
        World(server, follower, seed).run()


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name.lower())
def test_without_a_rule_a_promise_is_broken(server: OneServer, follower: OneServer, rule: Rule) -> None:
    for seed in range(SOON):
        try:
            World(server, follower, seed, off={rule}).run()
        except Broken:
            return
    pytest.fail(f"{rule.value}: not missed in {SOON} histories")
