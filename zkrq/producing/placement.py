"""Choose the shard of a push: of plain items the less busy one of two, of items with an identity the queue's home."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from zkrq.base.errors import ConfigError, Unavailable
from zkrq.coordination.coordinator import Coordinator
from zkrq.protocol import shards
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, ShardState
from zkrq.replication.replicas import Replicas

AVOID_SECONDS = 1.0
"""Seconds for which a shard that took no push is chosen only if there is no other."""

HOMES_KEPT = 10_000
"""Queues whose home is remembered."""


class Target:
    """A shard as pushes see it.  ``under_way``: items on the way to it."""

    __slots__ = ("_away", "avoided_until", "name", "replicas", "under_way")

    def __init__(self, name: ShardName, replicas: Replicas, away: Callable[[], str | None]) -> None:
        self.name: Final = name
        self.replicas: Final = replicas
        self.under_way = 0
        self.avoided_until = 0.0
        self._away = away

    def avoid(self) -> None:
        """Choose another one for a while: a push came back."""
        self.avoided_until = asyncio.get_running_loop().time() + AVOID_SECONDS

    def is_avoided(self, now: float) -> bool:
        return self.avoided_until > now or self._away() is not None


class Placement:
    """Know which shards take pushes, by the map as this client knows it.

    ``targets``: the shards that this client has opened.
    """

    def __init__(self, coordinator: Coordinator, refresh: Callable[[], Awaitable[object]]) -> None:
        """``refresh`` reads the map again, and so calls ``follow``."""
        self.refresh: Final = refresh
        self.targets: Final = dict[ShardName, Target]()
        self.map = ShardMap()
        self._coordinator = coordinator
        self._homes: dict[str, ShardName] = {}

    @property
    def first(self) -> Target:
        """The shard with which the namespace was founded."""
        return self.targets[FIRST]

    def follow(self, map: ShardMap) -> None:
        """Place by this map from now on."""
        self.map = map
        self._homes.clear()

    def choose(self, tried: Collection[ShardName] = ()) -> Target:
        """Choose a shard for plain items, not one of ``tried``.  Raises ``Unavailable`` if there is none."""
        targets = self.targets
        if len(self.map.shards) == 1:
            return targets[FIRST]
        usable = [targets[name] for name in self.map.open if name in targets and name not in tried]
        if not usable:
            raise Unavailable(f"no shard takes pushes now; the open ones: {', '.join(self.map.open)}")
        now = asyncio.get_running_loop().time()
        well = [target for target in usable if not target.is_avoided(now)]
        return shards.choose(well or usable, _load, random.randrange)

    def ending(self, target: Target) -> str:
        """Return what the ids of plain items end with that are placed there."""
        return shards.ending(target.name) if self.map.number else ""

    def has_other(self, tried: Collection[ShardName]) -> bool:
        """Tell whether a plain push could go to a shard that is not one of ``tried``."""
        return any(name in self.targets and name not in tried for name in self.map.open)

    async def find(self, queue: str, id: str) -> Target:
        """Return the shard for an id that the caller gave: the one that it names, or the queue's home.

        Raises ``Unavailable``, ``ConfigError`` for an id of a shard that no longer exists.
        """
        name = shards.shard_of(id)
        if name is None:
            return await self.home(queue)
        if name not in self.map.shards:
            await self.refresh()
        if name not in self.map.shards:
            raise ConfigError(
                f"id {id!r} was made for shard {name}, which was removed when nothing was left in it: the item is "
                "done, or was never pushed"
            )
        if self.map.shards[name].state is ShardState.CLOSED:
            raise Unavailable(
                f"shard {name}, for which id {id!r} was made, is being removed; nothing was written, retry"
            )
        return self._target(name)

    async def home(self, queue: str) -> Target:
        """Return the shard of this queue's items that have an identity, chosen at the first one for good.

        Raises ``Unavailable``, also if ZooKeeper does not answer.
        """
        if self.map.number == 0:
            return self.targets[FIRST]
        name = self._homes.get(queue)
        if name is None:
            name = await self._read_home(queue)
        return self._target(name)

    def _target(self, name: ShardName) -> Target:
        if name not in self.targets:
            raise Unavailable(f"shard {name} is away; nothing was written, retry later")
        return self.targets[name]

    async def _read_home(self, queue: str) -> ShardName:
        while True:
            map = self.map
            chosen = map.shards[shards.home(queue, map.open)].register
            register = await write_home(self._coordinator, queue, chosen)
            name = map.shard_with(register)
            if name is not None and map.shards[name].state is not ShardState.CLOSED:
                break
            await self.refresh()
            name = self.map.shard_with(register)
            if name is None:
                await forget_home(self._coordinator, queue, register)  # nothing of the queue was left there
            elif self.map.shards[name].state is ShardState.CLOSED:
                text = f"shard {name}, the home of queue {queue!r}, is being removed; nothing was written, retry later"
                raise Unavailable(text)
        if map is self.map:
            if len(self._homes) >= HOMES_KEPT:
                self._homes.clear()
            self._homes[queue] = name
        return name


def _load(target: Target) -> int:
    return target.under_way


def register_of(queue: str) -> str:
    """Return the register that names a queue's home."""
    return f"homes/{queue}"


async def read_home(coordinator: Coordinator, queue: str) -> tuple[str | None, int]:
    """Return a queue's home and the version of its register; None if it has none.  Raises ``Unavailable``.

    A home is named by the register of its view, which no other shard will have, even one of the same name.
    """
    data, version = (found := await coordinator.read(register_of(queue))).data, found.version
    return (data.decode().partition(" ")[0] or None if data else None), version


async def write_home(coordinator: Coordinator, queue: str, register: str) -> str:
    """Give a queue a home unless it has one; return the one that it has.  Raises ``Unavailable``."""
    while True:
        known, version = await read_home(coordinator, queue)
        if known is not None:
            return known
        await coordinator.swap(register_of(queue), f"{register} {secrets.token_hex(4)}".encode(), version)


async def forget_home(coordinator: Coordinator, queue: str, register: str) -> None:
    """Let the queue choose a home anew, if this shard was it.  Raises ``Unavailable``."""
    while True:
        known, version = await read_home(coordinator, queue)
        if known != register:
            return
        await coordinator.swap(register_of(queue), f" {secrets.token_hex(4)}".encode(), version)
