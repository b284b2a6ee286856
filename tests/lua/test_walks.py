"""Random walks on one server: whatever the calls and their order, a model in Python gives the same results.

The time of the walk stands still: leases, delays and times to live are longer than it lasts, so nothing expires by
itself.  At its end a follower that applies all decisions, in any order, holds the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.lines import entries_in
from tests.lua.connection import Refused
from tests.lua.contents import LIMITS, PAUSE, Contents
from tests.lua.entries import Applied, Claimed, Decided, Put, Settlement, read_decided
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.calls import bundle_and_position, item_id
from zkrq.protocol.records import Bundle, ItemRecord, State, Version

STEPS = 300
SEEDS = range(3)
SINGLES = [f"i{n}" for n in range(30)]
SIZES = {f"zkrq-019aa5f2c31-3f9c2a71-1{n}": size for n, size in enumerate([2, 2, 3, 4, 5, 7, 9, 12])}
"""Bundles and their sizes."""
IDS = SINGLES + [item_id(bundle, position) for bundle, size in SIZES.items() for position in range(size)]
KEYS = ["k0", "k1", "k2"]
GROUPS = {id: (None, None, "", "g", "h")[n % 5] for n, id in enumerate([*SINGLES, *SIZES])}
"""Most bundles and items are in a group each."""
LONG_MS = 3_600_000
SETTLED = {
    "ack": State.GONE,
    "nack": State.QUEUED,
    "release": State.QUEUED,
    "snooze": State.QUEUED,
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
    key: str = ""
    mortal: bool = False
    over: bool = False
    """Whether its time is."""
    refused: bool = False

    @property
    def keeps_key(self) -> bool:
        """Whether no other item may have its key; one that has expired keeps it only while it is held."""
        return self.state is State.CLAIMED or (self.state is State.QUEUED and not self.over)


@dataclass
class Owner:
    """A consumer; a new one takes the place of one that was fenced."""

    name: str
    seq: int = 0
    last: list[str] = field(default_factory=list[str])

    @property
    def token(self) -> str:
        return f"{self.name}/{self.seq}"


@dataclass(frozen=True)
class Held:
    """The claim of one item."""

    id: str
    decided: Decided

    @property
    def token(self) -> str:
        return self.decided.bundle.item(place_of(self.id)[1]).token

    def settle(self, verb: str, ms: int = 0, text: str = "") -> Settlement:
        return self.decided.settle(verb, ms, text, [place_of(self.id)[1]])


def place_of(id: str) -> tuple[str, int]:
    return bundle_and_position(id)


def bundles_of(ids: Iterable[str]) -> set[str]:
    return {place_of(id)[0] for id in ids}


def says_otherwise(older: Bundle, held: Bundle) -> bool:
    """Whether what was decided since says otherwise of any item."""
    return any(
        position >= len(held.states)
        or state != held.states[position]
        or (state == "C" and older.item(position).token != held.item(position).token)
        for position, state in enumerate(older.states)
    )


class Walk:
    """One walk; every step changes server and model, and says what it did."""

    def __init__(self, server: OneServer, follower: OneServer, seed: int) -> None:
        self.server = server
        self.follower = follower
        self.pushed_at_ms = server.now_ms()
        self.paused = False
        self.told: list[Applied] = []
        """What a follower is to be told, pushes included."""
        self.random = random.Random(seed)
        self.items: dict[str, Item] = {}
        self.owners = [Owner(f"owner{n}") for n in range(3)]
        self.fenced: list[Owner] = []
        self.claims: list[Held] = []
        self.decided: list[Decided] = []
        self.versions: dict[str, Version] = {}
        self.path: list[str] = []

    def step(self) -> None:
        steps: dict[Callable[[], str], int] = {
            self.put: 4,
            self.put_bundle: 3,
            self.push: 5,
            self.claim: 6,
            self.claim_again: 2,
            self.claim_when_fenced: 1,
            self.settle: 8,
            self.fence: 1,
            self.clear: 1,
            self.cancel: 1,
            self.redrive: 1,
            self.pause: 1 if not self.paused else 4,
            self.outlive: 2,
            self.apply_again: 3,
            self.change_epoch: 1,
        }
        (chosen,) = self.random.choices(list(steps), weights=list(steps.values()))
        self.path.append(chosen())
        self.compare(self.server.contents())

    def finish(self) -> None:
        """All that was decided comes to the follower, in any order, some of it twice."""
        told = self.told + [each.apply(payload_of(each.id)) for each in self.decided]
        told += self.random.choices(told, k=20)
        self.random.shuffle(told)
        self.follower.epoch = self.server.epoch
        while told:
            size = self.random.randint(1, 30)
            self.follower.apply(*told[:size], payloads=True)
            del told[:size]
        primary, follower = self.server.contents(), self.follower.contents()
        assert follower.faults == []
        assert timeless(follower.bundles) == timeless(primary.bundles)
        assert follower.notes.keys() <= primary.notes.keys(), "one that comes after a later decision is lost"
        assert follower.payloads == primary.payloads
        assert follower.keys == primary.keys
        assert follower.holdings == primary.holdings
        assert follower.expiring.keys() == primary.expiring.keys()
        assert {id: follower.homes(id) for id in follower.records} == {id: primary.homes(id) for id in primary.records}

    def in_state(self, state: State) -> set[str]:
        return {id for id, item in self.items.items() if item.state is state}

    def ready(self) -> set[str]:
        return {id for id in self.in_state(State.QUEUED) if not self.items[id].delayed}

    # -- steps -----------------------------------------------------------------------------------------------------

    def put(self) -> str:
        ids = self.random.choices(SINGLES, k=self.random.randint(1, 6))
        puts: list[Put] = []
        known: list[int] = []
        for at, id in enumerate(ids, start=1):
            put = self.draw_put(id)
            puts.append(put)
            if id not in self.items:
                self.items[id] = Item(delayed=put.delay_ms > 0, mortal=put.ttl_ms is not None)
                self.tell(put)
            elif self.items[id].state is not State.GONE:
                known.append(at)
        assert self.server.put_known(*puts) == known
        return f"put {ids}"

    def put_bundle(self) -> str:
        """A known one stays as it is; what is gone of it is reported."""
        bundle = self.random.choice(list(SIZES))
        put = Put(
            bundle,
            payload_of(bundle),
            LONG_MS if self.random.random() < 0.2 else 0,
            self.random.randrange(10),
            self.pushed_at_ms,
            group=GROUPS[bundle],
        )
        ids = [item_id(bundle, position) for position in range(SIZES[bundle])]
        gone: set[int] = set()
        if not self.items.keys() & set(ids):
            self.items |= {id: Item(delayed=put.delay_ms > 0) for id in ids}
            self.tell(put)
        else:
            gone = {at for at, id in enumerate(ids) if id not in self.items or self.items[id].state is State.GONE}
        late, told = self.server.put_told(put)
        assert (late, {position for _, position in told}) == ([], gone)
        return f"put {bundle}"

    def draw_put(self, id: str, key: str = "") -> Put:
        delay_ms = LONG_MS if self.random.random() < 0.2 else 0
        ttl_ms = 2 * LONG_MS if self.random.random() < 0.3 else None
        priority = self.random.randrange(10)
        return Put(id, id.encode(), delay_ms, priority, self.pushed_at_ms, key, ttl_ms, group=GROUPS[id])

    def tell(self, put: Put) -> None:
        """A push that took effect comes to the followers as well."""
        self.told.append(Applied(put.id, put.call.record, 0, put.payload))

    def push(self) -> str:
        puts = [self.draw_put(id, self.random.choice(["", *KEYS])) for id in self.random.choices(SINGLES, k=3)]
        # Items of bundles whose outcome was unknown: neither key nor time to live, and no delay.
        again_ids = self.random.choices(IDS[len(SINGLES) :], k=self.random.randrange(3))
        puts += [Put(id, id.encode(), 0, 5, self.pushed_at_ms, group=GROUPS[place_of(id)[0]]) for id in again_ids]
        limit, again = self.random.choice([0, 0, 12]), self.random.randrange(2)
        expected: dict[str, str] = {}
        each: list[str] = []
        for put in puts:
            if put.id not in expected:
                each.append(expected.setdefault(put.id, self.expect_push(put, limit, again)))
            else:
                each.append("K" if expected[put.id] == "+" else expected[put.id])
        self.limit(limit)
        outcomes, decided = self.server.push(*puts, again=again)
        self.limit(0)
        assert outcomes == each, puts
        self.decided += decided.values()
        return f"pushed {[(put.id, put.key) for put in puts]}, again {again}, limit {limit}: {outcomes}"

    def limit(self, limit: int) -> None:
        """Declare a limit of the size, 0: none."""
        self.decided += self.server.declare(f"max={limit}" if limit else "", "size")[1].values()

    def expect_push(self, put: Put, limit: int, again: int) -> str:
        """What must become of it; the model is changed accordingly."""
        known = self.items.get(put.id)
        if known and not known.refused:
            return "D" if known.state is State.GONE else "K"
        lasting = {id: item for id, item in self.items.items() if item.state in (State.QUEUED, State.CLAIMED)}
        first = next((id for id, item in lasting.items() if put.key and item.key == put.key and item.keeps_key), None)
        full = limit and len(lasting) >= limit
        if first is None and not full:
            self.items[put.id] = Item(delayed=put.delay_ms > 0, key=put.key, mortal=put.ttl_ms is not None)
            return "+"
        if again:
            self.items[put.id] = Item(State.GONE, refused=True)
        return f"={first}" if first else "F"

    def claim(self) -> str:
        owner = self.random.choice(self.owners)
        owner.seq += 1
        count, expired = self.random.randint(0, 5), self.random.choice([State.GONE, State.DEAD])
        dead_max = self.random.choice([0, 0, 0, 2])
        found_over = self.notice_what_is_over(expired)
        ready = set[str]() if self.paused else self.ready()
        claimed = self.server.claim(
            owner.name, count, seq=owner.seq, lease_ms=LONG_MS, expired=expired.value, dead_max=dead_max
        )
        assert set(claimed.handed) <= ready
        assert len(claimed.handed) == min(count, len(ready))
        assert {id: payload for id, payload in claimed.handed.items() if payload != id.encode()} == {}
        self.drop_letters(dead_max, claimed.dropped_letters)
        owner.last = claimed.ids
        for id in claimed.handed:
            item = self.items[id]
            item.state, item.token, item.attempts = State.CLAIMED, owner.token, item.attempts + 1
        self.note(claimed)
        return f"{owner.token} claimed {claimed.ids}, {expired.name} are {found_over}"

    def drop_letters(self, dead_max: int, told: int) -> None:
        """No call that buries leaves more letters than are kept."""
        letters = self.in_state(State.DEAD)
        records = self.server.contents().records
        dropped = {id for id in letters if records[id].state is State.GONE}
        assert len(dropped) == told == (max(0, len(letters) - dead_max) if dead_max else 0)
        for id in dropped:
            self.items[id] = Item(State.GONE)

    def notice_what_is_over(self, expired: State) -> list[str]:
        """What a claim does first: expired is what is not held."""
        queued = [id for id, item in self.items.items() if item.over and item.state is State.QUEUED]
        self.expire(queued, expired)
        return queued

    def expire(self, ids: Iterable[str], expired: State) -> None:
        for id in ids:
            item = self.items[id]
            item.state, item.token, item.over = expired, "", False

    def outlive(self) -> str:
        """Let the time of some items be over."""
        mortal = [id for id in self.server.contents().expiring if not self.items[id].over]
        self.server.outlive(*mortal[:2])
        for id in mortal[:2]:
            self.items[id].over = True
        return f"the time of {mortal[:2]} is over"

    def pause(self) -> str:
        self.paused = self.random.random() < 0.5
        state = State.PAUSED if self.paused else State.GONE
        self.decided += self.server.pause(state).values()
        return f"the queue is {state.name}"

    def cancel(self) -> str:
        ids, wanted = self.random.sample(IDS, k=2), self.random.choice(["", "D"])
        removable = {id for id in ids if id in self.items and self.items[id].state is not State.GONE}
        if wanted:
            removable &= self.in_state(State.DEAD)
        states = [self.items[id].state.value if id in self.items else "" for id in ids]
        told, removed = self.server.cancel(*ids, wanted=wanted)
        gone = {id for id in ids if id in self.items and self.items[id].state is State.GONE}
        assert (told, set(removed)) == (states, bundles_of(removable | gone))
        for id in removable:
            self.items[id] = Item(State.GONE)
        self.decided += removed.values()
        return f"cancelled {removable}, and reported {gone}"

    def redrive(self) -> str:
        count = self.random.randint(1, 3)
        letters = list(self.server.contents().dead)[:count]
        revived: list[str] = []
        for id in letters:
            item = self.items[id]
            lasting = [other for other in self.items.values() if other.keeps_key]
            if not item.key or all(other.key != item.key for other in lasting):
                revived.append(id)
                item.state, item.token, item.attempts, item.failures = State.QUEUED, "", 0, 0
                item.delayed, item.over = False, False
        reply = self.server.ask(calls.Redrive(self.server.queue, 0, count, ""))
        assert [id.decode() for id in reply.ids] == revived
        decided = read_decided(reply.records.flat)
        assert set(decided) == bundles_of(revived)
        self.decided += decided.values()
        return f"redriven {revived} of {letters}"

    def claim_again(self) -> str:
        owner = self.random.choice([owner for owner in self.owners if owner.seq] or self.owners)
        if not owner.seq:
            return "nothing to claim again"
        claimed = self.server.claim(owner.name, 5, seq=owner.seq, lease_ms=LONG_MS)
        assert set(claimed.handed) == {id for id, item in self.items.items() if self.holds(item, owner)}
        assert set(claimed.handed) <= set(owner.last)
        assert claimed.dropped_letters == 0
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
        calls: list[Settlement] = []
        expected: list[int] = []
        letters = self.in_state(State.DEAD)
        for claim in self.random.choices(self.claims, k=self.random.randint(1, 4)):
            verb = self.random.choice(list(SETTLED))
            ms = {"nack": self.random.choice([0, LONG_MS]), "extend": LONG_MS, "release": 1, "snooze": LONG_MS}.get(
                verb, 0
            )
            calls.append(claim.settle(verb, ms, "why"))
            expected.append(self.expect(claim, verb, ms))
        buried = self.in_state(State.DEAD) - letters
        dead_max = self.random.choice([0, 0, 2]) if buried else 0
        settled = self.server.settle(*calls, dead_max=dead_max)
        assert settled.outcomes == expected, calls
        self.drop_letters(dead_max, settled.dropped_letters)
        self.decided += settled.decided.values()
        return f"settled {[(call.id, call.token, call.verb) for call in calls]}: {expected}"

    def expect(self, claim: Held, verb: str, ms: int) -> int:
        """What the call must come to; the model is changed accordingly."""
        item = self.items[claim.id]
        if item.token != claim.token:
            return 0
        if item.state is not State.CLAIMED:
            return int(item.state is SETTLED[verb])
        item.state = SETTLED[verb]
        if item.state in (State.GONE, State.DEAD):
            item.over = False
        item.failures += verb in ("nack", "bury")
        if verb == "nack":
            item.delayed = ms > 0
        elif verb in ("release", "snooze"):
            item.attempts -= 1
            item.delayed = item.delayed or verb == "snooze"
        return 1

    def fence(self) -> str:
        owner = self.owners.pop(self.random.randrange(len(self.owners)))
        self.owners.append(Owner(f"{owner.name}'"))
        self.fenced.append(owner)
        held = {id for id, item in self.items.items() if item.token.startswith(f"{owner.name}/")}
        held &= self.in_state(State.CLAIMED)
        requeued = self.server.fence(owner.name)
        assert set(requeued) == bundles_of(held)
        for id in held:
            self.items[id].state, self.items[id].token = State.QUEUED, ""
        self.decided += requeued.values()
        return f"fenced {owner.name}: {held}"

    def clear(self) -> str:
        count, before = self.random.randint(1, 4), self.server.contents()
        entries = queued_entries(before)
        reply = self.server.ask(calls.Clear(self.server.queue, count, "", 0, b""))
        after = self.server.contents()
        cleared = {id for id in self.in_state(State.QUEUED) if after.records[id].state is State.GONE}
        assert reply.removed == len(cleared)
        assert len(entries - queued_entries(after)) >= min(count, len(entries)), "of a group perhaps some more"
        for id in cleared:
            self.items[id] = Item(State.GONE)
        self.decided += read_decided(reply.records.flat).values()
        return f"cleared {cleared}"

    def apply_again(self) -> str:
        """Late duplicates of decisions: every one of them is known here, or superseded."""
        if not self.decided:
            return "nothing to apply again"
        late = self.random.choices(self.decided, k=self.random.randint(1, 5))
        held = self.server.contents().bundles
        superseded, bare = self.server.apply(*(each.apply() for each in late))
        assert superseded == [
            position for position, each in enumerate(late, start=1) if says_otherwise(each.bundle, held[each.id])
        ]
        assert bare == []
        return f"applied again {[each.id for each in late]}"

    def change_epoch(self) -> str:
        self.server.epoch += self.random.randint(1, 3)
        self.server.seal(self.server.epoch)
        return f"epoch {self.server.epoch}"

    def note(self, claimed: Claimed) -> None:
        self.claims += (Held(id, claimed.decided[place_of(id)[0]]) for id in claimed.handed)
        self.decided += claimed.decided.values()

    @staticmethod
    def holds(item: Item, owner: Owner) -> bool:
        return item.state is State.CLAIMED and item.token == owner.token

    # -- what always holds -----------------------------------------------------------------------------------------

    def compare(self, contents: Contents) -> None:
        assert contents.faults == []
        items = {id: record for id, record in contents.records.items() if id not in (PAUSE, LIMITS)}
        for id in items.keys() - self.items.keys():  # others in its bundle are known
            self.items[id] = Item(State.GONE, refused=True)
        assert {id: self.seen(id, record, contents) for id, record in items.items()} == self.items
        assert contents.paused == self.paused
        for id, bundle in contents.bundles.items():
            assert bundle.version >= self.versions.get(id, Version(0, 0)), f"the version of {id} went back"
            self.versions[id] = bundle.version
        states = (State.QUEUED, State.CLAIMED, State.DEAD)
        ready_and_scheduled, claimed, dead = (len(contents.ids(state)) for state in states)
        counted = self.server.count()
        over = sum(self.items[id].over for id in contents.ids(State.QUEUED))
        assert (counted[0] + counted[1], counted[2], counted[3]) == (ready_and_scheduled - over, claimed, dead)
        assert self.server.expired == over
        glance = self.server.statistics()
        assert (glance[:4], glance.expired, glance.paused) == (counted, over, self.paused)
        assert (glance.keyed, glance.expiring) == (len(contents.keys), len(contents.expiring))
        owners = [item.token.rpartition("/")[0] for item in self.items.values() if item.state is State.CLAIMED]
        assert self.server.holders() == {owner: owners.count(owner) for owner in owners}

    def seen(self, id: str, record: ItemRecord, contents: Contents) -> Item:
        """The server's item as the model would say it."""
        bundle, position = place_of(id)
        known = self.items[id]
        if record.state is State.GONE:
            return replace(
                known, state=State.GONE, token=record.token, refused=contents.bundles[bundle].states[position] == "F"
            )
        return Item(
            record.state,
            record.token,
            contents.homes(id) == {"scheduled"} if record.state is State.QUEUED else known.delayed,
            record.attempts,
            record.failures,
            record.key,
            bool(record.expires_us),
            known.over,
        )


def queued_entries(contents: Contents) -> set[bytes]:
    return contents.entries["ready"] | contents.entries["scheduled"] | entries_in(contents.members)


def payload_of(bundle: str) -> bytes | list[bytes]:
    if bundle not in SIZES:
        return bundle.encode()
    return [item_id(bundle, position).encode() for position in range(SIZES[bundle])]


def timeless(bundles: Mapping[str, Bundle]) -> dict[str, Bundle]:
    """Without times to live, which the walk lets end on one server only."""
    return {id: bundle._replace(expires_us=0) for id, bundle in bundles.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_walk(server: OneServer, follower: OneServer, seed: int) -> None:
    """Rules 1, 5, 6 and 8 together: one live holder, versions only grow, every item is where its state says.

    And one item to a key, as long as it is queued or claimed.
    """
    walk = Walk(server, follower, seed)
    try:
        for _ in range(STEPS):
            walk.step()
        walk.finish()
    except AssertionError as error:
        error.add_note("\n".join([f"seed {seed}, after:", *walk.path[-30:]]))
        raise
