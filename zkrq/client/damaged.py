"""Look at damaged entries that are set aside, and put them back or drop them: for ``zkrq damaged``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from zkrq.base.errors import ConfigError
from zkrq.client.inner import client_of
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.client.cluster import Cluster
    from zkrq.protocol.shards import ShardName


class DamagedEntry(NamedTuple):
    """An entry that is set aside.  ``id``: of the item, or of the items that were pushed together; bytes that are no
    text are escaped.  ``at``: when it was set aside, by the clock of the client that did."""

    id: str
    shard: str
    at: datetime
    reason: str
    record_bytes: int
    payload_bytes: int


class _Place(NamedTuple):
    """Where an entry is: its shard, and its id as it is stored."""

    shard: ShardName
    id: bytes


async def damaged_entries(cluster: Cluster, queue: str) -> AsyncGenerator[DamagedEntry]:
    """Iterate over what is set aside of a queue, as its primaries say.  Raises ``Unavailable``."""
    async for (shard, _), kept in _kept(cluster, queue):
        left = calls.read_remains(kept.bytes)
        at = datetime.fromtimestamp(left.at_ms / 1000, UTC)
        yield DamagedEntry(_shown(kept.id), shard, at, left.reason, left.record_bytes, left.payload_bytes)


async def damaged_entry(cluster: Cluster, queue: str, id: str) -> calls.Remains:
    """Return all that is left of an entry.  Raises ``ConfigError`` if there is none, ``Unavailable``."""
    return await _remains(cluster, queue, await _find(cluster, queue, id))


async def restore_damaged(cluster: Cluster, queue: str, id: str) -> int:
    """Queue the items of an entry again, from its payloads; return how many.

    They begin anew: ready now, without failures, with what was saved of them; priority, group and key are kept if the
    record can be read.  Without it, items that were done already may be among them.  Raises ``ConfigError`` if the
    payloads cannot be read either, or if there is none, ``Unavailable``.
    """
    place = await _find(cluster, queue, id)
    left = await _remains(cluster, queue, place)
    record, notes, items = _record_for(left, id, is_text=calls.is_text(place.id))
    replicas = client_of(cluster).shards.open[place.shard].replicas
    decided = await replicas.decide(calls.Mend(queue, [calls.Copied(place.id, record, notes, b"0", left.payload)]))
    if not len(decided.records):
        raise ConfigError(
            f"an item with the id {id} is in queue {queue}, or was within the last minutes: `zkrq damaged show` prints "
            "what is left of this one; push that under another id, then drop the entry"
        )
    await replicas.tell_all(calls.DropAside(queue, [place.id]))
    return items


async def drop_damaged(cluster: Cluster, queue: str, id: str) -> None:
    """Drop an entry on every server.  Raises ``ConfigError`` if there is none, ``Unavailable``."""
    place = await _find(cluster, queue, id)
    await client_of(cluster).shards.open[place.shard].replicas.tell_all(calls.DropAside(queue, [place.id]))


async def _kept(cluster: Cluster, queue: str) -> AsyncGenerator[tuple[_Place, calls.Kept]]:
    for name, shard in client_of(cluster).shards.open.items():
        seen: set[bytes] = set()
        async for page, _ in shard.replicas.pages(calls.Aside(queue)):
            for kept in page.kept:
                if kept.id not in seen:
                    seen.add(kept.id)
                    yield _Place(name, kept.id), kept


async def _find(cluster: Cluster, queue: str, id: str) -> _Place:
    async for place, _ in _kept(cluster, queue):
        if _shown(place.id) == id:
            return place
    raise ConfigError(f"nothing of queue {queue} is set aside under the id {id}: `zkrq damaged list {queue}`")


async def _remains(cluster: Cluster, queue: str, place: _Place) -> calls.Remains:
    replicas = client_of(cluster).shards.open[place.shard].replicas
    page = await replicas.ask(calls.Aside(queue, items=[place.id]))
    if not page.kept:
        raise ConfigError(f"nothing of queue {queue} is set aside under the id {_shown(place.id)} any more")
    return calls.read_remains(page.kept[0].bytes)


def _record_for(left: calls.Remains, id: str, *, is_text: bool) -> tuple[bytes, bytes, int]:
    """Make the record of an entry whose items begin anew; return it with its notes, and how many there are."""
    how = f"`zkrq damaged show` prints what is left of {id}: push it again, then drop it"
    if not is_text:
        raise ConfigError(f"the id is no text, so no item can have it: {how}")
    try:
        record, notes, items = calls.record_anew(left.record, left.payload, left.notes, left.at_ms)
    except ValueError as error:
        raise ConfigError(f"its payloads cannot be read ({error}): {how}") from error
    if not items:
        raise ConfigError(f"it has no items any more: {how}")
    return record, notes, items


def _shown(id: bytes) -> str:
    return id.decode(errors="backslashreplace")
