"""Trouble of one client's own: servers that no longer let it in."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.clients import some_client
from tests.simulation.wire import Path
from tests.simulation.world import World

WRONG_PASSWORD = "WRONGPASS invalid username-password pair or user is disabled."

NO_ROOM = "ERR max number of clients reached"

NO_RIGHT = "NOPERM User worker has no permissions to run the 'fcall' command"


def _some_paths(world: World, chance: random.Random) -> list[tuple[str, Path]]:
    """The ways of one client to one or two servers."""
    client = some_client(world, chance)
    if client is None:
        return []
    client.denied = True
    servers = chance.sample(list(world.servers), chance.choice((1, 1, 2)))
    return [(f"{client.name}-{server}", world.network.path(client.name, server)) for server in servers]


def _note_denied(world: World) -> None:
    """Note whether some server now keeps all clients out that are open: then its eviction is right."""
    names = [client.name for client in world.clients if client.is_alive and client.cluster is not None]
    for server in world.servers:
        paths = [world.network.path(name, server) for name in names]
        world.denies_all = world.denies_all or all(path.denies or path.forbids for path in paths)


async def password(world: World, chance: random.Random) -> None:
    """The password of a client for one or two servers is no longer right; its connections go on, or not."""
    paths = _some_paths(world, chance)
    for name, path in paths:
        world.trace.count("wrong password", name)
        path.denies = WRONG_PASSWORD
        _note_denied(world)
        if chance.random() < 0.7:
            for wire in tuple(path.wires):
                wire.shut("connection reset")
    await asyncio.sleep(chance.uniform(1.0, 15.0))
    for _, path in paths:
        path.denies = ""


async def permission(world: World, chance: random.Random) -> None:
    """A client may no longer run scripts on one or two servers."""
    paths = _some_paths(world, chance)
    for name, path in paths:
        world.trace.count("right taken away", name)
        path.forbids = NO_RIGHT
        _note_denied(world)
    await asyncio.sleep(chance.uniform(1.0, 15.0))
    for _, path in paths:
        path.forbids = ""
