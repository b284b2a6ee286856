"""What happens to the second shard, and to the shard map."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from tests.simulation.faults.clients import some_client
from tests.simulation.faults.covered import may_harm
from tests.simulation.items import Outcome
from tests.simulation.loop import State
from tests.simulation.servers import ProcessState
from tests.simulation.world import CALL_LIMIT, Client, World
from zkrq import ConfigError, Limits
from zkrq.protocol.shards import ShardState

RESHARD_LIMIT = 20 * CALL_LIMIT
"""Adding, draining and removing a shard take many steps."""

RESHARD_TRIES = 4
"""Clients that make one after the other the call that the one before has not brought to its end."""


async def shard_away(world: World, chance: random.Random) -> None:
    """All servers of the second shard are killed, and are back some time later with what they had on their disks."""
    servers = [world.servers[name] for name in world.shards[-1].names]
    if world.shards[-1].view is None or any(server.status is not ProcessState.UP for server in servers):
        return
    world.trace.count("shard away")
    for server in servers:
        server.kill()
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.3)) * chance.random())
    await asyncio.sleep(chance.choice((1.0, 8.0, 20.0)) * chance.uniform(0.5, 1.5))
    for server in servers:
        if server.status is ProcessState.DOWN:
            server.start(server.redis.dump())
    world.trace.note("the shard is back")


async def primaries(world: World, chance: random.Random) -> None:
    """The primary of a queue is killed on each shard, and is back with its data."""
    lane = chance.choice(world.lanes)
    killed = [
        server
        for _, view in world.views
        if (server := world.servers[view.primary(lane.name)]).status is ProcessState.UP
        and may_harm(world, server.name, loses_data=False)
    ]
    for server in killed:
        world.trace.count("primary restarted", server.name)
        server.kill()
    await asyncio.sleep(chance.choice((0.01, 2.0, 9.0)) * chance.uniform(0.5, 1.5))
    for server in killed:
        if server.status is ProcessState.DOWN:
            server.start(server.redis.dump())


async def reshard(world: World, chance: random.Random) -> None:
    """An operator adds, drains or removes the second shard; a client dies over it, or stands still, and another one
    makes the call again."""
    call = chance.choice(_calls_on(world.shards[-1].state))
    for _ in range(RESHARD_TRIES):
        client = some_client(world, chance)
        if client is None or client.cluster is None:
            await asyncio.sleep(1.0)
            continue
        world.trace.count(call, client.name)
        calling = client.start(reshard_by(client, call), call)
        match chance.choice(("none", "none", "drop", "pause")):
            case "drop" if sum(other.is_alive for other in world.clients) > 1:
                client.process.after_steps(int(chance.random() ** 2 * 400) + 1, partial(world.drop, client))
            case "pause":
                client.process.after_steps(int(chance.random() ** 2 * 400) + 1, partial(world.pause, client))
            case _:
                pass
        done, _ = await asyncio.wait([calling], timeout=chance.choice((1.0, 4.0, 20.0)))
        if done and not calling.cancelled() and calling.exception() is None and calling.result():
            break
        if client.process.state is State.PAUSED and chance.random() < 0.5:
            world.resume(client)
    for client in world.clients:
        world.resume(client)


async def remap(world: World, chance: random.Random) -> None:
    """The map changes, and nothing else happens: an operator adds or drains the second shard, or a program gives a
    queue that nobody else uses its first limit, and takes its last one away."""
    client = some_client(world, chance)
    if client is None or (cluster := client.cluster) is None:
        return
    state = world.shards[-1].state
    call = chance.choice(("limits", "drain shard" if state is ShardState.OPEN else "add shard"))
    world.trace.count(call, client.name)
    if call != "limits":
        await reshard_by(client, call)
        return
    queue = cluster.queue(OTHER_QUEUE)
    for limits in (Limits(concurrency=5), Limits()):
        await client.do("set limits", queue.set_limits(limits), RESHARD_LIMIT)


def _calls_on(state: ShardState | None) -> tuple[str, ...]:
    match state:
        case None:
            return ("add shard",)
        case ShardState.JOINING:
            return ("add shard", "add shard", "drain shard", "remove shard")
        case ShardState.OPEN:
            return ("add shard", "drain shard", "drain shard", "drain shard")
        case ShardState.DRAINING:
            return ("add shard", "remove shard", "remove shard", "remove shard")
        case ShardState.CLOSED:
            return ("add shard", "drain shard", "remove shard", "remove shard")


OTHER_QUEUE = "other"
"""A queue that no workload uses."""

NO_VIEW = "knows no view of it"
"""In the error about servers that hold something, and are in no view."""


async def reshard_by(client: Client, call: str, *, force: bool = True) -> bool:
    """Make a call about the second shard; whether it returned.  What was removed by force may be pushed again."""
    world, cluster, shard = client.world, client.cluster, client.world.shards[-1]
    assert cluster is not None
    match call:
        case "add shard":
            if shard.entry is None:
                world.wash(shard)
            urls = world.urls(shard)
            work = cluster.add_shard(shard.name, urls, min_replicas=shard.min_replicas)
        case "drain shard":
            work = cluster.drain_shard(shard.name)
        case _:
            for lane in world.lanes if force else ():
                lane.ledger.begin_forgetting()
            world.is_forced = world.is_forced or force
            work = cluster.remove_shard(shard.name, force=force)
    ended = await client.do(call, work, RESHARD_LIMIT)
    if isinstance(ended.error, ConfigError):
        world.found.counts[f"{call}: {str(ended.error)[:45]}"] += 1
        if NO_VIEW in str(ended.error):  # it was removed after the call had begun
            world.wash(shard)
    return ended.outcome is Outcome.DONE
