"""Compare the servers' items, decide the right version, and drop old tombstones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Body, Call, Decision, Paging, Records, from_0
from zkrq.protocol.calls.rows import Copied


class HeadsReply(NamedTuple):
    """The first bytes of each record (format, version) by id, the cursor to continue from, the ids of what is damaged,
    and of what the index of flows does not name as it should.  ``has_flows``: whether this is the last page, and
    anything is in that index."""

    cursor: bytes
    heads: Mapping[bytes, bytes]
    damaged: Sequence[bytes] = ()
    unlisted: Sequence[bytes] = ()
    has_flows: bool = False


@dataclass(frozen=True, slots=True)
class Heads(Paging[HeadsReply]):
    """Read which items a server knows and in which version: a page of all, or those named in ``items``.

    ``checks``: whether payloads and the index of flows are looked at, too, which holds the server for longer.
    """

    script: ClassVar[str] = "heads"
    queue: str
    cursor: bytes
    count: int
    checks: bool = True
    items: Sequence[bytes] = ()

    def read(self, body: Body) -> HeadsReply:
        cursor, flat, damaged, unlisted, has_flows = body
        return HeadsReply(cursor, dict(zip(flat[::2], flat[1::2], strict=True)), damaged, unlisted, bool(has_flows))


class Differences(NamedTuple):
    """Positions of the heads whose items are unknown, and of those that the server has in another version or without
    their payload."""

    unknown: Sequence[int]
    different: Sequence[int]


@dataclass(frozen=True, slots=True)
class Compare(Call[Differences]):
    """Compare another server's heads with the records of this one."""

    script: ClassVar[str] = "compare"
    queue: str
    items: Sequence[tuple[bytes, bytes]]

    def read(self, body: Body) -> Differences:
        unknown, different = body
        return Differences(from_0(unknown), from_0(different))


@dataclass(frozen=True, slots=True)
class Affirm(Decision[Records]):
    """Decide items again as they are on the primary."""

    script: ClassVar[str] = "affirm"
    queue: str
    items: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Forward(Decision[Records]):
    """Finish pushes that only another server knows, if ``clock`` is at most ``window_ms`` ago."""

    script: ClassVar[str] = "forward"
    queue: str
    clock: int
    window_ms: int
    items: Sequence[Copied]


class RepairPage(NamedTuple):
    """Number of entries on this page that were repaired, and the cursor to continue from."""

    cursor: bytes
    repaired: int


@dataclass(frozen=True, slots=True)
class RepairLines(Paging[RepairPage]):
    """Put a page of the groups in line that have lost their place there; say how many."""

    script: ClassVar[str] = "repair_lines"
    queue: str
    cursor: bytes = START


@dataclass(frozen=True, slots=True)
class RepairFlows(Paging[RepairPage]):
    """Have the index of flows name these bundles as it should, or nothing, on a page of it, that it should not; say how
    many of its entries were added or removed."""

    script: ClassVar[str] = "repair_flows"
    queue: str
    cursor: bytes = START
    items: Sequence[bytes] = ()


class TrimReply(NamedTuple):
    """Number of dropped tombstones, and how far back removals are remembered, -1: as far as promised."""

    dropped: int
    remembered_ms: int


@dataclass(frozen=True, slots=True)
class Trim(Call[TrimReply]):
    """Drop a page of old tombstones."""

    script: ClassVar[str] = "trim"
    queue: str
