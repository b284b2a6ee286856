"""What scripts are told of items and what they answer, as values with names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

from zkrq.protocol import calls
from zkrq.protocol.figures import PER_FIELD, encode
from zkrq.protocol.payloads import join, payload_at
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
    with_end,
    with_fields,
)

WINDOW_MS = 300_000
LEASE_MS = 60_000


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
    fields: Mapping[str, bytes] = MappingProxyType({})
    at_latest_ms: int = 0

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
        record = with_fields(record, self.fields)
        if self.at_latest_ms:
            record = with_end(record, self.at_latest_ms)
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
    text: str | bytes = ""
    positions: Sequence[int] = (0,)

    @property
    def call(self) -> calls.Settlement:
        version = pack(Bundle(Version(self.epoch, self.n), "C"))[VERSION_BYTES]
        how = self.verb if self.verb == "ack" else f"{self.verb} {self.ms} {self.text}"
        if isinstance(self.text, bytes):
            how = f"{self.verb} {self.ms} ".encode() + self.text
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
        return calls.read_notes(self.notes).get(0, b"").decode()

    def settle(self, verb: str, ms: int = 0, text: str | bytes = "", positions: Sequence[int] = (0,)) -> Settlement:
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
    """The reply of ``settle``; an outcome is 0 if a claim of it is lost, and ``lost`` has the positions of all.
    ``due``: flows about which something may be decided now."""

    outcomes: list[int]
    decided: dict[str, Decided]
    dropped_letters: int
    lost: list[list[int]]
    due: list[str]


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


def figures_field(at: int, counts: Sequence[int], *more: tuple[str, Sequence[int]], task: str = "mail") -> bytes:
    """Return a field of figures that has counts in one minute, or hour; ``more``: of further tasks."""
    told = [(task, counts), *more]
    packed = b"%d%s\n" % (at // PER_FIELD, b"".join(b"\t" + name.encode() for name, _ in told))
    for index, text in enumerate(encode(each) for _, each in told):
        packed += b"".join(map(number, (at % PER_FIELD, index, len(text)))) + text
    return packed


def number(value: int) -> bytes:
    """Return a number below 16,384 as it stands in a field of figures."""
    return bytes([value] if value < 128 else [128 + value % 128, value // 128])
