"""Drop payloads last: once every server of the view knows that their items are gone, in batches of their own.

A removal that also dropped the payload could lose it.  The ack of a primary that is being evicted reaches one follower.
The next primary does not know of it, claims the item again and refuses that ack.  The follower applies the later
record, but no longer has the payload.  Then the primary dies.  So a removed item keeps its payload until a completed
decision shows that every server knows of the removal, which costs one small call for many items.  Payloads left by a
client that dies before that call are dropped with the tombstones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from zkrq.base.errors import Closed
from zkrq.protocol.calls import Cut, Gone

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.replication.membership import Membership

CUT_SECONDS = 0.2
"""Seconds during which payloads to drop are gathered."""

CUT_MAX = 500
"""Greatest number of bundles concerned by one call."""

WAITING_MAX = 100_000
"""Bundles that may wait; further ones are left to the trimming of the tombstones."""


class Cutter:
    """Make servers drop payloads that are no longer needed.  A call that fails is not repeated."""

    def __init__(self, membership: Membership, tasks: Tasks) -> None:
        self._membership = membership
        self._tasks = tasks
        self._waiting: dict[str, dict[bytes, bytes]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, queue: str, items: Iterable[Gone]) -> None:
        """Gather items that every server of the view knows to be gone."""
        # Nothing is lost: trimming a tombstone drops the payload, too.  The cut only does it sooner.
        if self._count >= WAITING_MAX:
            return
        waiting = self._waiting.setdefault(queue, {})
        before = len(waiting)
        waiting.update(items)  # what is gone stays so: the last word about a bundle has the most
        self._count += len(waiting) - before
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CUT_SECONDS, self._start)

    def _start(self) -> None:
        with suppress(Closed):
            self._tasks.start(self.flush(), "drop payloads")

    async def flush(self) -> None:
        """Send the gathered ids now."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for queue, gone in waiting.items():
            items = [Gone(*each) for each in gone.items()]
            for start in range(0, len(items), CUT_MAX):
                view = self._membership.view
                # No answer is looked at.  A server that misses a cut keeps a payload that nobody will read until its
                # tombstone is trimmed.
                await self._membership.fleet.ask_in(view, view.receivers, Cut(queue, items[start : start + CUT_MAX]))
