"""Choose the shard of a push: of plain items the less busy one of two, of items with an identity the queue's home."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from zkrq.base.checks import check_feature
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.protocol import shards
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, ShardState

if TYPE_CHECKING:
    from zkrq.coordination.coordinator import Coordinator
    from zkrq.protocol.levels import AtLevel
    from zkrq.replication.replicas import Replicas

AVOID_SECONDS = 1.0
"""Seconds for which a shard that took no push is chosen only if there is no other."""

MAP = "shards"
"""Register of the shard map."""

LEARN_SECONDS = 1.0
"""Seconds that a claim request waits until ZooKeeper says where its queue is at home."""

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

    def __init__(
        self,
        coordinator: Coordinator,
        refresh: Callable[[], Awaitable[object]],
        open_unknown: Callable[[], Awaitable[object]],
    ) -> None:
        """``refresh`` reads the map again, and so calls ``follow``; ``open_unknown`` opens the shards of the map that
        this client has not tried to open yet."""
        self.refresh: Final = refresh
        self._open_unknown = open_unknown
        self.targets: Final = dict[ShardName, Target]()
        self.map = ShardMap()
        self._version = -1
        self._coordinator = coordinator
        self._homes: dict[str, ShardName] = {}

    @property
    def first(self) -> Target:
        """The shard with which the namespace was founded."""
        return self.targets[FIRST]

    def follow(self, map: ShardMap, version: int) -> None:
        """Place by this map from now on.  ``version``: of its register."""
        self.map, self._version = map, version
        self._homes.clear()

    def check(self, feature: AtLevel) -> None:
        """Raise ``ConfigError`` if the active level of a shard lacks a feature; nothing was written."""
        for target in self.targets.values():
            check_feature(feature, target.replicas.level)

    async def plain(self, queue: str, tried: Collection[ShardName]) -> Target:
        """Return the shard for plain items of a queue: its home if every item goes there, else one that is not in
        ``tried``.  Raises ``Unavailable``."""
        return await self.home(queue) if queue in self.map.homed else self.choose(tried)

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

    def has_other(self, queue: str, tried: Collection[ShardName]) -> bool:
        """Tell whether plain items of a queue could go to a shard that is not one of ``tried``."""
        return queue not in self.map.homed and any(name in self.targets and name not in tried for name in self.map.open)

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
        return await self._target(name)

    async def home(self, queue: str) -> Target:
        """Return the shard of this queue's items that have an identity.

        Raises ``Unavailable``, also if ZooKeeper does not answer.
        """
        return await self._target(self.known_home(queue) or await self._find_home(queue))

    def known_home(self, queue: str) -> ShardName | None:
        """Return the name of a queue's home as far as this client knows without asking, None if it does not."""
        return FIRST if len(self.map.shards) == 1 else self._homes.get(queue)

    async def learn_home(self, queue: str) -> None:
        """Have ``known_home`` know, unless ZooKeeper does not say in time."""
        if self.known_home(queue) is None:
            with suppress(ConfigError, Unavailable), anyio.move_on_after(LEARN_SECONDS):
                await self._find_home(queue)

    async def _target(self, name: ShardName) -> Target:
        if name not in self.targets:
            await self._open_unknown()
        if name not in self.targets:
            raise Unavailable(f"shard {name} is away; nothing was written, retry later")
        return self.targets[name]

    async def _find_home(self, queue: str) -> ShardName:
        """Return the registered home, or by the map; while the map is settling, that is registered first."""
        while True:
            map, given = self.map, (MAP, self._version)
            register, version = await read_home(self._coordinator, queue)
            name = map.shard_with(register) if register else None
            if (register and name is None) or (name and map.shards[name].state is ShardState.CLOSED):
                await self.refresh()
                if self.map is not map:
                    continue
                if name:
                    raise Unavailable(
                        f"shard {name}, the home of queue {queue!r}, is being removed; nothing was written, retry later"
                    )
            if name is None:  # none, or the former home was removed: nothing of the queue was left there
                name = shards.home(queue, map.hashed)
                if map.is_settling and not await write_home(
                    self._coordinator, queue, map.shards[name].register, version, given
                ):
                    await self.refresh()
                    continue
            if map is self.map:
                if len(self._homes) >= HOMES_KEPT:
                    self._homes.clear()
                self._homes[queue] = name
            return name


class Here:
    """One shard, as consumers of one queue see it."""

    def __init__(self, placement: Placement, queue: str, name: ShardName, away: Callable[[], str | None]) -> None:
        self._placement = placement
        self._queue = queue
        self._name = name
        self._away = away

    @property
    def away(self) -> str | None:
        """Why its servers cannot be asked now, None if they can."""
        return self._away()

    @property
    def is_home(self) -> bool | None:
        """Whether the queue is at home here, None if that is not known."""
        home = self._placement.known_home(self._queue)
        return None if home is None else home == self._name

    async def learn_home(self) -> None:
        """Find out whether it is, unless ZooKeeper does not say."""
        await self._placement.learn_home(self._queue)


def _load(target: Target) -> int:
    return target.under_way


def register_of(queue: str) -> str:
    """Return the register that names a queue's home."""
    return f"homes/{queue}"


async def read_home(coordinator: Coordinator, queue: str) -> tuple[str | None, int]:
    """Return a queue's home and the version of its register; None if it has none.  Raises ``Unavailable``,
    ``ConfigError`` if it cannot be read: the queue's ids and keys are in a shard that is not known then.

    A home is named by the register of its view, which no other shard will have, even one of the same name.
    """
    found = await coordinator.read(register := register_of(queue))
    if not found.data:
        return None, found.version
    if not (home := _HOME.match(found.data)):
        raise ConfigError(
            f"the home of queue {queue!r} cannot be read ({found.data[:80]!r}): write the register of its shard into "
            f"the znode `{register}`, from a backup of ZooKeeper; nothing was written"
        )
    return home[1].decode(), found.version


_HOME = re.compile(rb"(view|views/[\x21-\x7e]+)(?: |\Z)")
"""What is stored in the register of a home: the register of a view, and a nonce."""


async def write_home(coordinator: Coordinator, queue: str, register: str, version: int, given: tuple[str, int]) -> bool:
    """Give a queue a home whose register has this version.  Return whether it was done: not if the register, or that of
    the map (``given``), was written meanwhile.  Raises ``Unavailable``."""
    data = f"{register} {secrets.token_hex(4)}".encode()
    return await coordinator.swap(register_of(queue), data, version, given=given) is not None
