"""What a server holds of a queue, read key by key, and what is wrong with it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.lines import entries_in, entry_of, faults_of_groups, flow_entries, waiting_in_order
from zkrq.protocol import calls
from zkrq.protocol.records import (
    SAVED_FIELD,
    VERSION_BYTES,
    Bundle,
    ItemRecord,
    State,
)

FLOW = "\1flow "
"""Before the name of a flow, in the id of its record."""

PAUSE, LIMITS, DELETED = "\1pause", "\1limits", "\1deleted"
"""The ids of the records about the queue itself; no item has such a one."""

COUNTERS = ("queued", "claimed", "dead")
GROUP_COUNTERS = ("in_line", "blocked", "remembered", "resting")
SHIFT = struct.Struct("<d")
"""Before each stored record: the difference of its moments to this server's clock."""


SAVED_AT = 128
"""Added to the position of an item whose saved state a note is."""

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
    flows: set[bytes]
    """What ``members`` has of flows."""
    groups: dict[str, bytes]
    limited: bool
    saved: dict[str, bytes]
    """By item: the version that saved it, and the state."""

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
            if record.state is State.PAUSED and id not in (PAUSE, LIMITS) and not id.startswith(FLOW):
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
        for id in self.saved:
            bundle, position = calls.bundle_and_position(id)
            named = self.bundles[bundle].fields.get(SAVED_FIELD, b"") if bundle in self.bundles else b""
            if position + 1 not in named[::5]:
                yield f"{id} has no saved state, and a text is left"
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
        in_flows = {named for id, bundle in self.bundles.items() for named in flow_entries(id, bundle)}
        if in_flows != self.flows:
            yield f"{in_flows} are of flows, the index has {self.flows}"
        mortal = {id for id in lasting if self.records[id].expires_us}
        if mortal != self.expiring.keys():
            yield f"{mortal} have a time to live, the index has {self.expiring}"


def ids_of(id: str, bundle: Bundle) -> list[str]:
    """The ids of a bundle's items."""
    return [id] if bundle.is_alone else [calls.item_id(id, at) for at in range(len(bundle.states))]


def parted_notes(
    names: Iterable[tuple[str, bytes]], bundles: Mapping[str, Bundle]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """Reasons and results, and saved states, by item."""
    notes, saved = dict[str, str](), dict[str, bytes]()
    for name, text in names:
        entry = name.encode("latin-1")
        if entry[-2:-1] == b"\0" and entry[-1] > SAVED_AT:
            saved[bundle_or_item(entry[:-1] + bytes([entry[-1] - SAVED_AT]), bundles)] = text
        else:
            notes[bundle_or_item(entry, bundles)] = text.decode(errors="replace")
    return notes, saved


def bundle_or_item(entry: bytes, bundles: Mapping[str, Bundle]) -> str:
    """The id of the bundle, or of the item, that an entry of an index names."""
    if entry[-2:-1] != b"\0":
        return entry.decode()
    id = entry[:-2].decode()
    return id if id not in bundles or bundles[id].is_alone else calls.item_id(id, entry[-1] - 1)
