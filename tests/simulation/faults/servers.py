"""Faults of servers: stopped, restarted with their data or without, full; or everything is away."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.faults.covered import REPAIR, may_harm
from tests.simulation.servers import ProcessState
from tests.simulation.world import World
from zkrq.base.clock import now
from zkrq.protocol.clocks import PUT_WINDOW


def _some_server(world: World, chance: random.Random, *, loses_data: bool) -> str | None:
    """One that may be harmed; mostly one of the view, since harm to others changes little."""
    fit = [
        id
        for id in world.servers
        if world.servers[id].status is ProcessState.UP and may_harm(world, id, loses_data=loses_data)
    ]
    known = [id for id in fit if any(id in view.receivers for _, view in world.views)]
    return chance.choice(known if known and chance.random() < 0.9 else fit) if fit else None


async def stop(world: World, chance: random.Random) -> None:
    """SIGSTOP for a while."""
    name = chance.choice(list(world.servers))
    server = world.servers[name]
    if server.status is ProcessState.UP:
        world.trace.count("stop", name)
        server.stop()
        seconds = chance.choice((0.5, 3.0, 9.0)) * chance.uniform(0.5, 1.5)
        await asyncio.sleep(seconds)
        world.trace.note(f"{name} goes on")
        world.note_hold(seconds)
        server.go_on()


async def restart(world: World, chance: random.Random) -> None:
    """Killed, and back with what it had on its disk: all of it."""
    if name := _some_server(world, chance, loses_data=False):
        server = world.servers[name]
        world.trace.count("restart with its data", name)
        server.kill()
        await asyncio.sleep(chance.choice((0.01, 1.0, 8.0)) * chance.uniform(0.5, 1.5))
        if server.status is ProcessState.DOWN:
            server.start(server.redis.dump())
            world.trace.note(f"{name} is back")


async def restart_all(world: World, chance: random.Random) -> None:
    """A power cut: all servers are killed within a moment, and come back with what they had on their disks."""
    names = [name for name in world.servers if world.shard_of(name).view]
    if not REPAIR or not names or not all(may_harm(world, name, loses_data=False) for name in names):
        return
    world.trace.count("restart of all")
    names = chance.sample(names, len(names))
    down: list[str] = []
    for name in names:
        if world.servers[name].status is not ProcessState.DOWN:
            world.servers[name].kill()
            down.append(name)
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.5)) * chance.random())
    for name in chance.sample(down, len(down)):
        await asyncio.sleep(chance.choice((0.01, 1.0, 5.0)) * chance.random())
        if world.servers[name].status is ProcessState.DOWN:
            world.servers[name].start(world.servers[name].redis.dump())
            world.trace.note(f"{name} is back")


async def restart_empty(world: World, chance: random.Random) -> None:
    """Killed, and back without any data."""
    if name := _some_server(world, chance, loses_data=True):
        server = world.servers[name]
        world.trace.count("restart empty", name)
        world.shard_of(name).harm(name)
        server.kill()
        await asyncio.sleep(chance.choice((0.01, 1.0, 8.0)) * chance.uniform(0.5, 1.5))
        if server.status is ProcessState.UP:
            world.shard_of(name).unharm(name)  # mended meanwhile, with its data
            return
        server.start(None)
        world.trace.note(f"{name} is back, empty")


async def restart_old(world: World, chance: random.Random) -> None:
    """Killed, and back with what it had on its disk some time ago."""
    if name := _some_server(world, chance, loses_data=True):
        server = world.servers[name]
        old = server.redis.dump()
        await asyncio.sleep(chance.uniform(0.1, 8.0))
        if server.status is not ProcessState.UP or not may_harm(world, name, loses_data=True):
            return
        world.trace.count("restart with old data", name)
        shard = world.shard_of(name)
        shard.harm(name)
        server.kill()
        await asyncio.sleep(chance.choice((0.01, 1.0, 8.0)) * chance.uniform(0.5, 1.5))
        if server.status is ProcessState.UP:
            shard.unharm(name)
            return
        server.start(old)
        world.trace.note(f"{name} is back, with old data")


async def flush(world: World, chance: random.Random) -> None:
    """FLUSHALL."""
    if name := _some_server(world, chance, loses_data=True):
        world.trace.count("flush", name)
        world.shard_of(name).harm(name)
        world.servers[name].redis.flush()


async def full(world: World, chance: random.Random) -> None:
    """A server is out of memory for a while."""
    redis = world.servers[chance.choice(list(world.servers))].redis
    world.trace.count("full", redis.run_id)
    redis.full = True
    await asyncio.sleep(chance.uniform(0.5, 5.0))
    redis.full = False


async def replica(world: World, chance: random.Random) -> None:
    """A server refuses writes for a while, as a replica does."""
    if name := _some_server(world, chance, loses_data=False):
        redis = world.servers[name].redis
        world.trace.count("replica", name)
        redis.role = "slave"
        await asyncio.sleep(chance.uniform(0.5, 5.0))
        redis.role = "master"


AWAY_SECONDS = (PUT_WINDOW * 1.1, PUT_WINDOW * 1.5)
"""Longer than a push may be late."""


async def away(world: World, chance: random.Random) -> None:
    """All servers and all clients are away for minutes; they are back with what was on their disks."""
    servers = [world.servers[name] for name in world.servers if world.shard_of(name).view]
    is_fit = servers and all(may_harm(world, server.name, loses_data=False) for server in servers)
    if world.found.away or not is_fit:
        return
    world.trace.count("away")
    world.found.away = True
    for client in world.clients:
        if client.is_alive:
            world.drop(client)
    down = [server for server in servers if server.status is not ProcessState.DOWN]
    for server in down:
        server.kill()
    await asyncio.sleep(chance.uniform(*AWAY_SECONDS))
    for server in down:
        if server.status is ProcessState.DOWN:
            server.start(server.redis.dump())
    world.trace.note("everything is back")
    world.away_until = now()
