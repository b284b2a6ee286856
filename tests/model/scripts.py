"""What the scripts do to one queue on one server of the model, and what they reply to the library's calls.

A script runs alone and to its end.  ``test_scripts.py`` makes the same random calls here and to the real scripts, and
compares replies and records.  There is no time: a lease is over, and a push is old, when ``Clock`` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.model.rules import Rule, Rules
from zkrq.protocol import calls, records
from zkrq.protocol.records import FIRST, GONE_BYTE, STATE_AT, VERSION_BYTES, Record, State, Version
from zkrq.protocol.replies import Answer, Status

Item = bytes
Token = str

QUEUE = "queue"

PAGE = 2
"""Items on a page, so that writes come between two pages."""

REFUSED = "refused"
"""The token of the tombstone that a refused push leaves."""

HEAD = slice(0, 10)
"""What ``Heads`` names of a record: format, version and state."""

pack = lru_cache(maxsize=100_000)(records.pack)
unpack = lru_cache(maxsize=100_000)(records.unpack)


class SettleAlone(calls.Settle):
    """What every server would be asked if there were no primary: to settle by its own records."""

    script = "settle_alone"


def owner_of(token: Token) -> str:
    return token.rpartition("/")[0]


def ok(*body: object) -> Answer:
    return Answer(Status.OK, body)


@dataclass
class Clock:
    """What the clocks of all servers say: claims whose lease is over, by their tokens, and pushes that are too old to
    be taken, by their moments."""

    lapsed: set[Token] = field(default_factory=set[Token])
    old: set[float] = field(default_factory=set[float])


@dataclass(slots=True)
class Content:
    """All that a server holds.  ``known``: whether it has the queue.  ``fenced`` are owners."""

    epoch: int = 0
    generation: str = ""
    known: bool = False
    records: dict[Item, bytes] = field(default_factory=dict[Item, bytes])
    payloads: dict[Item, bytes] = field(default_factory=dict[Item, bytes])
    owners: dict[str, int] = field(default_factory=dict[str, int])
    fenced: set[str] = field(default_factory=set[str])

    def copy(self) -> Content:
        """What a disk has of it."""
        copies = dict(self.records), dict(self.payloads), dict(self.owners), set(self.fenced)
        return Content(self.epoch, self.generation, self.known, *copies)


class Scripts:
    """One server's content, and a method for each script, by its name."""

    def __init__(self, on: Rules, clock: Clock, held: Content) -> None:
        self.on = on
        self.clock = clock
        self.held = held

    def run(self, epoch: int, call: calls.Call[Any]) -> Answer:
        """The answer to a call that was let in under this epoch."""
        answer: Answer = getattr(self, call.script)(epoch, call)
        return answer

    def keep(self, id: Item, packed: bytes) -> None:
        """Store a record."""
        gone = packed[STATE_AT] == GONE_BYTE
        if gone and Rule.BYTES_GO_LAST not in self.on:
            self.held.payloads.pop(id, None)
        if gone and Rule.TOMBSTONE_STAYS not in self.on:
            self.held.records.pop(id, None)
        else:
            self.held.records[id] = packed

    # -- in every server's life --------------------------------------------------------------------------------------

    def seal(self, epoch: int, call: calls.Seal) -> Answer:
        return ok()

    room = seal

    def reserve(self, epoch: int, call: calls.Reserve) -> Answer:
        """A reservation is a courtesy; here everybody gets it."""
        return ok()

    def wipe(self, epoch: int, call: calls.Wipe) -> Answer:
        self.held = Content(self.held.epoch, self.held.generation)
        return ok()

    # -- pushing -----------------------------------------------------------------------------------------------------

    def put(self, epoch: int, call: calls.PutAll) -> Answer:
        held = self.held
        late: list[int] = []
        gone: list[int] = []
        for position, put in enumerate(call.items, 1):
            id = put.id.encode()
            known = held.records.get(id)
            if known is None:
                if unpack(put.record).pushed_at_ms in self.clock.old:
                    late.append(position)
                else:
                    held.known = True
                    held.records[id], held.payloads[id] = put.record, put.payload
            elif known[STATE_AT] == GONE_BYTE:
                gone += (position, unpack(known).version.n)
            else:
                held.payloads.setdefault(id, put.payload)
        return ok(late, gone)

    def push(self, epoch: int, call: calls.Push) -> Answer:
        decided = _Decided(self, epoch)
        outcomes = [self._push_one(decided, put, again=call.again) for put in call.items]
        self.held.known = self.held.known or bool(decided.records)
        return ok(outcomes, decided.flat())

    def _push_one(self, decided: _Decided, put: calls.Put, *, again: bool) -> bytes:
        id, new = put.id.encode(), unpack(put.record)
        packed = self.held.records.get(id)
        known = unpack(packed) if packed else None
        if known and known.state is not State.GONE:
            self.held.payloads.setdefault(id, put.payload)
            if new.version.n > known.version.n:
                decided.decide(id, known._replace(version=new.version), known.state, known.token)
            else:
                decided.tell(id)
            return b"+"
        if known and known.token != REFUSED:
            decided.tell(id)
            return b"D"
        if known:
            new = new._replace(version=max(new.version, known.version, key=lambda version: version.n))
        if new.pushed_at_ms in self.clock.old:
            if again:
                decided.decide(id, new, State.GONE, REFUSED)
            return b"L"
        self.held.payloads[id] = put.payload
        decided.decide(id, new, State.QUEUED, "")
        return b"+"

    # -- consuming ---------------------------------------------------------------------------------------------------

    def claim(self, epoch: int, call: calls.Claim) -> Answer:
        held, on = self.held, self.on
        token, last = f"{call.owner}/{call.seq}", held.owners.get(call.owner, 0)
        if call.owner in held.fenced and Rule.FENCED_TOKEN_IS_REFUSED in on:
            return Answer(Status.FENCED)
        if call.seq < last:
            return Answer(Status.OUTDATED)
        decided = _Decided(self, epoch)
        if call.seq == last and Rule.REPEATED_CLAIM_GETS_THE_SAME in on:
            handed = self._hand_out_again(token, decided)
        else:
            held.known = True
            held.owners[call.owner] = call.seq
            if Rule.CLAIMS_HAVE_A_DEADLINE in on:
                self._requeue_lapsed(decided)
            handed = self._hand_out(token, call.count, decided)
        payloads = [held.payloads[id] if id in handed else None for id in decided.records]
        return ok(-1, 0, payloads, 0, decided.flat())

    def _hand_out_again(self, token: Token, decided: _Decided) -> set[Item]:
        mine = [id for id in sorted(self._claimed_under(token)) if id in self.held.payloads]
        for id in mine:
            decided.tell(id)
        return set(mine)

    def _hand_out(self, token: Token, count: int, decided: _Decided) -> set[Item]:
        handed = set[Item]()
        for id, packed in sorted(self.held.records.items()):
            record = unpack(packed)
            if record.state is not State.QUEUED or len(handed) == count:
                continue
            if id in self.held.payloads:
                decided.decide(id, record, State.CLAIMED, token)
                handed.add(id)
            elif record.pushed_at_ms in self.clock.old:
                decided.decide(id, record, State.GONE, "")
        return handed

    def _requeue_lapsed(self, decided: _Decided) -> None:
        for id, packed in sorted(self.held.records.items()):
            record = unpack(packed)
            if record.state is State.CLAIMED and record.token in self.clock.lapsed:
                decided.decide(id, record, State.QUEUED, "")

    def settle(self, epoch: int, call: calls.Settle) -> Answer:
        decided = _Decided(self, epoch)
        outcomes = [self._settle_one(decided, settlement) for settlement in call.items]
        return ok(0, 0, outcomes, decided.flat())

    def _settle_one(self, decided: _Decided, settlement: calls.Settlement) -> int:
        name, version, token, how = settlement
        id = name.encode()
        packed = self.held.records.get(id)
        if packed is None:
            return 0
        held, settled = unpack(packed), _SETTLED[how.partition(" ")[0]]
        claimed = held.state is State.CLAIMED
        if claimed and settled is State.GONE and held.token == token and packed[VERSION_BYTES] == version:
            decided.decide(id, held, State.GONE, token)
            del decided.records[id]
            return held.version.n + 1
        mine = held.token == token and held.version >= records.version_of(b"\1" + version)
        if claimed and (mine or Rule.SETTLING_CHECKS_THE_TOKEN not in self.on):
            decided.decide(id, held, settled, token)
            return 1
        done = mine and held.state is settled
        if done or Rule.REFUSAL_IS_SPREAD in self.on:
            decided.tell(id)
        return int(done)

    def settle_alone(self, epoch: int, call: SettleAlone) -> Answer:
        for name, version, token, how in call.items:
            id, n = name.encode(), records.version_of(b"\1" + version).n
            if how == "ack" and id not in self.held.records:
                self.keep(id, _tombstone(Version(epoch, n + 1), token))
        return self.settle(epoch, call)

    def fence(self, epoch: int, call: calls.Fence) -> Answer:
        self.held.fenced.add(call.owner)
        decided = _Decided(self, epoch)
        for id in self._held_by(call.owner):
            decided.decide(id, unpack(self.held.records[id]), State.QUEUED, "")
        return ok(calls.START, decided.flat())

    def claims(self, epoch: int, call: calls.Claims) -> Answer:
        return ok(calls.START, self._held_by(call.owner))

    def retire(self, epoch: int, call: calls.Retire) -> Answer:
        self.held.owners.pop(call.owner, None)
        return ok()

    def _claimed_under(self, token: Token) -> Iterator[Item]:
        for id, packed in self.held.records.items():
            record = unpack(packed)
            if record.state is State.CLAIMED and record.token == token:
                yield id

    def _held_by(self, owner: str) -> list[Item]:
        claimed = ((id, unpack(packed)) for id, packed in sorted(self.held.records.items()))
        return [id for id, record in claimed if record.state is State.CLAIMED and owner_of(record.token) == owner]

    # -- applying ----------------------------------------------------------------------------------------------------

    def apply(self, epoch: int, call: calls.Apply) -> Answer:
        superseded: list[int] = []
        bare: list[int] = []
        if call.fenced:
            self.held.fenced.add(call.fenced)
        for position, (id, packed, payload) in enumerate(_rows(call), 1):
            self.held.known = True
            mine, stays = self._place(id, packed)
            if stays:
                superseded.append(position)
            if mine.state is State.GONE:
                continue
            if payload is not None:
                self.held.payloads.setdefault(id, payload)
            elif id not in self.held.payloads:
                bare.append(position)
        return ok(superseded if Rule.SUPERSEDED_IS_TOLD in self.on else [], bare)

    apply_new = apply

    def _place(self, id: Item, packed: bytes) -> tuple[Record, bool]:
        """The record that counts from now on, and whether that is another one than the given."""
        mine, known = unpack(packed), self.held.records.get(id)
        if known is not None:
            held = unpack(known)
            any_wins = Rule.GREATER_VERSION_WINS not in self.on and mine.version != FIRST
            if mine.version <= held.version and not any_wins:
                stays = held.version > mine.version or held.token != mine.token
                return (held, True) if stays else (mine, False)
            if held.token == REFUSED and mine.state is not State.GONE:
                self.held.payloads.pop(id, None)
        if known is not None or mine.state is not State.GONE or Rule.TOMBSTONE_OF_THE_UNKNOWN in self.on:
            self.keep(id, packed)
        if mine.state is State.CLAIMED:
            owner, _, seq = mine.token.rpartition("/")
            self.held.owners[owner] = max(self.held.owners.get(owner, 0), int(seq))
        return mine, False

    def cut(self, epoch: int, call: calls.Cut) -> Answer:
        for id in call.items:
            packed = self.held.records.get(id)
            if packed is None or packed[STATE_AT] == GONE_BYTE:
                self.held.payloads.pop(id, None)
        return ok()

    # -- copying and comparing ---------------------------------------------------------------------------------------

    def queues(self, epoch: int, call: calls.Queues) -> Answer:
        return ok(calls.START, [QUEUE.encode()] if self.held.known else [])

    def metadata(self, epoch: int, call: calls.Metadata) -> Answer:
        held = self.held
        flat: list[object] = []
        for owner in sorted({*held.owners, *held.fenced}):
            flat += (owner.encode(), held.owners.get(owner, 0), 0 if owner in held.fenced else -1)
        return ok(calls.START, len(held.records), 0, 0, flat)

    def install(self, epoch: int, call: calls.Install) -> Answer:
        held = self.held
        held.known = True
        for owner, seq, fenced_ago_ms in _owners(call):
            if seq > held.owners.get(owner, 0):
                held.owners[owner] = seq
            if fenced_ago_ms >= 0:
                held.fenced.add(owner)
        return ok(0)

    def page(self, epoch: int, call: calls.Page) -> Answer:
        cursor, ids = self._ids_after(call.cursor)
        return ok(cursor, self._copies(ids), [])

    def read(self, epoch: int, call: calls.Read) -> Answer:
        ids = [id.encode() if isinstance(id, str) else id for id in call.items]
        return ok(self._copies(id for id in ids if id in self.held.records), [])

    def heads(self, epoch: int, call: calls.Heads) -> Answer:
        cursor, ids = (calls.START, call.items) if call.items else self._ids_after(call.cursor)
        flat: list[bytes] = []
        for id in ids:
            if id in self.held.records:
                flat += (id, self.held.records[id][HEAD])
        return ok(cursor, flat)

    def compare(self, epoch: int, call: calls.Compare) -> Answer:
        unknown: list[int] = []
        different: list[int] = []
        for position, (id, head) in enumerate(call.items, 1):
            packed = self.held.records.get(id)
            if packed is None:
                unknown.append(position)
            elif packed[HEAD] != head or (packed[STATE_AT] != GONE_BYTE and id not in self.held.payloads):
                different.append(position)
        return ok(unknown, different)

    def affirm(self, epoch: int, call: calls.Affirm) -> Answer:
        decided = _Decided(self, epoch)
        for id in call.items:
            if id not in self.held.records:
                continue
            if Rule.SCRUB_DECIDES in self.on:
                record = unpack(self.held.records[id])
                decided.decide(id, record, record.state, record.token)
            else:
                decided.records[id] = self.held.records[id]
        return ok(decided.flat())

    def forward(self, epoch: int, call: calls.Forward) -> Answer:
        decided = _Decided(self, epoch)
        for id, packed, _, payload in call.items:
            if id in self.held.records:
                continue
            record = unpack(packed)
            self.held.known = True
            if record.state is not State.GONE:
                assert payload is not None, "the scrub forwards whole items only"
                self.held.payloads[id] = payload
            decided.decide(id, record, record.state, record.token)
        return ok(decided.flat())

    def _ids_after(self, cursor: bytes) -> tuple[bytes, Sequence[Item]]:
        """A page of the ids that follow this one, and the cursor to go on from."""
        ids = sorted(id for id in self.held.records if id > cursor)
        return (ids[PAGE - 1] if len(ids) > PAGE else calls.START), ids[:PAGE]

    def _copies(self, ids: Iterable[Item]) -> list[object]:
        flat: list[object] = []
        for id in ids:
            packed = self.held.records[id]
            payload = None if packed[STATE_AT] == GONE_BYTE else self.held.payloads.get(id)
            flat += (id, packed, b"0", payload)
        return flat


class _Decided:
    """The records that a call decides, the last one of each item, as its reply carries them."""

    def __init__(self, scripts: Scripts, epoch: int) -> None:
        self._scripts = scripts
        self._epoch = epoch
        self.records: dict[Item, bytes] = {}

    def decide(self, id: Item, record: Record, state: State, token: Token) -> None:
        """Mint the next version of an item."""
        version = Version(self._epoch, record.version.n + 1)
        if state is State.GONE:
            packed = _tombstone(version, token)
        else:
            packed = pack(record._replace(version=version, state=state, token=token))
        self._scripts.keep(id, packed)
        self.records[id] = packed

    def tell(self, id: Item) -> None:
        """Report an item as it is; what was decided under an earlier epoch is decided again."""
        packed = self._scripts.held.records[id]
        record = unpack(packed)
        if record.version.epoch < self._epoch and Rule.STAMPED_ANEW in self._scripts.on:
            self.decide(id, record, record.state, record.token)
        else:
            self.records[id] = packed

    def flat(self) -> list[object]:
        return [word for id, packed in self.records.items() for word in (id, packed, 0)]


_SETTLED = {"ack": State.GONE, "nack": State.QUEUED}


def _tombstone(version: Version, token: Token) -> bytes:
    return pack(Record(version, State.GONE, token=token))


def _rows(call: calls.Apply) -> Iterator[tuple[Item, bytes, bytes | None]]:
    """Id, record and payload of each item; the payload is None where none is given."""
    items = call.items
    if isinstance(items, calls.Rows):
        width, flat = 3 if call.payloads_given == calls.NO_PAYLOADS else 4, items.flat
        items = [flat[at : at + width] for at in range(0, len(flat), width)]
    packed: Any = b""
    for id, record, _, *rest in items:
        packed = record or packed
        given = rest and (rest[0] or call.payloads_given == calls.ALL_PAYLOADS)
        yield _encoded(id), packed, _encoded(rest[0]) if given else None


def _encoded(word: object) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _owners(call: calls.Install) -> Iterator[tuple[str, int, int]]:
    parts = iter(call.items.flat)
    for owner, seq, fenced_ago_ms in zip(parts, parts, parts, strict=True):
        yield owner.decode(), int(seq), int(fenced_ago_ms)
