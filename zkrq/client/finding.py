"""Find items by what they are: key, header, group, reason of failure, text, moment, state.

A search reads a queue source by source, shard by shard.  Items with a key are named by an index of the servers, and
dead letters have one of their own; anything else is found by reading all items page by page, and comparing here.  So no
call of a search holds a server for longer than a page takes, however many items there are.

A search continues from a ``Cursor``, a plain value that a program keeps for the next page, also across processes.  A
server's place in an index is valid in one life of that server only.  Therefore a search that meets another primary, or
another life of the same one, begins its source on that shard again, and reports it (``restarted``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack

from zkrq.base.checks import check_count
from zkrq.client.conditions import PAGE_MAX, Conditions, Where, read_conditions
from zkrq.client.cursors import BEGINNING, END, Cursor, Part, Source
from zkrq.client.inspection import Inspection
from zkrq.client.items import FoundPage, Item, items_of
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.client.shard import Shard
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")

SEARCH_PAGE = 50
"""Bundles, or dead letters, that a call reads: even if each is of a bundle of a hundred that have failed, a server is
held for some milliseconds."""

DENSE_PAGE = 20
"""Bundles, or dead letters, that a call for ``find_page`` reads if the call before found some: its cursor names those
that do not fit on the page, and stays short."""

CALLS_MAX = 100
"""Calls of the servers for one page of ``find_page``."""

PAGE_BYTES = 1 << 20
"""Bytes of payloads after which a page of ``find_page`` ends."""


class Match(NamedTuple, Generic[T]):
    """An item that was found, and the bundle that it belongs to."""

    bundle: str
    item: Item[T]

    @property
    def position(self) -> int:
        """Its position in the bundle."""
        return 0 if self.item.id == self.bundle else calls.position_in(self.item.id)


class Step(NamedTuple, Generic[T]):
    """Describe what one call found.

    ``cursor``: from where it read.  ``at`` and ``rest``: what comes after that.  ``after``: where the search goes on,
    None: it is complete.  ``restarted``: a source is read again from its beginning.
    """

    found: Sequence[Match[T]]
    cursor: Cursor
    at: bytes
    rest: Sequence[Part]
    after: Cursor | None
    restarted: bool = False

    def before(self, left: Sequence[Match[T]]) -> Cursor:
        """Return the cursor of a search that goes on with these items of this step."""
        positions: dict[str, list[int]] = {}
        for match in left:
            positions.setdefault(match.bundle, []).append(match.position)
        parts = (Part(bundle, tuple(some)) for bundle, some in positions.items())
        return replace(self.cursor, at=self.at, rest=(*parts, *self.rest))


class _Reading(NamedTuple):
    """What one call read: bundles, the positions that are wanted of some of them, and what is left."""

    copied: Sequence[calls.Copied]
    wanted: Mapping[bytes, Sequence[int] | None]
    beyond: Sequence[bytes]
    at: bytes


class Finding(Inspection[T]):
    """Provide the part of a queue that finds items."""

    async def find(self, **conditions: Unpack[Where]) -> AsyncGenerator[Item[T]]:
        """Iterate over the items that meet all given conditions, in no particular order, page by page.

        ``key``: the item's key.  ``header``: name and value of one of its headers.  ``error``: a text in the reason of
        its last failure, in upper or lower case.  ``group``, ``task``: its own.  ``id_prefix``: how its id begins.
        ``text``: a text that its payload contains, in upper or lower case, as the codec has encoded it (JSON by
        default; nothing is found in what is encrypted).  ``since``, ``until``: moments between which a dead letter has
        died, and any other item was pushed, by its producer's clock; the second one does not belong to it.  ``state``:
        ready, scheduled, claimed or dead, None: any.  At least one of the others is needed; ``scan`` yields all items.

        A key is looked up in an index, which costs about as much as ``get``.  The index has no dead letters: unless
        ``state`` excludes them, all dead letters are read, too.  With ``state="dead"`` only dead letters are read,
        otherwise all items.  An item that meets the conditions during the whole search is yielded at least once; a dead
        letter that is redriven meanwhile may be missed if a key is looked for.  After a change of the primary a part is
        read again, so items may be yielded twice.  Raises ``ConfigError``, ``Unavailable``.
        """
        wanted = read_conditions("find()", conditions)
        wanted.check_any(self.name)
        self._parts.check_open()
        cursor: Cursor | None = BEGINNING
        while cursor is not None:
            step = await self._step(wanted, cursor, SEARCH_PAGE)
            for match in step.found:
                yield match.item
            cursor = step.after

    async def find_page(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        **conditions: Unpack[Where],
    ) -> FoundPage[T]:
        """Return at most ``limit`` (1 to 500) of the items that ``find`` would yield, and a cursor for the next ones.

        The conditions are those of ``find``; without any, all items are listed.  ``after``: ``next`` of the page
        before, None: begin.  A page may have fewer items, or none, and still a ``next``, because one call reads a part
        of the queue, and returns about 1 MiB of payloads.  Nothing is kept for a cursor, and any client of the
        namespace may go on from it.
        Raises ``ConfigError``, ``Unavailable``.
        """
        wanted = read_conditions("find_page()", conditions)
        check_count("limit", limit, least=1, most=PAGE_MAX)
        cursor: Cursor | None = BEGINNING if after is None else Cursor.read(after)
        self._parts.check_open()
        items: list[Item[T]] = []
        restarted, size, page = False, 0, DENSE_PAGE
        for _ in range(CALLS_MAX):
            room = limit - len(items)
            step = await self._step(wanted, cursor, page)
            cursor, restarted = step.after, restarted or step.restarted
            items += [match.item for match in step.found[:room]]
            size += sum(len(match.item.payload) for match in step.found[:room])
            if len(step.found) > room:
                cursor = step.before(step.found[room:])
            if cursor is None or len(items) == limit or size >= PAGE_BYTES:
                break
            page = DENSE_PAGE if step.found else SEARCH_PAGE
        return FoundPage(items, cursor and cursor.text(), restarted)

    # -- one step ------------------------------------------------------------------------------------------------------

    async def _step(self, conditions: Conditions, cursor: Cursor, count: int) -> Step[T]:
        """Make the next call of a search, for ``count`` bundles or dead letters."""
        shard = await self._shard_at(cursor)
        if shard is None:
            return Step((), cursor, END, (), None)
        if cursor.shard != shard.name:
            cursor = Cursor(cursor.done, shard.name)
        step = await self._everywhere.on(shard, partial(self._step_on, conditions, cursor, count))
        if step is None:  # the shard was removed: nothing was left in it
            step = Step[T]((), cursor, END, (), cursor.past_shard())
        if step.after and await self._shard_at(step.after) is None:
            return step._replace(after=None)
        return step

    async def _shard_at(self, cursor: Cursor) -> Shard | None:
        """Return the shard at which a search goes on, None if it has been on all of them.  Raises ``Unavailable``."""
        shards = await self._everywhere.further(set())
        left = [shard for shard in shards if shard.name not in cursor.done]
        return next((shard for shard in left if shard.name == cursor.shard), left[0] if left else None)

    async def _step_on(self, conditions: Conditions, cursor: Cursor, count: int, replicas: Replicas) -> Step[T]:
        leader = replicas.leader(self.name)
        sources = conditions.sources
        source = sources[0] if cursor.source is None else cursor.source
        if source not in sources:  # of another search
            return _again(replace(cursor, source=None))
        if cursor.has_begun and cursor.leader != leader:
            return _again(cursor)
        cursor = replace(cursor, leader=leader, source=source)
        reading = await self._read(replicas, source, conditions.key or "", cursor, count)
        if replicas.leader(self.name) != leader:  # another server may have answered
            return _again(cursor)
        found = [
            Match(copied.id.decode(), item)
            for copied in reading.copied
            for item in items_of(copied, self._codecs, reading.wanted.get(copied.id))
            if conditions.hold(item)
        ]
        rest = [Part.of(bundle.decode(), reading.wanted.get(bundle)) for bundle in reading.beyond]
        if rest or reading.at != END:
            after = replace(cursor, at=reading.at, rest=tuple(rest))
        elif source is not sources[-1]:
            after = Cursor(cursor.done, cursor.shard, sources[-1])
        else:
            after = cursor.past_shard()
        return Step(found, cursor, reading.at, rest, after)

    async def _read(self, replicas: Replicas, source: Source, key: str, cursor: Cursor, count: int) -> _Reading:
        if cursor.rest:
            wanted = {part.bundle.encode(): part.positions for part in cursor.rest}
            found, beyond, _ = await replicas.ask(calls.Read(self.name, list(wanted)))
            return _Reading(found, wanted, beyond, cursor.at)
        match source:
            case Source.KEYED:
                found, beyond = await replicas.ask(calls.Keyed(self.name, key))
                return _Reading(found, {}, beyond, END)
            case Source.DEAD:
                page = await replicas.ask(calls.DeadPage(self.name, cursor.at, count))
                letters: dict[bytes, list[int]] = {}
                for bundle, position in page.places:
                    letters.setdefault(bundle, []).append(position)
                return _Reading(page.copies.items, letters, page.copies.beyond, _further(page.cursor))
            case Source.ALL:
                at, found, beyond, _ = await replicas.ask(calls.Page(self.name, cursor.at, count))
                return _Reading(found, {}, beyond, _further(at))


def _further(at: bytes) -> bytes:
    """Return where a server goes on, ``END`` if its last page was read."""
    return END if at == calls.START else at


def _again(cursor: Cursor) -> Step[Any]:
    """Begin the source of a cursor again, on its shard."""
    fresh = Cursor(cursor.done, cursor.shard, cursor.source)
    return Step((), fresh, fresh.at, (), fresh, restarted=True)
