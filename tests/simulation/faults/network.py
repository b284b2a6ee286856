"""Faults between one client and one server."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.covered import HALF
from tests.simulation.wire import Break, Path
from tests.simulation.world import World


def _some_path(world: World, chance: random.Random) -> tuple[str, Path] | None:
    clients = [client for client in world.clients if client.is_alive]
    if not clients:
        return None
    client, server = chance.choice(clients).name, chance.choice(list(world.servers))
    return f"{client}-{server}", world.network.path(client, server)


async def slow(world: World, chance: random.Random) -> None:
    """Messages of one client and one server take long, some longer than a server may."""
    if found := _some_path(world, chance):
        name, path = found
        path.slow = chance.choice((0.05, 0.3, 1.5))
        world.trace.count("slow", f"{name} by {path.slow:g} s")
        await asyncio.sleep(chance.uniform(0.5, 8.0))
        path.slow = 0.0


async def cut(world: World, chance: random.Random) -> None:
    """Nothing goes between one client and one server."""
    if found := _some_path(world, chance):
        name, path = found
        if path.cut:
            return
        path.cut, path.refuses, path.drops = True, chance.random() < 0.4, chance.random() < 0.4
        world.trace.count("cut", f"{name}, {'refuses' if path.refuses else 'hangs'}")
        await asyncio.sleep(chance.choice((0.3, 2.0, 9.0)) * chance.uniform(0.5, 1.5))
        world.trace.note(f"cut of {name} is mended")
        world.network.mend(path)


async def nameless(world: World, chance: random.Random) -> None:
    """One client can make no new connection to a server, because it cannot resolve its name."""
    if found := _some_path(world, chance):
        name, path = found
        path.nameless = True
        world.trace.count("nameless", name)
        if chance.random() < HALF:
            for wire in tuple(path.wires):
                wire.shut("connection reset")
        await asyncio.sleep(chance.uniform(0.5, 8.0))
        path.nameless = False


async def silent(world: World, chance: random.Random) -> None:
    """Connections of one client and one server are forgotten in between: nothing arrives, and none of them ends."""
    if found := _some_path(world, chance):
        name, path = found
        wires = [wire for wire in path.wires if chance.random() < HALF]
        if wires:
            world.trace.count("silent", f"{len(wires)} of {name}")
        for wire in wires:
            wire.fall_silent()


async def breaks(world: World, chance: random.Random) -> None:
    """Calls break their connections."""
    for _ in range(chance.randint(1, 8)):
        if found := _some_path(world, chance):
            found[1].breaking = chance.choice(list(Break))
        await asyncio.sleep(chance.random() ** 2 * 2.0)


async def one_link(world: World, chance: random.Random) -> None:
    """One client is cut off from one server for good."""
    if (found := _some_path(world, chance)) and not found[1].cut:
        name, path = found
        path.cut, path.refuses, path.drops = True, chance.random() < 0.4, True
        world.trace.count("cut for good", name)
