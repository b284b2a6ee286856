"""Recovery after all servers have died: what each brings back, and which of them are needed."""

from __future__ import annotations

import pytest

import zkrq
from tests.faults.stage import Stage
from tests.harness import command, until
from tests.load import QUEUE
from zkrq import local
from zkrq.coordination.coordinator import VIEW
from zkrq.protocol.view import ServerId, View, encode, evict, restored

pytestmark = pytest.mark.anyio


async def test_all_are_killed_at_once_under_load_and_restarted(disk_stage: Stage) -> None:
    """The queue recovers by itself.  A killed process loses what it had not yet handed to its system: nothing whose
    push returned."""
    client = await disk_stage.enter()
    async with disk_stage.load() as load:
        async with disk_stage.out_and_back():
            await disk_stage.kill()
            await disk_stage.start()
        await until(load.progress(500))
    (recovered,) = client.events(zkrq.Recovered)
    # One that died first may have been evicted by an operation that the two others had still answered.
    before = client.told[: client.told.index(recovered)]
    evicted = {event.server for event in before if isinstance(event, zkrq.ServerEvicted)}
    assert recovered.missing == ()
    assert len(recovered.servers) >= 2
    assert evicted.isdisjoint(recovered.servers)
    assert {*recovered.servers, *evicted} == {"redis-1", "redis-2", "redis-3"}


async def test_a_client_that_comes_after_a_power_cut_recovers(disk_stage: Stage) -> None:
    """Nobody was left to look: all clients had died as well."""
    await after_work(disk_stage)
    await disk_stage.kill()
    await disk_stage.start()
    assert await (await disk_stage.enter()).drain() == list(range(100))


async def test_recovery_waits_for_every_server_unless_it_is_told_not_to(disk_stage: Stage) -> None:
    """The missing one may hold what the others have not got."""
    one, two, three = disk_stage.servers.redis
    await after_work(disk_stage)
    await disk_stage.kill()
    await disk_stage.start(one, two)
    next_step = "server redis-3: .*; start it, .*: `zkrq servers recover redis-1 redis-2`$"
    with pytest.raises(zkrq.Unavailable, match=next_step):
        await disk_stage.enter()
    with pytest.raises(zkrq.ConfigError, match="no server of this namespace"):
        await disk_stage.client().recover(["redis-9"])
    expect_recovered(await disk_stage.recover(one, two), missing=[three])
    client = await disk_stage.enter()
    with pytest.raises(zkrq.ConfigError, match="nothing to recover"):
        await client.cluster.recover(["redis-1"])
    assert await client.drain() == list(range(100))
    await disk_stage.start(three)
    await disk_stage.expect_whole()


async def test_a_recovery_that_was_left_in_the_middle_is_carried_on_though_the_view_has_moved(
    disk_stage: Stage,
) -> None:
    """One server has its next generation already, and an eviction from before the power cut lands late."""
    view, hub, one = await after_work(disk_stage), disk_stage.hub, disk_stage.servers.redis[0]
    assert hub
    await disk_stage.kill()
    await disk_stage.start()
    renewed = restored(view.members[ServerId("redis-1")])
    await command(one, "HSET", f"{{{disk_stage.namespace}}}:server", "generation", renewed)
    later = evict(view, [ServerId("redis-3")], by="late", now_ms=7)
    assert hub.swap(VIEW, encode(later), hub.read(VIEW).version)
    client = await disk_stage.enter()
    assert client.view.members[ServerId("redis-1")].generation == renewed
    assert await client.drain() == list(range(100))


async def test_nobody_has_brought_anything_back(stage: Stage) -> None:
    """Beginning anew is for people to decide."""
    client = await stage.enter()
    await client.push("lost")
    await stage.exeunt()
    for server in stage.servers.redis:
        await stage.restart_empty(server)
    with pytest.raises(
        zkrq.Unavailable, match=r"none of redis-1, redis-2, redis-3 .*recover redis-1 redis-2 redis-3`$"
    ):
        await stage.enter()
    await stage.recover(*stage.servers.redis)
    client = await stage.enter()
    assert await client.queue.size() == (0, 0, 0, 0)
    assert (await client.push("anew")).replicas == 3


async def test_the_greatest_version_wins(disk_stage: Stage) -> None:
    """One server was evicted before the last acks; what it still holds does not come back."""
    client = await disk_stage.enter()
    await client.push_all(range(10))
    await disk_stage.kill(*disk_stage.servers.redis[:2])
    client.look()
    await until(lambda: len(client.view.eligible) == 2)
    await client.ack(4)
    await disk_stage.exeunt()
    await disk_stage.kill()
    await disk_stage.start()
    client = await disk_stage.enter()
    assert sorted(client.view.members) == ["redis-1", "redis-2", "redis-3"]
    assert await client.drain() == list(range(4, 10))


async def test_servers_that_hold_nothing_are_no_copies(disk_stage: Stage) -> None:
    """Named together with one that holds everything, they come back by catch-up."""
    one, *others = disk_stage.servers.redis
    await after_work(disk_stage)
    await disk_stage.kill()
    await disk_stage.start(one)
    await disk_stage.restart_empty(*others)
    expect_recovered(await disk_stage.recover(one, *others), missing=others)
    client = await disk_stage.enter()
    await disk_stage.expect_whole()
    await disk_stage.kill(one)
    assert await client.drain() == list(range(100))


async def test_a_named_server_that_was_outside_for_long_brings_nothing_back(disk_stage: Stage) -> None:
    """It missed the acks, and their tombstones are gone by now: beside current servers it counts as empty."""
    outside, *others = disk_stage.servers.redis
    client = await disk_stage.enter()
    await client.push_all(range(20))
    await leave(disk_stage, outside)
    assert len(await client.drain()) == 20
    await disk_stage.exeunt()
    for server in others:  # as an hour of work does
        for name in ("tombstones", "records"):
            await command(server, "DEL", f"{{{disk_stage.namespace}}}:q:{QUEUE}:{name}")
    await disk_stage.kill()
    await disk_stage.start()
    expect_recovered(await disk_stage.recover(outside, *others), missing=[outside])
    client = await disk_stage.enter()
    assert await client.drain() == []
    await disk_stage.expect_whole()
    assert await client.drain() == []


async def test_only_servers_that_were_outside_are_left(disk_stage: Stage) -> None:
    """No named server has the data of the view: what they hold is gone on with, and the loss is told."""
    outside, *others = disk_stage.servers.redis
    client = await disk_stage.enter()
    await client.push_all(range(20))
    await leave(disk_stage, outside)
    await client.push("missed")
    await disk_stage.exeunt()
    await disk_stage.kill()
    await disk_stage.start(outside)
    expect_recovered(await disk_stage.recover(outside), missing=others)
    assert await (await disk_stage.enter(min_replicas=2)).drain() == list(range(20))


async def test_one_was_flushed_and_the_others_restarted(disk_stage: Stage) -> None:
    """No server is in the life that the view names, though one process has never ended."""
    flushed, *others = disk_stage.servers.redis
    client = await disk_stage.enter()
    await client.push_all(range(100))
    async with disk_stage.out_and_back():
        await disk_stage.kill(*others)
        await command(flushed, "FLUSHALL")
        await disk_stage.start(*others)
    assert await client.drain() == list(range(100))


async def after_work(stage: Stage) -> View:
    """Leave 100 items behind and no client; return the view."""
    client = await stage.enter()
    await client.push_all(range(100))
    view = client.view
    await stage.exeunt()
    return view


async def leave(stage: Stage, server: local.LocalRedis) -> None:
    """Have a server killed and evicted."""
    await stage.kill(server)
    stage.actors[0].look()
    await until(lambda: len(stage.view.members) == 2)


def expect_recovered(recovered: zkrq.Recovered, *, missing: list[local.LocalRedis]) -> None:
    """The namespace goes on with all servers but these."""
    lost = tuple(server.name for server in missing)
    assert recovered.missing == lost
    assert recovered.servers == tuple(name for name in ("redis-1", "redis-2", "redis-3") if name not in lost)
