"""Read which items have failed: the dead letters of one queue, and those of all queues with what waits for a retry."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from zkrq.base.errors import ConfigError, ZkrqError
from zkrq.serve.letters import Failed

if TYPE_CHECKING:
    from zkrq.client.inspection import Sizes
    from zkrq.client.queue import Queue
    from zkrq.serve.queues import Queues

ITEMS_MOST = 500
"""Items on the page of a queue if more are asked for; dead letters that are sorted into groups."""

FIRST = "first"
"""Stands in an address for the cursor of the first page."""

READ_MAX = 2_500
"""Items of all queues that the page of failures shows; dead and scheduled ones of each queue have even shares of it."""

SHARE_LEAST = 50
"""Items of each that are read at least, however many queues there are."""

READ_SECONDS = 5.0
"""Seconds for which queues are read; what is known by then is shown."""

READ_AT_ONCE = 5
"""Queues that are read at the same time."""

Kind = Literal["dead", "waiting"]
"""What became of items that failed: dead letters, and those that wait for their next attempt."""

KINDS: Mapping[str, Kind] = {kind: kind for kind in get_args(Kind)}


class Letters(NamedTuple):
    """Dead letters, the oldest first.  ``next``: where further ones begin, None if these were the last."""

    failed: Sequence[Failed]
    next: str | None


class Reading(NamedTuple):
    """Items that failed.  ``parts``: of what only a part was read, a sentence for each queue; ``trouble``: why some
    could not be read, empty: all could."""

    failed: Sequence[Failed]
    parts: Sequence[str]
    trouble: str = ""


async def read_letters(queue: Queue[bytes], error: str = "", after: str = "") -> Letters:
    """Read the oldest ``ITEMS_MOST`` dead letters.

    ``error``: only those whose reason contains this text.  ``after``: where a page begins, ``FIRST`` for the first one;
    empty: there are no further pages, which costs the servers one call.  Raises ``Unavailable``.
    """
    if not error and not after:
        return Letters([Failed(queue.name, each) for each in await queue.dead_letters(ITEMS_MOST)], None)
    search = partial(queue.find_page, state="dead", error=error or None, limit=ITEMS_MOST)
    try:
        page = await search(after=None if after in ("", FIRST) else after)
    except ConfigError:  # the address has no cursor, or a text that no reason contains
        return Letters((), None)
    return Letters([Failed(queue.name, each) for each in page.items], page.next)


async def read_failed(queues: Queues, sizes: Mapping[str, Sizes], kind: Kind | None = None, error: str = "") -> Reading:
    """Read the failed items of these queues, at most ``READ_MAX``, for at most ``READ_SECONDS``.

    ``kind``: only those, None: both.  ``error``: only those whose reason contains this text.  A queue that cannot be
    read is left out, and the others are read nevertheless.
    """
    wanted = {name: _of_kind(size, kind) for name, size in sorted(sizes.items())}
    wanted = {name: size for name, size in wanted.items() if size.dead or size.scheduled}
    sources = sum((size.dead > 0) + (size.scheduled > 0) for size in wanted.values())
    share = max(SHARE_LEAST, READ_MAX // max(1, sources))
    found: dict[str, Reading] = {}
    room = asyncio.Semaphore(READ_AT_ONCE)

    async def read(name: str) -> None:
        async with room:
            try:
                found[name] = await _read_queue(queues[name], wanted[name], share, error)
            except ZkrqError as problem:
                found[name] = Reading((), (), str(problem))

    late = ""
    try:
        async with asyncio.timeout(READ_SECONDS):
            await asyncio.gather(*map(read, wanted))
    except TimeoutError:
        late = "The servers did not answer in time: not every queue was read."
    known = [found[name] for name in wanted if name in found]
    failed = [each for reading in known for each in reading.failed]
    parts = [part for reading in known for part in reading.parts]
    if len(failed) > READ_MAX:
        parts.append(f"of all that was found the first {READ_MAX:,}, by the names of their queues")
    trouble = next((reading.trouble for reading in known if reading.trouble), late)
    return Reading(failed[:READ_MAX], parts, trouble)


def _of_kind(sizes: Sizes, kind: Kind | None) -> Sizes:
    """Count only what is wanted."""
    dead, scheduled = sizes.dead * (kind != "waiting"), sizes.scheduled * (kind != "dead")
    return sizes._replace(dead=dead, scheduled=scheduled)


async def _read_queue(queue: Queue[bytes], sizes: Sizes, share: int, error: str) -> Reading:
    """Read a share of one queue.  Raises ``Unavailable``."""
    failed: list[Failed] = []
    parts: list[str] = []
    if sizes.dead:
        dead, whole = await _read_dead(queue, sizes.dead, share, error)
        failed += dead
        if not whole:
            parts.append(f"{queue.name}: {len(dead):,} of {sizes.dead:,} dead letters, the oldest")
    if sizes.scheduled:
        most = min(share, ITEMS_MOST)
        scheduled = await queue.peek(most, "scheduled")
        wanted = error.casefold()
        waiting = (each for each in scheduled if each.failures and wanted in (each.reason or "").casefold())
        failed += [Failed(queue.name, each) for each in waiting]
        if len(scheduled) < sizes.scheduled:
            parts.append(
                f"{queue.name}: of {sizes.scheduled:,} scheduled items, of which none need have failed, the "
                f"{len(scheduled):,} that are due first"
            )
    return Reading(failed, parts)


async def _read_dead(queue: Queue[bytes], count: int, share: int, error: str) -> tuple[list[Failed], bool]:
    """Read the oldest dead letters, page by page if there are many; return whether these are all.

    Raises ``Unavailable``.
    """
    page = await read_letters(queue, error, "" if count <= min(ITEMS_MOST, share) else FIRST)
    failed = [*page.failed]
    while page.next and len(failed) < share:
        page = await read_letters(queue, error, page.next)
        failed += page.failed
    return failed[:share], page.next is None and len(failed) <= share
