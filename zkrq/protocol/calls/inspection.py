"""Look at a queue: items of one state, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import START, Body, Call, Paging, read_rows
from zkrq.protocol.calls.rows import Copied, Copies


class PeekReply(NamedTuple):
    """``places``: bundle and position of each item, in order; the bundles, and the ids of those that did not fit."""

    places: Sequence[tuple[bytes, int]]
    copies: Copies


@dataclass(frozen=True, slots=True)
class Peek(Call[PeekReply]):
    """Read the first ``count`` items of an index (ready, scheduled, claimed or dead) in its order.

    ``only``: see ``only_of``; of ready items.
    """

    script: ClassVar[str] = "peek"
    queue: str
    state: str
    count: int
    only: str = ""

    def read(self, body: Body) -> PeekReply:
        places, flat, beyond = body
        pairs = [(id, position - 1) for id, position in zip(places[::2], places[1::2], strict=True)]
        return PeekReply(pairs, Copies(read_rows(Copied, flat), beyond))


@dataclass(frozen=True, slots=True)
class Keyed(Call[Copies]):
    """Read the items that have a key: they are queued or claimed."""

    script: ClassVar[str] = "keyed"
    queue: str
    key: str


class DeadPageReply(NamedTuple):
    """``places``: bundle and position of each letter, in order; the cursor to continue from."""

    cursor: bytes
    places: Sequence[tuple[bytes, int]]
    copies: Copies


@dataclass(frozen=True, slots=True)
class DeadPage(Paging[DeadPageReply]):
    """Read a page of the dead letters, the oldest first."""

    script: ClassVar[str] = "dead_page"
    queue: str
    cursor: bytes
    count: int

    def read(self, body: Body) -> DeadPageReply:
        cursor, places, flat, beyond = body
        pairs = [(id, position - 1) for id, position in zip(places[::2], places[1::2], strict=True)]
        return DeadPageReply(cursor, pairs, Copies(read_rows(Copied, flat), beyond))


class Counts(NamedTuple):
    """Numbers of items by state; ``expired``: no claim request has dropped them yet."""

    ready: int
    scheduled: int
    claimed: int
    dead: int
    expired: int


@dataclass(frozen=True, slots=True)
class Count(Call[Counts]):
    """Count the items by state."""

    script: ClassVar[str] = "count"
    queue: str


class StatisticsReply(NamedTuple):
    """Figures of a queue; ``waited_ms``: how long the oldest ready item has been due, negative: none is ready.
    ``removed``: items that this server has ever seen removed; those that came are these and the ones that are there.
    ``deleted``: whether the queue was deleted, and no item has come since.  ``limits``: see ``lua/_limits.lua``;
    ``claim_ms``: milliseconds until they let another claim begin, negative: when a claim ends.  ``groups``: those with
    items that are due or claimed; ``in_line`` and ``blocked``: those of them that wait for their turn, or for the end
    of a claim.  ``set_aside``: damaged entries of which no server has a good copy (``calls/damage.py``).
    ``paused_until_ms``: when the pause ends by itself, in milliseconds since 1970, 0: it does not."""

    ready: int
    scheduled: int
    claimed: int
    dead: int
    expired: int
    paused: int
    waited_ms: int
    keyed: int
    expiring: int
    tombstones: int
    removed: int
    deleted: int
    limits: bytes
    claim_ms: int
    groups: int
    in_line: int
    blocked: int
    set_aside: int = 0
    paused_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class Statistics(Call[StatisticsReply]):
    """Read a queue's figures."""

    script: ClassVar[str] = "statistics"
    queue: str


class EndedRow(NamedTuple):
    """An item that has ended: ``state`` is a letter of ``lua/history.lua``; ``took_us``: since its last claim began,
    negative: no consumer ended it; ``owner``: that consumer, otherwise empty; ``text``: the reason of a dead letter."""

    id: bytes
    state: bytes
    age_us: bytes
    took_us: bytes
    owner: bytes
    attempts: int
    group: bytes
    key: bytes
    text: bytes


class HistoryReply(NamedTuple):
    """``kept``: how many items are kept, 0: nothing is declared; the items, the latest first."""

    kept: int
    items: Sequence[EndedRow]


@dataclass(frozen=True, slots=True)
class History(Call[HistoryReply]):
    """Read which items have ended last.  ``passed``: how many to pass over."""

    script: ClassVar[str] = "history"
    queue: str
    passed: int
    count: int


class GroupRow(NamedTuple):
    """What is known of a group: items that are claimed; what waits, and how; see ``lua/group_page.lua``."""

    name: bytes
    claimed: int
    waiting: int
    standing: int
    age_ms: int


class GroupPageReply(NamedTuple):
    """Groups, and the cursor to continue from."""

    cursor: bytes
    groups: Sequence[GroupRow]


@dataclass(frozen=True, slots=True)
class GroupPage(Paging[GroupPageReply]):
    """Read about ``count`` of all groups, or those of the names ``items``."""

    script: ClassVar[str] = "group_page"
    queue: str
    cursor: bytes
    count: int
    items: Sequence[bytes] = ()


class ClaimCountsReply(NamedTuple):
    """Number of claims of each owner, and the cursor to continue from."""

    cursor: bytes
    claims: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ClaimCounts(Paging[ClaimCountsReply]):
    """Count a page of the claims by owner."""

    script: ClassVar[str] = "claim_counts"
    queue: str
    cursor: bytes = START

    def read(self, body: Body) -> ClaimCountsReply:
        cursor, flat = body
        counts: dict[str, int] = {}
        for owner, count in zip(flat[::2], flat[1::2], strict=True):
            name = owner.decode(errors="backslashreplace")
            counts[name] = counts.get(name, 0) + count
        return ClaimCountsReply(cursor, counts)
