"""One real Redis server with one queue, and its scripts as methods: what comes back is unpacked and typed.

Every call is synchronous and goes over a plain socket, without any layer between the test and the script.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

import hiredis

from zkrq.protocol import calls
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.records import VERSION_BYTES, Record, State, Version, above, fresh, pack, unpack
from zkrq.protocol.replies import Answer, Status, read_reply
from zkrq.protocol.scripts import SCRIPTS, sha

NAMESPACE = "t"
QUEUE = "q"
GENERATION = "g1"
ANSWER_TIMEOUT = 20.0
WINDOW_MS = 300_000
LEASE_MS = 60_000
KNOWN_MS = 60_000
"""For how long a client has known the server's clock, where a test says nothing else: it would have noticed a step."""
PAUSE = "\1pause"
"""The id of the record that says whether the queue is paused; no item has such a one."""

R = TypeVar("R")

Argument = bytes | str | int | float

_pack = cast("Callable[[tuple[Argument, ...]], bytes]", hiredis.pack_command)  # pyright: ignore[reportUnknownMemberType]


class ScriptFailed(Exception):
    """The server answered with an error."""


class Refused(Exception):
    """A script answered with another status than OK."""

    def __init__(self, status: str, body: Sequence[object]) -> None:
        super().__init__(status)
        self.status = status
        self.body = tuple(body)


class Connection:
    """A plain connection: commands out, replies in."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), ANSWER_TIMEOUT)
        self._reader: Any = hiredis.Reader()

    def send(self, *commands: tuple[Argument, ...]) -> None:
        self._socket.sendall(b"".join(map(_pack, commands)))

    def receive(self) -> object:
        """The next reply, or message of a subscription."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server has closed the connection")
            self._reader.feed(data)
        return cast("object", reply)

    def pipeline(self, *commands: tuple[Argument, ...]) -> list[object]:
        self.send(*commands)
        return [_checked(self.receive()) for _ in commands]

    def command(self, *command: Argument) -> object:
        return self.pipeline(command)[0]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Listener(Connection):
    """A consumer that waits to be told."""

    def __init__(self, host: str, port: int, channel: str) -> None:
        super().__init__(host, port)
        self.channel = channel
        self.command("SUBSCRIBE", channel)

    def heard(self) -> str:
        """What was published, waited for."""
        _, _, message = cast("tuple[bytes, bytes, bytes]", self.receive())
        return message.decode()

    def told_nothing(self) -> bool:
        """Whether nothing was published so far: a PING comes back behind whatever was."""
        self.send(("PING", "end"))
        return cast("list[bytes]", self.receive())[0] == b"pong"


class Put(NamedTuple):
    """What ``put`` and ``push`` take for one item."""

    id: str
    payload: bytes = b"payload"
    delay_ms: int = 0
    priority: int = 0
    pushed_at_ms: int | None = None
    key: str = ""
    ttl_ms: float | None = None
    above_n: int = 1

    @property
    def call(self) -> calls.Put:
        """What the scripts are given."""
        pushed_at_ms = int(time.time() * 1000) if self.pushed_at_ms is None else self.pushed_at_ms
        left = self.delay_ms if self.ttl_ms is None else f"{self.delay_ms} {self.ttl_ms:.3f}"
        record = above(fresh(self.priority, pushed_at_ms, self.key, self.ttl_ms), self.above_n)
        return calls.Put(self.id, record, left, self.payload)


class Applied(NamedTuple):
    """What ``apply`` takes for one item; ``left_ms`` may be text, then what is left until it expires stands behind a
    space."""

    id: str
    packed: bytes
    left_ms: float | str = 0
    payload: bytes = b""


class Settlement(NamedTuple):
    """What ``settle`` takes for one item."""

    id: str
    epoch: int
    n: int
    token: str
    verb: str
    ms: int = 0
    text: str = ""

    @property
    def call(self) -> calls.Settlement:
        version = pack(Record(Version(self.epoch, self.n), State.CLAIMED))[VERSION_BYTES]
        how = self.verb if self.verb == "ack" else f"{self.verb} {self.ms} {self.text}"
        return self.id, version, self.token, how


class Decided(NamedTuple):
    """One record that a script decided."""

    id: str
    packed: bytes
    left_ms: float

    @property
    def record(self) -> Record:
        return unpack(self.packed)

    def settle(self, verb: str, ms: int = 0, text: str = "") -> Settlement:
        """The call that settles this claim."""
        record = self.record
        return Settlement(self.id, *record.version, record.token, verb, ms, text)

    def apply(self, payload: bytes = b"") -> Applied:
        return Applied(*self, payload)


class Claimed(NamedTuple):
    """The reply of ``claim``."""

    next_ms: int
    handed: dict[str, bytes]
    decided: dict[str, Decided]
    dropped_letters: int

    @property
    def ids(self) -> list[str]:
        return list(self.handed)

    @property
    def only(self) -> Decided:
        """The only item that was handed out."""
        (id,) = self.handed
        return self.decided[id]

    def settle(self, verb: str, ms: int = 0, text: str = "") -> list[Settlement]:
        """The calls that settle every claim alike."""
        return [self.decided[id].settle(verb, ms, text) for id in self.handed]


class Settled(NamedTuple):
    """The reply of ``settle``."""

    outcomes: list[int]
    decided: dict[str, Decided]
    dropped_letters: int


class Copy(NamedTuple):
    """One item as ``read`` and ``page`` tell it."""

    id: str
    packed: bytes
    left_ms: float
    payload: bytes | None
    expires_ms: float | None = None

    @property
    def record(self) -> Record:
        return unpack(self.packed)

    @property
    def applied(self) -> Applied:
        left = self.left_ms if self.expires_ms is None else f"{self.left_ms:.3f} {self.expires_ms:.3f}"
        return Applied(self.id, self.packed, left, self.payload or b"")


class Copies(NamedTuple):
    """Items by their ids, and the ids of those whose payloads are beyond the limit."""

    found: dict[str, Copy]
    left_out: list[str]


class Metadata(NamedTuple):
    """The reply of ``metadata``; of each owner its last number and how long ago it was fenced, -1: it is not."""

    items: int
    clock: int
    floor_ms: int
    owners: dict[str, tuple[int, int]]


class Contents(NamedTuple):
    """All that the server holds of the queue; ``left_payloads`` are those of items that are gone."""

    records: dict[str, Record]
    payloads: dict[str, bytes]
    ready: dict[str, float]
    scheduled: dict[str, float]
    claimed: dict[str, float]
    dead: dict[str, float]
    tombstones: list[bytes]
    keys: dict[str, set[str]]
    expiring: dict[str, float]
    holdings: set[tuple[str, str]]
    """Token and id of each."""
    left_payloads: dict[str, bytes]

    @property
    def paused(self) -> bool:
        return PAUSE in self.ids(State.PAUSED)

    def living(self) -> set[str]:
        """The items that have a payload."""
        return self.ids(State.QUEUED) | self.ids(State.CLAIMED) | self.ids(State.DEAD)

    def moment_us(self, id: str) -> float:
        """Where the id stands in its index: due time, deadline or moment of death, by the server's clock."""
        (home,) = self.homes(id)
        score: float = getattr(self, home)[id]
        ranked = home in ("ready", "scheduled")
        return score - (9 - self.records[id].priority) * 2**49 + 1.7e15 if ranked else score

    def homes(self, id: str) -> set[str]:
        """The indexes that name this id."""
        return {name for name in ("ready", "scheduled", "claimed", "dead") if id in getattr(self, name)}

    def ids(self, state: State) -> set[str]:
        return {id for id, record in self.records.items() if record.state is state}

    @property
    def faults(self) -> list[str]:
        """Where records, indexes, payloads and tombstones contradict each other."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        demanded: dict[State, tuple[set[str], ...]] = {
            State.QUEUED: ({"ready"}, {"scheduled"}),
            State.CLAIMED: ({"claimed"},),
            State.DEAD: ({"dead"},),
            State.GONE: (set(),),
            State.PAUSED: (set(),),
        }
        living = self.living()
        for id, record in self.records.items():
            if self.homes(id) not in demanded[record.state]:
                yield f"{id} is {record.state.name} and stands in {self.homes(id)}"
            if (id in self.payloads) != (id in living):
                yield f"{id} is {record.state.name}, payload: {self.payloads.get(id)!r}"
            version = record.version.epoch.to_bytes(4, "little") + record.version.n.to_bytes(4, "little")
            buried = version + id.encode() in {entry[16:] for entry in self.tombstones}
            if record.state is State.GONE and id != PAUSE and not buried:
                yield f"{id} is gone in version {record.version} without a tombstone"
            if record.state is State.PAUSED and id != PAUSE:
                yield f"{id} is paused: it is an item"
        for id in {*self.payloads, *self.ready, *self.scheduled, *self.claimed, *self.dead} - self.records.keys():
            yield f"{id} has no record"
        held = {(self.records[id].token, id) for id in self.ids(State.CLAIMED)}
        if held != self.holdings:
            yield f"claims that are in records or holdings alone: {held ^ self.holdings}"
        yield from self._index_faults()

    def _index_faults(self) -> Iterator[str]:
        """Keys name the items that are queued or claimed, and ``expiring`` those of them that have a time to live."""
        lasting = self.ids(State.QUEUED) | self.ids(State.CLAIMED)
        having: dict[str, set[str]] = {}
        for id in lasting:
            if self.records[id].key:
                having.setdefault(self.records[id].key, set()).add(id)
        if having != self.keys:
            yield f"items have the keys {having}, the index has {self.keys}"
        mortal = {id for id in lasting if self.records[id].ttl_ms is not None}
        if mortal != self.expiring.keys():
            yield f"{mortal} have a time to live, the index has {self.expiring}"


class OneServer(Connection):
    """The server, in the life ``GENERATION``, called under ``epoch`` where no other is given.

    ``flags=False``: scripts as servers before Redis 7 get them.  ``database``: another one is as good as another
    server, with the same clock; ``reset`` empties both.
    """

    def __init__(self, host: str, port: int, *, flags: bool = True, database: int = 0) -> None:
        super().__init__(host, port)
        self.command("SELECT", database)
        self.host, self.port = host, port
        self.flags = flags
        self.epoch = 1
        self.queue = QUEUE
        self.limits: dict[str, int] = {}
        """Constants of the scripts that the test wants smaller."""
        self._known: set[str] = set()
        self._seq = 0

    def reset(self) -> None:
        """Empty, and newly enrolled."""
        self.pipeline(("CONFIG", "SET", "maxmemory", 0), ("FLUSHALL",))
        self.epoch = 1
        self.enrol()

    def key(self, name: str) -> str:
        return key(NAMESPACE, self.queue, name)

    def text(self, script: str) -> str:
        text = SCRIPTS[script].text(flags=self.flags)
        for name, value in self.limits.items():
            text = re.sub(rf"\blocal {name} = \d+", f"local {name} = {value}", text)
        return text

    def now_us(self) -> int:
        seconds, rest = cast("list[bytes]", self.command("TIME"))
        return int(seconds) * 1_000_000 + int(rest)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def listen(self, channel: str) -> Listener:
        return Listener(self.host, self.port, channel)

    # -- scripts -----------------------------------------------------------------------------------------------------

    def answer(self, call: calls.Call[Any], epoch: int, generation: str = GENERATION) -> Answer:
        """Make a call; what the server answers, whatever the status.  Raises ``ScriptFailed``."""
        text, keys = self.text(call.script), script_keys(NAMESPACE, call.queue, call.script)
        if text not in self._known:
            self.command("SCRIPT", "LOAD", text)
            self._known.add(text)
        reply = self.command("EVALSHA", sha(text), len(keys), *keys, epoch, generation, *call.words())
        return read_reply(reply, call.script)

    def ask(
        self,
        call: calls.Call[R],
        *,
        epoch: int | None = None,
        generation: str = GENERATION,
        put_window_ms: int = WINDOW_MS,
    ) -> R:
        """Make a call; what its reply says.  Raises ``Refused``, ``ScriptFailed``."""
        call = under_window(call, put_window_ms)
        answer = self.answer(call, self.epoch if epoch is None else epoch, generation)
        assert answer.status is not Status.BROKEN, answer.reason
        if answer.status is not Status.OK:
            raise Refused(answer.status.value, answer.body)
        return call.read(answer.body)

    def _ask(self, call: calls.Call[R], options: Mapping[str, Any]) -> R:
        """The same with other values of some fields, another put window, or another epoch or generation."""
        given = dict(options)
        how = {name: given.pop(name) for name in ("epoch", "generation", "put_window_ms") if name in given}
        return self.ask(cast("calls.Call[R]", replace(cast("Any", call), **given)), **how)

    def enrol(self, generation: str = GENERATION, expected: str = "", **options: Argument) -> None:
        call = calls.Enrol(expected, "redis-1", "d", time.time_ns() // 1000, WINDOW_MS, holding=False)
        self._ask(call, {"generation": generation, **options})

    def seal(self, epoch: int, generation: str = GENERATION) -> None:
        """Have the server adopt this epoch."""
        self.ask(calls.Seal(), epoch=epoch, generation=generation)

    def put(self, *puts: Put | str, **options: Argument) -> list[int]:
        """Returns the positions that were refused for their age."""
        return self.put_told(*puts, **options)[0]

    def put_told(self, *puts: Put | str, **options: Argument) -> tuple[list[int], dict[int, int]]:
        """Returns the positions that were refused for their age, and of those that are gone the n of the tombstone."""
        items = [(Put(put) if isinstance(put, str) else put).call for put in puts]
        late, gone = self._ask(calls.PutAll(self.queue, items), options)
        return _from_1(late), {at + 1: n for at, n in gone.items()}

    def push(self, *puts: Put, **options: Argument) -> tuple[list[str], dict[str, Decided]]:
        """Returns what became of each, and what was decided."""
        outcomes, records = self._ask(calls.Push(self.queue, 0, [put.call for put in puts]), options)
        return [outcome.decode() for outcome in outcomes], read_decided(records.flat)

    def put_numbered(self, count: int) -> list[str]:
        """Put ``count`` items in batches of 500; returns their ids in order."""
        ids = [f"i{n:05}" for n in range(count)]
        for start in range(0, count, 500):
            self.put(*(Put(id, id.encode()) for id in ids[start : start + 500]))
        return ids

    def claim(
        self,
        owner: str = "ann",
        count: int = 10,
        *,
        seq: int | None = None,
        lease_ms: int = LEASE_MS,
        waiter: str = "",
        **options: Argument,
    ) -> Claimed:
        """A claim request, with a new number unless ``seq`` is given."""
        if seq is None:
            self._seq += 1
            seq = self._seq
        call = calls.Claim(self.queue, owner, seq, count, lease_ms, waiter, 0, "X", 0, 0, known_ms=KNOWN_MS)
        reply = self._ask(call, options)
        records = read_decided(reply.records.flat)
        payloads = {id: each for id, each in zip(records, reply.payloads, strict=True) if each is not None}
        return Claimed(reply.next_ms, payloads, records, reply.dropped_letters)

    def settle(self, *claims: Settlement, trim: int = 1, **options: Argument) -> Settled:
        """The usual acks are told by the n of what they left; here they are as if they were told like the rest."""
        call = calls.Settle(self.queue, 0, 0, [claim.call for claim in claims], trim=bool(trim))
        reply = self._ask(call, options)
        records = read_decided(reply.records.flat)
        epoch = cast("int", options.get("epoch", self.epoch))
        for claim, n in zip(claims, reply.outcomes, strict=True):
            if n > 1:
                gone = pack(Record(Version(epoch, n), State.GONE, due_us=reply.buried_us, token=claim.token))
                records[claim.id] = Decided(claim.id, gone, 0)
        return Settled([min(outcome, 1) for outcome in reply.outcomes], records, reply.dropped_letters)

    def trim(self, **options: Argument) -> int:
        """Returns how many tombstones were dropped."""
        return self._ask(calls.Trim(self.queue), options).dropped

    def cut(self, *ids: str, **options: Argument) -> None:
        self._ask(calls.Cut(self.queue, [id.encode() for id in ids]), options)

    def apply(
        self, *applied: Applied, payloads: bool = False, fenced: str = "", **options: Argument
    ) -> tuple[list[int], list[int]]:
        """Returns the positions that are superseded, and those that lack their payload."""
        items = [each if payloads else each[:3] for each in applied]
        call = calls.Apply(self.queue, cast("Any", items), fenced=fenced, payloads_given=int(payloads))
        superseded, bare = self._ask(call, options)
        return _from_1(superseded), _from_1(bare)

    def wipe(self, **options: Argument) -> None:
        self._ask(calls.Wipe(self.queue), options)

    def retire(self, owner: str) -> None:
        self.ask(calls.Retire(self.queue, owner))

    def fence(self, owner: str, **options: Argument) -> dict[str, Decided]:
        """All pages."""
        requeued: dict[str, Decided] = {}
        call = calls.Fence(self.queue, owner)
        while True:
            reply = self._ask(call, options)
            requeued |= read_decided(reply.records.flat)
            if reply.cursor == calls.START:
                return requeued
            call = replace(call, cursor=reply.cursor)

    def pause(self, state: State = State.PAUSED, **options: Argument) -> dict[str, Decided]:
        return read_decided(self._ask(calls.Pause(self.queue, state.value, ""), options).flat)

    def resume(self, **options: Argument) -> dict[str, Decided]:
        return self.pause(State.GONE, **options)

    def cancel(self, *ids: str, trim: int = 0, **options: Argument) -> tuple[list[str], dict[str, Decided]]:
        """Returns the states before, and what was removed."""
        states, records = self._ask(calls.Cancel(self.queue, "", 0, "", ids, trim=bool(trim)), options)
        return [state.decode() for state in states], read_decided(records.flat)

    def redrive(self, *ids: str, **options: Argument) -> dict[str, Decided]:
        return read_decided(self._ask(calls.Redrive(self.queue, 0, 0, "", ids), options).records.flat)

    def forward(self, *applied: Applied, clock: int | None = None, window_ms: int = 10_000) -> dict[str, Decided]:
        now = self.now_us() if clock is None else clock
        return read_decided(self.ask(calls.Forward(self.queue, now, window_ms, cast("Any", applied))).flat)

    def statistics(self) -> calls.StatisticsReply:
        return self.ask(calls.Statistics(self.queue))

    def holders(self, **options: Argument) -> dict[str, int]:
        """All pages."""
        held = Counter[str]()
        call = calls.Holders(self.queue)
        while True:
            page = self._ask(call, options)
            held.update(page.claims)
            if page.cursor == calls.START:
                return dict(held)
            call = call.at(page.cursor)

    def peek(self, state: str, count: int = 10) -> Copies:
        return read_copies(*self.ask(calls.Peek(self.queue, state, count)))

    def clear(self, count: int, **options: Argument) -> dict[str, Decided]:
        return self.clear_page(count, **options)[-1]

    def clear_page(self, count: int, **options: Argument) -> tuple[int, bytes, dict[str, Decided]]:
        """The moment and the cursor to go on with, and what was removed."""
        reply = self._ask(calls.Clear(self.queue, count, "", 0, b""), options)
        return reply.before_ms, reply.cursor, read_decided(reply.records.flat)

    def read(self, *ids: str) -> dict[str, tuple[Decided, bytes | None]]:
        found, left_out = self.ask(calls.Read(self.queue, ids))
        assert not left_out, "the test's payloads are small"
        return {
            id.decode(): (Decided(id.decode(), packed, float(left_ms.split()[0])), payload)
            for id, packed, left_ms, payload in found
        }

    def read_some(self, *ids: str, **options: Argument) -> Copies:
        """Like ``read``, with payloads of any size."""
        return read_copies(*self._ask(calls.Read(self.queue, ids), options))

    def page(self, cursor: bytes = b"0", count: int = 200, **options: Argument) -> tuple[bytes, Copies]:
        """The cursor to go on with, and what is in this page."""
        after, found, left_out = self._ask(calls.Page(self.queue, cursor, count), options)
        return after, read_copies(found, left_out)

    def heads(self, cursor: bytes = b"0", count: int = 200) -> tuple[bytes, dict[str, bytes]]:
        """The cursor to go on with, and the heads of this page by their ids."""
        after, heads = self.ask(calls.Heads(self.queue, cursor, count))
        return after, {id.decode(): head for id, head in heads.items()}

    def compare(self, heads: Mapping[str, bytes]) -> tuple[list[int], list[int]]:
        """Positions of what is unknown here, and of what is known otherwise."""
        items = [(id.encode(), head) for id, head in heads.items()]
        unknown, different = self.ask(calls.Compare(self.queue, items))
        return _from_1(unknown), _from_1(different)

    def affirm(self, *ids: str, **options: Argument) -> dict[str, Decided]:
        return read_decided(self._ask(calls.Affirm(self.queue, [id.encode() for id in ids]), options).flat)

    def metadata(self) -> Metadata:
        """All pages."""
        owners, call = dict[str, tuple[int, int]](), calls.Metadata(self.queue)
        while True:
            reply = self.ask(call)
            parts = iter(reply.owners.flat)
            owners |= {owner.decode(): (int(seq), ago) for owner, seq, ago in zip(parts, parts, parts, strict=True)}
            if reply.cursor == calls.START:
                return Metadata(reply.items, reply.clock, int(reply.floor_ms), owners)
            call = call.at(reply.cursor)

    def install(self, floor_ms: int = 0, owners: Mapping[str, tuple[int, int]] | None = None) -> int:
        """Returns the server's clock."""
        flat = [part for owner, (seq, ago_ms) in (owners or {}).items() for part in (owner, seq, ago_ms)]
        return self.ask(calls.Install(self.queue, floor_ms, calls.Rows(flat)))

    def reserve(self, repairer: str, hold_ms: int = 10_000) -> None:
        """Asked as a server outside the view is."""
        self.ask(calls.Reserve(repairer, hold_ms), epoch=0, generation="")

    def count(self) -> calls.Counts:
        return self.ask(calls.Count(self.queue))

    def owners(self) -> set[str]:
        return self._names(calls.Owners(self.queue))

    def claims_of(self, owner: str) -> set[str]:
        return self._names(calls.Claims(self.queue, owner))

    def _names(self, call: calls.Paging[calls.NamesPage]) -> set[str]:
        """All pages."""
        found = set[str]()
        while True:
            page = self.ask(call)
            found |= {name.decode() for name in page.names}
            if page.cursor == calls.START:
                return found
            call = call.at(page.cursor)

    def queues(self) -> set[str]:
        return self._names(calls.Queues())

    def age(self, id: str, ms: int) -> None:
        """Have the tombstone of this id be older by ``ms``."""
        record = self.record(id)
        assert record.state is State.GONE
        self.command("HSET", self.key("records"), id, pack(record._replace(due_us=record.due_us - ms * 1000)))

    # -- looking inside ----------------------------------------------------------------------------------------------

    def contents(self) -> Contents:
        records, payloads, ready, scheduled, claimed, dead, tombstones, keys, expiring, holdings = self.pipeline(
            ("HGETALL", self.key("records")),
            ("HGETALL", self.key("payloads")),
            *(("ZRANGE", self.key(name), 0, -1, "WITHSCORES") for name in ("ready", "scheduled", "claimed", "dead")),
            ("LRANGE", self.key("tombstones"), 0, -1),
            ("HGETALL", self.key("keys")),
            ("ZRANGE", self.key("expiring"), 0, -1, "WITHSCORES"),
            ("ZRANGE", self.key("holdings"), 0, -1),
        )
        known = {id: unpack(packed) for id, packed in _pairs(records)}
        carried = dict(_pairs(payloads))
        left = {id: carried.pop(id) for id, record in known.items() if record.state is State.GONE and id in carried}
        return Contents(
            known,
            carried,
            _scores(ready),
            _scores(scheduled),
            _scores(claimed),
            _scores(dead),
            cast("list[bytes]", tombstones),
            {name: set(ids.decode().split("\1")) for name, ids in _pairs(keys)},
            _scores(expiring),
            {cast("tuple[str, str]", tuple(entry.decode().split("\0", 1))) for entry in cast("list[bytes]", holdings)},
            left,
        )

    def record(self, id: str) -> Record:
        return self.contents().records[id]

    def key_names(self) -> set[str]:
        """Short names of the keys that exist."""
        names = (name.decode() for name in cast("list[bytes]", self.command("KEYS", "*")))
        return {name.rpartition(":")[2] for name in names}


def put_and_claim(server: OneServer, *puts: Put | str, owner: str = "ann", lease_ms: int = LEASE_MS) -> Claimed:
    """New items, all of them claimed by ``owner``."""
    server.put(*puts)
    claimed = server.claim(owner, len(puts), lease_ms=lease_ms)
    assert len(claimed.handed) == len(puts)
    return claimed


def read_decided(flat: object) -> dict[str, Decided]:
    parts = iter(cast("list[Any]", flat))
    decided = [Decided(id.decode(), packed, left_ms) for id, packed, left_ms in zip(parts, parts, parts, strict=True)]
    assert len({each.id for each in decided}) == len(decided), "an item is reported once"
    return {each.id: each for each in decided}


def read_copies(items: Iterable[calls.Copied], left_out: Iterable[bytes]) -> Copies:
    copies = [
        Copy(id.decode(), packed, float(left_ms.split()[0]), payload, *map(float, left_ms.split()[1:]))
        for id, packed, left_ms, payload in items
    ]
    assert len({copy.id for copy in copies}) == len(copies), "an item comes once in a reply"
    return Copies({copy.id: copy for copy in copies}, [id.decode() for id in left_out])


def under_window(call: calls.Call[R], put_window_ms: int) -> calls.Call[R]:
    """The same call with another put window than the library has."""
    if put_window_ms == call.put_window_ms:
        return call
    kind = type(call)
    other = type(kind.__name__, (kind,), {"__slots__": (), "put_window_ms": put_window_ms})
    return other(**{field.name: getattr(call, field.name) for field in fields(cast("Any", call))})


def _from_1(positions: Iterable[int]) -> list[int]:
    """Positions as the scripts count."""
    return [at + 1 for at in positions]


def _pairs(flat: object) -> Iterable[tuple[str, bytes]]:
    parts = iter(cast("list[bytes]", flat))
    return [(name.decode(), value) for name, value in zip(parts, parts, strict=True)]


def _scores(flat: object) -> dict[str, float]:
    return {id: float(score) for id, score in _pairs(flat)}


def _checked(reply: object) -> object:
    if isinstance(reply, hiredis.HiredisError):
        raise ScriptFailed(str(reply))
    return reply
