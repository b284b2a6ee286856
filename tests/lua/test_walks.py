"""Random walks on one server: whatever is done in whatever order, a model in Python says the same.

The time of the walk stands still: leases and delays are longer than it lasts, so nothing expires by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.lua.one_server import Call, Claimed, Contents, Decided, OneServer, Put, Refused
from zkrq.replication.records import Record, State, Version

STEPS = 300
SEEDS = range(8)
IDS = [f"i{n}" for n in range(25)]
LONG_MS = 3_600_000
SETTLED = {
    "ack": State.GONE,
    "nack": State.QUEUED,
    "release": State.QUEUED,
    "bury": State.DEAD,
    "extend": State.CLAIMED,
}


@dataclass
class Item:
    """What the model knows of an item: for Redis' own data there is ``Contents``."""

    state: State = State.QUEUED
    token: str = ""
    delayed: bool = False
    attempts: int = 0
    failures: int = 0


@dataclass
class Owner:
    """A consumer; a new one takes the place of one that was fenced."""

    name: str
    seq: int = 0
    last: list[str] = field(default_factory=list[str])

    @property
    def token(self) -> str:
        return f"{self.name}/{self.seq}"


class Walk:
    """One walk; every step changes server and model, and says what it did."""

    def __init__(self, server: OneServer, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.items: dict[str, Item] = {}
        self.owners = [Owner(f"owner{n}") for n in range(3)]
        self.fenced: list[Owner] = []
        self.claims: list[Decided] = []
        self.decided: list[Decided] = []
        self.versions: dict[str, Version] = {}
        self.path: list[str] = []

    def step(self) -> None:
        steps: dict[Callable[[], str], int] = {
            self.put: 6,
            self.claim: 6,
            self.claim_again: 2,
            self.claim_when_fenced: 1,
            self.settle: 8,
            self.fence: 1,
            self.clear: 1,
            self.apply_again: 3,
            self.change_epoch: 1,
        }
        (chosen,) = self.random.choices(list(steps), weights=list(steps.values()))
        self.path.append(chosen())
        self.compare(self.server.contents())

    def in_state(self, state: State) -> set[str]:
        return {id for id, item in self.items.items() if item.state is state}

    def ready(self) -> set[str]:
        return {id for id in self.in_state(State.QUEUED) if not self.items[id].delayed}

    # -- steps -----------------------------------------------------------------------------------------------------

    def put(self) -> str:
        ids = self.random.choices(IDS, k=self.random.randint(1, 6))
        puts: list[Put] = []
        for id in ids:
            delayed = self.random.random() < 0.2
            puts.append(Put(id, id.encode(), LONG_MS if delayed else 0, self.random.randrange(10)))
            self.items.setdefault(id, Item(delayed=delayed))
        assert self.server.put(*puts) == []
        return f"put {ids}"

    def claim(self) -> str:
        owner = self.random.choice(self.owners)
        owner.seq += 1
        count, ready = self.random.randint(0, 5), self.ready()
        claimed = self.server.claim(owner.name, count, seq=owner.seq, lease_ms=LONG_MS)
        assert set(claimed.handed) <= ready
        assert len(claimed.handed) == min(count, len(ready))
        owner.last = claimed.ids
        for id in claimed.handed:
            item = self.items[id]
            item.state, item.token, item.attempts = State.CLAIMED, owner.token, item.attempts + 1
        self.note(claimed)
        return f"{owner.token} claimed {claimed.ids}"

    def claim_again(self) -> str:
        owner = self.random.choice([owner for owner in self.owners if owner.seq] or self.owners)
        if not owner.seq:
            return "nothing to claim again"
        claimed = self.server.claim(owner.name, 5, seq=owner.seq, lease_ms=LONG_MS)
        assert set(claimed.handed) == {id for id, item in self.items.items() if self.holds(item, owner)}
        assert set(claimed.handed) <= set(owner.last)
        self.note(claimed)
        return f"{owner.token} claimed again {claimed.ids}"

    def claim_when_fenced(self) -> str:
        if not self.fenced:
            return "nobody was fenced"
        owner = self.random.choice(self.fenced)
        with pytest.raises(Refused, match="FENCED"):
            self.server.claim(owner.name, 5, seq=owner.seq + self.random.randrange(2))
        return f"{owner.name} was refused"

    def settle(self) -> str:
        if not self.claims:
            return "nothing to settle"
        calls: list[Call] = []
        expected: list[int] = []
        for claim in self.random.choices(self.claims, k=self.random.randint(1, 4)):
            verb = self.random.choice(list(SETTLED))
            ms = {"nack": self.random.choice([0, LONG_MS]), "extend": LONG_MS, "release": 1}.get(verb, 0)
            calls.append(claim.settle(verb, ms, "why"))
            expected.append(self.expect(claim, verb, ms))
        settled = self.server.settle(*calls)
        assert settled.outcomes == expected, calls
        self.decided += settled.decided.values()
        return f"settled {[(call.id, call.token, call.verb) for call in calls]}: {expected}"

    def expect(self, claim: Decided, verb: str, ms: int) -> int:
        """What the call must come to; the model is changed accordingly."""
        item = self.items[claim.id]
        if item.token != claim.record.token:
            return 0
        if item.state is not State.CLAIMED:
            return int(item.state is SETTLED[verb])
        item.state = SETTLED[verb]
        if verb == "nack":
            item.failures += 1
            item.delayed = ms > 0
        elif verb == "release":
            item.attempts -= 1
        return 1

    def fence(self) -> str:
        owner = self.owners.pop(self.random.randrange(len(self.owners)))
        self.owners.append(Owner(f"{owner.name}'"))
        self.fenced.append(owner)
        held = {id for id, item in self.items.items() if item.token.startswith(f"{owner.name}/")}
        held &= self.in_state(State.CLAIMED)
        requeued = self.server.fence(owner.name)
        assert set(requeued) == held
        for id in held:
            self.items[id].state, self.items[id].token = State.QUEUED, ""
        self.decided += requeued.values()
        return f"fenced {owner.name}: {held}"

    def clear(self) -> str:
        count, queued = self.random.randint(1, 4), self.in_state(State.QUEUED)
        cleared = self.server.clear(count)
        assert set(cleared) <= queued
        assert len(cleared) == min(count, len(queued))
        for id in cleared:
            self.items[id].state, self.items[id].token = State.GONE, ""
        self.decided += cleared.values()
        return f"cleared {list(cleared)}"

    def apply_again(self) -> str:
        """Late duplicates of decisions: every one of them is known here, or superseded."""
        if not self.decided:
            return "nothing to apply again"
        late = self.random.choices(self.decided, k=self.random.randint(1, 5))
        superseded, bare = self.server.apply(*(each.apply() for each in late))
        assert superseded == [
            position for position, each in enumerate(late, start=1) if each.record.version < self.versions[each.id]
        ]
        assert bare == []
        return f"applied again {[each.id for each in late]}"

    def change_epoch(self) -> str:
        self.server.epoch += self.random.randint(1, 3)
        self.server.seal(self.server.epoch)
        return f"epoch {self.server.epoch}"

    def note(self, claimed: Claimed) -> None:
        self.claims += (claimed.decided[id] for id in claimed.handed)
        self.decided += claimed.decided.values()

    @staticmethod
    def holds(item: Item, owner: Owner) -> bool:
        return item.state is State.CLAIMED and item.token == owner.token

    # -- what always holds -----------------------------------------------------------------------------------------

    def compare(self, contents: Contents) -> None:
        assert contents.faults == []
        assert {id: self.seen(id, record, contents) for id, record in contents.records.items()} == self.items
        for id, record in contents.records.items():
            assert record.version >= self.versions.get(id, Version(0, 0)), f"the version of {id} went back"
            self.versions[id] = record.version
        states = (State.QUEUED, State.CLAIMED, State.DEAD)
        ready_and_scheduled, claimed, dead = (len(contents.ids(state)) for state in states)
        counted = self.server.count()
        assert (counted[0] + counted[1], counted[2], counted[3]) == (ready_and_scheduled, claimed, dead)

    def seen(self, id: str, record: Record, contents: Contents) -> Item:
        """The server's item as the model would say it."""
        known = self.items[id]
        if record.state is State.GONE:  # a tombstone keeps no more
            return Item(State.GONE, record.token, known.delayed, known.attempts, known.failures)
        delayed = id in contents.scheduled if record.state is State.QUEUED else known.delayed
        return Item(record.state, record.token, delayed, record.attempts, record.failures)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_walk(flagged: OneServer, seed: int) -> None:
    """Rules 1, 5, 6 and 8 together: one live holder, versions only grow, every item is where its state says."""
    walk = Walk(flagged, seed)
    try:
        for _ in range(STEPS):
            walk.step()
    except AssertionError as error:
        error.add_note("\n".join([f"seed {seed}, after:", *walk.path[-30:]]))
        raise
