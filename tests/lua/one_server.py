"""One real Redis server with one queue, and its scripts as methods: what comes back is unpacked and typed.

Every call is synchronous and goes over a plain socket, without any layer between the test and the script.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

import hiredis

from tests.lines import entries_in, entry_of, faults_of_groups, waiting_in_order
from zkrq.protocol import calls
from zkrq.protocol.keys import key, script_keys
from zkrq.protocol.payloads import join, payload_at, split
from zkrq.protocol.records import (
    VERSION_BYTES,
    Bundle,
    ItemRecord,
    Own,
    Row,
    State,
    Version,
    above,
    fresh,
    in_order,
    pack,
    unpack,
)
from zkrq.protocol.replies import Answer, Status, read_reply
from zkrq.protocol.scripts import SCRIPTS, Script, assemble, read_files

NAMESPACE = "t"
QUEUE = "q"
GENERATION = "g1"
DEPLOYMENT = "d"
ANSWER_TIMEOUT = 20.0
WINDOW_MS = 300_000
LEASE_MS = 60_000
KNOWN_MS = 60_000
"""For how long a client has known the server's clock, where a test says nothing else: it would have noticed a step."""
PAUSE, LIMITS, DELETED = "\1pause", "\1limits", "\1deleted"
"""The ids of the records about the queue itself; no item has such a one."""

COUNTERS = ("queued", "claimed", "dead")
GROUP_COUNTERS = ("in_line", "blocked", "remembered", "resting")
SHIFT = struct.Struct("<d")
"""Before each stored record: the difference of its moments to this server's clock."""

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


BUNDLE = "zkrq-019aa5f2c31-3f9c2a71-1b"
"""An id in the library's own format: only of such bundles items have ids."""


def joined(payload: bytes | Sequence[bytes]) -> bytes:
    """What is sent as the payloads of a bundle: of one item, or of several."""
    return join([payload] if isinstance(payload, bytes) else payload)


LONG_AGO_US = -1e12
"""When records of tests were decided: their moments are around 0, and nothing is decided later than now."""


def packed_item(
    version: Version,
    state: State,
    priority: int = 0,
    *,
    attempts: int = 0,
    failures: int = 0,
    pushed_at_ms: float = 0,
    due_us: float = 0,
    lease_ms: int = 0,
    token: str = "",
    key: str = "",
    ttl_ms: float = 0,
) -> bytes:
    """The record of an item alone.  ``due_us``: its moment, whatever the state; ``ttl_ms`` counts from 0 as well."""
    return pack(
        Bundle(
            version,
            "R" if state is State.QUEUED and failures else state.value,
            rows_of=[int(bool(token))],
            attempts=[attempts],
            priority=priority,
            pushed_at_ms=pushed_at_ms,
            due_us=0 if state is State.CLAIMED else due_us,
            clock_us=LONG_AGO_US,
            soonest_us=due_us if state is State.CLAIMED else 0,
            rows=[row_of(token, lease_ms, due_us)] if token else (),
            own={0: Own(due_us, failures)} if failures or state is State.DEAD else {},
            key=key,
            expires_us=ttl_ms * 1000,
            ttl_us=ttl_ms * 1000,
        )
    )


def row_of(token: str, lease_ms: int = 0, deadline_us: float = 0) -> Row:
    """The row of this request; a call that is no claim has no number."""
    owner, _, seq = token.rpartition("/")
    return Row(owner, int(seq), lease_ms, deadline_us) if owner else Row(token, 0)


class Put(NamedTuple):
    """What ``put`` and ``push`` take for one item; for a bundle, if there are several payloads."""

    id: str
    payload: bytes | Sequence[bytes] = b"payload"
    delay_ms: int = 0
    priority: int = 0
    pushed_at_ms: int | None = None
    key: str = ""
    ttl_ms: float | None = None
    above_n: int = 1
    group: str | None = None
    ordered: bool = False

    @property
    def call(self) -> calls.Put:
        """What the scripts are given."""
        pushed_at_ms = int(time.time() * 1000) if self.pushed_at_ms is None else self.pushed_at_ms
        size = None if isinstance(self.payload, bytes) else len(self.payload)
        record = fresh(
            self.priority,
            pushed_at_ms,
            size=size,
            delay_ms=self.delay_ms,
            key=self.key,
            ttl_ms=self.ttl_ms or 0,
            group=self.group,
        )
        if self.ordered:
            record = in_order(record)
        return calls.Put(self.id, above(record, self.above_n), joined(self.payload))


class Applied(NamedTuple):
    """What ``apply`` takes for one bundle.

    The record's moments count from ``left_ms`` from now on, unless ``since`` says otherwise.  ``wire``: the payloads as
    they are sent, instead of the only one.
    """

    id: str
    packed: bytes
    left_ms: float = 0
    payload: bytes | Sequence[bytes] = b""
    notes: bytes = b""
    since: str | None = None
    wire: bytes | None = None

    @property
    def row(self) -> tuple[str, bytes, bytes, str, bytes]:
        since = f"{self.left_ms * 1000:.0f}" if self.since is None else self.since
        wire = joined(self.payload) if self.wire is None and self.payload else self.wire or b""
        return self.id, self.packed, self.notes, since, wire


class Settlement(NamedTuple):
    """What ``settle`` takes for items of one bundle."""

    id: str
    epoch: int
    n: int
    token: str
    verb: str
    ms: int = 0
    text: str = ""
    positions: Sequence[int] = (0,)

    @property
    def call(self) -> calls.Settlement:
        version = pack(Bundle(Version(self.epoch, self.n), "C"))[VERSION_BYTES]
        how = self.verb if self.verb == "ack" else f"{self.verb} {self.ms} {self.text}"
        if self.verb == "result":  # an ack that leaves one
            how = f"ack {self.ms} {self.text}"
        return self.id, calls.runs(self.positions), version, self.token, how


class Decided(NamedTuple):
    """One record that a script decided."""

    id: str
    packed: bytes
    notes: bytes
    since: str

    @property
    def bundle(self) -> Bundle:
        return unpack(self.packed)

    @property
    def record(self) -> ItemRecord:
        """Of an item alone."""
        return alone(self.bundle)

    @property
    def left_ms(self) -> float:
        """Of an item alone, until it is due or its claim ends; since it died."""
        return left_ms(self.packed, self.since)

    @property
    def note(self) -> str:
        """Of an item alone."""
        return calls.read_notes(self.notes).get(0, "")

    def settle(self, verb: str, ms: int = 0, text: str = "", positions: Sequence[int] = (0,)) -> Settlement:
        """The call that settles these claims, which one request was given."""
        bundle = self.bundle
        token = bundle.item(positions[0]).token
        return Settlement(self.id, *bundle.version, token, verb, ms, text, positions)

    def apply(self, payload: bytes | Sequence[bytes] = b"") -> Applied:
        return Applied(self.id, self.packed, 0, payload, self.notes, self.since)


def alone(bundle: Bundle) -> ItemRecord:
    """The item of a bundle of one."""
    assert bundle.is_alone
    return bundle.item(0)


def moment_of(item: ItemRecord) -> float:
    """When a claim ends, otherwise when the item is due, or has died."""
    return item.deadline_us if item.state is State.CLAIMED else item.due_us


def left_ms(packed: bytes, since: str) -> float:
    bundle = unpack(packed)
    return (moment_of(alone(bundle)) + float(since or -bundle.clock_us)) / 1000


class Claimed(NamedTuple):
    """The reply of ``claim``; ``handed`` by item, ``decided`` by bundle."""

    next_ms: int
    handed: dict[str, bytes]
    decided: dict[str, Decided]
    dropped_letters: int
    places: dict[str, tuple[str, int]]
    """Bundle and position of each item."""

    @property
    def ids(self) -> list[str]:
        return list(self.handed)

    @property
    def only(self) -> Decided:
        """The only item that was handed out."""
        (id,) = self.handed
        return self.decided[id]

    @property
    def positions(self) -> dict[str, list[int]]:
        """What was handed out of each bundle."""
        found: dict[str, list[int]] = {}
        for bundle, position in self.places.values():
            found.setdefault(bundle, []).append(position)
        return found

    def settle(self, verb: str, ms: int = 0, text: str = "") -> list[Settlement]:
        """The calls that settle every claim alike."""
        return [self.decided[id].settle(verb, ms, text, positions) for id, positions in self.positions.items()]


class Turned(NamedTuple):
    """The reply of ``turn``: ``lost`` has by settlement the positions of the items whose claims are lost."""

    claimed: Claimed
    lost: list[list[int]]
    verdict: str


class Settled(NamedTuple):
    """The reply of ``settle``; an outcome is 0 if a claim of it is lost, and ``lost`` has the positions of all."""

    outcomes: list[int]
    decided: dict[str, Decided]
    dropped_letters: int
    lost: list[list[int]]


class Copy(NamedTuple):
    """One bundle as ``read`` and ``page`` report it."""

    id: str
    packed: bytes
    notes: bytes
    since: str
    wire: bytes | None

    @property
    def record(self) -> ItemRecord:
        return alone(unpack(self.packed))

    @property
    def payload(self) -> bytes | None:
        """Of an item alone."""
        return None if self.wire is None else payload_at(self.wire, 0)

    @property
    def left_ms(self) -> float:
        return left_ms(self.packed, self.since)

    @property
    def expires_ms(self) -> float | None:
        expires_us = unpack(self.packed).expires_us
        return (expires_us + float(self.since)) / 1000 if expires_us else None

    @property
    def applied(self) -> Applied:
        return Applied(self.id, self.packed, 0, b"", self.notes, self.since, self.wire or b"")


class Copies(NamedTuple):
    """Bundles by their ids, and the ids of those whose payloads are beyond the limit."""

    found: dict[str, Copy]
    left_out: list[str]


class Metadata(NamedTuple):
    """The reply of ``metadata``; of each owner its last number and how long ago it was fenced, -1: it is not."""

    items: int
    clock: int
    floor_ms: int
    owners: dict[str, tuple[int, int]]


INDEXES = ("ready", "scheduled", "claimed", "dead")


class Contents(NamedTuple):
    """All that the server holds of the queue.

    ``records``, ``payloads``, ``notes`` are by item; ``left_payloads`` are those of items that are gone.  The indexes
    name a bundle by its id, and an item with a moment of its own by the item's.
    """

    bundles: dict[str, Bundle]
    packed: dict[str, bytes]
    shifts: dict[str, float]
    records: dict[str, ItemRecord]
    payloads: dict[str, bytes]
    ready: dict[str, float]
    scheduled: dict[str, float]
    claimed: dict[str, float]
    dead: dict[str, float]
    tombstones: list[bytes]
    keys: dict[str, set[str]]
    expiring: dict[str, float]
    holdings: set[tuple[str, str]]
    """Token and bundle of each."""
    notes: dict[str, str]
    left_payloads: dict[str, bytes]
    entries: dict[str, set[bytes]]
    """Of each index, as they are."""
    counters: dict[str, int]
    members: set[bytes]
    groups: dict[str, bytes]
    limited: bool

    @property
    def paused(self) -> bool:
        return PAUSE in self.ids(State.PAUSED)

    def living(self) -> set[str]:
        """The items that have a payload."""
        return self.ids(State.QUEUED) | self.ids(State.CLAIMED) | self.ids(State.DEAD)

    def moment_us(self, id: str) -> float:
        """Where the id stands in its index: due time, deadline or moment of death, by the server's clock."""
        (home,) = self.homes(id)
        score: float = getattr(self, home)[id if id in getattr(self, home) else calls.bundle_and_position(id)[0]]
        ranked = home in ("ready", "scheduled")
        return score - (9 - self.records[id].priority) * 2**49 + 1.7e15 if ranked else score

    def homes(self, id: str) -> set[str]:
        """The indexes that name this item, or its bundle for what it is."""
        bundle, position = calls.bundle_and_position(id)
        if bundle != id:
            indexes = {"Q": INDEXES[:2], "C": INDEXES[2:3]}.get(self.bundles[bundle].states[position], ())
            return {name for name in indexes if bundle in getattr(self, name)} | self._homes(id)
        return self._homes(id)

    def _homes(self, id: str) -> set[str]:
        return {name for name in INDEXES if id in getattr(self, name)}

    def ids(self, state: State) -> set[str]:
        return {id for id, record in self.records.items() if record.state is state}

    @property
    def faults(self) -> list[str]:
        """Where records, indexes, payloads, tombstones and counters contradict each other."""
        return list(self._faults())

    def _faults(self) -> Iterator[str]:
        living = self.living()
        for id, record in self.records.items():
            if (id in self.payloads) != (id in living):
                yield f"{id} is {record.state.name}, payload: {self.payloads.get(id)!r}"
            if record.state is State.PAUSED and id not in (PAUSE, LIMITS):
                yield f"{id} is paused: it is an item"
        buried = {entry[16:24] + entry[28:] for entry in self.tombstones}
        for id, bundle in self.bundles.items():
            if id in (PAUSE, LIMITS):
                continue
            if not bundle.is_alive and self.packed[id][VERSION_BYTES] + id.encode() not in buried:
                yield f"{id} is gone in version {bundle.version} without a tombstone"
            claimed = [bundle.item(at).deadline_us for at, state in enumerate(bundle.states) if state == "C"]
            if claimed and not bundle.soonest_us <= min(claimed):
                yield f"the first claim of {id} ends at {min(claimed)}, the record says {bundle.soonest_us}"
        known = {id for id, bundle in self.bundles.items() for id in ids_of(id, bundle)}
        for id in {*self.payloads, *self.left_payloads} - known:
            yield f"{id} has no record"
        kept = {id for id in known if self._keeps_result(id)}
        for id in self.notes:
            if id not in living | kept:
                yield f"{id} is gone, and a reason is left"
        held = {(self.records[item].token, id) for id in self.bundles for item in self._claimed_in(id)}
        if held != self.holdings:
            yield f"claims that are in records or holdings alone: {held ^ self.holdings}"
        yield from self._index_faults()

    def _keeps_result(self, id: str) -> bool:
        bundle, position = calls.bundle_and_position(id)
        return position in self.bundles[bundle if bundle in self.bundles else id].own

    def _claimed_in(self, id: str) -> list[str]:
        bundle = self.bundles[id]
        return [item for item, state in zip(ids_of(id, bundle), bundle.states, strict=True) if state == "C"]

    def _index_faults(self) -> Iterator[str]:
        queued, claimed, dead = set[bytes](), set[bytes](), set[bytes]()
        for id, bundle in self.bundles.items():
            if "Q" in bundle.states:
                queued.add(id.encode())
            if "C" in bundle.states:
                claimed.add(id.encode())
            for position, state in enumerate(bundle.states):
                if state in "RD":
                    (queued if state == "R" else dead).add(entry_of(id, position))
        in_line, later = self.entries["ready"], self.entries["scheduled"]
        behind = entries_in(self.members) - (waiting_in_order(self.bundles) & later)
        if in_line & later or (in_line | later) & behind or in_line | later | behind != queued:
            yield f"{queued} are queued, the indexes have {in_line}, {behind}, {later}"
        yield from faults_of_groups(
            self.bundles, in_line, later, self.members, self.groups, self.counters, limited=self.limited
        )
        for name, demanded in (("claimed", claimed), ("dead", dead)):
            if self.entries[name] != demanded:
                yield f"{demanded} are {name}, the index has {self.entries[name]}"
        states = "".join(bundle.states for bundle in self.bundles.values())
        counted = {
            "queued": states.count("Q") + states.count("R"),
            "claimed": states.count("C"),
            "dead": states.count("D"),
        }
        if counted != {name: self.counters[name] for name in COUNTERS}:
            yield f"counted: {counted}, the counters say {self.counters}"
        # Keys name the items that are queued or claimed, and ``expiring`` those of them that have a time to live.
        lasting = self.ids(State.QUEUED) | self.ids(State.CLAIMED)
        having: dict[str, set[str]] = {}
        for id in lasting:
            if self.records[id].key:
                having.setdefault(self.records[id].key, set()).add(id)
        if having != self.keys:
            yield f"items have the keys {having}, the index has {self.keys}"
        mortal = {id for id in lasting if self.records[id].expires_us}
        if mortal != self.expiring.keys():
            yield f"{mortal} have a time to live, the index has {self.expiring}"


def ids_of(id: str, bundle: Bundle) -> list[str]:
    """The ids of a bundle's items."""
    return [id] if bundle.is_alone else [calls.item_id(id, at) for at in range(len(bundle.states))]


@cache
def _scripts(limits: tuple[tuple[str, int | str], ...]) -> Mapping[str, Script]:
    """Return the scripts with other values for some of their limits."""
    return with_constants({name: str(value) for name, value in limits}) if limits else SCRIPTS


def with_constants(values: Mapping[str, str]) -> Mapping[str, Script]:
    """Return the scripts of a library in which constants have other values."""
    files, missing = read_files(), dict(values)
    for file, text in files.items():
        for name, value in values.items():
            text, count = re.subn(
                rf"^( *local {name} =) [^-\n]*?( *(?:--.*)?)$", rf"\1 {value}\2", text, flags=re.MULTILINE
            )
            if count:
                missing.pop(name, None)
        files[file] = text
    assert not missing, f"constants that no file has in a line of its own: {missing}"
    return assemble(files)


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

    def reset(self) -> None:
        """Empty, and newly enrolled."""
        self.pipeline(("CONFIG", "SET", "maxmemory", 0), ("FLUSHALL",))
        self.epoch = 1
        self.enrol()

    def key(self, name: str) -> str:
        return key(NAMESPACE, self.queue, name)

    def library_of(self, script: str) -> str:
        """The name of the library that has the present limits."""
        return _scripts(tuple(self.limits.items()))[script].library.name

    def function(self, script: str) -> str:
        """The name of the function, of which the server has the library."""
        found = _scripts(tuple(self.limits.items()))[script]
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
        if looking := _scripts(tuple(self.limits.items()))[call.script].looking:
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
        """Returns what became of each, and what was decided."""
        outcomes, records = self._ask(
            calls.PushDecided(self.queue, 0, [put.call for put in puts], in_order=True), options
        )
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
        dropped, lost, records = self._ask(call, options)
        return Settled(
            [int(not positions) for positions in lost], read_decided(records.flat), dropped, [[*each] for each in lost]
        )

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
        return read_decided(self._ask(calls.Pause(self.queue, state.value, ""), options).flat)

    def resume(self, **options: Argument) -> dict[str, Decided]:
        return self.pause(State.GONE, **options)

    def declare(
        self, settings: str, section: str = "limits", call: str = "", **options: Argument
    ) -> tuple[str, dict[str, Decided]]:
        """Returns the settings before, and the record."""
        before, records = self._ask(calls.Declare(self.queue, section, settings, call), options)
        return before.decode(), read_decided(records.flat)

    def cancel(self, *ids: str, trim: int = 0, **options: Argument) -> tuple[list[str], dict[str, Decided]]:
        """Returns the states before, and what was removed."""
        states, records = self._ask(calls.Cancel(self.queue, "", 0, "", ids, trim=bool(trim)), options)
        return [state.decode() for state in states], read_decided(records.flat)

    def redrive(self, *ids: str, **options: Argument) -> dict[str, Decided]:
        return read_decided(self._ask(calls.Redrive(self.queue, 0, 0, "", ids), options).records.flat)

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
        after, heads, _ = self.ask(calls.Heads(self.queue, cursor, count))
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
        carried = dict.fromkeys(wires.keys() - bundles.keys(), b"a payload without a record")
        for item, (_, at, id) in items.items():
            if id in wires and (payload := payload_at(wires[id], at)) is not None:
                carried[item] = payload
        left = {
            id: carried.pop(id) for id, (record, *_) in items.items() if record.state is State.GONE and id in carried
        }
        ready, scheduled, claimed, dead = (
            {_named(entry, bundles): score for entry, score in _scores(index).items()} for index in indexes
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
            notes={_named(name.encode(), bundles): text.decode(errors="replace") for name, text in _pairs(notes)},
            left_payloads=left,
            entries={name: set(_scores(index)) for name, index in zip(INDEXES, indexes, strict=True)},
            counters={
                name: int(count or 0)
                for name, count in zip((*COUNTERS, *GROUP_COUNTERS), cast("list[bytes | None]", lead), strict=True)
            },
            members=set(cast("list[bytes]", members)),
            groups=dict(_pairs(groups)),
            limited=self.command("HGET", self.key("lead"), "limits") not in (None, b""),
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


def read_decided(flat: object) -> dict[str, Decided]:
    parts = iter(cast("list[bytes]", flat))
    decided = [
        Decided(id.decode(), packed, notes, since.decode())
        for id, packed, notes, since in zip(parts, parts, parts, parts, strict=True)
    ]
    assert len({each.id for each in decided}) == len(decided), "a bundle is reported once"
    return {each.id: each for each in decided}


def read_copies(items: Iterable[calls.Copied], left_out: Iterable[bytes]) -> Copies:
    copies = [Copy(id.decode(), packed, notes, since.decode(), wire) for id, packed, notes, since, wire in items]
    assert len({copy.id for copy in copies}) == len(copies), "a bundle comes once in a reply"
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


def _scores(flat: object) -> dict[bytes, float]:
    parts = iter(cast("list[bytes]", flat))
    return {entry: float(score) for entry, score in zip(parts, parts, strict=True)}


def _named(entry: bytes, bundles: Mapping[str, Bundle]) -> str:
    """The id of the bundle, or of the item, that an entry of an index names."""
    if entry[-2:-1] != b"\0":
        return entry.decode()
    id = entry[:-2].decode()
    return id if id not in bundles or bundles[id].is_alone else calls.item_id(id, entry[-1] - 1)


def _checked(reply: object) -> object:
    if isinstance(reply, hiredis.HiredisError):
        raise ScriptFailed(str(reply))
    return reply
