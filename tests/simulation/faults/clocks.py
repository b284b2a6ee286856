"""Clocks that are set, by little or by far."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.alone import LOOK_SECONDS
from tests.simulation.faults.clients import some_client
from tests.simulation.world import World


async def clock_step(world: World, chance: random.Random) -> None:
    """The clock of a server, or of a client, is set."""
    shows = chance.uniform(-60.0, 60.0)
    if chance.random() < 0.4:
        if client := some_client(world, chance):
            world.trace.count("client's clock set", f"{client.name} from {client.process.clock:g} to {shows:g} s")
            client.process.clock = shows
        return
    server = world.servers[chance.choice(list(world.servers))]
    if chance.random() < 0.5:
        shows = server.clock + chance.uniform(-20.0, 20.0)  # hard to tell from time that has passed
    if world.leaping:  # it might be this one's, which is to be right again afterwards
        return
    world.trace.count("server's clock set", f"{server.name} from {server.clock:g} to {shows:g} s")
    world.note_step(shows - server.clock)
    server.clock = shows


LEAPS = (120.0, 400.0, 3_600.0, 90_000.0)
"""Seconds by which a clock is set that is then wrong: within the put window, and beyond it."""

LEAP_WAITS = 20


async def leap(world: World, chance: random.Random) -> None:
    """The clock of a server is wrong for a while, by minutes or by a day, while all servers are in sync."""
    for _ in range(LEAP_WAITS):
        if world.is_whole and not world.leaping:
            break
        await asyncio.sleep(LOOK_SECONDS)
    else:
        return
    server = world.servers[chance.choice(sorted(world.servers))]
    seconds = chance.choice((-1, 1)) * chance.choice(LEAPS) * chance.uniform(1.0, 1.5)
    world.trace.count("leap", f"the clock of {server.name} is {seconds:g} s off")
    world.leaping = True
    world.found.leapt += 2 * abs(seconds)
    for shift in (seconds, -seconds):
        world.note_step(shift)
        server.clock += shift
        await asyncio.sleep(chance.uniform(1.0, 20.0))
    world.leaping = False
