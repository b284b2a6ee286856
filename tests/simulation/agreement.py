"""Check that the servers of the view hold the same, and that each is consistent."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from tests.lines import FLOWS, entries_in, faults_of_groups, flow_entries, line_of, waiting_in_order
from tests.simulation.items import Item, id_at
from tests.simulation.ledger import Ledger
from tests.simulation.world import NAMESPACE, Lane, World
from zkrq.base.limits import History
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.keys import key
from zkrq.protocol.payloads import split
from zkrq.protocol.records import NEVER_US, REQUEUED, SAVED_FIELD, Bundle, State, Version, unpack
from zkrq.protocol.view import ServerId, View

PAUSE, LIMITS = b"\1pause", b"\1limits"
"""The ids of the records that say that a queue is paused, and which limits it has."""

EARLY_US = 1
"""Scores and moments are doubles."""

LATE_US = 1_000_000
"""A follower knows the clock of the primary as exactly as decisions travel fast; by one clock a moment stays."""

HELD_BACK_US = 30_000_000
"""For so long a record may be on its way."""

_SHIFT = struct.Struct("<d")
_TOMBSTONE = struct.Struct("<ddIII")


class Stored(NamedTuple):
    """A record as one server holds it; ``shift_us``: this server's clock minus the record's."""

    bundle: Bundle
    shift_us: float

    @property
    def brief(self) -> str:
        """What servers have to agree about."""
        return f"{tuple(self.bundle.version)} {self.bundle.states}"

    @property
    def is_alive(self) -> bool:
        return self.bundle.is_alive

    def positions(self, states: str) -> list[int]:
        """The items in one of these states."""
        return [position for position, state in enumerate(self.bundle.states) if state in states]


def disagreements(world: World, *, scrubbed: bool) -> Iterator[str]:
    """What is wrong with the data of the view's members.

    ``scrubbed``: also what operations without a certain end have left behind is expected to be repaired.
    """
    for _, view in world.views:
        for lane in world.lanes:
            yield from (f"{lane.name}: {text}" for text in _disagreements(world, lane, view, scrubbed=scrubbed))


def twins(world: World) -> Iterator[str]:
    """Ids and keys that are in two live items at once, in two shards, as the primaries have it."""
    for lane in world.lanes:
        seen: dict[tuple[object, ...], str] = {}
        for shard, view in world.views:
            primary = view.primary(lane.name)
            if world.servers[primary].redis.run_id != view.members[primary].run_id:
                continue
            named = list[tuple[object, ...]]()
            for id, stored in _records(world, lane, primary).items():
                # What was adopted is on the other shard, too, until that has decided.
                own = stored.bundle.own
                live = [at for at in stored.positions("QRC") if at not in own or own[at].moment_us < NEVER_US]
                if id in (PAUSE, LIMITS) or not live:
                    continue
                named += [("id", id, at) for at in live]
                named += [("key", stored.bundle.key.encode())] if stored.bundle.key else []
            for name in named:
                if (other := seen.setdefault(name, shard.name)) != shard.name:
                    yield f"{lane.name}: {name} is in the shards {other} and {shard.name}"


def disorder(world: World) -> Iterator[str]:
    """What is wrong with the data of any server of a view, learners included, by itself; payloads may follow."""
    receivers = {server: life for _, view in world.views for server, life in view.receivers.items()}
    for lane in world.lanes:
        for server, life in receivers.items():
            if world.servers[server].redis.run_id == life.run_id:
                texts = _disorder(world, lane, server, _records(world, lane, server))
                yield from (f"{lane.name}: {server}: {text}" for text in texts)


def _disagreements(world: World, lane: Lane, view: View, *, scrubbed: bool) -> Iterator[str]:
    ledger = lane.ledger
    held = {
        id: _records(world, lane, id)
        for id in view.members
        if world.servers[id].redis.run_id == view.members[id].run_id
    }
    for server, records in held.items():
        yield from (f"{server}: {text}" for text in _disorder(world, lane, server, records))
        yield from (f"{server}: {text}" for text in _lacks(world, lane, server, records))
    if len(held) < 2:
        return
    for id in sorted({id for records in held.values() for id in records}):
        copies = {str(server): records.get(id) for server, records in held.items()}
        versions = {server: stored.brief if stored else "unknown" for server, stored in copies.items()}
        if len(set(versions.values())) == 1:
            continue
        known = [stored for stored in copies.values() if stored]
        gone = [not stored.is_alive for stored in known]
        # An extension that came too late decides anew, under a later epoch, what it finds gone; and may end half-way.
        if not scrubbed and ((all(gone) and len(known) == len(copies)) or (ledger.open_clears and any(gone))):
            continue
        if _is_almost_forgotten(world, held, id):
            continue
        items = _items_of(ledger, id, known)
        if scrubbed and _is_forgotten(known, len(copies), items):
            continue
        excused = any(_is_open(lane, item) for item in items) or (id == PAUSE and ledger.pauses.open)
        unfinished = not items and _is_unfinished([stored.bundle for stored in known])
        if scrubbed or not (excused or unfinished):
            yield f"servers differ about {id.decode()}: {versions}"


def _items_of(ledger: Ledger, id: bytes, known: Sequence[Stored]) -> list[Item]:
    """The items of a bundle whose ids some caller has learned."""
    names = {id_at(id, stored.bundle, at) for stored in known for at in range(len(stored.bundle.states))}
    return [item for name in sorted(names) if (item := ledger.by_id.get(name))]


def _is_open(lane: Lane, item: Item) -> bool:
    """Whether something without a certain end was done to it: by a caller, or by a claim that dropped it."""
    dropped = item.ttl is not None or (lane.setting.drops_letters and item.buried_at is not None)
    return bool(item.open_calls or dropped)


def _is_almost_forgotten(world: World, held: Mapping[ServerId, Mapping[bytes, Stored]], id: bytes) -> bool:
    """Whether only tombstones are left that some server's clock may call expired: each drops its own by itself."""
    apart = 2 * world.shape.clocks + world.stepped
    for server, records in held.items():
        stored = records.get(id)
        if stored is None:
            continue
        age = (world.servers[server].clock_us() - stored.bundle.due_us - stored.shift_us) / 1e6
        if stored.is_alive or age < 2 * PUT_WINDOW - apart:
            return False
    return True


def _is_forgotten(known: Sequence[Stored], copies: int, items: Sequence[Item]) -> bool:
    """Whether a scrub has made a tombstone of an unfinished push that only followers knew of: no other tombstone has
    epoch 0.  A later epoch: it had been claimed in vain.  The other servers need none.  If a push of it has returned,
    or it was delivered, nothing may forget it."""
    texts = {stored.brief for stored in known}
    if len(known) == copies or len(texts) != 1 or known[0].is_alive:
        return False
    needed = any(item.confirmed or item.deliveries > 0 for item in items)
    return known[0].bundle.version == Version(0, 2) or not needed


def _is_unfinished(copies: Sequence[Bundle]) -> bool:
    """Whether these copies are of a push of which no caller ever learned an id.

    It never completed, so its items may be on some servers only (docs/what-happens-when.md, "A call in the middle").
    They may have been claimed in vain, or refused for a full queue.  A decided push, or its refusal, is decided again
    with every try until its time is up, so its copies may differ.
    """
    if all(set(bundle.states) == {State.QUEUED} and not any(bundle.attempts) and not bundle.rows for bundle in copies):
        return True
    if not any(bundle.is_alive for bundle in copies):
        return True
    states = set[str]().union(*(bundle.states for bundle in copies))
    return len({bundle.version for bundle in copies}) == 1 and states <= {State.CLAIMED, State.QUEUED}


def content_of(world: World, queue: str, server: str, name: str) -> dict[bytes, object]:
    """What a server has under one of the keys of a queue."""
    return cast("dict[bytes, object]", world.servers[server].redis.value(key(NAMESPACE, queue, name).encode()) or {})


def _content(world: World, lane: Lane, server: str, name: str) -> dict[bytes, object]:
    return content_of(world, lane.name, server, name)


def _records(world: World, lane: Lane, server: str) -> dict[bytes, Stored]:
    packed = cast("dict[bytes, bytes]", _content(world, lane, server, "records"))
    return {id: Stored(unpack(record[_SHIFT.size :]), _SHIFT.unpack_from(record)[0]) for id, record in packed.items()}


def _entry(id: bytes, position: int) -> bytes:
    """What names an item with a moment of its own in the indexes."""
    return b"%s\0%c" % (id, position + 1)


def _disorder(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """Where indexes, counters, payloads, tombstones and keys say otherwise than the records."""
    yield from _disorder_of_indexes(world, lane, server, records)
    yield from _disorder_of_payloads(world, lane, server, records)
    yield from _disorder_of_removals(world, lane, server, records)
    yield from _disorder_of_history(world, lane, server, records)
    living = {id: bundle for id, (bundle, _) in records.items() if set(bundle.states) & set("QRC")}
    keyed = {(bundle.key.encode(), id) for id, bundle in living.items() if bundle.key}
    keys = cast("dict[bytes, bytes]", _content(world, lane, server, "keys"))
    named = {(name, id) for name, ids in keys.items() for id in ids.split(b"\1")}
    for name, id in sorted(keyed ^ named):
        yield f"the key {name.decode()} of {id.decode()} is {'kept for nothing' if (name, id) in named else 'not kept'}"


def _disorder_of_indexes(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """Every item stands in the index of its state, none in another one, and the counters count them."""
    homes = {name: set[bytes]() for name in ("queued", "claimed", "dead", "holdings", "expiring")}
    counts = Counter[str]()
    for id, (bundle, _) in records.items():
        counts.update(bundle.states)
        for position, state in enumerate(bundle.states):
            match state:
                case State.QUEUED:
                    homes["queued"].add(id)
                case "R":
                    homes["queued"].add(_entry(id, position))
                case State.DEAD:
                    homes["dead"].add(_entry(id, position))
                case State.CLAIMED:
                    homes["claimed"].add(id)
                    row = bundle.rows_of[position]
                    token = bundle.rows[row - 1].token if row else "nobody"
                    homes["holdings"].add(b"%s\0%s" % (token.encode(), id))
                case _:
                    pass
            if bundle.expires_us and state in "QRC":
                homes["expiring"].add(id)
    indexes = {name: _content(world, lane, server, name) for name in ("ready", "scheduled", "members", *homes)}
    queued = (indexes["ready"].keys(), indexes["scheduled"].keys(), entries_in(indexes["members"]))
    waiting = waiting_in_order({id.decode(): stored.bundle for id, stored in records.items()})
    for one, other in itertools.combinations(queued, 2):
        for entry in sorted((one & other) - (waiting if one is not queued[0] else set())):
            yield f"{entry!r} stands in two of ready, scheduled and members"
    for name, entries in homes.items():
        named = queued[0] | queued[1] | queued[2] if name == "queued" else indexes[name].keys()
        for entry in sorted(entries ^ named):
            yield f"{entry!r} {'is missing in' if entry in entries else 'stands for nothing in'} the index {name}"
    for id in sorted(homes["claimed"]):
        bundle, shift_us = records[id]
        rows = {row for row, state in zip(bundle.rows_of, bundle.states, strict=True) if state == State.CLAIMED}
        first_us = min(bundle.rows[row - 1].deadline_us for row in rows)
        if bundle.soonest_us > first_us + EARLY_US:
            yield f"{id!r} has a claim that ends before the moment named for all of them"
        looked_at_us = cast("float", indexes["claimed"].get(id, 0.0))
        if lane.ledger.found.calm and looked_at_us > first_us + shift_us + LATE_US:
            yield f"{id!r} has a claim that ends {looked_at_us - first_us - shift_us:.0f} us before it is looked at"
    in_flows = {entry for id, stored in records.items() for entry in flow_entries(id.decode(), stored.bundle)}
    for entry in sorted(in_flows ^ {entry for entry in indexes["members"] if entry[:1] == FLOWS}):
        yield f"{entry!r} {'is missing in' if entry in in_flows else 'stands for nothing in'} the index of flows"
    lead = cast("dict[bytes, bytes]", _content(world, lane, server, "lead"))
    groups = cast("dict[bytes, bytes]", _content(world, lane, server, "groups"))
    yield from faults_of_groups(
        {id.decode(): stored.bundle for id, stored in records.items()},
        set(queued[0]),
        set(queued[1]),
        set(indexes["members"]),
        {group.decode(): state for group, state in groups.items()},
        {name: int(lead.get(name.encode(), b"0")) for name in ("in_line", "blocked", "remembered", "resting")},
        limited=bool(lead.get(b"limits")),
    )
    for name, states in {"queued": State.QUEUED + REQUEUED, "claimed": State.CLAIMED, "dead": State.DEAD}.items():
        there = sum(counts[state] for state in states)
        if (counted := int(lead.get(name.encode(), b"0"))) != there:
            yield f"{counted} items are counted as {name}, there are {there}"


def _lacks(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """No live item without its payload; that of a removed one goes later."""
    payloads = cast("dict[bytes, bytes]", _content(world, lane, server, "payloads"))
    for id, stored in records.items():
        there = list(split(payloads[id])) if id in payloads else []
        for position in stored.positions("QRCD"):
            if position >= len(there) or there[position] is None:
                yield f"{id_at(id, stored.bundle, position)} is {stored.bundle.states[position]} without a payload"


SAVED_AT, SAVE_BYTES = 128, 5
"""What is added to the position of an item whose saved state a note is; the bytes of each in the record."""


def _disorder_of_payloads(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """No payload without a record; only what has failed, or was saved, has a note."""
    for id in _content(world, lane, server, "payloads").keys() - records.keys():
        yield f"{id.decode()} has a payload and no record"
    failed = {_entry(id, position) for id, stored in records.items() for position in stored.bundle.own}
    saved = {
        _entry(id, position - 1 + SAVED_AT)
        for id, stored in records.items()
        for position in stored.bundle.fields.get(SAVED_FIELD, b"")[::SAVE_BYTES]
    }
    for entry in sorted(_content(world, lane, server, "notes").keys() - failed - saved):
        yield f"{entry!r} has a note, and has not failed"


def _disorder_of_removals(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """Each bundle of which nothing is left will be forgotten."""
    removals = set[tuple[Version, bytes]]()
    size = 0
    for packed in cast("Sequence[bytes]", _content(world, lane, server, "tombstones")):
        _, _, epoch, n, length = _TOMBSTONE.unpack_from(packed)
        removals.add((Version(epoch, n), packed[_TOMBSTONE.size :]))
        size += length
    for id, stored in records.items():
        if not stored.is_alive and id not in (PAUSE, LIMITS) and (stored.bundle.version, id) not in removals:
            yield f"{id.decode()} is gone in {stored.bundle.version} and will never be forgotten"
    counted = int(cast("bytes", _content(world, lane, server, "lead").get(b"tombstone_bytes", b"0")))
    if counted != size:
        yield f"the tombstones take {size} bytes, {counted} are counted"


def _disorder_of_history(world: World, lane: Lane, server: str, records: Mapping[bytes, Stored]) -> Iterator[str]:
    """The history has what its records say has ended, of that the latest, and never more than its bound."""
    recent = cast("dict[bytes, float]", _content(world, lane, server, "recent"))
    # A server that is being caught up is told the limits before their record comes (install.lua).
    limits = cast("dict[bytes, bytes]", _content(world, lane, server, "lead")).get(b"limits", b"")
    bound = History.read(limits.decode()).count
    # A later decision about a sibling moves the moment, if it was held back on its way, or the clock was set before it.
    slack_us = HELD_BACK_US + 1e6 * (2 * world.shape.clocks + world.stepped)
    if len(recent) > bound:
        yield f"{len(recent)} items are in a history of {bound}"
    ended: dict[bytes, float] = {}
    for id, (bundle, shift_us) in records.items():
        for position, own in bundle.own.items():
            row = bundle.rows[bundle.rows_of[position] - 1] if bundle.rows_of[position] else None
            is_result = row is not None and not row.seq and own.failures > 0  # that belongs to no item
            state = bundle.states[position]
            if state == State.DEAD or (state == State.GONE and not is_result):
                ended[_entry(id, position)] = own.moment_us + shift_us
    for entry, moment_us in recent.items():
        if entry not in ended:
            yield f"{entry!r} is in the history, and has not ended"
        elif abs(ended[entry] - moment_us) > slack_us:
            yield f"{entry!r} is in the history {ended[entry] - moment_us:.0f} us before its end"
    for entry in ended.keys() - recent.keys() if recent else ():
        if ended[entry] > min(recent.values()) + slack_us:
            yield f"{entry!r} is missing in the history"


def leftovers(world: World) -> Iterator[str]:
    """What a server keeps of a queue of which nothing needs to be remembered any more."""
    members = [server for _, view in world.views for server in view.members]
    for server, lane in itertools.product(members, world.lanes):
        if lane.setting.history:
            continue  # what is in the history stays, which _disorder_of_history looks at
        letters = {entry[:-2] for entry in _content(world, lane, server, "dead")}
        alive = {owner.encode() for owner in world.hub.enrolled}
        for name, needed in {"records": {*letters, PAUSE, LIMITS}, "payloads": letters, "owners": alive}.items():
            if more := _content(world, lane, server, name).keys() - needed:
                yield f"never forgotten: {server} keeps {len(more)} {name} of {lane.name}, {sorted(more)[:3]}"
        for name in (
            "tombstones",
            "keys",
            "expiring",
            "claimed",
            "scheduled",
            "ready",
            "members",
            "groups",
            "holdings",
        ):
            more = _content(world, lane, server, name)
            if name == "groups":  # a dead letter may be what a consumer ended last
                more = {
                    group: state
                    for group, state in more.items()
                    if line_of(cast("bytes", state)).ended.encode() not in letters
                }
            if more:
                yield f"never forgotten: {server} keeps {len(more)} {name} of {lane.name}, {more!r:.100}"
