"""What no call may fail for."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.access import NO_ROOM, WRONG_PASSWORD
from tests.simulation.faults.clients import some_client
from tests.simulation.servers import ProcessState
from tests.simulation.world import COMMAND_TIMEOUT, World

LOOK_SECONDS = 0.25

HANG_WAITS = 80
"""Looks, at most, for a moment at which all servers are in sync, before one of them hangs."""


async def hang(world: World, chance: random.Random) -> None:
    """A server hangs for little longer than a time-out while all servers are in sync, and may do so again; in each seed
    it is always the same one."""
    name = world.chance_for("hanging").choice(sorted(world.servers))
    for _ in range(chance.randint(1, 3)):
        for _ in range(HANG_WAITS):
            calm = world.is_whole and all(each.status is ProcessState.UP for each in world.servers.values())
            if calm and world.loop.now >= world.hangs_from:
                break
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return
        world.trace.count("hang", name)
        world.servers[name].stop()
        await asyncio.sleep(COMMAND_TIMEOUT * chance.uniform(1.02, 1.9))
        world.trace.note(f"{name} goes on")
        world.servers[name].go_on()
        # Long enough for clients to connect again: each makes one try, and waits a moment after a time-out.
        world.hangs_from = world.loop.now + COMMAND_TIMEOUT * chance.choice((1.5, 2.0, 5.0)) * chance.uniform(1.0, 1.5)


CLOSED_SECONDS = 15.0
"""Longer than a server that lets nobody in is accused, by clients whose event loops are busy."""


QUIET_SECONDS = 2.0
"""Less than the life of a session, and than an accusation without a witness stands."""


async def closed(world: World, chance: random.Random) -> None:
    """A server lets nobody in for a while: its password was changed, and told to no client, or it has no room for more
    connections; then those that exist break, all of them or those of some clients, and the others cannot say for a
    moment that they are served."""
    name = chance.choice(list(world.servers))
    server = world.servers[name]
    if world.is_closed or server.status is not ProcessState.UP:
        return
    world.trace.count("closed", name)
    first, world.closings = not world.closings, world.closings + 1
    met = [client for client in world.clients if client.is_alive and client.cluster is not None]
    room = world.chance_for(f"room {world.closings}")
    if crowded := room.random() < 0.5:
        world.trace.count("no room", name)
    server.closed = NO_ROOM if crowded else WRONG_PASSWORD
    for client in () if crowded else world.clients:
        client.denied = True
    if crowded and len(met) > 1 and room.random() < 0.5:
        turned_away = room.sample(met, 1 + int(room.random() * (len(met) - 1)))
        for client in met:
            if client not in turned_away and (served := client.coordinator) and served.reachable:
                world.hub.suspend(served)
                world.loop.call_later(QUIET_SECONDS, world.hub.resume, served)
        met = turned_away
    else:
        world.denies_all = True
        met = [client for client in world.clients if client.is_alive]  # also those that are connecting just now
    for client in met:
        for wire in tuple(world.network.path(client.name, name).wires):
            wire.shut("connection reset")
    seconds = chance.choice((2.0, CLOSED_SECONDS, CLOSED_SECONDS))
    await asyncio.sleep(seconds * chance.uniform(1.0, 1.3))
    view = world.shard_of(name).view
    could_go = view is not None and name in view.members and len(view.members) > view.min_replicas
    # A later one may be what others have refuted a moment ago.
    judged = first and seconds == CLOSED_SECONDS and server.closed and any(client.is_alive for client in met)
    if world.only is closed and world.denies_all and judged and could_go:
        world.closed_members.append(name)
    server.closed = ""


async def drag(world: World, chance: random.Random) -> None:
    """Each turn of a client's event loop takes long, because its handlers block it; perhaps it has to connect again."""
    client = some_client(world, chance)
    if client is None or client.process.turn:
        return
    world.trace.count("drag", client.name)
    turn = chance.choice((0.1, 0.3, 0.8))
    client.slowest_turn = max(client.slowest_turn, turn)
    client.process.drag(world.loop, turn)
    server = chance.choice((None, *world.servers))
    if server is not None:
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        for wire in tuple(world.network.path(client.name, server).wires):
            wire.shut("connection reset")
    await asyncio.sleep(chance.uniform(3.0, 15.0))
    client.process.drag(world.loop, 0.0)
