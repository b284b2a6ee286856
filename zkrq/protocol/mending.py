"""Mend damaged entries: from a good copy of another server in sync, or set them aside where no server has one.

An entry is a bundle's record with its payloads.  It is damaged on a server that cannot read it; nothing there counts
it, hands it out or copies it, and so it stops nothing else.

The record is taken from the greatest version that any server in sync can read, and its payloads from any of them.  Each
of them holds every decision that was reported to a caller, so nothing that counts is lost.  The damaged record may have
been of a later decision, which not every server has heard of and which may still be on its way to one.  So the primary
decides the copy again, far above what it may have decided before (``lua/_bundle.lua``).  *Without this*: the primary
mends version 4, decides version 5, and the version 5 from before reaches a follower first: both servers hold a version
5, and not the same.

Where no server can read the record, or payloads of living items, each keeps its bytes aside (``lua/set_aside.lua``).
It looks once more before it does: what it can read stays, and what is set aside on the primary is mended as soon as a
server with a good copy is in sync.  So neither two clients nor a server that comes back can lose a good copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from zkrq.protocol.calls import FROM_NOW, Aside, AsidePage, Copied, Kept, Mend, Read, SetAside
from zkrq.protocol.copying import copy_items
from zkrq.protocol.deciding import Deciding
from zkrq.protocol.steps import Failure, Look, NotNow, Now, Operation, Place, PlaceFailed, place

MEND_ITEMS = 50
"""Greatest number of bundles that are mended in one step."""

REASON = "no server in sync can read it"
"""Why an entry is set aside."""


class Mended(NamedTuple):
    """What became of damaged entries of a queue: mended from good copies, set aside, or left where they are, because no
    more may be set aside."""

    mended: int = 0
    set_aside: int = 0
    left: int = 0

    def plus(self, other: Mended) -> Mended:
        """Add what became of others."""
        return Mended(*map(sum, zip(self, other, strict=True)))


class _Found:
    """What is known of damaged entries on all servers in sync."""

    def __init__(self) -> None:
        self._best: dict[bytes, Copied] = {}
        self._payloads: dict[bytes, bytes] = {}

    def note(self, items: Iterable[Copied]) -> None:
        """Note what one server can read."""
        for copied in items:
            best = self._best.get(copied.id)
            if best is None or copied.version > best.version:
                self._best[copied.id] = copied
            if copied.payload is not None:
                self._payloads.setdefault(copied.id, copied.payload)

    def good(self) -> Iterator[Copied]:
        """Return the good copies: those with all that belongs to them."""
        for id, copied in self._best.items():
            payload = self._payloads.get(id)
            if payload is not None or not copied.has_items:
                yield copied._replace(payload=payload or b"")


class Mending(Deciding):
    """Mend damaged entries of a queue."""

    def mend(self, queue: str, ids: Sequence[bytes]) -> Operation[Mended]:
        """Mend what is damaged of these bundles on any server in sync, or set it aside.

        Idempotent, and safe to leave in the middle.  Raises ``NotNow``.
        """
        done = Mended()
        for at in range(0, len(ids), MEND_ITEMS):
            done = done.plus((yield from self._mend(queue, ids[at : at + MEND_ITEMS])))
        return done

    def _mend(self, queue: str, ids: Sequence[bytes]) -> Operation[Mended]:
        view = yield from Look()
        try:
            found = _Found()
            for id in sorted(view.members):
                yield from _read(place(view, id), queue, ids, found)
            good = list(found.good())
            for copied in good:  # one at a time, because each may be large
                yield from self.decide(Mend(queue, [copied]))
            named = {copied.id for copied in good}
            primary = place(view, view.primary(queue))
            others = [place(view, id) for id in sorted(self.receivers(view).keys() - {primary.server})]
            for other in others if named else ():
                yield from copy_items(primary, other, queue, sorted(named))
            lost = [id for id in ids if id not in named]
            kept, left = (yield from _set_aside([primary, *others], queue, lost)) if lost else (0, 0)
        except PlaceFailed as failure:
            raise NotNow(str(failure)) from failure
        except NotNow:
            raise
        except Failure as failure:
            raise NotNow(f"damaged entries of queue {queue}: {failure}") from failure
        return Mended(len(good), kept, left)


def _set_aside(servers: Sequence[Place], queue: str, ids: Sequence[bytes]) -> Operation[tuple[int, int]]:
    """Set aside what no server can read; return how many, and how many had to be left.

    The primary comes first, and once more at the end, for what only another server has.  Raises ``PlaceFailed``.
    """
    now_ms = yield from Now()
    kept: dict[bytes, Kept] = {}
    left = 0
    for server in (*servers, servers[0]):
        for entry in ids:
            call = SetAside(queue, now_ms, REASON, [kept.get(entry, Kept(entry, b""))])
            reply = yield from server.ask(call)
            left += reply.full if server is servers[0] else 0
            kept.update((each.id, kept.get(each.id, each)) for each in reply.kept)
    return len(kept), left // 2


def _read(member: Place, queue: str, ids: Sequence[bytes], found: _Found) -> Operation[None]:
    """Note what a server can read of these bundles."""
    wanted = list(ids)
    while wanted:
        items, wanted, _ = yield from member.ask(Read(queue, wanted, FROM_NOW))
        found.note(items)


def set_aside_at(member: Place, queue: str) -> Operation[Mapping[bytes, bytes]]:
    """Return the ids of what a server keeps aside, each with its head.  Raises ``PlaceFailed``."""
    found: dict[bytes, bytes] = {}

    def note(page: AsidePage) -> Operation[None]:
        found.update(page.kept)
        yield from ()

    yield from member.each_page(Aside(queue), note)
    return found
