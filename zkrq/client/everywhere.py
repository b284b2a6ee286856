"""Do something on every shard on which items of a queue may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from zkrq.base.errors import Changes, Closed, OutcomeUnknown, Unavailable
from zkrq.protocol.shards import renewed, shard_of

if TYPE_CHECKING:
    from zkrq.client.shard import Shard
    from zkrq.client.shards import Shards
    from zkrq.replication.replicas import Replicas

R = TypeVar("R")
S = TypeVar("S")

AGREE_TRIES = 10
"""Times that the shards follow the one that leads a setting of a queue while others change it."""


class Everywhere:
    """Find the shards for calls that concern all of them, even if this client has not heard of each yet.

    A shard takes pushes only after the servers of the first one were told, with a new epoch, that there is another map
    (``View.map_number``).  So a call there that began later has this client read the newer view, and then the map:
    after each round it looks whether there are further shards.  That costs ZooKeeper nothing while the shards stay as
    they are.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards: Final = shards

    async def further(self, known: set[Shard], ids: Sequence[str] = ()) -> Sequence[Shard]:
        """Return the shards that are not in ``known`` yet, and add them.

        ``ids``: of the items in question; some of them may name shards of which this client has not heard.
        Raises ``Unavailable`` if a shard is away.
        """
        if {shard_of(id) for id in ids} - {None} - self.shards.map.shards.keys():
            await self.shards.refresh()
        found = [shard for shard in await self.shards.all_used() if shard not in known]
        known.update(found)
        return found

    @staticmethod
    def may_have(shard: Shard, id: str) -> bool:
        """Tell whether an item of this id may be on a shard: unless the id names another one."""
        return shard_of(id) in (None, shard.name)

    async def came_to(self, queue: str, ids: Iterable[str]) -> Shard | None:
        """Return the shard to ask for what was not found where its id says: the home of the queue, to which it may have
        come (``homing.py``); None if none of the ids names another one.

        Ask the others first, since an item is at home before it is gone there.  Raises ``Unavailable``.
        """
        named = {shard_of(id) for id in ids} - {None}
        if not named:
            return None
        home = await self.shards.home(queue)
        return None if named == {home.name} else home

    @asynccontextmanager
    async def unless_removed(self, shard: Shard) -> AsyncGenerator[None]:
        """Ignore that calls to a shard fail, if it was removed: nothing was left in it."""
        try:
            yield
        except (OutcomeUnknown, Unavailable) as error:
            # Closed meanwhile: that nothing more can be asked must not hide that the call may have had an effect.
            try:
                is_left = await self.shards.is_left(shard)
            except Closed:
                raise error from None
            if not is_left:
                raise

    async def on(self, shard: Shard, act: Callable[[Replicas], Awaitable[R]]) -> R | None:
        """Do something on one shard; return None if it was removed.  Raises what ``act`` does."""
        async with self.unless_removed(shard):
            return await act(shard.replicas)
        return None

    async def agree(
        self,
        leader: Shard,
        wanted: S,
        write: Callable[[S, Replicas], Awaitable[object]],
        read: Callable[[Replicas], Awaitable[S]],
        changes: Changes,
    ) -> None:
        """Write a setting of a queue on all shards: on ``leader``, which the others follow, even if another client has
        changed it there meanwhile.

        A new shard takes no pushes yet, and gets the settings of the first one: again if the map has changed meanwhile.
        Raises what ``write`` and ``read`` do, and ``OutcomeUnknown``.
        """
        shards, first = self.shards, self.shards.first
        await write(wanted, leader.replicas)
        changes.made = 1
        for _ in range(AGREE_TRIES):
            if leader is not first:
                await write(wanted, first.replicas)
            await shards.all_used()
            if any(entry.is_new for entry in shards.map.shards.values()):
                await shards.change(renewed)
            await self.each(partial(write, wanted), {leader, first})
            if len(shards.map.used) == 1:
                return
            now = await read(leader.replicas)
            if now == wanted:
                return
            wanted = now
        raise OutcomeUnknown("others change the same setting of the queue all the time; repeat")

    async def each(self, act: Callable[[Replicas], Awaitable[R]], known: set[Shard] | None = None) -> Sequence[R]:
        """Do something on all shards concurrently, except those in ``known``; return the results.

        Returns when all calls have ended.  Raises ``Unavailable`` if a shard is away, and what ``act`` does: of several
        errors one that says that something may have happened.
        """
        results: list[R] = []
        known = set() if known is None else known
        while shards := await self.further(known):
            if len(shards) == 1:
                ended: Sequence[R | BaseException | None] = [await self.on(shards[0], act)]
            else:
                ended = await asyncio.gather(*(self.on(shard, act) for shard in shards), return_exceptions=True)
            errors = [error for error in ended if isinstance(error, BaseException)]
            for error in sorted(errors, key=lambda error: not isinstance(error, OutcomeUnknown)):
                raise error
            results += [result for result in ended if result is not None and not isinstance(result, BaseException)]
        return results
