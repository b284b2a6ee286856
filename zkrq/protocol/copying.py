"""Copy items from one server to another, for catch-up, recovery, fencing and late payloads, by the same few calls.

Everything goes through ``apply``, which keeps the newer record.  So copying may be repeated, interrupted, and done
twice at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from zkrq.protocol.calls import (
    FROM_NOW,
    START,
    Apply,
    Aside,
    AsidePage,
    Copied,
    Install,
    Metadata,
    Page,
    Queues,
    Read,
    SetAside,
    texts_of,
)
from zkrq.protocol.records import states_of

if TYPE_CHECKING:
    from zkrq.protocol.steps import Operation, Place

READ_MAX = 200
"""Greatest number of bundles read in one call."""

PAGE_ITEMS = 200
"""Bundles copied in one step, which takes some milliseconds of each server."""


class Moments(NamedTuple):
    """The moments from which the times of copied items count, by the source's clock and by the target's.

    One pair for a whole copy preserves the order of its items.
    """

    source: int
    target: int


NOW = Moments(FROM_NOW, FROM_NOW)


def copy_items(
    source: Place, target: Place, queue: str, ids: Sequence[bytes], moments: Moments = NOW
) -> Operation[int]:
    """Copy what ``source`` knows of these bundles to ``target``; return how many items.  Raises ``PlaceFailed``."""
    copied = 0

    def install(items: Sequence[Copied]) -> Operation[None]:
        nonlocal copied
        copied += _count(items)
        yield from install_items(target, queue, items, moments)

    yield from read_items(source, queue, ids, install, moments.source)
    return copied


def read_items(
    source: Place, queue: str, ids: Sequence[bytes], act: Callable[[Sequence[Copied]], Operation[None]], clock: int
) -> Operation[None]:
    """Read items by their ids, and act on parts that fit into memory; unknown items are left out.

    ``clock``: the moment from which their times count.  Raises ``PlaceFailed``.
    """
    left = list(ids)
    while left:
        items, beyond, damaged = yield from source.ask(Read(queue, left[:READ_MAX], clock))
        left = [*beyond, *left[READ_MAX:]]
        yield from act(without(items, damaged))


def without(items: Sequence[Copied], damaged: Sequence[bytes]) -> Sequence[Copied]:
    """Return the items that are whole: not those whose payloads are damaged there."""
    return [copied for copied in items if copied.id not in damaged] if damaged else items


def install_items(target: Place, queue: str, items: Sequence[Copied], moments: Moments = NOW) -> Operation[None]:
    """Apply items as they were read on another server.  Raises ``PlaceFailed``."""
    if items:
        rows = [(*copied[:-1], copied.payload or b"") for copied in items]
        yield from target.ask(Apply(queue, rows, whole=True, clock=moments.target))


def _count(bundles: Iterable[Copied]) -> int:
    """Count items; a tombstone counts as one."""
    return sum(max(1, len(states_of(copied.record).translate(None, b"XF"))) for copied in bundles)


class QueueCopy:
    """The copy of one queue from one life of its source; it continues where it stopped."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._moments: Moments | None = None
        self._cursor = START
        self.copied = 0
        """Items copied so far."""
        self.damaged: set[bytes] = set()
        """Ids of what the source cannot read of the queue, and what is therefore not copied."""
        self.done = False
        """Whether everything that the source held at the beginning is copied."""

    def go_on(self, source: Place, target: Place, copied: Callable[[int], Operation[None]]) -> Operation[None]:
        """Copy all that ``source`` knows of the queue to ``target``, tombstones included.

        ``copied`` is called with the number of items of each page.  Items that ``source`` holds during the whole copy
        are copied; items that arrive meanwhile need not be.  Memory: one page.  Raises ``PlaceFailed``: call it again
        with the same life of both, possibly under a newer view.
        """
        if self._moments is None:
            self._moments = yield from _copy_standing(source, target, self._queue)
        moments = self._moments
        while not self.done:
            page = yield from source.ask(Page(self._queue, self._cursor, PAGE_ITEMS, moments.source))
            cursor, items, beyond = page.cursor, without(page.items, page.damaged), page.beyond
            self.damaged.update(page.damaged)
            yield from self.install(target, items, moments)
            count = _count(items) + (yield from copy_items(source, target, self._queue, beyond, moments))
            self._cursor, self.done = cursor, cursor == START
            self.copied += count
            yield from copied(count)

    def install(self, target: Place, items: Sequence[Copied], moments: Moments) -> Operation[None]:
        """Apply the items of one page on ``target``.  Raises ``PlaceFailed``."""
        yield from install_items(target, self._queue, items, moments)


def _copy_standing(source: Place, target: Place, queue: str) -> Operation[Moments]:
    """Copy what is known of a queue besides its items.  Return the moments from which the items' times count."""
    cursor, moments = START, None
    while moments is None or cursor != START:
        cursor, _, there, floor_ms, begun, limits, owners = yield from source.ask(Metadata(queue, cursor))
        here = yield from target.ask(Install(queue, floor_ms, owners, begun, limits))
        moments = moments or Moments(there, here)
    yield from source.each_page(Aside(queue), partial(_copy_aside, source, target, queue))
    return moments


def _copy_aside(source: Place, target: Place, queue: str, page: AsidePage) -> Operation[None]:
    """Copy what is set aside, one entry at a time, because each may be large."""
    for head in page.kept:
        for kept in (yield from source.ask(Aside(queue, items=[head.id]))).kept:
            yield from target.ask(SetAside(queue, 0, "", [kept]))


def queues_at(source: Place) -> Operation[list[str]]:
    """List the queues that a server knows.  Raises ``PlaceFailed``."""
    return texts_of((yield from source.names(Queues())))
