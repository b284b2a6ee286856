"""Say which losses of data zkrq promises to survive: ``may_harm`` is the one place."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from importlib.util import find_spec

from tests.simulation.servers import ProcessState
from tests.simulation.sharding import SimShard
from tests.simulation.world import World
from zkrq.protocol.view import View

REPAIR = find_spec("zkrq.repair") is not None
"""Whether zkrq lets servers in again, and goes on after all have restarted with their data."""

Fault = Callable[[World, random.Random], Awaitable[None]]

HALF = 0.5


def may_harm(world: World, server: str, *, loses_data: bool) -> bool:
    """Whether the promise covers that this server ends its life now.

    *Durability*: any ``min_replicas - 1`` servers may lose everything.  One that has lost its data counts until it is
    believed again, or is out of the view and no longer vouched for (eligible).  And whatever is promised, one member
    must keep it: what is decided while the view is down to one member is nowhere else.

    *Availability*, for a zkrq without recovery: one member must stay in the life that the view knows.

    All of this holds for each shard by itself.
    """
    shard = world.shard_of(server)
    view = shard.view
    if view is None:
        return False
    whole = [id for id in view.members if id not in shard.harmed and id != server]
    living = [id for id in shard.living_members() if id != server]
    if not REPAIR and not living:
        return False
    if not loses_data:
        return True
    if not whole or (server in view.members and len(whole) < 2 and not all(_is_well(world, id) for id in whole)):
        return False
    return not _counts(shard, view, server)


def _counts(shard: SimShard, view: View, server: str) -> bool:
    """Whether as many servers have lost data already as may."""
    vouched = {*view.members, *view.eligible}
    return len([id for id in shard.harmed if id in vouched and id != server]) >= shard.min_replicas - 1


def _is_well(world: World, server: str) -> bool:
    """Whether nobody has a reason to evict this server."""
    paths = [world.network.path(client.name, server) for client in world.clients]
    return world.servers[server].status is ProcessState.UP and not any(path.cut or path.slow for path in paths)
