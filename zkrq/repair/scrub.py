"""Now and then every item is compared: what a client left behind that died between decide and apply is mended.

Unknown to a follower, or known otherwise: the primary affirms what it knows, under the present epoch.  Unknown to the
primary, without a tombstone and older than any push can be: an unfinished push, carried on.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

from zkrq.repair.places import NotNow, place
from zkrq.replication.copying import Copied, CopyFailed, Place, install_items, queues_at, read_items
from zkrq.replication.records import Record, State, Version, pack, unpack
from zkrq.replication.replicas import PUT_WINDOW_MS, Replicas
from zkrq.replication.view import ServerId, View

PAGE = 500
"""Items compared in one step."""

SECOND_LOOK_SECONDS = 1.0
"""What differs is looked at again after so long: most of it was under way."""

REST = 10.0
"""After each step the scrub rests this many times as long as the step took, so that it takes a tenth at most."""


class Verdict(enum.Enum):
    """What is to be done about an item that the primary does not know."""

    WAIT = "its push may still be on its way"
    FORWARD = "carry its push on"
    FORGET = "it was removed long ago, or never was"


def judge(record: Record, *, has_payload: bool, now_ms: float, floor_ms: float) -> Verdict:
    """``floor_ms``: the primary has dropped tombstones of what was removed before then."""
    if record.state is State.GONE or record.pushed_at_ms > now_ms - 2 * PUT_WINDOW_MS:
        return Verdict.WAIT
    if not has_payload or record.pushed_at_ms < floor_ms:
        return Verdict.FORGET
    return Verdict.FORWARD


class Mended(NamedTuple):
    """What a scrub has found in a queue: items affirmed by the primary, pushes carried on, left-overs forgotten."""

    affirmed: int = 0
    forwarded: int = 0
    forgotten: int = 0


class Scrub:
    """Compares the followers of a queue with its primary."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._membership = replicas.membership

    async def queues(self) -> list[str]:
        """All there are.  Raises ``NotNow``."""
        view = self._membership.view
        try:
            return await queues_at(self._place(view, view.primary("")))
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure

    async def run(self, queue: str) -> Mended:
        """One look at every item of a queue.  Raises ``NotNow`` where the view moves, ``Unavailable``."""
        view = self._membership.view
        primary = self._place(view, view.primary(queue))
        followers = [self._place(view, id) for id in sorted(view.members.keys() - {primary.server})]
        affirmed = forwarded = forgotten = 0
        try:
            for follower in followers:
                affirmed += await self._compare(primary, follower, queue)
                counts = await self._find_unknown(primary, follower, queue)
                forwarded, forgotten = forwarded + counts[0], forgotten + counts[1]
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure
        return Mended(affirmed, forwarded, forgotten)

    def _place(self, view: View, id: ServerId) -> Place:
        return place(self._membership.servers[id], view.epoch, view.members[id])

    async def _compare(self, primary: Place, follower: Place, queue: str) -> int:
        """Have the primary affirm what the follower does not know, or knows otherwise."""
        cursor, affirmed = b"0", 0
        while True:
            began = time.monotonic()
            cursor, heads = await _heads(primary, queue, cursor)
            ids = await self._different(follower, queue, heads)
            if ids:
                await asyncio.sleep(SECOND_LOOK_SECONDS)
                heads = [part for item in await read_items(primary, queue, ids) for part in (item.id, item.record[:10])]
                ids = await self._different(follower, queue, heads)
            if ids:
                await self._replicas.decide("affirm", queue, list(ids))
                affirmed += len(ids)
            if cursor == b"0":
                return affirmed
            await _rest(began)

    async def _different(self, there: Place, queue: str, heads: Sequence[bytes]) -> list[bytes]:
        if not heads:
            return []
        unknown, different = await there.ask("compare", queue, list(heads))
        return _at(heads, cast("list[int]", unknown) + cast("list[int]", different))

    async def _find_unknown(self, primary: Place, follower: Place, queue: str) -> tuple[int, int]:
        """What only the follower knows; returns how many pushes were carried on, and how many items forgotten."""
        cursor, forwarded, forgotten = b"0", 0, 0
        while True:
            began = time.monotonic()
            cursor, heads = await _heads(follower, queue, cursor)
            if heads:
                unknown, _ = await primary.ask("compare", queue, list(heads))
                items = await read_items(follower, queue, _at(heads, cast("list[int]", unknown)))
                counts = await self._deal_with(primary, follower, queue, items)
                forwarded, forgotten = forwarded + counts[0], forgotten + counts[1]
            if cursor == b"0":
                return forwarded, forgotten
            await _rest(began)

    async def _deal_with(self, primary: Place, follower: Place, queue: str, items: Sequence[Copied]) -> tuple[int, int]:
        if not items:
            return 0, 0
        _, _, floor_ms, _ = await primary.ask("standing", queue, [])
        floor, now = float(cast("bytes", floor_ms)), time.time() * 1000
        judged = [
            (item, judge(unpack(item.record), has_payload=item.payload is not None, now_ms=now, floor_ms=floor))
            for item in items
        ]
        forward = [item for item, verdict in judged if verdict is Verdict.FORWARD]
        forget = [item for item, verdict in judged if verdict is Verdict.FORGET]
        await install_items(follower, queue, [_tombstone_for(item) for item in forget])
        await install_items(primary, queue, forward)
        if forward:
            await self._replicas.decide("affirm", queue, [item.id for item in forward])
        return len(forward), len(forget)


def _tombstone_for(item: Copied) -> Copied:
    epoch, n = unpack(item.record).version
    return Copied(item.id, pack(Record(Version(epoch, n + 1), State.GONE)), b"0", None)


def _at(heads: Sequence[bytes], positions: Sequence[int]) -> list[bytes]:
    """The ids at these positions of a list of ids and heads."""
    return [heads[2 * position - 2] for position in positions]


async def _heads(there: Place, queue: str, cursor: bytes) -> tuple[bytes, list[bytes]]:
    return cast("tuple[bytes, list[bytes]]", await there.ask("heads", queue, [cursor, PAGE]))


async def _rest(began: float) -> None:
    await asyncio.sleep(REST * (time.monotonic() - began))
