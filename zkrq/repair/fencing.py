"""Fence consumers that have died, so that their items are ready again immediately.

Every client watches the registry.  The leader acts immediately, a few of the others a little later on what is left, so
correctness does not depend on having a leader, or only one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from zkrq.base.errors import Closed, Unavailable, ZkrqError
from zkrq.base.events import Events, OwnerFenced
from zkrq.base.tasks import Rounds
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.replication.replicas import Replicas

T = TypeVar("T")

INTERVAL_SECONDS = 10.0
"""Seconds between two looks of the leader for orphans if no death is reported."""

FOLLOWERS = 5
"""Other clients that look as often as the leader.  If there are more, they share these looks, as far as ``MAX_STRETCH``
lets them, so that what all clients together ask does not grow with the square of their number."""

MAX_STRETCH = 60.0
"""Times the interval after which each client looks at least, however many there are."""

FOLLOWER_SECONDS = (0.3, 0.8)
"""Least and greatest delay, in seconds, of the other clients' looks after the leader's."""

EVERYWHERE_LOOKS = 6
"""Every this many looks, starting with the first, one asks every server, not only the primaries."""

QUEUES_AT_ONCE = 8
"""Queues that are read or fenced concurrently."""


class Reaper:
    """Find the claims of dead owners and give them back to their queues."""

    def __init__(self, coordinator: Coordinator, replicas: Replicas, *, cluster: str, events: Events) -> None:
        self._coordinator = coordinator
        self._replicas = replicas
        self._cluster = cluster
        self._events = events
        self._looks = 0
        self._has_begun = False
        self._rounds = Rounds(self._try_to_reap, seconds=INTERVAL_SECONDS, stretched=self._stretched, delay=self._delay)
        self.run = self._rounds.run
        """Look for orphans until cancelled."""
        self._log = logging.LoggerAdapter(logging.getLogger("zkrq.repair.fencing"), {"cluster": cluster})

    def look(self) -> None:
        """Look for orphans soon, because a consumer may have died; or leave that to others, if these are many."""
        if self._is_drawn():
            self._rounds.call()

    def _is_drawn(self) -> bool:
        share = self._share
        return share == 1 or random.random() < share  # noqa: S311

    @property
    def _share(self) -> float:
        """This client's part of the looks: 1 means all."""
        others = self._coordinator.enrolled - 1
        return 1.0 if self._coordinator.leading or others <= FOLLOWERS else FOLLOWERS / others

    def _stretched(self) -> float:
        return min(1 / self._share, MAX_STRETCH)

    def _delay(self) -> float:
        return 0.0 if self._coordinator.leading else random.uniform(*FOLLOWER_SECONDS)  # noqa: S311

    async def _try_to_reap(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            if not self._is_drawn():  # many that are started together do not all look
                return
        try:
            await self.reap()
        except ZkrqError as error:
            self._log.info("could not look for orphans, retrying later: %s", error)

    async def reap(self) -> None:
        """Look at every queue once.  The owners in Redis are read first, then the registry: a consumer that enrolls in
        between is in the registry, and keeps its claims.

        A queue that fails keeps its orphans until the next look; the others are processed.  Raises ``Unavailable``
        after the last queue if any failed.
        """
        # A queue that never had an item is known only to its own primary.
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
            alive = await self._coordinator.alive()
            if any(owner not in alive for owning in owners.values() for owner in owning):
                alive = await self._coordinator.alive(proved=True)  # before any owner is declared dead
            orphaned = {queue: [each for each in owning if each not in alive] for queue, owning in owners.items()}
            ended = await _each(orphaned, lambda queue: self._fence(queue, orphaned[queue]))
            troubles |= {queue: error for queue, error in ended if error}
        if troubles:
            named = "; ".join(f"{queue!r}: {error}" for queue, error in troubles.items())
            raise Unavailable(f"claims of dead consumers may be left in {len(troubles)} queue(s): {named}")

    async def _owners(self, queue: str, *, everywhere: bool) -> list[str]:
        """Return the owners that claimed.  An owner whose late claim was applied after its fence is known only to
        followers."""
        return await self._replicas.names(calls.Owners(queue), everywhere=everywhere)

    async def _fence(self, queue: str, owners: Sequence[str]) -> None:
        for owner in owners:
            items = await self._replicas.fence(queue, owner)
            self._events.tell(OwnerFenced(self._cluster, queue, owner, items))


async def _each(queues: Collection[str], act: Callable[[str], Awaitable[T]]) -> list[tuple[str, T | ZkrqError]]:
    """Call ``act`` for every queue, several at a time; return its result by queue, or the error it raised."""

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
