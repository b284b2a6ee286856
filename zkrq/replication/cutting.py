"""Drop payloads last: once every server of the view knows that their items are gone.

A removal that also dropped the payload could lose it.  The ack of a primary that is being evicted reaches one follower.
The next primary does not know of it, claims the item again and refuses that ack.  The follower applies the later
record, but no longer has the payload.  Then the primary dies.  So a removed item keeps its payload until a completed
decision shows that every server knows of the removal.

What is to be dropped rides along with the next call to each server that takes it (``calls.Carrying``), so a queue in
use pays no call for it.  It leaves by itself after ``CUT_SECONDS``, or when it has become much.  A call that fails is
not repeated: payloads that it left, or a client that has died, are dropped with the tombstones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from zkrq.base.errors import Closed
from zkrq.protocol.calls import Carrying, Cut, Gone, pack_gone

if TYPE_CHECKING:
    from zkrq.base.tasks import Tasks
    from zkrq.protocol.view import ServerId
    from zkrq.replication.membership import Membership

C = TypeVar("C", bound=Carrying[Any])

CUT_SECONDS = 10.0
"""Seconds after which payloads to drop leave in a call of their own, if no other call has taken them along."""

LARGE_CUT_SECONDS = 0.2
"""The same for large payloads, which would fill a server's memory meanwhile."""

CUT_MAX = 500
"""Bundles that ride along with one call, at most, and that one call of their own concerns; more of a queue leave
without waiting."""

PARTS_MAX = 30
"""Bundles of which one call of its own drops a part of the payloads, which takes a server 0.2 milliseconds each."""

WAITING_MAX = 300_000
"""Bundles that may wait, counted for each server; further ones are left to the trimming of the tombstones."""


class Cutter:
    """Make servers drop payloads that are no longer needed."""

    def __init__(self, membership: Membership, tasks: Tasks) -> None:
        self._membership = membership
        self._tasks = tasks
        # By server, because a turn goes to the primary alone, and its records to the others.
        self._waiting: dict[str, dict[ServerId, dict[bytes, bytes]]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when it fires; uvloop's handle of a timer without a delay cannot be asked

    def note(self, queue: str, items: Iterable[Gone]) -> None:
        """Gather items that every server of the view knows to be gone."""
        # Nothing is lost: trimming a tombstone drops the payload, too.  The cut only does it sooner.
        if self._count >= WAITING_MAX:
            return
        gone, by_server = dict(items), self._waiting.setdefault(queue, {})
        for server in self._membership.view.receivers:
            waiting = by_server.setdefault(server, {})
            before = len(waiting)
            waiting.update(gone)  # what is gone stays so: the last word about a bundle has the most
            self._count += len(waiting) - before
            if len(waiting) > CUT_MAX:
                self.hurry(0.0)
        if self._timer is None:
            self._start_timer(CUT_SECONDS)

    def load(self, call: C, servers: Iterable[ServerId]) -> C:
        """Return a call to these servers with what they are to drop."""
        by_server = self._waiting.get(call.queue)
        if not by_server:
            return call
        # One list for all of them: a server that has dropped a payload before finds nothing to do.
        gone: dict[bytes, bytes] = {}
        for server in servers:
            if len(by_server.get(server, ())) <= CUT_MAX:
                taken = by_server.pop(server, {})
                self._count -= len(taken)
                gone |= taken
        if not by_server:
            del self._waiting[call.queue]
        return call.with_cuts(pack_gone(gone.items())) if gone else call

    def hurry(self, seconds: float = LARGE_CUT_SECONDS) -> None:
        """Let what waits leave after this time at most."""
        if self._timer is None or self._due > asyncio.get_running_loop().time() + seconds:
            self._start_timer(seconds)

    def _start_timer(self, seconds: float) -> None:
        if self._timer:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._due = loop.time() + seconds
        self._timer = loop.call_at(self._due, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._waiting:
            with suppress(Closed):
                self._tasks.start(self.flush(), "drop payloads")

    async def flush(self) -> None:
        """Send the gathered ids now."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for queue, by_server in waiting.items():
            await self._cut(queue, by_server)

    def check_invariants(self) -> None:
        """Assert what holds between any two callbacks: what waits is counted.

        With a count that is too great nothing is gathered in the end, and every payload stays until its tombstone is
        trimmed; with one that is too small what waits grows without bound.
        """
        count = sum(len(gone) for by_server in self._waiting.values() for gone in by_server.values())
        assert self._count == count, f"{count} bundles wait, and {self._count} are counted"

    async def _cut(self, queue: str, by_server: Mapping[ServerId, Mapping[bytes, bytes]]) -> None:
        gone: dict[bytes, bytes] = {}
        for waiting in by_server.values():
            gone |= waiting
        for some in in_calls(gone):
            view = self._membership.view
            servers = [server for server in view.receivers if server in by_server]
            # No answer is looked at.  A server that misses a cut keeps a payload that nobody will read until its
            # tombstone is trimmed.
            await self._membership.fleet.ask_in(view, servers, Cut(queue, some))


def in_calls(gone: Mapping[bytes, bytes]) -> Iterator[Sequence[Gone]]:
    """Split what is to be dropped into what each call drops: whole bundles apart, because these are dropped quickly."""
    items = [Gone(*each) for each in gone.items()]
    whole, parts = [each for each in items if not each.positions], [each for each in items if each.positions]
    for some, most in ((whole, CUT_MAX), (parts, PARTS_MAX)):
        for start in range(0, len(some), most):
            yield some[start : start + most]
