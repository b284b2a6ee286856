"""The shards of a world: which servers each has, what the ensemble knows of them, and what they have lost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tests.simulation.ensemble import SimHub
from tests.simulation.servers import ProcessState, SimServer
from zkrq.client.shards import MAP
from zkrq.protocol.shards import FIRST, Entry, ShardMap, ShardName, ShardState
from zkrq.protocol.shards import decode as decode_map
from zkrq.protocol.view import Life, NoView, ServerId, View, decode

SECOND: Final = ShardName("b")
"""The shard that comes and goes."""

NAMES: Final = ("r", "s", "t")
"""What its servers are called."""


class Plan(NamedTuple):
    """What becomes of a second shard in a seed."""

    servers: int
    min_replicas: int
    given: bool
    """Whether clients are given its servers, so that it is there from the start; otherwise an operator adds it."""
    leaves: bool
    """Whether it is drained and removed in the end, after all that must be waited for."""


def draw(chance: random.Random, min_replicas: int) -> Plan:
    """A second shard; ``min_replicas``: what clients are told of the first one, and of those that they are given."""
    servers = chance.choices((2, 3), (1, 3))[0]
    own = chance.choices((1, 2), (1, 5))[0]
    given, leaves = chance.random() < 0.5, chance.random() < 0.3
    return Plan(max(servers, min_replicas), min_replicas, given, leaves) if given else Plan(servers, own, given, leaves)


def map_of(hub: SimHub) -> ShardMap:
    """The shard map as the hub has it."""
    return decode_map(hub.read(MAP).data)


class SimShard:
    """One shard.  ``view`` is None while it is in no map, or is not founded."""

    def __init__(
        self, name: ShardName, names: Sequence[str], hub: SimHub, servers: Mapping[str, SimServer], min_replicas: int
    ) -> None:
        """``servers``: all of the world."""
        self.name = name
        self.names = names
        """Servers that it is founded with."""
        self.min_replicas = min_replicas
        self._hub = hub
        self._servers = servers
        self._harmed: dict[str, str] = {}

    @property
    def entry(self) -> Entry | None:
        """What the map says of it."""
        return map_of(self._hub).shards.get(self.name)

    @property
    def state(self) -> ShardState | None:
        return self.entry and self.entry.state

    @property
    def view(self) -> View | None:
        """The view as the hub has it."""
        try:
            view = self._read()
        except NoView:
            if self.name == FIRST:
                raise
            return None
        return None if view is None or view.epoch == 0 else view

    @property
    def has_ended(self) -> bool:
        """Whether the map still names it, though it was removed as far as its view."""
        try:
            self._read()
        except NoView:
            return True
        return False

    def _read(self) -> View | None:
        """Raises ``NoView`` if it has ended."""
        data = None if (entry := self.entry) is None else self._hub.read(entry.register).data
        return None if data is None else decode(data)

    def harm(self, server: str) -> None:
        """This server loses data now."""
        life = self.life_of(server)
        self._harmed[server] = life.generation if life else ""

    def life_of(self, server: str) -> Life | None:
        """The life in which the view knows a server, None: in none."""
        return view.receivers.get(ServerId(server)) if (view := self.view) else None

    def unharm(self, server: str) -> None:
        """It did not lose data after all."""
        self._harmed.pop(server, None)

    @property
    def harmed(self) -> set[str]:
        """Servers that have lost data and have not been believed again since."""
        view = self.view
        assert view is not None
        for server, generation in list(self._harmed.items()):
            member = view.members.get(ServerId(server))
            if member is not None and member.generation != generation:
                del self._harmed[server]
        return set(self._harmed)

    def living_members(self) -> list[str]:
        """Members that are in the life that the view names."""
        view = self.view
        if view is None:
            return []
        return [
            id
            for id, life in view.members.items()
            if self._servers[id].redis.run_id == life.run_id and self._servers[id].status is not ProcessState.DOWN
        ]

    @property
    def is_whole(self) -> bool:
        """Whether all servers are in sync, in the lives that they are in."""
        return self.view is not None and sorted(self.living_members()) == sorted(self.view.servers)

    @property
    def evictions(self) -> int:
        """How many servers have left the view that were in sync; nobody asked for it."""
        if (entry := self.entry) is None:
            return 0
        views = [decode(found.data).members for found in self._hub.history[entry.register] if found.data]
        return sum(len(before.keys() - after.keys()) for before, after in itertools.pairwise(views))
