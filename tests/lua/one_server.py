"""One real Redis server with one queue, and its scripts as methods: what comes back is unpacked and typed.

Every call is synchronous and goes over a plain socket, without any layer between the test and the script.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from tests.lines import FLOWS, entry_of
from tests.lua.altered import scripts_with
from tests.lua.connection import Argument, Connection, Listener, Refused, ScriptFailed
from tests.lua.contents import COUNTERS, GROUP_COUNTERS, INDEXES, SHIFT, Contents, bundle_or_item, ids_of, parted_notes
from tests.lua.entries import (
    LEASE_MS,
    WINDOW_MS,
    Applied,
    Claimed,
    Copies,
    Copy,
    Decided,
    Metadata,
    Put,
    Settled,
    Settlement,
    Turned,
    read_copies,
    read_decided,
)
from zkrq.protocol import calls
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.payloads import payload_at, split
from zkrq.protocol.records import Bundle, ItemRecord, State, pack, unpack
from zkrq.protocol.replies import Answer, Status, read_reply

NAMESPACE = "t"
QUEUE = "q"
GENERATION = "g1"
DEPLOYMENT = "d"
KNOWN_MS = 60_000
"""For how long a client has known the server's clock, where a test says nothing else: it would have noticed a step."""

R = TypeVar("R")


class OneServer(Connection):
    """The server, in the life ``GENERATION``, called under ``epoch`` where no other is given.

    ``database``: another one is as good as another server, with the same clock; ``reset`` empties both.
    """

    def __init__(self, host: str, port: int, *, database: int = 0) -> None:
        super().__init__(host, port)
        self.command("SELECT", database)
        self.host, self.port = host, port
        self.epoch = 1
        self.queue = QUEUE
        self.limits: dict[str, int | str] = {}
        """Constants of the scripts to which the test gives other values."""
        self.looks = True
        """Whether what only reads is also called as clients do that only look: it fails if it writes."""
        self._known: set[str] = set()
        self._seq = 0
        self._max_size: Argument = 0

    def reset(self) -> None:
        """Empty, and newly enrolled."""
        self.pipeline(("CONFIG", "SET", "maxmemory", 0), ("FLUSHALL",))
        self.epoch = 1
        self.enrol()

    def key(self, name: str) -> str:
        return key(NAMESPACE, self.queue, name)

    def library_of(self, script: str) -> str:
        """The name of the library that has the present limits."""
        return scripts_with(tuple(self.limits.items()))[script].library.name

    def function(self, script: str) -> str:
        """The name of the function, of which the server has the library."""
        found = scripts_with(tuple(self.limits.items()))[script]
        if found.library.name not in self._known:
            try:
                self.command("FUNCTION", "LOAD", found.library.text)
            except ScriptFailed as error:
                if "already exists" not in str(error):
                    raise
            self._known.add(found.library.name)
        return found.function

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
        function, keys = self.function(call.script), script_keys(NAMESPACE, call.queue, call.script)
        reply = self.command("FCALL", function, len(keys), *keys, epoch, generation, *call.words())
        if self.looks:
            self.look(call, epoch, generation)
        return read_reply(reply, call.script)

    def look(self, call: calls.Call[Any], epoch: int, generation: str = GENERATION) -> object:
        """Make a call as clients do that only look, if it is one that writes nothing; return the reply as it is."""
        self.function(call.script)
        if looking := scripts_with(tuple(self.limits.items()))[call.script].looking:
            keys = script_keys(NAMESPACE, call.queue, call.script)
            return self.command("FCALL", looking, len(keys), *keys, epoch, generation, *call.words())
        return None

    def answers(self, *together: calls.Call[Any]) -> object:
        """Call a script once for several queues; return the reply as it is."""
        script = together[0].script
        keys = [name for call in together for name in script_keys(NAMESPACE, call.queue, script)]
        words = [word for call in together for word in (len(call.words()), *call.words())]
        return self.command("FCALL", self.function(script), len(keys), *keys, self.epoch, GENERATION, *words)

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
        call = calls.Enrol(expected, "redis-1", DEPLOYMENT, time.time_ns() // 1000, WINDOW_MS, holding=False)
        self._ask(call, {"generation": generation, **options})

    def seal(self, epoch: int, generation: str = GENERATION) -> None:
        """Have the server adopt this epoch."""
        self.ask(calls.Seal(), epoch=epoch, generation=generation)

    def put(self, *puts: Put | str, **options: Argument) -> list[int]:
        """Returns the positions that were refused for their age."""
        return self.put_told(*puts, **options)[0]

    def put_told(self, *puts: Put | str, **options: Argument) -> tuple[list[int], dict[tuple[int, int], int]]:
        """Returns the puts that were refused for their age; and of items that are gone, by put and position, the n of
        the version that says so."""
        late, known = self._put(puts, options)
        return _from_1(late), {(at + 1, position): n for at, (n, gone) in known.items() for position in gone}

    def put_known(self, *puts: Put | str) -> list[int]:
        """Returns the puts of single items that were there already."""
        return _from_1([at for at, (_, gone) in self._put(puts, {}).known.items() if not gone])

    def _put(self, puts: Sequence[Put | str], options: Mapping[str, Any]) -> calls.PlainReply:
        items = [(Put(put) if isinstance(put, str) else put).call for put in puts]
        return self._ask(calls.PushPlain(self.queue, items), options)

    def push(self, *puts: Put, **options: Argument) -> tuple[list[str], dict[str, Decided]]:
        """Returns what became of each, and what was decided; ``max_size``: what the settings say from now on."""
        if "max_size" in options and (most := options.pop("max_size")) != self._max_size:
            self.declare(f"max={most}" if most else "", "size")
            self._max_size = most
        call = calls.PushDecided(self.queue, [put.call for put in puts], in_order=True)
        outcomes, records, _ = self._ask(call, options)
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
        return self._claimed(self._ask(call, options))

    def turn(
        self,
        *claims: Settlement,
        owner: str = "ann",
        count: int = 1,
        seq: int | None = None,
        lease_ms: int = LEASE_MS,
        waiter: str = "",
        **options: Argument,
    ) -> Turned:
        """Settle these, then claim, with a new number unless ``seq`` is given."""
        if seq is None:
            self._seq += 1
            seq = self._seq
        request = calls.Claim(self.queue, owner, seq, count, lease_ms, waiter, 0, "X", 0, 0, known_ms=KNOWN_MS)
        reply = self._ask(calls.Turn.of(request, [claim.call for claim in claims]), options)
        return Turned(self._claimed(reply), [[*each] for each in reply.lost], reply.verdict.decode())

    def _claimed(self, reply: calls.ClaimReply | calls.TurnReply) -> Claimed:
        handed: dict[str, bytes] = {}
        places: dict[str, tuple[str, int]] = {}
        parts = iter(reply.handed)
        records = read_decided(reply.records.flat)
        for bundle, first, size, wire in zip(parts, parts, parts, parts, strict=True):
            id = bundle.decode()
            for position, payload in enumerate(split(wire, size), start=first - 1):
                item = id if records[id].bundle.is_alone else calls.item_id(id, position)
                assert payload is not None
                assert item not in handed, "handed out twice"
                handed[item], places[item] = payload, (id, position)
        return Claimed(reply.next_ms, handed, records, reply.dropped_letters, places)

    def settle(self, *claims: Settlement, trim: int = 1, **options: Argument) -> Settled:
        call = calls.Settle(self.queue, 0, 0, [claim.call for claim in claims], trim=bool(trim))
        dropped, lost, records, due = self._ask(call, options)
        outcomes, decided = [int(not positions) for positions in lost], read_decided(records.flat)
        return Settled(outcomes, decided, dropped, [[*each] for each in lost], [flow.decode() for flow in due])

    def results(
        self, *ids: str, waiter: str = "", **options: Argument
    ) -> tuple[list[tuple[str, str]], dict[str, Decided]]:
        """Returns the reply about each item, and the decided records."""
        told, records = self._ask(calls.Results(self.queue, waiter, ids), options)
        return [(each.letter.decode(), each.text.decode()) for each in told], read_decided(records.flat)

    def store(self, *rows: calls.StoredRow, **options: Argument) -> tuple[Sequence[int], dict[str, Decided]]:
        """Returns the counters' values, and the decided records."""
        counted, records = self._ask(calls.Store(self.queue, rows), options)
        return counted, read_decided(records.flat)

    def stored(
        self, *ids: str, waiter: str = "", **options: Argument
    ) -> tuple[list[tuple[str, str]], dict[str, Decided]]:
        """Returns the reply about each id, and the decided records."""
        told, records = self._ask(calls.Stored(self.queue, waiter, ids), options)
        return [(each.letter.decode(), each.text.decode()) for each in told], read_decided(records.flat)

    def trim(self, **options: Argument) -> int:
        """Returns how many tombstones were dropped."""
        return self._ask(calls.Trim(self.queue), options).dropped

    def cut(self, *ids: str, positions: Sequence[int] = (), **options: Argument) -> None:
        """Of each bundle these items, none: all."""
        self._ask(calls.Cut(self.queue, [calls.Gone(id.encode(), bytes(positions)) for id in ids]), options)

    def apply(
        self, *applied: Applied, payloads: bool = False, fenced: str = "", **options: Argument
    ) -> tuple[list[int], list[int]]:
        """Returns the records that are superseded, and those that lack payloads."""
        superseded, bare = self.apply_told(*applied, payloads=payloads, fenced=fenced, **options)
        return list(superseded), bare

    def apply_told(
        self, *applied: Applied, payloads: bool = False, fenced: str = "", **options: Argument
    ) -> tuple[dict[int, list[int]], list[int]]:
        """Returns the items of each record that are superseded, and the records that lack payloads."""
        rows = [each.row if payloads else each.row[:4] for each in applied]
        superseded, bare = self._ask(calls.Apply(self.queue, rows, fenced=fenced, whole=payloads), options)
        return {at + 1: [*positions] for at, positions in superseded.items()}, _from_1(bare)

    def wipe(self, **options: Argument) -> None:
        self._ask(calls.Wipe(self.queue), options)

    def forget(self, **options: Argument) -> bool:
        return self._ask(calls.Forget(self.queue), options)

    def delete(self, moment_ms: int | None = None, **options: Argument) -> dict[str, Decided]:
        """``moment_ms``: now by default, by the clock of the tests, which is that of the clients."""
        moment_ms = int(time.time() * 1000) if moment_ms is None else moment_ms
        return read_decided(self._ask(calls.Delete(self.queue, moment_ms), options).flat)

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
        return read_decided(self._ask(calls.Pause(self.queue, state.value, 0, 0, ""), options).flat)

    def resume(self, **options: Argument) -> dict[str, Decided]:
        return self.pause(State.GONE, **options)

    def declare(
        self,
        settings: str,
        section: str = "limits",
        call: str = "",
        *,
        mark: str = "",
        forced: bool = False,
        replaced: str = "",
        **options: Argument,
    ) -> tuple[str, dict[str, Decided]]:
        """Returns the settings before, and the record."""
        wanted = calls.Declare(self.queue, section, settings, mark, forced, call, replaced)
        before, _, records = self._ask(wanted, options)
        return before.decode(), read_decided(records.flat)

    def cancel(self, *ids: str, trim: int = 0, **options: Argument) -> tuple[list[str], dict[str, Decided]]:
        """Returns the states before, and what was removed."""
        states, records = self._ask(calls.Cancel(self.queue, "", 0, "", ids, trim=bool(trim)), options)
        return [state.decode() for state in states], read_decided(records.flat)

    def redrive(self, *ids: str, **options: Argument) -> dict[str, Decided]:
        return read_decided(self._ask(calls.Redrive(self.queue, 0, 0, "", ids), options).records.flat)

    def advance(self, *ids: str, call: str = "", epoch: int | None = None) -> dict[str, Decided]:
        options: dict[str, Argument] = {} if epoch is None else {"epoch": epoch}
        return read_decided(self._ask(calls.Advance(self.queue, call, ids), options).records.flat)

    def forward(self, *applied: Applied, clock: int | None = None, window_ms: int = 10_000) -> dict[str, Decided]:
        now = self.now_us() if clock is None else clock
        rows = [each.row for each in applied]
        return read_decided(self.ask(calls.Forward(self.queue, now, window_ms, cast("Any", rows))).flat)

    def statistics(self) -> calls.StatisticsReply:
        return self.ask(calls.Statistics(self.queue))

    def holders(self, **options: Argument) -> dict[str, int]:
        """All pages."""
        held = Counter[str]()
        call = calls.ClaimCounts(self.queue)
        while True:
            page = self._ask(call, options)
            held.update(page.claims)
            if page.cursor == calls.START:
                return dict(held)
            call = call.at(page.cursor)

    def peek(self, state: str, count: int = 10) -> Copies:
        return read_copies(*self.ask(calls.Peek(self.queue, state, count)).copies)

    def peek_places(self, state: str, count: int = 10) -> list[tuple[str, int]]:
        """Bundle and position of each item, in order."""
        return [(id.decode(), position) for id, position in self.ask(calls.Peek(self.queue, state, count)).places]

    def clear(self, count: int, **options: Argument) -> dict[str, Decided]:
        return self.clear_page(count, **options)[-1]

    def clear_page(self, count: int, **options: Argument) -> tuple[int, bytes, dict[str, Decided]]:
        """The moment and the cursor to go on with, and what was removed."""
        reply = self._ask(calls.Clear(self.queue, count, "", 0, b""), options)
        return reply.before_ms, reply.cursor, read_decided(reply.records.flat)

    def read(self, *ids: str) -> dict[str, Copy]:
        found, left_out = self.read_some(*ids)
        assert not left_out, "the test's payloads are small"
        return found

    def read_some(self, *ids: str, **options: Argument) -> Copies:
        """Like ``read``, with payloads of any size."""
        return read_copies(*self._ask(calls.Read(self.queue, ids), options)[:2])

    def page(self, cursor: bytes = b"0", count: int = 200, **options: Argument) -> tuple[bytes, Copies]:
        """The cursor to go on with, and what is in this page."""
        after, found, left_out, _ = self._ask(calls.Page(self.queue, cursor, count), options)
        return after, read_copies(found, left_out)

    def heads(self, cursor: bytes = b"0", count: int = 200) -> tuple[bytes, dict[str, bytes]]:
        """The cursor to go on with, and the heads of this page by their ids."""
        after, heads, *_ = self.ask(calls.Heads(self.queue, cursor, count))
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

    def count(self) -> tuple[int, int, int, int]:
        """Ready, scheduled, claimed and dead."""
        return self.ask(calls.Count(self.queue))[:4]

    @property
    def expired(self) -> int:
        """How many have expired, and are still there."""
        return self.ask(calls.Count(self.queue)).expired

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
        self.change(id, lambda bundle: bundle._replace(due_us=bundle.due_us - ms * 1000))

    def outlive(self, *ids: str) -> None:
        """Have the time to live of these items be over, a moment ago by the server's clock."""
        over_us, shifts = self.now_us() - 1_000, self.contents().shifts
        for id in ids:
            expires_us = over_us - shifts[id]
            self.change(id, lambda bundle, expires_us=expires_us: bundle._replace(expires_us=expires_us))
            if float(cast("bytes", self.command("ZSCORE", self.key("expiring"), id))) > 0:  # not of one that is claimed
                self.command("ZADD", self.key("expiring"), over_us, id)
            for entry in (id.encode(), entry_of(id)):  # it stands in scheduled no longer than it lives
                score = self.command("ZSCORE", self.key("scheduled"), entry)
                if score is not None:
                    begin = float(cast("bytes", score)) // 2**49 * 2**49
                    self.command("ZADD", self.key("scheduled"), int(begin + over_us - 1.7e15), entry)

    def change(self, id: str, change: Callable[[Bundle], Bundle]) -> None:
        """Write another record, with the clock that it is by."""
        stored = cast("bytes", self.command("HGET", self.key("records"), id))
        changed = pack(change(unpack(stored[SHIFT.size :])))
        self.command("HSET", self.key("records"), id, stored[: SHIFT.size] + changed)

    # -- looking inside ----------------------------------------------------------------------------------------------

    def contents(self) -> Contents:
        records, payloads, notes, groups, tombstones, keys, expiring, holdings, members, lead, *indexes = self.pipeline(
            *(("HGETALL", self.key(name)) for name in ("records", "payloads", "notes", "groups")),
            ("LRANGE", self.key("tombstones"), 0, -1),
            ("HGETALL", self.key("keys")),
            ("ZRANGE", self.key("expiring"), 0, -1, "WITHSCORES"),
            ("ZRANGE", self.key("holdings"), 0, -1),
            ("ZRANGE", self.key("members"), 0, -1),
            ("HMGET", self.key("lead"), *COUNTERS, *GROUP_COUNTERS),
            *(("ZRANGE", self.key(name), 0, -1, "WITHSCORES") for name in INDEXES),
        )
        stored = dict(_pairs(records))
        bundles = {id: unpack(record[SHIFT.size :]) for id, record in stored.items()}
        items = {
            item: (bundle.item(at), at, id)
            for id, bundle in bundles.items()
            for at, item in enumerate(ids_of(id, bundle))
        }
        wires = dict(_pairs(payloads))
        parts = iter(cast("list[bytes]", notes))
        noted, saved = parted_notes(
            ((name.decode("latin-1"), text) for name, text in zip(parts, parts, strict=True)), bundles
        )
        carried = dict.fromkeys(wires.keys() - bundles.keys(), b"a payload without a record")
        for item, (_, at, id) in items.items():
            if id in wires and (payload := payload_at(wires[id], at)) is not None:
                carried[item] = payload
        left = {
            id: carried.pop(id) for id, (record, *_) in items.items() if record.state is State.GONE and id in carried
        }
        ready, scheduled, claimed, dead = (
            {bundle_or_item(entry, bundles): score for entry, score in _scores(index).items()} for index in indexes
        )
        return Contents(
            bundles=bundles,
            packed={id: record[SHIFT.size :] for id, record in stored.items()},
            shifts={id: SHIFT.unpack_from(record)[0] for id, record in stored.items()},
            records={id: record for id, (record, *_) in items.items()},
            payloads=carried,
            ready=ready,
            scheduled=scheduled,
            claimed=claimed,
            dead=dead,
            tombstones=cast("list[bytes]", tombstones),
            keys={name: set(ids.decode().split("\1")) for name, ids in _pairs(keys)},
            expiring={id.decode(): score for id, score in _scores(expiring).items()},
            holdings={
                cast("tuple[str, str]", tuple(entry.decode().split("\0", 1))) for entry in cast("list[bytes]", holdings)
            },
            notes=noted,
            left_payloads=left,
            entries={name: set(_scores(index)) for name, index in zip(INDEXES, indexes, strict=True)},
            counters={
                name: int(count or 0)
                for name, count in zip((*COUNTERS, *GROUP_COUNTERS), cast("list[bytes | None]", lead), strict=True)
            },
            members={each for each in cast("list[bytes]", members) if each[:1] != FLOWS},
            flows={each for each in cast("list[bytes]", members) if each[:1] == FLOWS},
            groups=dict(_pairs(groups)),
            limited=self.command("HGET", self.key("lead"), "limits") not in (None, b""),
            saved=saved,
        )

    def record(self, id: str) -> ItemRecord:
        return self.contents().records[id]

    def key_names(self) -> set[str]:
        """Short names of the keys that exist."""
        names = (name.decode() for name in cast("list[bytes]", self.command("KEYS", "*")))
        return {name.rpartition(":")[2] for name in names}


def wait_ms(ms: int) -> None:
    """Let time pass on the server: there is no event for what only a clock brings."""
    time.sleep((ms + 2) / 1000)


def put_and_claim(server: OneServer, *puts: Put | str, owner: str = "ann", lease_ms: int = LEASE_MS) -> Claimed:
    """New items, all of them claimed by ``owner``."""
    server.put(*puts)
    size = sum(1 if isinstance(put, str) or isinstance(put.payload, bytes) else len(put.payload) for put in puts)
    claimed = server.claim(owner, size, lease_ms=lease_ms)
    assert len(claimed.handed) == size
    return claimed


def held(server: OneServer, id: str = "a") -> Decided:
    """A new item in the hands of an owner."""
    return put_and_claim(server, Put(id)).only


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


def _scores(flat: object) -> dict[bytes, float]:
    parts = iter(cast("list[bytes]", flat))
    return {entry: float(score) for entry, score in zip(parts, parts, strict=True)}
