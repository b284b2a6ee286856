"""Recovery after all servers have died: what each brings back, and which of them are needed."""

from __future__ import annotations

import asyncio

import pytest

import zkrq
from tests.faults.servers import kill_all, servers_with_disks
from tests.harness import command, drain, in_process, is_whole, new_namespace, over_zookeeper, take, until, whole_again
from tests.load import QUEUE, Load
from zkrq import local
from zkrq.base import events
from zkrq.coordination.coordinator import VIEW
from zkrq.coordination.memory import Hub
from zkrq.protocol.view import ServerId, encode, evict, restored

pytestmark = pytest.mark.anyio


async def test_all_are_killed_at_once_under_load_and_restarted() -> None:
    """The queue recovers by itself.  A killed process loses what it had not yet handed to its system: nothing whose
    push returned."""
    told: list[zkrq.Event] = []
    async with servers_with_disks() as servers, in_process(servers, new_namespace(), on_event=told.append) as cluster:
        load = Load(cluster)
        async with load.running():
            before = cluster.view
            await kill_all(servers)
            await asyncio.gather(*(server.start() for server in servers.redis))
            await whole_again(cluster, before)
            await until(load.progress(500))
        lost = load.pushed - load.acked
        assert len(lost) == 0, "running() has checked it"
    recovered = [event for event in told if isinstance(event, events.Recovered)]
    assert len(recovered) == 1
    # One that died first may have been evicted by an operation that the two others had still answered.
    evicted = {event.server for event in told[: told.index(recovered[0])] if isinstance(event, events.ServerEvicted)}
    assert recovered[0].missing == ()
    assert len(recovered[0].servers) >= 2
    assert evicted.isdisjoint(recovered[0].servers)
    assert {*recovered[0].servers, *evicted} == {"redis-1", "redis-2", "redis-3"}


async def test_a_client_that_comes_after_a_power_cut_recovers() -> None:
    """Nobody was left to look: all clients had died as well."""
    namespace, hub = new_namespace(), Hub()
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        await kill_all(servers)
        await asyncio.gather(*(server.start() for server in servers.redis))
        async with in_process(servers, namespace, hub) as cluster:
            assert await drain(cluster) == list(range(100))


async def test_recovery_waits_for_every_server_unless_it_is_told_not_to() -> None:
    """The missing one may hold what the others have not got."""
    namespace, hub = new_namespace(), Hub()
    told: list[zkrq.Event] = []
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        await kill_all(servers)
        await asyncio.gather(servers.redis[0].start(), servers.redis[1].start())
        next_step = "server redis-3: .*; start it, .*: `zkrq servers recover redis-1 redis-2`$"
        with pytest.raises(zkrq.Unavailable, match=next_step):
            async with in_process(servers, namespace, hub):
                pass
        with pytest.raises(zkrq.ConfigError, match="no server of this namespace"):
            await in_process(servers, namespace, hub).recover(["redis-9"])
        await in_process(servers, namespace, hub, on_event=told.append).recover(["redis-1", "redis-2"])
        recovered = next(event for event in told if isinstance(event, events.Recovered))
        assert recovered.missing == ("redis-3",)
        async with in_process(servers, namespace, hub) as cluster:
            with pytest.raises(zkrq.ConfigError, match="nothing to recover"):
                await cluster.recover(["redis-1"])
            assert await drain(cluster) == list(range(100))
            await servers.redis[2].start()
            await until(lambda: is_whole(cluster))


async def test_a_recovery_that_was_left_in_the_middle_is_carried_on_though_the_view_has_moved() -> None:
    """One server has its next generation already, and an eviction from before the power cut lands late."""
    namespace, hub = new_namespace(), Hub()
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
            view = cluster.view
        await kill_all(servers)
        await asyncio.gather(*(server.start() for server in servers.redis))
        renewed = restored(view.members[ServerId("redis-1")])
        await command(servers.redis[0], "HSET", f"{{{namespace}}}:server", "generation", renewed)
        later = evict(view, [ServerId("redis-3")], by="late", now_ms=7)
        assert hub.swap(VIEW, encode(later), hub.read(VIEW).version)
        async with in_process(servers, namespace, hub) as cluster:
            assert cluster.view.members[ServerId("redis-1")].generation == renewed
            assert await drain(cluster) == list(range(100))


async def test_nobody_has_brought_anything_back(servers: local.Servers) -> None:
    """Beginning anew is for people to decide."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await cluster.queue(QUEUE).push("lost")
    for server in servers.redis:
        await server.restart(wipe=True)
    with pytest.raises(
        zkrq.Unavailable, match=r"none of redis-1, redis-2, redis-3 .*recover redis-1 redis-2 redis-3`$"
    ):
        async with over_zookeeper(servers, namespace):
            pass
    await over_zookeeper(servers, namespace).recover(["redis-1", "redis-2", "redis-3"])
    async with over_zookeeper(servers, namespace) as cluster:
        assert await cluster.queue(QUEUE).size() == (0, 0, 0, 0)
        assert (await cluster.queue(QUEUE).push("anew")).replicas == 3


async def test_the_greatest_version_wins() -> None:
    """One server was evicted before the last acks; what it still holds does not come back."""
    namespace, hub = new_namespace(), Hub()
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            queue = cluster.queue(QUEUE)
            await queue.push_many(range(10))
            await asyncio.gather(servers.redis[0].kill(), servers.redis[1].kill())
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(cluster.view.eligible) == 2)
            for _ in range(4):
                await (await take(queue)).ack()
        await kill_all(servers)
        await asyncio.gather(*(server.start() for server in servers.redis))
        async with in_process(servers, namespace, hub) as cluster:
            assert sorted(cluster.view.members) == ["redis-1", "redis-2", "redis-3"]
            assert await drain(cluster) == list(range(4, 10))


async def test_servers_that_hold_nothing_are_no_copies() -> None:
    """Named together with one that holds everything, they come back by catch-up."""
    namespace, hub = new_namespace(), Hub()
    told: list[zkrq.Event] = []
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(100))
        await kill_all(servers)
        await asyncio.gather(servers.redis[0].start(), *(server.restart(wipe=True) for server in servers.redis[1:]))
        everybody = [server.name for server in servers.redis]
        await in_process(servers, namespace, hub, on_event=told.append).recover(everybody)
        recovered = next(event for event in told if isinstance(event, events.Recovered))
        assert (recovered.servers, recovered.missing) == (("redis-1",), ("redis-2", "redis-3"))
        async with in_process(servers, namespace, hub) as cluster:
            await until(lambda: is_whole(cluster))
            await servers.redis[0].kill()
            assert await drain(cluster) == list(range(100))


async def test_a_named_server_that_was_outside_for_long_brings_nothing_back() -> None:
    """It missed the acks, and their tombstones are gone by now: beside current servers it counts as empty."""
    namespace, hub = new_namespace(), Hub()
    told: list[zkrq.Event] = []
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            queue = cluster.queue(QUEUE)
            await queue.push_many(range(20))
            await servers.redis[0].kill()
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(cluster.view.members) == 2)
            assert len(await drain(cluster)) == 20
        for server in servers.redis[1:]:  # as an hour of work does
            for name in ("tombstones", "records"):
                await command(server, "DEL", f"{{{namespace}}}:q:{QUEUE}:{name}")
        await kill_all(servers)
        await asyncio.gather(*(server.start() for server in servers.redis))
        everybody = [server.name for server in servers.redis]
        await in_process(servers, namespace, hub, on_event=told.append).recover(everybody)
        recovered = next(event for event in told if isinstance(event, events.Recovered))
        assert (recovered.servers, recovered.missing) == (("redis-2", "redis-3"), ("redis-1",))
        async with in_process(servers, namespace, hub) as cluster:
            assert await drain(cluster) == []
            await until(lambda: is_whole(cluster))
            assert await drain(cluster) == []


async def test_only_servers_that_were_outside_are_left() -> None:
    """No named server has the data of the view: what they hold is gone on with, and the loss is told."""
    namespace, hub = new_namespace(), Hub()
    told: list[zkrq.Event] = []
    async with servers_with_disks() as servers:
        async with in_process(servers, namespace, hub) as cluster:
            await cluster.queue(QUEUE).push_many(range(20))
            await servers.redis[0].kill()
            cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(cluster.view.members) == 2)
            await cluster.queue(QUEUE).push("missed")
        await kill_all(servers)
        await servers.redis[0].start()
        await in_process(servers, namespace, hub, on_event=told.append).recover(["redis-1"])
        recovered = next(event for event in told if isinstance(event, events.Recovered))
        assert (recovered.servers, recovered.missing) == (("redis-1",), ("redis-2", "redis-3"))
        async with in_process(servers, namespace, hub, min_replicas=2) as cluster:
            assert await drain(cluster) == list(range(20))


async def test_one_was_flushed_and_the_others_restarted() -> None:
    """No server is in the life that the view names, though one process has never ended."""
    async with servers_with_disks() as servers, in_process(servers, new_namespace()) as cluster:
        await cluster.queue(QUEUE).push_many(range(100))
        before = cluster.view
        await asyncio.gather(*(server.kill() for server in servers.redis[1:]))
        await command(servers.redis[0], "FLUSHALL")
        await asyncio.gather(*(server.start() for server in servers.redis[1:]))
        await whole_again(cluster, before)
        assert await drain(cluster) == list(range(100))
