"""A bundle as a script works on it, as ``_bundle.lua`` does; and its payloads, as ``_payloads.lua`` has them.

There is no time: every moment of a record is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from zkrq.protocol import payloads, records
from zkrq.protocol.calls import read_notes
from zkrq.protocol.homing import MOVED
from zkrq.protocol.records import (
    HELD,
    LEGS,
    MEMBER,
    OUTER,
    REFUSED,
    REQUEUED,
    SAVED_FIELD,
    Bundle,
    Opens,
    Own,
    Row,
    State,
    Version,
    shared_fields,
)
from zkrq.protocol.records import WAITING as NAMES

QUEUED, CLAIMED, DEAD, GONE = State.QUEUED.value, State.CLAIMED.value, State.DEAD.value, State.GONE.value
WAITING = QUEUED + REQUEUED
ALIVE = WAITING + CLAIMED + DEAD
REMOVED = GONE + REFUSED

unpack = lru_cache(maxsize=100_000)(records.unpack)
"""Nobody changes what it returns."""


NEVER_US = 2.0**52
"""When an item is due that home has adopted, and whose shard has not decided yet."""


def is_beginning(row: Row) -> bool:
    """Tell whether a row says when a claim began that was extended."""
    return row.seq > 0 and row.lease_ms == 0


class Text(NamedTuple):
    """A saved state, and the version that saved it."""

    version: Version
    state: bytes


def saves_in(bundle: Bundle) -> dict[int, int]:
    """The numbers of saves that a record names, by position."""
    return {position - 1: number for position, number in _SAVE.iter_unpack(bundle.fields.get(SAVED_FIELD, b""))}


def _fields(bundle: Bundle, saves: Mapping[int, int], flow: Mapping[str, bytes]) -> Mapping[str, bytes]:
    if any(flow.values()) or flow.keys() & bundle.fields.keys():
        return {kind: value for kind, value in flow.items() if value}
    packed = b"".join(_SAVE.pack(position + 1, number) for position, number in sorted(saves.items()))
    return shared_fields(bundle.fields) if not packed else {**bundle.fields, SAVED_FIELD: packed}


_SAVE = struct.Struct("<BI")


class Draft:
    """A bundle on which a script works.  Positions count from 0, rows from 1."""

    def __init__(self, id: bytes, bundle: Bundle, packed: bytes = b"") -> None:
        self.id = id
        self.packed = packed
        self.version = bundle.version
        self.claim_n = bundle.claim_n
        self.states = list(bundle.states)
        self.rows_of = list(bundle.rows_of) or [0] * len(bundle.states)
        self.attempts = list(bundle.attempts) or [0] * len(bundle.states)
        self.rows = list(bundle.rows)
        self.own = dict(bundle.own)
        self.notes: dict[int, bytes] = {}
        """Results that are sent with the record, by position."""
        self.saves = saves_in(bundle)
        """Number of the last save of the present claim of each item that has a saved state."""
        self.saved: dict[int, Text] = {}
        """Saved states that are sent with the record, by position."""
        self.row = 0
        """The row of the claim that the script makes."""
        self.decided = False
        self.told = False
        self.text = bundle.text
        self.legs = bundle.fields.get(LEGS, b"")
        """What the record of a flow that is closed says of its legs."""
        self.outer = bundle.fields.get(OUTER, b"")
        """What the record of a flow says of the one of which it is a member."""
        self._bundle = bundle

    @property
    def pushed_at_ms(self) -> float:
        return self._bundle.pushed_at_ms

    @pushed_at_ms.setter
    def pushed_at_ms(self, moment: float) -> None:
        self._bundle = self._bundle._replace(pushed_at_ms=moment)

    @property
    def group(self) -> str | None:
        return self._bundle.group

    @property
    def order(self) -> float:
        return self._bundle.order

    @property
    def flow(self) -> str:
        """The flow of which the items are members, empty: of none."""
        return self._bundle.fields.get(MEMBER, b"").decode()

    @property
    def held_for(self) -> str:
        """The flow for which the item was held, empty: for none."""
        return self.flow if self.awaited else self._bundle.fields.get(HELD, b"").decode()[1:]

    @property
    def awaited(self) -> str:
        """Names of members for which the item was held, each with its queue, between spaces; empty: for none."""
        held = self._bundle.fields.get(HELD, b"").decode()
        return held[1:] if held.startswith(NAMES) else ""

    @property
    def opens(self) -> Opens:
        """When what is held for the end of a flow is opened."""
        return Opens(self._bundle.fields[HELD][:1].decode())

    @property
    def nested(self) -> str:
        """The inner flow for which the item stands, empty: it is one like others."""
        field = self._bundle.fields.get(HELD, b"").decode()
        return field[1:] if field.startswith(Opens.NESTED) else ""

    @property
    def stands_in(self) -> bool:
        """Whether it stands for an inner flow that has not ended."""
        return bool(self.nested) and self.waits_for_ever(0)

    @property
    def is_waiting(self) -> bool:
        """Whether the item waits for members."""
        return bool(self.awaited) and self.waits_for_ever(0)

    @property
    def coming(self) -> str:
        """As what an item has come to life: it waits for members, or is queued or claimed; empty: none has."""
        is_living = any(state in WAITING + CLAIMED for state in self.states)
        return (NAMES if self.is_waiting else "L") if is_living else ""

    @property
    def is_alone(self) -> bool:
        return self._bundle.is_alone

    @property
    def size(self) -> int:
        return len(self.states)

    def pack(self) -> bytes:
        bundle = self._bundle._replace(
            version=self.version,
            claim_n=self.claim_n,
            states="".join(self.states),
            rows_of=self.rows_of,
            attempts=self.attempts,
            rows=self.rows,
            own=self.own,
            text=self.text,
            due_us=0,
            fields=_fields(self._bundle, self.saves, {LEGS: self.legs, OUTER: self.outer}),
        )
        return records.pack(bundle)

    # -- runs --------------------------------------------------------------------------------------------------------

    def each_run(self, first: int = 0, end: int | None = None) -> Iterator[tuple[range, str, int]]:
        """Neighbours that share state and row, with both; what was done to a run may have changed those that follow."""
        end = self.size if end is None else end
        while first < end:
            state, row = self.states[first], self.rows_of[first]
            last = first + 1
            while last < end and (self.states[last], self.rows_of[last]) == (state, row):
                last += 1
            yield range(first, last), state, row
            first = last

    def under(self, wanted: Callable[[Row], bool]) -> list[range]:
        """The runs that are claimed under a row like this."""
        return [run for run, state, row in self.each_run() if state == CLAIMED and wanted(self.rows[row - 1])]

    def token_at(self, position: int) -> str:
        """The request that claimed the item last."""
        row = self.rows_of[position]
        return self.rows[row - 1].token if row else ""

    # -- changes -----------------------------------------------------------------------------------------------------

    def set(self, run: range, state: str, row: int | None = None) -> None:
        for position in run:
            self.states[position] = state
            if row is not None:
                self.rows_of[position] = row

    def add_row(self, owner: str, seq: int) -> int:
        """Add a row; claims have a lease of 1 ms here, because that of 0 marks the beginning of one."""
        count = len(self.rows)
        if count >= self.size:
            begun = [row for row in self.rows if is_beginning(row)]
            self.drop_rows(range(1, count + 1))
            count = len(self.rows)
            requests = {(row.owner, row.seq) for row in self.rows}
            self.rows += [row for row in begun if (row.owner, row.seq) in requests]
        self.rows.insert(count, Row(owner, seq, 1 if seq else 0))
        return count + 1

    def note_beginning(self, row: int) -> None:
        """Keep when a claim began, before it is extended."""
        claim = self.rows[row - 1]
        beginning = Row(claim.owner, claim.seq)
        if beginning not in self.rows and len(self.rows) < 255:
            self.rows.append(beginning)

    def drop_rows(self, rows: Iterable[int]) -> None:
        """Drop those of these rows that no item names."""
        unused = set(rows) - set(self.rows_of)
        kept = [row for row in range(1, len(self.rows) + 1) if row not in unused]
        number = {0: 0, **{row: new for new, row in enumerate(kept, 1)}}
        self.rows = [self.rows[row - 1] for row in kept]
        self.rows_of = [number[row] for row in self.rows_of]

    def row_of_call(self, call: str) -> int:
        """The row that names a call which is not a claim."""
        tokens = [row.token for row in self.rows]
        return tokens.index(call) + 1 if call in tokens else self.add_row(call, 0)

    def count_attempts(self, run: range, by: int) -> None:
        for position in run:
            self.attempts[position] = max(0, self.attempts[position] + by)

    def requeue(self, run: range, row: int | None = None) -> None:
        """Queue items in their places: with their bundle, or each at its own moment."""
        self.set(run, QUEUED, row)
        for position in run:
            if position in self.own:
                self.states[position] = REQUEUED

    def queue_by_itself(self, position: int, failures: int) -> None:
        self.own[position] = Own(0, failures)
        self.states[position] = REQUEUED

    def adopt(self, position: int, due_us: float, failures: int) -> None:
        self.own[position] = Own(due_us, failures)
        self.set(range(position, position + 1), REQUEUED, 0)

    def waits_for_ever(self, position: int) -> bool:
        """Whether the item is queued for a moment that never comes."""
        return self.states[position] == REQUEUED and self.own[position].moment_us >= NEVER_US

    def is_adopted(self, position: int) -> bool:
        """Whether the shard from which the item comes has not decided yet that it has left."""
        return self.waits_for_ever(position) and not self.held_for

    def is_missed(self, position: int) -> bool:
        """Whether the item was removed otherwise than by an ack."""
        row = self.rows[self.rows_of[position] - 1] if self.rows_of[position] else None
        return self.states[position] == GONE and (row is None or not row.seq) and not self.has_left(position)

    def has_left(self, position: int) -> bool:
        """Whether another shard has adopted the item, and this one has let it go."""
        row = self.rows[self.rows_of[position] - 1] if self.rows_of[position] else None
        return self.states[position] == GONE and row is not None and not row.seq and row.owner.startswith(MOVED)

    def failures(self, position: int) -> int:
        return self.own[position].failures if position in self.own else 0

    def bury(self, run: range, *, failed: bool = False) -> None:
        for position in run:
            self.own[position] = Own(0, self.failures(position) + failed)
        self.set(run, DEAD)

    def remove(self, run: range) -> None:
        for position in run:
            self.own.pop(position, None)
        self.set(run, GONE)

    def keep_result(self, run: range, result: tuple[int, bytes]) -> None:
        """Keep the result of items that were just removed, for so many milliseconds."""
        ttl_ms, text = result
        for position in run:
            self.own[position] = Own(0, ttl_ms)
            self.notes[position] = text

    def make_room(self, position: int) -> None:
        """Have a place for an item; the others, and one behind it, were refused as long as nobody says otherwise."""
        missing = position + 2 - self.size
        if missing > 0:
            self.states += [REFUSED] * missing
            self.rows_of += [0] * missing
            self.attempts += [0] * missing


def new_bundle(of: Bundle) -> Bundle:
    """A bundle in which an item is pushed by itself, before it is there."""
    return of._replace(version=Version(0, 0), states=REFUSED, rows_of=(), attempts=(), is_alone=False)


# -- payloads ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=100_000)
def taken_apart(whole: bytes) -> tuple[bytes | None, ...]:
    """Payloads of a whole bundle; None for one that was dropped."""
    return tuple(payloads.split(whole))


def put_together(parts: Sequence[bytes | None]) -> bytes:
    """The opposite."""
    begin = 4 * (len(parts) + 1)
    ends = list(accumulate((len(part or b"") for part in parts), initial=begin))
    cuts = [1 << 31 if part is None else 0 for part in parts]
    cuts = [max(cuts, default=0), *cuts]
    table = struct.pack(f"<{len(ends)}I", *(end + cut for end, cut in zip(ends, cuts, strict=True)))
    return table + b"".join(part or b"" for part in parts)


def filled(size: int, whole: bytes, given: bytes) -> bytes:
    """As many payloads, with those of another string where they are missing."""
    return put_together([payload_at(whole, position) or payload_at(given, position) for position in range(size)])


def payload_at(whole: bytes | None, position: int) -> bytes | None:
    parts = taken_apart(whole) if whole is not None else ()
    return parts[position] if position < len(parts) else None


def has_payload(whole: bytes | None, position: int) -> bool:
    return payload_at(whole, position) is not None


def may_lack(bundle: Bundle | Draft) -> bool:
    """Whether a bundle may have some of its payloads only: it lost items, or got them one by one."""
    return any(state in REMOVED for state in bundle.states)


def lacks(bundle: Bundle | Draft, whole: bytes | None) -> bool:
    """Whether payloads of items that are not gone are missing."""
    return whole is None or any(
        state in ALIVE and not has_payload(whole, position) for position, state in enumerate(bundle.states)
    )


# -- results -----------------------------------------------------------------------------------------------------------


def pack_notes(notes: Mapping[int, bytes], saved: Mapping[int, Text] = MappingProxyType({})) -> bytes:
    """Results and saved states as they are sent beside a record, by position."""
    texts = dict(notes) | {at + SAVED_AT: _VERSION.pack(*text.version) + text.state for at, text in saved.items()}
    return b"".join(_NOTE.pack(position + 1, len(text)) + text for position, text in texts.items())


def unpack_notes(packed: bytes) -> dict[int, bytes]:
    """The opposite."""
    return dict(read_notes(packed))


def unpack_saved(packed: bytes) -> dict[int, Text]:
    """The saved states."""
    texts, at = dict[int, Text](), 0
    while at < len(packed):
        position, length = _NOTE.unpack_from(packed, at)
        at += _NOTE.size + length
        if position > SAVED_AT:
            text = packed[at - length : at]
            texts[position - 1 - SAVED_AT] = Text(Version(*_VERSION.unpack_from(text)), text[_VERSION.size :])
    return texts


SAVED_AT = 128
"""Added to the position of an item whose saved state a note is."""

_VERSION = struct.Struct("<II")

_NOTE = struct.Struct("<BH")
