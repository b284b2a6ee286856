"""The model's server and the real scripts side by side, and random calls to both.

Times are left out, and what hangs on them: each owner's leases are so short that they are over with the next call, or
outlast the test; each push is young or too old, as long as the test takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tests.model.bundle import (
    CLAIMED,
    DEAD,
    WAITING,
    may_lack,
    pack_notes,
    put_together,
    taken_apart,
    unpack_notes,
    unpack_saved,
)
from tests.model.content import HEAD, QUEUE, Clock, Item, handed, owner_of
from tests.model.rules import Rules
from tests.model.server import Request, Server, content_of
from tests.stored import SHIFT_BYTES
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.homing import MOVED
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.payloads import join
from zkrq.protocol.records import FIRST, REQUEUED, VERSION_BYTES, Bundle, Own, Row, Version, fresh, pack, unpack
from zkrq.protocol.replies import Answer, Status, read_reply
from zkrq.protocol.scripts import LIBRARY, SCRIPTS
from zkrq.protocol.view import Life, ServerId
from zkrq.testing.redis.server import MiniRedis

NAMESPACE = "t"
SIZES = {"i1": 0, "i2": 0, "zkrq-0a-0-0": 1, "zkrq-0b-0-0": 3, "zkrq-0c-0-0": 4}
"""Bundles, and how many items each has; 0: one that is alone."""

OWNERS = ("short", "ann", "bob")
SHORT = "short"
"""The owner whose leases are over with the next call."""

FIRST_MS = 1_750_000_000_000
YOUNG_MS, OLD_MS = FIRST_MS, FIRST_MS - 3 * PUT_WINDOW_MS
STEP_US = 5_000
"""Microseconds between two calls."""

SINCE = b"-%d" % (FIRST_MS * 1000)
"""What gives the moments of drawn records by a server's clock, from its present on."""

LONG_MS = 3_600_000
SEQS = 40

Head = tuple[object, ...]


def head_of(packed: bytes) -> Head:
    """What the model knows of a record: all but moments."""
    record = unpack(packed)
    own = {position: own.failures for position, own in record.own.items()}
    rows = [row.token for row in record.rows]
    return record.version, record.states, list(record.rows_of), list(record.attempts), rows, own, record.is_alone


def ids_of(id: str) -> list[str]:
    """The items of a bundle."""
    return [calls.item_id(id, position) for position in range(SIZES[id])] or [id]


def payload_of(id: str, size: int | None = None) -> bytes:
    """The payloads of a bundle, or those of its first items."""
    return join([content_of(item.encode()) for item in ids_of(id)[:size]])


class Real:
    """The real scripts, on a Redis inside this process."""

    def __init__(self) -> None:
        self.now_us = FIRST_MS * 1000
        self.redis = MiniRedis(run_id="r", clock_us=lambda: self.now_us)
        self.redis.execute(b"FUNCTION", b"LOAD", LIBRARY.text.encode())

    def ask(self, epoch: int, generation: str, call: calls.Call[Any]) -> Answer:
        self.now_us += STEP_US
        keys = script_keys(NAMESPACE, QUEUE, call.script)
        words = ["FCALL", SCRIPTS[call.script].function, len(keys), *keys, epoch, generation, *call.words()]
        reply = self.redis.execute(*(word if isinstance(word, bytes) else str(word).encode() for word in words))
        answer = read_reply(reply, call.script)
        assert answer.status is not Status.BROKEN, answer.reason
        return answer

    def hash(self, name: str) -> Mapping[bytes, bytes]:
        return cast("Mapping[bytes, bytes]", self.redis.value(key(NAMESPACE, QUEUE, name).encode()) or {})

    @property
    def content(self) -> object:
        server, lead = self.hash("server"), self.hash("lead")
        return (
            int(server.get(b"epoch", 0)),
            server.get(b"generation", b"").decode(),
            {id: head_of(packed[SHIFT_BYTES:]) for id, packed in self.hash("records").items()},
            dict(self.hash("payloads")),
            tuple(int(lead.get(name, 0)) for name in (b"queued", b"claimed", b"dead")),
            {owner.decode(): int(seq) for owner, seq in self.hash("owners").items()},
            {owner.decode() for owner in self.hash("fenced_owners")},
        )


class Twins:
    """The model's server and the real scripts, which are asked the same."""

    def __init__(self, on: Rules) -> None:
        lapsed = {f"{SHORT}/{seq}" for seq in range(SEQS)}
        self.model = Server(ServerId("a"), on, Clock(lapsed, {float(OLD_MS)}), "r", "")
        self.real = Real()
        self.flush()

    def flush(self) -> None:
        self.model.restore(None)
        self.real.redis.flush()

    def lead(self, epoch: int, generation: str) -> None:
        """Begin to decide under an epoch: from then on a new primary gives every claim a full lease."""
        self.model.receive(self._request(epoch, generation, calls.Seal()))
        self.real.ask(epoch, generation, calls.Owners(QUEUE))

    def ask(self, epoch: int, generation: str, call: calls.Call[Any]) -> None:
        """Compare the replies, of pages all of them, and what they leave."""
        mine = self._walk(lambda page: self.model.receive(self._request(epoch, generation, page)), call)
        assert mine == self._walk(lambda page: self.real.ask(epoch, generation, page), call), call
        held = self.model.held
        records = {id: head_of(packed) for id, packed in held.records.items()}
        states = "".join(unpack(packed).states for packed in held.records.values())
        counters = tuple(sum(map(states.count, those)) for those in (WAITING, CLAIMED, DEAD))
        content = held.epoch, held.generation, records, held.payloads, counters, held.owners, held.fenced
        assert content == self.real.content, call

    def _request(self, epoch: int, generation: str, call: calls.Call[Any]) -> Request:
        return Request(ServerId("a"), Life("r", generation), epoch, call)

    def _walk(self, ask: Callable[[calls.Call[Any]], Answer], call: calls.Call[Any]) -> object:
        answer = ask(call)
        if answer.status is not Status.OK:
            return answer.status
        reply = call.read(answer.body)
        told = TOLD[type(call)](reply)
        if not isinstance(call, calls.Paging):
            return told
        collected = dict(told)
        while reply.cursor != calls.START:
            call = call.at(reply.cursor)
            reply = call.read(ask(call).body)
            collected |= TOLD[type(call)](reply)
        return collected


def decided(records: calls.Records) -> dict[Item, object]:
    """Records, and the results that come with them."""
    notes = map(all_notes, records.flat[2::4])
    return {id: (head_of(record), texts) for (id, record), texts in zip(records, notes, strict=True)}


def claimed(reply: calls.ClaimReply | calls.TurnReply) -> object:
    return decided(reply.records), {item: payload for item, _, _, payload in handed(reply)}


def copies(items: Sequence[calls.Copied]) -> dict[Item, object]:
    return {id: (head_of(record), all_notes(notes), payload) for id, record, notes, _, payload in items}


def all_notes(packed: bytes) -> tuple[object, object]:
    """Results and saved states."""
    return unpack_notes(packed), unpack_saved(packed)


def owners(reply: calls.MetadataReply) -> dict[object, object]:
    """But not how many items there are to copy: that is for the progress only."""
    parts = iter(reply.owners.flat)
    return {owner: (int(seq), ago >= 0) for owner, seq, ago in zip(parts, parts, parts, strict=True)}


def nothing(reply: object) -> None:
    """The reply has none, or nothing but times."""


TOLD: Mapping[type[calls.Call[Any]], Callable[[Any], Any]] = {
    calls.Seal: nothing,
    calls.Room: nothing,
    calls.Enrol: nothing,
    calls.Wipe: nothing,
    calls.PushPlain: lambda reply: (list(reply.late), reply.known),
    calls.PushDecided: lambda reply: (reply.outcomes, decided(reply.records)),
    calls.Claim: claimed,
    calls.Turn: lambda reply: (claimed(reply), reply.verdict, list(map(sorted, reply.lost))),
    calls.Settle: lambda reply: (list(map(sorted, reply.lost)), decided(reply.records)),
    calls.Fence: lambda reply: (reply.requeued, decided(reply.records)),
    calls.Results: lambda reply: (reply.told, decided(reply.records)),
    calls.Redrive: lambda reply: (reply.ids, decided(reply.records)),
    calls.Claims: lambda reply: dict.fromkeys(reply.names),
    calls.Statistics: lambda reply: (reply.ready + reply.scheduled, reply.claimed, reply.dead, reply.paused),
    calls.Retire: nothing,
    calls.RepairLines: nothing,
    calls.RepairFlows: nothing,
    calls.Apply: lambda reply: (reply.superseded, list(reply.bare)),
    calls.ApplyNew: lambda reply: (reply.superseded, list(reply.bare)),
    calls.Cut: nothing,
    calls.Queues: lambda reply: dict.fromkeys(reply.names),
    calls.Metadata: owners,
    calls.Install: nothing,
    calls.Page: lambda reply: copies(reply.items),
    calls.Read: lambda reply: copies(reply.items),
    calls.Heads: lambda reply: reply.heads,
    calls.Aside: lambda reply: dict(reply.kept),
    calls.Compare: lambda reply: (list(reply.unknown), list(reply.different)),
    calls.Affirm: decided,
    calls.Forward: decided,
    calls.Movable: lambda reply: (set(reply.places), copies(reply.copies.items), set(reply.adopted)),
    calls.Adopt: lambda reply: (reply.outcomes, decided(reply.records)),
    calls.Admit: decided,
    calls.Cancel: lambda reply: (reply.states, decided(reply.records)),
    calls.NamedStates: list,
    calls.Release: lambda reply: (reply.opened, decided(reply.records)),
    calls.Steer: lambda reply: (
        reply.before,
        reply.now,
        reply.stamp,
        reply.outcome,
        set(reply.kinds),
        set(reply.policy),
        reply.is_closed,
        reply.life,
        reply.outer,
        list(reply.legs),
        decided(reply.records),
    ),
    calls.FlowMembers: lambda reply: (
        reply.stage,
        reply.outcome,
        set(reply.kinds),
        reply.outer,
        list(reply.legs),
        set(reply.items),
    ),
    calls.FlowPage: lambda reply: {row.name: (row.stage, frozenset(row.kinds)) for row in reply.rows},
    calls.OpenHeld: lambda reply: (reply.opened, reply.more, reply.nested, decided(reply.records)),
    calls.WaitingPage: lambda reply: set(reply.rows),
}
"""What a reply says, but for times."""


class Load:
    """Draws calls, mostly such as make sense by now."""

    def __init__(self, seed: int, server: Server, drawn: Sequence[str]) -> None:
        self.random = random.Random(seed)
        self._server = server
        self._drawn = drawn
        self._last_turn: calls.Turn | None = None

    def draw(self) -> calls.Call[Any]:
        return getattr(self, f"_{self.random.choice(self._drawn)}")()

    def draw_gate(self) -> tuple[int, str]:
        """Epoch and generation."""
        held, rng = self._server.held, self.random
        if rng.random() < 0.9:
            return max(1, held.epoch + (rng.random() < 0.1)), held.generation or "g1"
        return max(1, held.epoch + rng.choice([-1, 0, 1])), rng.choice(["g1", "g2"])

    def _some(self) -> list[str]:
        return self.random.sample(list(SIZES), self.random.randint(1, 3))

    def _owner(self) -> str:
        return self.random.choice(OWNERS)

    def _token(self) -> str:
        return f"{self._owner()}/{self.random.randint(1, 3)}"

    def moment(self) -> int:
        return self.random.choice([YOUNG_MS, YOUNG_MS, OLD_MS])

    def _puts(self) -> list[calls.Put]:
        return [calls.Put(id, fresh(0, self.moment(), size=SIZES[id] or None), payload_of(id)) for id in self._some()]

    def _record(self, id: str) -> Bundle:
        """What some other server may have decided: if payloads are missing here, it says so."""
        while True:
            record = self._any_record(id)
            whole = self._server.held.payloads.get(id.encode())
            if whole in (None, payload_of(id)) or may_lack(record):
                return record

    def _any_record(self, id: str) -> Bundle:
        rng, size = self.random, self.random.choice([0, 0, 0, 1]) or len(ids_of(id))
        kinds = rng.choice(["QRCDXF", "QRCCDX", "CX", "XF", "X", "Q"])
        states = "".join(rng.choice(kinds) for _ in range(size))
        rows = [self._row(self._token()) for _ in range(rng.randint(1, size))]
        return Bundle(
            Version(rng.randint(0, 3), rng.randint(1, 5)),
            states,
            [rng.randint(1, len(rows)) if state == "C" else rng.randint(0, len(rows)) for state in states],
            [rng.randint(0, 2) for _ in states],
            is_alone=SIZES[id] == 0,
            pushed_at_ms=self.moment(),
            due_us=FIRST_MS * 1000,
            clock_us=FIRST_MS * 1000,
            soonest_us=FIRST_MS * 1000 if "C" in states else 0,
            rows=rows,
            own={
                at: Own(FIRST_MS * 1000, LONG_MS if state == "X" else rng.randint(0, 2))
                for at, state in enumerate(states)
                if state in "RD" or (state == "X" and rng.random() < 0.3)
            },
        )

    def _row(self, token: str) -> Row:
        owner, _, seq = token.partition("/")
        lease_ms = self._lease(token)
        return Row(owner, int(seq), lease_ms, FIRST_MS * 1000 + (1 if lease_ms == 1 else 1000 * lease_ms))

    def _lease(self, token: str) -> int:
        return 1 if owner_of(token) == SHORT else LONG_MS

    # -- a call of each script ---------------------------------------------------------------------------------------

    def _push_plain(self) -> calls.PushPlain:
        return calls.PushPlain(QUEUE, self._puts())

    def _push_decided(self) -> calls.PushDecided:
        rng = self.random
        puts = [put.above(rng.choice([1, 1, 4])) for put in self._puts()]
        singles = [put.single(position) for put in puts for position in range(put.size) if rng.random() < 0.7]
        return calls.PushDecided(QUEUE, singles or puts[:1], again=rng.random() < 0.5)

    def _claim(self) -> calls.Claim:
        owner = self._owner()
        seq = max(1, self._server.held.owners.get(owner, 0) + self.random.choice([1, 1, 1, 0, -1]))
        lease_ms = self._lease(f"{owner}/")
        return calls.Claim(QUEUE, owner, seq, self._count(), lease_ms, "", 0, "X", 0, 0, known_ms=LONG_MS)

    def _count(self) -> int:
        """Few items only if their order is known: those of one bundle."""
        waiting = [
            packed for packed in self._server.held.records.values() if any(map(unpack(packed).states.count, "QRC"))
        ]
        in_order = len(waiting) == 1 and not set(unpack(waiting[0]).states) & set("RC")
        return self.random.randint(1, 3) if in_order else 100

    def _settle(self) -> calls.Settle:
        return calls.Settle(QUEUE, 0, 0, [each for id in self._some() for each in self._settlements(id)])

    def _turn(self) -> calls.Turn:
        """Draw the last one again, too: then its request may have been given what it has queued again."""
        if self._last_turn is None or self.random.random() < 0.7:
            settlements = [each for id in self._some() for each in self._settlements(id, in_turn=True)]
            self._last_turn = calls.Turn.of(self._claim(), settlements)
        return self._last_turn

    def _settlements(self, id: str, *, in_turn: bool = False) -> list[calls.Settlement]:
        """``in_turn``: a short lease is not extended, because what is claimed next is claimed at the same moment."""
        rng = self.random
        packed = self._server.held.records.get(id.encode())
        record = unpack(packed) if packed and rng.random() < 0.8 else self._record(id)
        version = record.version._replace(n=max(1, record.version.n + rng.choice([0, 0, 0, -1, 1])))
        named = pack(Bundle(version, "Q"))[VERSION_BYTES]
        by_token: dict[str, list[int]] = {}
        for position, row in enumerate(record.rows_of):
            token = record.rows[row - 1].token if row and rng.random() < 0.9 else self._token()
            by_token.setdefault(token, []).append(position)
        settlements: list[calls.Settlement] = []
        for token, positions in by_token.items():
            some = [position for position in positions if rng.random() < 0.6] or positions[:1]
            extends = f"extend {self._lease(token)} "
            result = b"ack %d %d" % (LONG_MS, rng.randint(0, 9))
            save = b"save 0 %d 0 state %d" % (rng.randint(1, 3), rng.randint(0, 9))
            later = rng.choice(["release 0 ", "snooze 0 "])
            how = rng.choice(["ack", result, result, "nack 0 ", later, "bury 0 ", extends, save, save])
            if in_turn and how == extends and owner_of(token) == SHORT:
                how = "ack"
            settlements.append((id, calls.runs(some), named, token, how))
        return settlements

    def _fence(self) -> calls.Fence:
        return calls.Fence(QUEUE, self._owner())

    def _claims(self) -> calls.Claims:
        return calls.Claims(QUEUE, self._owner())

    def _retire(self) -> calls.Retire:
        return calls.Retire(QUEUE, self._owner())

    def _results(self) -> calls.Results:
        return calls.Results(QUEUE, "", [item for id in self._some() for item in ids_of(id)])

    def _redrive(self) -> calls.Redrive:
        ids = [item for id in self._some() for item in ids_of(id)]
        return calls.Redrive(QUEUE, 0, 0, self.random.choice(["call 1", "call 2"]), ids)

    def _apply(self) -> calls.Apply:
        rng, kind = self.random, self.random.choice([calls.Apply, calls.ApplyNew])
        fenced = self._owner() if rng.random() < 0.1 else ""
        whole = rng.random() < 0.5
        items = [self._applied(id, whole=whole) for id in self._some()]
        return kind(QUEUE, items, fenced=fenced, whole=whole)

    def _applied(self, id: str, *, whole: bool) -> tuple[str | bytes | int, ...]:
        record = self._record(id)
        row = id, pack(record), self._notes(record), self.random.choice([b"", SINCE])
        return (*row, self._payload(id, record)) if whole else row

    def _notes(self, record: Bundle) -> bytes:
        """Some of the results that a record says its items have."""
        kept = [at for at in record.own if record.states[at] == "X" and self.random.random() < 0.7]
        return pack_notes({at: b"%d" % self.random.randint(0, 9) for at in kept})

    def _payload(self, id: str, record: Bundle) -> bytes:
        """What another server may hold beside this record, or nothing."""
        if not may_lack(record):
            return self.random.choice([b"", payload_of(id)])
        size, kept = len(ids_of(id)), self.random.random()
        parts = [part if self.random.random() < kept else None for part in taken_apart(payload_of(id))]
        return self.random.choice([b"", payload_of(id), put_together(parts), payload_of(id, max(1, size - 1))])

    def _cut(self) -> calls.Cut:
        gone: list[calls.Gone] = []
        for id in self._some():
            positions = [position for position in range(len(ids_of(id))) if self.random.random() < 0.7]
            gone.append(calls.Gone(id.encode(), self.random.choice([b"", bytes(positions)])))
        return calls.Cut(QUEUE, gone)

    def _read(self) -> calls.Call[Any]:
        """One of the calls that change nothing."""
        ids = [id.encode() for id in self._some()]
        heads = [(id, pack(self._record(id.decode()))[HEAD]) for id in ids]
        heads = [(id, self._server.held.records.get(id, head)[HEAD]) for id, head in heads]
        return self.random.choice(
            [
                calls.Seal(),
                calls.Room(),
                calls.Queues(),
                calls.Metadata(QUEUE),
                calls.Page(QUEUE, calls.START, 200),
                calls.Read(QUEUE, ids),
                calls.Aside(QUEUE),
                calls.Heads(QUEUE, calls.START, 200),
                calls.Heads(QUEUE, calls.START, 200, checks=False, items=ids),
                calls.Compare(QUEUE, heads),
            ]
        )

    def _install(self) -> calls.Install:
        seq, ago_ms = self.random.randint(0, 3), self.random.choice([-1, 0])
        return calls.Install(QUEUE, 0, calls.Rows([self._owner().encode(), seq, ago_ms]))

    def _affirm(self) -> calls.Affirm:
        return calls.Affirm(QUEUE, [id.encode() for id in self._some()])

    def _forward(self) -> calls.Forward:
        records = {id: self._record(id) for id in self._some()}
        items = [
            calls.Copied(
                id.encode(), pack(record), self._notes(record), SINCE, self._payload(id, record) or payload_of(id)
            )
            for id, record in records.items()
        ]
        return calls.Forward(QUEUE, FIRST_MS * 1000, LONG_MS, items)

    def _movable(self) -> calls.Movable:
        return calls.Movable(QUEUE, self.random.choice([0, 100]))

    def _adopt(self) -> calls.Adopt:
        moment = self.random.choice([YOUNG_MS, YOUNG_MS, YOUNG_MS, OLD_MS])
        return calls.Adopt(QUEUE, moment, [self._adopted(id) for id in self._items()])

    def _adopted(self, id: str) -> calls.Adopted:
        own, attempts = {0: Own(0, self.random.randint(0, 2))}, [self.random.randint(0, 2)]
        record = Bundle(FIRST, REQUEUED, attempts=attempts, pushed_at_ms=YOUNG_MS, own=own)
        return calls.Adopted(id, pack(record), join([content_of(id.encode())]))

    def _admit(self) -> calls.Admit:
        return calls.Admit(QUEUE, [(id, self.random.randint(0, 1)) for id in self._items()])

    def _cancel(self) -> calls.Cancel:
        rng = self.random
        return calls.Cancel(QUEUE, rng.choice(["", MOVED, MOVED, "Q", "D"]), 0, rng.choice(["c1", "c2"]), self._items())

    def _items(self) -> list[str]:
        """Some items, each once."""
        ids = [item for id in self._some() for item in ids_of(id)]
        return self.random.sample(ids, self.random.randint(1, len(ids)))

    def _wipe(self) -> calls.Wipe:
        return calls.Wipe(QUEUE)

    def _enrol(self) -> calls.Enrol:
        rng = self.random
        expected = rng.choice([self._server.held.generation, "", "g1"])
        return calls.Enrol(expected, "a", "", FIRST_MS * 1000, LONG_MS, rng.random() < 0.5)


def make_calls(seed: int, twins: Twins, load: Load) -> None:
    """Make what is drawn of both."""
    rng = random.Random(-seed)
    twins.ask(1, "g1", calls.Enrol("", "a", "", FIRST_MS * 1000, LONG_MS, holding=False))
    for _ in range(60):
        if rng.random() < 0.01:
            twins.flush()
        call = calls.Wipe(QUEUE) if rng.random() < 0.01 else load.draw()
        epoch, generation = load.draw_gate()
        twins.lead(epoch, generation)
        twins.ask(epoch, generation, call)
    held = twins.model.held
    twins.ask(held.epoch, held.generation, calls.Statistics(QUEUE))
