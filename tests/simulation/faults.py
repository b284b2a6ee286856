"""The faults, and how much of them the promise covers.

A fault is a coroutine of the world: it happens, lasts, and is undone.  ``may_harm`` is the one place that says which
losses of data zkrq promises to survive.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from tests.simulation.ledger import Outcome
from tests.simulation.loop import State
from tests.simulation.servers import ProcessState
from tests.simulation.sharding import SimShard
from tests.simulation.wire import Break, Path
from tests.simulation.world import CALL_LIMIT, COMMAND_TIMEOUT, SESSION_TIMEOUT, Client, World
from zkrq import ConfigError, Limits
from zkrq.base.clock import now
from zkrq.client.cluster import Cluster
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.shards import ShardState
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


# -- the network -----------------------------------------------------------------------------------------------------


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


# -- servers ---------------------------------------------------------------------------------------------------------


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


# -- clients ---------------------------------------------------------------------------------------------------------


def _some_client(world: World, chance: random.Random) -> Client | None:
    clients = [client for client in world.clients if client.process.state is State.RUNNING and client.coordinator]
    return chance.choice(clients) if clients else None


def _anywhere(client: Client, chance: random.Random, act: Callable[[], object]) -> None:
    """Have ``act`` happen between any two steps of a client."""
    client.process.after_steps(chance.randint(1, 60), act)


async def drop(world: World, chance: random.Random) -> None:
    """kill -9, and a newcomer in its place."""
    client = _some_client(world, chance)
    if client is None or sum(client.is_alive for client in world.clients) < 2:
        return

    def act() -> None:
        world.trace.count("drop", client.name)
        world.drop(client)

    _anywhere(client, chance, act)


async def cancel(world: World, chance: random.Random) -> None:
    """Calls are cancelled by their callers."""
    for _ in range(chance.randint(1, 5)):
        client = _some_client(world, chance)
        if client is not None:
            _anywhere(client, chance, partial(_cancel_one, world, client, chance))
        await asyncio.sleep(chance.random())


def _cancel_one(world: World, client: Client, chance: random.Random) -> None:
    running = [(task, kind) for task, (kind, _) in client.operations.items()]
    if running:
        task, kind = chance.choice(running)
        world.trace.count("cancel", f"{client.name} {kind}")
        task.cancel()


async def pause(world: World, chance: random.Random) -> None:
    """A client is stopped, and goes on; meanwhile its session may have ended."""
    client = _some_client(world, chance)
    if client is None:
        return

    def act() -> None:
        world.trace.count("pause", client.name)
        world.pause(client)

    _anywhere(client, chance, act)
    await asyncio.sleep(chance.choice((0.3, 3.0, SESSION_TIMEOUT * 2)) * chance.uniform(0.5, 1.5))
    if client.process.state is State.PAUSED:
        world.trace.note(f"{client.name} goes on")
        world.resume(client)


async def hub_cut(world: World, chance: random.Random) -> None:
    """A client is cut off from the ensemble."""
    client = _some_client(world, chance)
    if client is None or client.coordinator is None or not client.coordinator.reachable:
        return
    coordinator = client.coordinator
    world.trace.count("cut from the ensemble", client.name)
    world.hub.suspend(coordinator)
    await asyncio.sleep(chance.choice((0.5, SESSION_TIMEOUT, SESSION_TIMEOUT * 3)) * chance.uniform(0.5, 1.2))
    world.trace.note(f"{client.name} reaches the ensemble again")
    world.hub.resume(coordinator)


async def hub_deaf(world: World, chance: random.Random) -> None:
    """A client's connection to the ensemble is dead, and it does not notice."""
    client = _some_client(world, chance)
    if client is None or client.coordinator is None or client.coordinator.silent_since is not None:
        return
    coordinator = client.coordinator
    world.trace.count("deaf to the ensemble", client.name)
    world.hub.silence(coordinator, deaf=True)
    await asyncio.sleep(chance.choice((1.0, SESSION_TIMEOUT, SESSION_TIMEOUT * 2)) * chance.uniform(0.5, 1.2))
    if client.process.state is not State.PAUSED:
        world.hub.break_silence(coordinator, 0.0)


async def hub_expire(world: World, chance: random.Random) -> None:
    """The ensemble ends a session."""
    client = _some_client(world, chance)
    if client is not None and client.coordinator is not None:
        world.trace.count("session expired", client.name)
        world.hub.expire(client.coordinator.session.id)


async def hub_lose_reply(world: World, chance: random.Random) -> None:
    """Answers of the ensemble get lost."""
    client = _some_client(world, chance)
    if client is not None and client.coordinator is not None:
        world.trace.count("replies of the ensemble to be lost", client.name)
        client.coordinator.replies_to_lose += chance.randint(1, 3)


async def hub_slow(world: World, chance: random.Random) -> None:
    """Answers of the ensemble take long, so that changes of the view cross each other."""
    world.hub.slow = chance.choice((0.2, 1.0))
    world.trace.count("ensemble slow", f"by {world.hub.slow:g} s")
    await asyncio.sleep(chance.uniform(3.0, 15.0))
    world.hub.slow = 0.0


async def hub_lose_swap(world: World, chance: random.Random) -> None:
    """The answer to a client's next compare-and-set gets lost."""
    client = _some_client(world, chance)
    if client is not None and client.coordinator is not None:
        client.coordinator.swaps_to_lose += chance.randint(1, 2)


async def hub_stale(world: World, chance: random.Random) -> None:
    """Reads are as old as they may be."""
    world.hub.stale = 0.7
    await asyncio.sleep(chance.uniform(5.0, 20.0))
    world.hub.stale = 0.0


async def reopen(world: World, chance: random.Random) -> None:
    """A client closes its cluster in the middle of its work, and opens another one."""
    client = _some_client(world, chance)
    if client is not None and client.cluster is not None:
        world.trace.count("reopen", client.name)

        async def again() -> None:
            await client.close()
            await asyncio.sleep(chance.random())
            while client.cluster is None and not client.stopping and not await client.open():
                await asyncio.sleep(0.5)

        client.start(again(), "reopen")


# -- trouble of one client's own -------------------------------------------------------------------------------------

WRONG_PASSWORD = "WRONGPASS invalid username-password pair or user is disabled."

NO_ROOM = "ERR max number of clients reached"

NO_RIGHT = "NOPERM User worker has no permissions to run the 'fcall' command"


def _some_paths(world: World, chance: random.Random) -> list[tuple[str, Path]]:
    """The ways of one client to one or two servers."""
    client = _some_client(world, chance)
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


async def one_link(world: World, chance: random.Random) -> None:
    """One client is cut off from one server for good."""
    if (found := _some_path(world, chance)) and not found[1].cut:
        name, path = found
        path.cut, path.refuses, path.drops = True, chance.random() < 0.4, True
        world.trace.count("cut for good", name)


# -- what no call may fail for ----------------------------------------------------------------------------------------

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
    client = _some_client(world, chance)
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


# -- clocks ----------------------------------------------------------------------------------------------------------


async def clock_step(world: World, chance: random.Random) -> None:
    """The clock of a server, or of a client, is set."""
    shows = chance.uniform(-60.0, 60.0)
    if chance.random() < 0.4:
        if client := _some_client(world, chance):
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


# -- everything ------------------------------------------------------------------------------------------------------

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


# -- operators -------------------------------------------------------------------------------------------------------

JOIN_SECONDS = 400.0
"""Within this a server that is added is in sync, whatever goes wrong meanwhile."""


def _call(
    world: World, chance: random.Random, kind: str, limit: float, call: Callable[[Cluster], Coroutine[Any, Any, Any]]
) -> None:
    """Have an operator's call made by some client."""
    client = _some_client(world, chance)
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


# -- shards ----------------------------------------------------------------------------------------------------------

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
        client = _some_client(world, chance)
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
    client = _some_client(world, chance)
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


NETWORK: Mapping[str, Fault] = {"slow": slow, "cut": cut, "breaks": breaks, "nameless": nameless, "silent": silent}

SERVER: Mapping[str, Fault] = {
    "stop": stop,
    "restart": restart,
    "restart_all": restart_all,
    "restart_empty": restart_empty,
    "restart_old": restart_old,
    "flush": flush,
    "full": full,
    "replica": replica,
}

CLIENT: Mapping[str, Fault] = {
    "drop": drop,
    "cancel": cancel,
    "pause": pause,
    "hub_cut": hub_cut,
    "hub_deaf": hub_deaf,
    "hub_expire": hub_expire,
    "hub_lose_reply": hub_lose_reply,
    "hub_lose_swap": hub_lose_swap,
    "hub_slow": hub_slow,
    "hub_stale": hub_stale,
    "reopen": reopen,
}

OWN: Mapping[str, Fault] = {"password": password, "permission": permission}
"""What lies with one client: nobody else may suffer for it."""

OPERATOR: Mapping[str, Fault] = {"recover": recover, "add_server": add_server, "remove_server": remove_server}

OTHERS: Mapping[str, Fault] = {"one_link": one_link, "clock_step": clock_step}

SHARDS: Mapping[str, Fault] = {"shard_away": shard_away, "primaries": primaries, "reshard": reshard}
"""Only where there are two."""

MAPS: Mapping[str, Fault] = {"remap": remap}
"""Changes of the shard map, which are no faults.  In some seeds with two shards nothing else happens, and no push may
fail."""

ALONE: Mapping[str, Fault] = {"hang": hang, "closed": closed, "drag": drag}
"""In some seeds there is only one of these: what happens then is known exactly."""

LEAP: Mapping[str, Fault] = {"leap": leap}
"""The same, drawn by itself."""

AWAY: Mapping[str, Fault] = {"away": away}
"""Drawn by itself, where pushes recur."""

FAULTS: Mapping[str, Fault] = {**NETWORK, **SERVER, **CLIENT, **OWN, **OPERATOR, **OTHERS}
