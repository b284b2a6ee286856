"""Fences consumers that have died, so that what they held is ready again at once.

Every client watches the registry.  The one that leads the election acts at once, the others a little later on what is
left, so nothing depends on there being a leader, or only one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from zkrq.coordination.coordinator import Coordinator
from zkrq.errors import Closed, Unavailable, ZkrqError
from zkrq.events import Events, OwnerFenced
from zkrq.protocol import calls
from zkrq.replication.replicas import Replicas

T = TypeVar("T")

INTERVAL_SECONDS = 10.0
"""Between looks for orphans while nothing is heard of a death."""

FOLLOWER_SECONDS = (0.3, 0.8)
"""How much later than the leader the others look."""

EVERYWHERE_LOOKS = 6
"""The first look of a client asks every server, not the primaries alone, and so does each that many looks later."""

QUEUES_AT_ONCE = 8
"""Queues that are read, or fenced in, together."""


class Reaper:
    """Finds the claims of dead owners and gives them back to their queues."""

    def __init__(self, coordinator: Coordinator, replicas: Replicas, *, cluster: str, events: Events) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._cluster = cluster
        self._events = events
        self._alarm = asyncio.Event()
        self._looks = 0
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.repair.fencing"), {"cluster": cluster})

    def look(self) -> None:
        """Look for orphans now: somebody may have died."""
        self._alarm.set()

    async def run(self) -> None:
        """Look whenever called, and now and then."""
        while True:
            self._alarm.clear()
            try:
                await self.reap()
            except ZkrqError as error:
                self._log.info("could not look for orphans, trying again later: %s", error)
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._alarm.wait()
            except TimeoutError:
                continue
            if not self._coordinator.leading:
                await asyncio.sleep(random.uniform(*FOLLOWER_SECONDS))  # noqa: S311

    async def reap(self) -> None:
        """One look at every queue.  The owners in Redis are read first, then the registry: a newcomer that enrolled
        in between is in it, and keeps its claims.

        A queue that fails keeps its orphans until the next look; the others are dealt with.  Raises ``Unavailable``
        when any queue failed, after the last one.
        """
        # Also a look at every server: an idle client learns of a dead one, or that its view is old.
        await self._replicas.tell_all(calls.Seal())
        # A queue that never had an item is known to its own primary alone.
        everywhere = self._looks % EVERYWHERE_LOOKS == 0
        self._looks += 1
        queues = await self._replicas.names(calls.Queues(), everywhere=everywhere)
        owners: dict[str, list[str]] = {}
        troubles: dict[str, ZkrqError] = {}
        for queue, found in await _each(queues, partial(self._owners, everywhere=everywhere)):
            if isinstance(found, ZkrqError):
                troubles[queue] = found
            elif found:
                owners[queue] = found
        if owners:
            alive = await self._coordinator.consumers()
            if any(owner not in alive for owning in owners.values() for owner in owning):
                alive = await self._coordinator.consumers(proved=True)  # before anybody is declared dead
            orphaned = {queue: [each for each in owning if each not in alive] for queue, owning in owners.items()}
            ended = await _each(orphaned, lambda queue: self._fence(queue, orphaned[queue]))
            troubles |= {queue: error for queue, error in ended if error}
        if troubles:
            named = "; ".join(f"{queue!r}: {error}" for queue, error in troubles.items())
            raise Unavailable(f"claims of dead consumers may be left in {len(troubles)} queue(s): {named}")

    async def _owners(self, queue: str, *, everywhere: bool) -> list[str]:
        """Those that claimed.  One whose late claim was applied after its fence is known to followers alone."""
        return await self._replicas.names(calls.Owners(queue), everywhere=everywhere)

    async def _fence(self, queue: str, owners: Sequence[str]) -> None:
        for owner in owners:
            items = await self._replicas.fence(queue, owner)
            self._events.tell(OwnerFenced(self._cluster, queue, owner, items))


async def _each(queues: Collection[str], act: Callable[[str], Awaitable[T]]) -> list[tuple[str, T | ZkrqError]]:
    """``act`` on every queue, some at once; its result by queue, or the error that it raised."""

    async def one(queue: str) -> T | ZkrqError:
        try:
            return await act(queue)
        except Closed:
            raise
        except ZkrqError as error:
            return error

    names, results = list(queues), list[tuple[str, T | ZkrqError]]()
    for start in range(0, len(names), QUEUES_AT_ONCE):
        some = names[start : start + QUEUES_AT_ONCE]
        results += zip(some, await asyncio.gather(*map(one, some)), strict=True)
    return results
