"""What operators do: servers join and leave, and the servers that are left are gone on with."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.faults.clients import some_client
from tests.simulation.world import CALL_LIMIT, World
from zkrq.client.cluster import Cluster

JOIN_SECONDS = 400.0
"""Within this a server that is added is in sync, whatever goes wrong meanwhile."""


def _call(
    world: World, chance: random.Random, kind: str, limit: float, call: Callable[[Cluster], Coroutine[Any, Any, Any]]
) -> None:
    """Have an operator's call made by some client."""
    client = some_client(world, chance)
    if client is not None and client.cluster is not None:
        world.trace.count(kind, client.name)
        cluster = client.cluster

        async def make() -> None:
            await client.do(kind, call(cluster), limit)

        client.start(make(), kind)


async def recover(world: World, chance: random.Random) -> None:
    """An operator is impatient: go on with all servers, though there is seldom any need."""
    if world.view is not None:
        names = sorted(world.view.servers)
        _call(world, chance, "recover", CALL_LIMIT, lambda cluster: cluster.recover(names))


async def add_server(world: World, chance: random.Random) -> None:
    """One more server joins."""
    if name := world.add_server():
        _call(
            world, chance, "add server", JOIN_SECONDS, lambda cluster: cluster.add_server(f"redis://{name}", name=name)
        )


async def remove_server(world: World, chance: random.Random) -> None:
    """A server leaves for good, while all are in sync."""
    view = world.view
    first = world.first
    if view is None or not world.is_whole or first.harmed or len(view.servers) <= max(2, first.min_replicas):
        return
    name = chance.choice(sorted(view.servers))
    _call(world, chance, "remove server", CALL_LIMIT, lambda cluster: cluster.remove_server(name))
