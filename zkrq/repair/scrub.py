"""Now and then every item is compared: what a client left behind that died between decide and apply is mended.

Unknown to a follower, or known otherwise: the primary affirms what it knows, under the present epoch.  Unknown to the
primary, without a tombstone and older than any push can be: an unfinished push, carried on.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from zkrq.clock import now_ms
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.records import Record, State, Version, pack, unpack
from zkrq.repair.places import NotNow
from zkrq.replication.copying import Copied, CopyFailed, Place, install_items, queues_at, read_items
from zkrq.replication.replicas import Replicas
from zkrq.replication.wire import Arguments

PAGE = 500
"""Items compared in one step."""

SECOND_LOOK_SECONDS = 1.0
"""What differs is looked at again after so long: most of it was under way."""

REST = 10.0
"""After each step the scrub rests this many times as long as the step took, so that it takes a tenth at most."""


FORWARD_WINDOW_MS = 10_000
"""A push is carried on within so long after it was judged, or not at all: see ``lua/forward.lua``."""

Heads = Mapping[bytes, bytes]
"""Id -> how its record begins."""


class Verdict(enum.Enum):
    """What is to be done about an item that the primary does not know."""

    WAIT = "its push may still be on its way"
    FORWARD = "carry its push on"
    FORGET = "it was removed long ago, or never was"


def judge(record: Record, has_payload: bool, *, now_ms: float, floor_ms: float) -> Verdict:
    """``floor_ms``: the primary may have dropped the tombstone of anything that was pushed before then."""
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
            return await queues_at(self._membership.place(view, view.primary("")))
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure

    async def trim(self, queue: str) -> float | None:
        """Drop what is too old, where nothing is removed at present; returns to how many seconds the memory of removals
        is shortened, None: it is not.  Raises ``NotNow``."""
        view, remembered_ms = self._membership.view, list[int]()
        if view.learners or view.eligible:
            raise NotNow("a copy that is not in sync must meet the tombstones of what is gone")
        try:
            for id in sorted(view.members):
                remembered_ms.append(await _trim(self._membership.place(view, id), queue))
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure
        short = [ms for ms in remembered_ms if 0 <= ms < 2 * PUT_WINDOW_MS]
        return min(short) / 1000 if short else None

    async def run(self, queue: str) -> Mended:
        """One look at every item of a queue.  Raises ``NotNow`` where the view moves, ``Unavailable``."""
        view = self._membership.view
        primary = self._membership.place(view, view.primary(queue))
        followers = [self._membership.place(view, id) for id in sorted(view.members.keys() - {primary.server})]
        affirmed = forwarded = forgotten = 0
        try:
            for follower in followers:
                affirmed += await self._compare(primary, follower, queue)
                counts = await self._find_unknown(primary, follower, queue)
                forwarded, forgotten = forwarded + counts[0], forgotten + counts[1]
        except CopyFailed as failure:
            raise NotNow(str(failure)) from failure
        return Mended(affirmed, forwarded, forgotten)

    async def _compare(self, primary: Place, follower: Place, queue: str) -> int:
        """Have the primary affirm what the follower does not know, or knows otherwise."""
        cursor, affirmed = b"0", 0
        while True:
            pace = Pace()
            cursor, heads = await _heads(primary, queue, cursor)
            ids = await self._different(follower, queue, heads)
            if ids:
                await pace.sleep(SECOND_LOOK_SECONDS)
                ids = await self._still_different(primary, follower, queue, heads, ids)
            if ids:
                await self._replicas.decide(calls.Affirm(queue, ids))
                affirmed += len(ids)
            if cursor == b"0":
                return affirmed
            await pace.rest()

    async def _different(self, there: Place, queue: str, heads: Heads) -> list[bytes]:
        if not heads:
            return []
        unknown, different = await there.ask("compare", queue, [part for head in heads.items() for part in head])
        return _at(heads, unknown) + _at(heads, different)

    async def _still_different(
        self, primary: Place, follower: Place, queue: str, before: Heads, ids: Sequence[bytes]
    ) -> list[bytes]:
        """Of these, the ones that the primary has not touched meanwhile: others were under way."""
        _, now = await _heads(primary, queue, b"0", ids)
        return await self._different(follower, queue, {id: now[id] for id in ids if now.get(id) == before[id]})

    async def _find_unknown(self, primary: Place, follower: Place, queue: str) -> tuple[int, int]:
        """What only the follower knows; returns how many pushes were carried on, and how many items forgotten."""
        cursor, forwarded, forgotten = b"0", 0, 0
        while True:
            pace = Pace()
            cursor, heads = await _heads(follower, queue, cursor)
            if heads:
                flat: Arguments = [part for head in heads.items() for part in head]
                unknown, _ = await primary.ask("compare", queue, flat)
                async for items in read_items(follower, queue, _at(heads, unknown)):
                    counts = await self._deal_with(primary, follower, queue, items)
                    forwarded, forgotten = forwarded + counts[0], forgotten + counts[1]
            if cursor == b"0":
                return forwarded, forgotten
            await pace.rest()

    async def _deal_with(self, primary: Place, follower: Place, queue: str, items: Sequence[Copied]) -> tuple[int, int]:
        standing = await primary.ask("standing", queue, [b"0"])
        _, _, clock, floor_ms, _ = cast("tuple[bytes, int, int, bytes, object]", standing)
        judged = [
            (item, judge(unpack(item.record), item.payload is not None, now_ms=now_ms(), floor_ms=float(floor_ms)))
            for item in items
        ]
        forward = [item for item, verdict in judged if verdict is Verdict.FORWARD]
        forget = [item for item, verdict in judged if verdict is Verdict.FORGET]
        await install_items(follower, queue, [_tombstone_for(item) for item in forget])
        if not forward:
            return 0, len(forget)
        carried_on = [calls.Copied(id, record, left_ms, payload or b"") for id, record, left_ms, payload in forward]
        decided = await self._replicas.decide(calls.Forward(queue, clock, FORWARD_WINDOW_MS, carried_on))
        return len(decided.records), len(forget)


class Pace:
    """Lets a scrub rest in proportion to what it has worked."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Time that does not count as work."""
        await asyncio.sleep(seconds)
        self._began += seconds

    async def rest(self) -> None:
        await asyncio.sleep(REST * max(0.0, time.monotonic() - self._began))


def _tombstone_for(item: Copied) -> Copied:
    epoch, n = unpack(item.record).version
    return Copied(item.id, pack(Record(Version(epoch, n + 1), State.GONE, due_us=now_ms() * 1000)), b"0", None)


def _at(heads: Heads, positions: object) -> list[bytes]:
    """The ids at these positions."""
    ids = list(heads)
    return [ids[position - 1] for position in cast("list[int]", positions)]


async def _trim(member: Place, queue: str) -> int:
    """All pages; how many milliseconds back the member remembers, -1: as far as usual."""
    while True:
        pace = Pace()
        dropped, remembered_ms = cast("tuple[int, int]", await member.ask("trim", queue, [PUT_WINDOW_MS]))
        if not dropped:
            return remembered_ms
        await pace.rest()


async def _heads(there: Place, queue: str, cursor: bytes, ids: Sequence[bytes] = ()) -> tuple[bytes, Heads]:
    """One page, or the heads of these ids."""
    next_cursor, flat = await there.ask("heads", queue, [PUT_WINDOW_MS, cursor, PAGE, *ids])
    parts = iter(cast("list[bytes]", flat))
    return cast("bytes", next_cursor), dict(zip(parts, parts, strict=True))
