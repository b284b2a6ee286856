"""Check that the servers of the view hold the same, and that each is consistent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from tests.simulation.ledger import Item
from tests.simulation.world import NAMESPACE, Lane, World
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.keys import key
from zkrq.protocol.records import Record, State, unpack
from zkrq.protocol.view import ServerId

PAUSE = b"\1pause"
"""The id of the record that says that a queue is paused."""

_HOMES = {
    State.QUEUED: {"ready", "scheduled"},
    State.CLAIMED: {"claimed"},
    State.DEAD: {"dead"},
    State.GONE: set[str](),
    State.PAUSED: set[str](),
}


def disagreements(world: World, *, scrubbed: bool) -> Iterator[str]:
    """What is wrong with the data of the view's members.

    ``scrubbed``: also what operations without a certain end have left behind is expected to be repaired.
    """
    view = world.view
    if view is None:
        return
    for lane in world.lanes:
        yield from (f"{lane.name}: {text}" for text in _disagreements(world, lane, scrubbed=scrubbed))


def _disagreements(world: World, lane: Lane, *, scrubbed: bool) -> Iterator[str]:
    view = world.view
    assert view is not None
    ledger = lane.ledger
    held = {
        id: _records(world, lane, id)
        for id in view.members
        if world.servers[id].redis.run_id == view.members[id].run_id
    }
    excused = set[bytes]()
    if not scrubbed:
        excused = {id.encode() for item in ledger.items.values() if _is_open(lane, item) for id in item.ids}
        if ledger.pauses.open:
            excused.add(PAUSE)
    for server, records in held.items():
        yield from (f"{server}: {text}" for text in _disorder(world, lane, server, records))
    if len(held) < 2:
        return
    for id in sorted({id for records in held.values() for id in records}):
        versions = {str(server): _brief(records.get(id)) for server, records in held.items()}
        if len(set(versions.values())) == 1:
            continue
        gone = [text.endswith("gone") for text in versions.values()]
        # An extension that came too late decides anew, under a later epoch, what it finds gone; and may end half-way.
        if not scrubbed and (all(gone) or (ledger.open_clears and any(gone))):
            continue
        learned = id.decode() in ledger.by_id
        if _is_almost_forgotten(world, held, id):
            continue
        item = ledger.by_id.get(id.decode())
        known = item is not None and (item.confirmed or item.deliveries > 0)
        if scrubbed and _is_forgotten(versions, known=known):
            continue
        unfinished = not learned and _is_unfinished([records.get(id) for records in held.values()])
        if scrubbed or (id not in excused and not unfinished):
            yield f"servers differ about {id.decode()}: {versions}"


def _is_open(lane: Lane, item: Item) -> bool:
    """Whether something without a certain end was done to it: by a caller, or by a claim that dropped it."""
    dropped = item.ttl is not None or (lane.setting.drops_letters and item.buried_at is not None)
    return bool(item.open_calls or dropped)


def _is_almost_forgotten(world: World, held: Mapping[ServerId, Mapping[bytes, Record]], id: bytes) -> bool:
    """Whether only tombstones are left that some server's clock may call expired: each drops its own by itself."""
    apart = 2 * world.shape.clocks + world.stepped
    for server, records in held.items():
        record = records.get(id)
        if record is None:
            continue
        age = world.servers[server].clock_us() / 1e6 - record.due_us / 1e6
        if record.state is not State.GONE or age < 2 * PUT_WINDOW - apart:
            return False
    return True


def _is_forgotten(versions: Mapping[str, str], *, known: bool) -> bool:
    """Whether a scrub has made a tombstone of an unfinished push that only followers knew of: no other tombstone has
    epoch 0.  A later epoch: it had been claimed in vain.  The other servers need none.  ``known``: a push of it has
    returned, or it was delivered; then nothing may forget it."""
    texts = set(versions.values()) - {"unknown"}
    return len(texts) < len(set(versions.values())) and (
        texts == {"(0, 2) gone"} or (not known and len(texts) == 1 and next(iter(texts)).endswith(" gone"))
    )


def _is_unfinished(held: Sequence[Record | None]) -> bool:
    """Whether these copies of an item, None where it is unknown, are a push of which no caller ever learned the id.

    It never completed, so its item may be on some servers only (docs/what-happens-when.md, "A call in the middle").  It
    may have been claimed in vain, or refused for a full queue.  A decided push, or its refusal, is decided again with
    every try until its time is up, so its copies may differ.
    """
    copies = [record for record in held if record is not None]
    if all(record.state is State.QUEUED and not record.attempts and not record.token for record in copies):
        return True
    if all(record.state is State.GONE for record in copies):
        return True
    return len({record.version for record in copies}) == 1 and copies[0].state is State.CLAIMED


def _brief(record: Record | None) -> str:
    return "unknown" if record is None else f"{tuple(record.version)} {record.state.name.lower()}"


def _content(world: World, lane: Lane, server: str, name: str) -> dict[bytes, object]:
    content = world.servers[server].redis.content()
    return cast("dict[bytes, object]", content.get(key(NAMESPACE, lane.name, name).encode(), {}))


def _records(world: World, lane: Lane, server: str) -> dict[bytes, Record]:
    packed = cast("dict[bytes, bytes]", _content(world, lane, server, "records"))
    return {id: unpack(record) for id, record in packed.items()}


def _disorder(world: World, lane: Lane, server: str, records: Mapping[bytes, Record]) -> Iterator[str]:
    """No item without its place in an index, no live item without its payload; that of a removed one goes later."""
    places = {name: _content(world, lane, server, name) for name in ("ready", "scheduled", "claimed", "dead")}
    payloads = _content(world, lane, server, "payloads")
    for id, record in records.items():
        standing = {name for name, index in places.items() if id in index}
        homes = _HOMES[record.state]
        if homes and not standing & homes:
            yield f"{id.decode()} is {record.state.name} and stands in no index of that: {standing or 'nowhere'}"
        if record.state not in (State.GONE, State.PAUSED) and id not in payloads:
            yield f"{id.decode()} is {record.state.name} without a payload"
    for id in payloads.keys() - records.keys():
        yield f"{id.decode()} has a payload and no record"
    claims = {
        b"%s\0%s" % (record.token.encode(), id) for id, record in records.items() if record.state is State.CLAIMED
    }
    for entry in sorted(claims ^ _content(world, lane, server, "holdings").keys()):
        yield f"the claim {entry!r} is {'not held by its owner' if entry in claims else 'held after it has ended'}"
    living = {id: record for id, record in records.items() if record.state in (State.QUEUED, State.CLAIMED)}
    keyed = {(record.key.encode(), id) for id, record in living.items() if record.key}
    keys = cast("dict[bytes, bytes]", _content(world, lane, server, "keys"))
    named = {(name, id) for name, ids in keys.items() for id in ids.split(b"\1")}
    for name, id in sorted(keyed ^ named):
        yield f"the key {name.decode()} of {id.decode()} is {'kept for nothing' if (name, id) in named else 'not kept'}"
    mortal = {id for id, record in living.items() if record.ttl_ms is not None}
    for id in sorted(mortal ^ _content(world, lane, server, "expiring").keys()):
        yield f"{id.decode()} {'is never to expire' if id in mortal else 'is gone, and is to expire'}"


def leftovers(world: World) -> Iterator[str]:
    """What a server keeps of a queue of which nothing needs to be remembered any more."""
    for server, lane in itertools.product(world.view.members if world.view else (), world.lanes):
        letters = _content(world, lane, server, "dead").keys()
        alive = {owner.encode() for owner in world.hub.enrolled}
        for name, needed in {"records": {*letters, PAUSE}, "payloads": letters, "owners": alive}.items():
            if more := _content(world, lane, server, name).keys() - needed:
                yield f"never forgotten: {server} keeps {len(more)} {name} of {lane.name}, {sorted(more)[:3]}"
        for name in ("tombstones", "keys", "expiring", "claimed", "scheduled", "ready"):
            if more := _content(world, lane, server, name):
                yield f"never forgotten: {server} keeps {len(more)} {name} of {lane.name}, {more!r:.100}"
