"""Compare every item periodically, to correct what clients left unfinished when they died.

If a follower does not know an item, or has another version of it, the primary affirms what it knows, under the present
epoch. The follower may hold the greater version, of a decision that an evicted primary took and reported to no other
server.  So copying the primary's record would not help, and the item is decided again.

If the primary does not know an item, has no tombstone of it, and the item is older than any push can be, its push is
unfinished.  It is forwarded: the primary decides it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zkrq.protocol.calls import (
    FROM_NOW,
    START,
    Affirm,
    Compare,
    Copied,
    DropName,
    Forward,
    Heads,
    HeadsReply,
    Metadata,
    Paging,
    Queues,
    RepairFlows,
    RepairLines,
    RepairPage,
    Trim,
    is_text,
    texts_of,
)
from zkrq.protocol.clocks import PUT_WINDOW_MS
from zkrq.protocol.copying import install_items, read_items
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.mending import Mended, Mending, set_aside_at
from zkrq.protocol.records import Bundle, State, Version, pack, shared_fields, unpack
from zkrq.protocol.steps import Breathe, Log, Look, NotNow, Now, Operation, Place, PlaceFailed, Wait, place

PAGE_ITEMS = 200
"""Bundles compared in one step; a server is held for some milliseconds, even if each has a hundred items."""

CHECKED_ITEMS = 100
"""Items whose payloads and entries in the index of flows are looked at in one call, which holds its server meanwhile; a
payload that is looked at has at most 64 KiB, see ``lua/heads.lua``."""

SECOND_LOOK_SECONDS = 1.0
"""Seconds after which a differing item is read again; most of these were in flight."""

FORWARD_WINDOW_MS = 10_000
"""Milliseconds after its judgement within which a push may be forwarded; see ``lua/forward.lua``."""


class Finding(enum.Enum):
    """What to do about an item that the primary does not know."""

    WAIT = "its push may still be in flight"
    FORWARD = "finish its push"
    FORGET = "it was removed long ago, or never was"


def judge(record: Bundle, has_payload: bool, *, now_ms: float, floor_ms: float) -> Finding:
    """Judge an item.  ``floor_ms``: the primary may have dropped the tombstone of any item that was pushed earlier."""
    if not record.is_alive or record.pushed_at_ms > now_ms - 2 * PUT_WINDOW_MS:
        return Finding.WAIT
    if not has_payload or record.pushed_at_ms < floor_ms:
        return Finding.FORGET
    return Finding.FORWARD


class Corrected(NamedTuple):
    """Corrections of a scrub in a queue: items affirmed by the primary, pushes finished, remains forgotten, groups put
    in line again, entries of the index of flows added or removed."""

    affirmed: int = 0
    forwarded: int = 0
    forgotten: int = 0
    lined_up: int = 0
    relisted: int = 0

    def plus(
        self, affirmed: int = 0, forwarded: int = 0, forgotten: int = 0, lined_up: int = 0, relisted: int = 0
    ) -> Corrected:
        """Add corrections."""
        return Corrected(
            self.affirmed + affirmed,
            self.forwarded + forwarded,
            self.forgotten + forgotten,
            self.lined_up + lined_up,
            self.relisted + relisted,
        )


class Scrub(Deciding):
    """Compare the followers of a queue with its primary."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = Mended()
        """What became of damaged entries in the last run."""
        self.aside = 0
        """How many were set aside at its end."""

    def queues(self) -> Operation[list[str]]:
        """List all queues.  Raises ``NotNow``.

        Of every server, because an unfinished push may have reached one follower alone, as the first of its queue.
        """
        view = yield from Look()
        names: set[str] = set()
        try:
            for id in sorted(view.members):
                member = place(view, id)
                found = yield from member.names(Queues())
                bad = [name for name in found if not is_text(name)]
                if bad:
                    yield from member.ask(DropName(bad))
                    yield from Log(f"names of queues that are no texts were dropped: {sorted(bad)}", id)
                names.update(texts_of(found))
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        return sorted(names)

    def trim(self, queue: str) -> Operation[float | None]:
        """Drop old tombstones of a queue from which nothing is being removed.

        Returns the seconds to which the memory of removals is shortened, None if it is not.  Raises ``NotNow``.
        """
        view = yield from Look()
        if not self.may_trim(view):
            raise NotNow("a copy that is not in sync must meet the tombstones of what is gone")
        remembered_ms = list[int]()
        try:
            for id in sorted(view.members):
                remembered_ms.append((yield from _trim(place(view, id), queue)))
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        short = [ms for ms in remembered_ms if 0 <= ms < 2 * PUT_WINDOW_MS]
        return min(short) / 1000 if short else None

    def run(self, queue: str) -> Operation[Corrected]:
        """Compare every item of a queue once.  Raises ``NotNow`` if the view changes, and what ``decide`` raises."""
        view = yield from Look()
        primary = place(view, view.primary(queue))
        found = Corrected()
        self.mended = Mended()
        index = _Index(queue)
        try:
            members = [place(view, id) for id in sorted(view.members)]
            self.mended = yield from self._mend(queue, primary, members, index)
            for id in sorted(view.members.keys() - {primary.server}):
                comparison = _Comparison(self, queue, primary, place(view, id))
                yield from comparison.affirm_differing()
                yield from comparison.find_unknown()
                found = found.plus(*comparison.found)
            for id in sorted(view.members):
                found = found.plus(lined_up=(yield from _repair(place(view, id), RepairLines(queue))))
            yield from index.drop_wrong()
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        return found.plus(relisted=index.repaired)

    def _mend(self, queue: str, primary: Place, members: Sequence[Place], index: _Index) -> Operation[Mended]:
        """Mend what is damaged on any member, and what is set aside on the primary and good on another one.

        Before the comparison, which forgets what the primary does not know.  What the index of flows of a member lacks
        is added.
        """
        bad: set[bytes] = set()

        for member in members:

            def note(page: HeadsReply, member: Place = member) -> Operation[None]:
                bad.update(page.damaged)
                yield from index.add_missing(member, page)
                if page.cursor != START:
                    yield Breathe()

            yield from member.each_page(Heads(queue, START, CHECKED_ITEMS), note)
        aside = yield from set_aside_at(primary, queue)
        for member in members if aside else ():
            bad.update((yield from member.ask(_heads_alone(queue, list(aside)))).heads)
        mended = (yield from Mending().mend(queue, sorted(bad))) if bad else Mended()
        self.aside = len((yield from set_aside_at(primary, queue))) if any(mended) else len(aside)
        return mended

    def judge(self, record: Bundle, has_payload: bool, *, now_ms: float, floor_ms: float) -> Finding:
        """Judge an item that the primary does not know; see the function."""
        return judge(record, has_payload, now_ms=now_ms, floor_ms=floor_ms)


def _heads_alone(queue: str, items: Sequence[bytes] = ()) -> Heads:
    """Make the call that reads which items there are and in which version, and looks at nothing else."""
    return Heads(queue, START, PAGE_ITEMS, checks=False, items=items)


class _Index:
    """Have the index of flows of each server say what its records say.  ``repaired``: entries that did not."""

    def __init__(self, queue: str) -> None:
        self.repaired = 0
        self._queue = queue
        self._used: list[Place] = []

    def add_missing(self, member: Place, page: HeadsReply) -> Operation[None]:
        """Add what is missing of the records of a page."""
        if page.unlisted:
            self.repaired += (yield from member.ask(RepairFlows(self._queue, START, page.unlisted))).repaired
        if page.has_flows:
            self._used.append(member)

    def drop_wrong(self) -> Operation[None]:
        """Drop what no record asks for, on the servers that have an index."""
        for member in self._used:
            self.repaired += yield from _repair(member, RepairFlows(self._queue))


class _Comparison:
    """Compare one follower with the primary."""

    def __init__(self, scrub: Scrub, queue: str, primary: Place, follower: Place) -> None:
        self._scrub = scrub
        self._queue = queue
        self._primary = primary
        self._follower = follower
        self.found = Corrected()

    # -- known to the primary ------------------------------------------------------------------------------------------

    def affirm_differing(self) -> Operation[None]:
        """Let the primary affirm the items that the follower does not know, or has in another version."""
        yield from self._primary.each_page(_heads_alone(self._queue), self._affirm_page)

    def _affirm_page(self, page: HeadsReply) -> Operation[None]:
        ids = yield from self._different(page.heads)
        if ids:
            yield Wait(SECOND_LOOK_SECONDS)
            # Keep those that the primary has not changed meanwhile; the others were in flight.
            now = yield from self._primary.ask(_heads_alone(self._queue, ids))
            ids = yield from self._different({id: now.heads[id] for id in ids if now.heads.get(id) == page.heads[id]})
        if ids:
            yield from self._scrub.decide(Affirm(self._queue, ids))
            self.found = self.found.plus(affirmed=len(ids))
        if page.cursor != START:
            yield Breathe()

    def _different(self, heads: Mapping[bytes, bytes]) -> Operation[list[bytes]]:
        """Return the ids that the follower does not know, or has in another version."""
        if not heads:
            return []
        ids = list(heads)
        unknown, different = yield from self._follower.ask(Compare(self._queue, list(heads.items())))
        return [ids[at] for at in (*unknown, *different)]

    # -- unknown to the primary ----------------------------------------------------------------------------------------

    def find_unknown(self) -> Operation[None]:
        """Forward or forget items that only the follower knows."""
        yield from self._follower.each_page(_heads_alone(self._queue), self._find_unknown_on_page)

    def _find_unknown_on_page(self, page: HeadsReply) -> Operation[None]:
        if page.heads:
            ids = list(page.heads)
            unknown, _ = yield from self._primary.ask(Compare(self._queue, list(page.heads.items())))
            wanted = [ids[at] for at in unknown]
            yield from read_items(self._follower, self._queue, wanted, self._deal_with, FROM_NOW)
        if page.cursor != START:
            yield Breathe()

    def _deal_with(self, items: Sequence[Copied]) -> Operation[None]:
        metadata = yield from self._primary.ask(Metadata(self._queue))
        now_ms = yield from Now()
        forward: list[Copied] = []
        forget: list[Copied] = []
        for item in items:
            has_payload = item.payload is not None
            record, floor_ms = unpack(item.record), float(metadata.floor_ms)
            match self._scrub.judge(record, has_payload, now_ms=now_ms, floor_ms=floor_ms):
                case Finding.FORWARD:
                    forward.append(item)
                case Finding.FORGET:
                    forget.append(tombstone_for(item, now_ms))
                case Finding.WAIT:
                    pass
        yield from install_items(self._follower, self._queue, forget)
        self.found = self.found.plus(forgotten=len(forget))
        if forward:
            decided = yield from self._scrub.decide(Forward(self._queue, metadata.clock, FORWARD_WINDOW_MS, forward))
            self.found = self.found.plus(forwarded=len(decided.records))


def tombstone_for(item: Copied, now_ms: int) -> Copied:
    """Make the removal of a bundle that is to be forgotten."""
    bundle = unpack(item.record)
    moment_us = now_ms * 1000
    removed = Bundle(
        Version(bundle.version.epoch, bundle.version.n + 1),
        State.GONE.value * len(bundle.states),
        is_alone=bundle.is_alone,
        pushed_at_ms=bundle.pushed_at_ms,
        due_us=moment_us,
        clock_us=moment_us,
        key=bundle.key,  # by which the server finds what else it has noted of the item, as by the next ones
        expires_us=bundle.expires_us,
        ttl_us=bundle.ttl_us,
        group=bundle.group,
        order=bundle.order,
        fields=shared_fields(bundle.fields),
    )
    return Copied(item.id, pack(removed), b"", b"", None)


def _repair(member: Place, call: Paging[RepairPage]) -> Operation[int]:
    """Have a server repair all pages of an index; return how many entries."""
    repaired = 0

    def note(page: RepairPage) -> Operation[None]:
        nonlocal repaired
        repaired += page.repaired
        if page.cursor != START:
            yield Breathe()

    yield from member.each_page(call, note)
    return repaired


def _trim(member: Place, queue: str) -> Operation[int]:
    """Trim all pages; return how many milliseconds back the member remembers removals, -1: as far as promised."""
    while True:
        dropped, remembered_ms = yield from member.ask(Trim(queue))
        if not dropped:
            return remembered_ms
        yield Breathe()
