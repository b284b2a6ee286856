"""Whether the servers of the view hold the same, and each is in order in itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from tests.simulation.world import NAMESPACE, World
from zkrq.replication.keys import key
from zkrq.replication.records import Record, State, unpack

_HOMES = {
    State.QUEUED: {"ready", "scheduled"},
    State.CLAIMED: {"claimed"},
    State.DEAD: {"dead"},
    State.GONE: set[str](),
}


def disagreements(world: World, *, scrubbed: bool) -> Iterator[str]:
    """What is wrong with the data of the view's members.

    ``scrubbed``: also what operations without a certain end have left behind is expected to be repaired.
    """
    view = world.view
    if view is None:
        return
    held = {id: _records(world, id) for id in view.members if world.servers[id].redis.run_id == view.members[id].run_id}
    excused = set[bytes]()
    if not scrubbed:
        labels = {id for item in world.ledger.items.values() if item.open_calls for id in item.ids}
        excused = {id.encode() for id in labels}
    for server, records in held.items():
        yield from (f"{server}: {text}" for text in _disorder(world, server, records))
    if len(held) < 2:
        return
    for id in sorted({id for records in held.values() for id in records}):
        versions = {str(server): _brief(records.get(id)) for server, records in held.items()}
        if len(set(versions.values())) == 1:
            continue
        if not scrubbed and world.ledger.open_clears and any(text.endswith("gone") for text in versions.values()):
            continue
        if scrubbed or (id not in excused and not _is_unfinished_push(versions)):
            yield f"servers differ about {id.decode()}: {versions}"


def _is_unfinished_push(versions: Mapping[str, str]) -> bool:
    return set(versions.values()) <= {"unknown", "(0, 1) queued"}


def _brief(record: Record | None) -> str:
    return "unknown" if record is None else f"{tuple(record.version)} {record.state.name.lower()}"


def _content(world: World, server: str, name: str) -> dict[bytes, object]:
    content = world.servers[server].redis.content()
    return cast("dict[bytes, object]", content.get(key(NAMESPACE, world.queue, name).encode(), {}))


def _records(world: World, server: str) -> dict[bytes, Record]:
    packed = cast("dict[bytes, bytes]", _content(world, server, "records"))
    return {id: unpack(record) for id, record in packed.items()}


def _disorder(world: World, server: str, records: Mapping[bytes, Record]) -> Iterator[str]:
    """No item without its place in an index, no live item without its payload, no payload of a removed one."""
    places = {name: _content(world, server, name) for name in ("ready", "scheduled", "claimed", "dead")}
    payloads = _content(world, server, "payloads")
    for id, record in records.items():
        standing = {name for name, index in places.items() if id in index}
        homes = _HOMES[record.state]
        if homes and not standing & homes:
            yield f"{id.decode()} is {record.state.name} and stands in no index of that: {standing or 'nowhere'}"
        if record.state is State.GONE and id in payloads:
            yield f"{id.decode()} is gone, but its payload is not"
        if record.state is not State.GONE and id not in payloads:
            yield f"{id.decode()} is {record.state.name} without a payload"
    for id in payloads.keys() - records.keys():
        yield f"{id.decode()} has a payload and no record"
