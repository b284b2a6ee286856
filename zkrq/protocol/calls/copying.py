"""Copy a queue to a server that comes back, after the old copy there is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zkrq.protocol.calls.call import FROM_NOW, START, Call, Paging, Rows
from zkrq.protocol.calls.rows import Copied


class ReadReply(NamedTuple):
    """Bundles, the ids of those that did not fit into the reply, and of those that are damaged there."""

    items: Sequence[Copied]
    beyond: Sequence[bytes]
    damaged: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Read(Call[ReadReply]):
    """Read items by their ids; unknown ones are left out.  ``clock``: the moment from which durations count."""

    script: ClassVar[str] = "read"
    queue: str
    items: Sequence[bytes | str]
    clock: int = FROM_NOW


class CopyPage(NamedTuple):
    """A page of items, the cursor to continue from, the ids of those that did not fit, and of what is damaged."""

    cursor: bytes
    items: Sequence[Copied]
    beyond: Sequence[bytes]
    damaged: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Page(Paging[CopyPage]):
    """Read about ``count`` of all items, tombstones included."""

    script: ClassVar[str] = "page"
    queue: str
    cursor: bytes
    count: int
    clock: int = FROM_NOW


class MetadataReply(NamedTuple):
    """A server's knowledge of a queue besides its items: their number, its clock, the moment before which it accepts no
    put, which claims have begun lately if it has a rate, its limits (``lua/_limits.lua``), and a page of the owners
    (id, number of the last claim request, milliseconds since it was fenced or -1)."""

    cursor: bytes
    items: int
    clock: int
    floor_ms: bytes | int
    begun: bytes
    limits: bytes
    owners: Rows


@dataclass(frozen=True, slots=True)
class Metadata(Paging[MetadataReply]):
    """Read what a server knows of a queue besides its items, a page of its owners at a time."""

    script: ClassVar[str] = "metadata"
    queue: str
    cursor: bytes = START


@dataclass(frozen=True, slots=True)
class Install(Call[int]):
    """Store what ``Metadata`` has read on another server; the reply is this server's clock."""

    script: ClassVar[str] = "install"
    queue: str
    floor_ms: bytes | int
    items: Rows
    begun: bytes = b""
    limited: bytes = b""


@dataclass(frozen=True, slots=True)
class Wipe(Call[None]):
    """Forget a queue, on a server that is in no view."""

    script: ClassVar[str] = "wipe"
    queue: str
