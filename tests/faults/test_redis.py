"""Redis servers that die, hang, come back or run full under load; the queue must continue and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import zkrq
from tests.harness import (
    HANG,
    command,
    drain,
    in_process,
    is_whole,
    new_namespace,
    over_zookeeper,
    settled,
    until,
)
from tests.load import QUEUE, Load
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio


def named(servers: local.Servers, name: str) -> local.LocalRedis:
    return next(server for server in servers.redis if server.name == name)


def primary(servers: local.Servers, cluster: Cluster) -> local.LocalRedis:
    return named(servers, cluster.view.primary(QUEUE))


def follower(servers: local.Servers, cluster: Cluster) -> local.LocalRedis:
    leading = cluster.view.primary(QUEUE)
    return named(servers, next(id for id in cluster.view.members if id != leading))


@pytest.mark.parametrize("which", [primary, follower])
async def test_a_server_is_killed_under_load(
    servers: local.Servers, which: Callable[[local.Servers, Cluster], local.LocalRedis]
) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = which(servers, cluster)
            await victim.kill()
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            assert len(cluster.view.members) == 2
        assert not load.uncertain, "the pushes simply went on"
        assert max(load.delivered.values()) == 1


async def test_an_idle_client_notices_a_dead_server(servers: local.Servers) -> None:
    """At its next look for orphans, without any push or pop."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        victim = follower(servers, cluster)
        await victim.kill()
        cluster._client.shard.probe.look()  # pyright: ignore[reportPrivateUsage]
        await until(lambda: victim.name not in cluster.view.members)


@pytest.mark.parametrize("which", [primary, follower])
async def test_a_server_is_stopped_under_load_and_continued(
    servers: local.Servers, which: Callable[[local.Servers, Cluster], local.LocalRedis]
) -> None:
    """Stopped, it times out and is evicted; continued, it executes what waited for it, nobody believes it, and it is
    caught up."""
    async with over_zookeeper(servers, new_namespace(), command_timeout=1.0) as cluster:
        load = Load(cluster)
        async with load.running():
            victim = which(servers, cluster)
            victim.pause()
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            victim.resume()
            await until(lambda: is_whole(cluster, after=1))
            await until(load.progress(500))


@pytest.mark.parametrize("wipe", [False, True], ids=["with its data", "empty"])
async def test_a_server_that_was_restarted_comes_back(servers: local.Servers, wipe: bool) -> None:
    """What it holds is not believed, since items would be revived or lost by that.  It is caught up instead."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            before = cluster.view
            victim = primary(servers, cluster)
            await victim.restart(wipe=wipe)
            await until(lambda: is_whole(cluster, after=before.epoch))
            await until(load.progress(500))
            after = cluster.view.members[ServerId(victim.name)]
            known = before.members[ServerId(victim.name)]
            assert after.run_id != known.run_id
            assert after.generation != known.generation


@pytest.mark.parametrize("how", ["scan", "find_page"])
async def test_a_scan_begins_again_in_another_life_of_the_primary(servers: local.Servers, how: str) -> None:
    """It has all items again, in another order: a cursor of its life before would pass over some of them."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue = cluster.queue(QUEUE)
        receipts = await asyncio.gather(*(queue.push(n, id=f"item-{n}", delay=HANG) for n in range(1200)))

        async def come_back() -> None:
            before, leading = cluster.view.epoch, cluster.view.primary(QUEUE)
            await primary(servers, cluster).restart(wipe=True)
            await until(lambda: is_whole(cluster, after=before))
            assert cluster.view.primary(QUEUE) == leading

        seen: set[str] = set()
        if how == "scan":
            async for item in queue.scan():
                seen.add(item.id)
                if len(seen) == 500:
                    await come_back()
        else:
            page = await queue.find_page(limit=500)
            await come_back()
            seen.update(item.id for item in page.items)
            page = await queue.find_page(limit=500, after=page.next)
            assert page.restarted
            while True:
                seen.update(item.id for item in page.items)
                if page.next is None:
                    break
                page = await queue.find_page(limit=500, after=page.next)
        assert seen == {receipt.id for receipt in receipts}


async def test_a_server_that_was_flushed_is_not_believed_until_it_is_caught_up(servers: local.Servers) -> None:
    async with over_zookeeper(servers, new_namespace()) as cluster:
        load = Load(cluster)
        async with load.running():
            await command(primary(servers, cluster), "FLUSHALL")
            await until(lambda: is_whole(cluster, after=1))
            await until(load.progress(500))


async def test_a_server_that_becomes_a_replica_is_evicted_until_it_is_none(servers: local.Servers) -> None:
    """Meanwhile it has got the other's data, generation and name; all that is wiped."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        load = Load(cluster)
        async with load.running():
            victim, master = primary(servers, cluster), follower(servers, cluster)
            await command(victim, "REPLICAOF", master.host, str(master.port))
            await until(load.progress(500))
            assert victim.name not in cluster.view.members
            async with over_zookeeper(servers, namespace) as newcomer:
                assert victim.name not in newcomer.view.members
            await command(victim, "REPLICAOF", "NO", "ONE")
            await until(lambda: is_whole(cluster, after=1))
            await until(load.progress(500))


async def test_two_of_three_servers_are_killed(servers: local.Servers) -> None:
    """Below min_replicas pushes are refused and say so; what is there can be claimed and acked."""
    events: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=events.append) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push_many(range(20))
        held = await queue.pop_many(5, timeout=HANG)
        first, second = (server for server in servers.redis if server.name != cluster.view.primary(QUEUE))
        await asyncio.gather(first.kill(), second.kill())
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
            while True:
                await queue.push("may not be promised")
        await asyncio.gather(*(claim.ack() for claim in held))
        with pytest.raises(zkrq.NotEnoughReplicas):
            await queue.push("refused at once, nothing written")
        dead = {first.name, second.name}
        assert not cluster.view.members.keys() & dead
        # Evicted one by one, only the second takes the view below min_replicas.
        assert cluster.view.eligible
        assert cluster.view.eligible.keys() <= dead
        seen: list[object] = []
        async for claim in queue.pop(wait=False):
            async with claim:
                seen.append(claim.item)
        assert seen[:15] == list(range(5, 20))
        assert "refused at once, nothing written" not in seen
        assert not cluster.health().ok
        assert sum(isinstance(event, zkrq.NotWritable) for event in events) == 1


async def test_all_servers_are_killed(servers: local.Servers) -> None:
    """Nothing can be promised, so nothing is; and nothing hangs."""
    async with over_zookeeper(servers, new_namespace(), operation_timeout=3) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("x")
        for server in servers.redis:
            await server.kill()
        with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
            await queue.push("y")
        with pytest.raises(zkrq.Unavailable):
            await queue.pop_one(timeout=1)
        with pytest.raises(zkrq.Unavailable):
            await queue.size()


async def test_a_full_server_refuses_pushes_and_drains(servers: local.Servers) -> None:
    """OOM is a refusal: nobody is evicted for it, and claims and acks go on."""
    async with over_zookeeper(servers, new_namespace(), operation_timeout=2) as cluster:
        queue = cluster.queue(QUEUE, codec=zkrq.RAW)
        await queue.push_many([bytes(1000)] * 100)
        try:
            for server in servers.redis:
                await command(server, "CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(zkrq.Unavailable, match="nothing was written"):
                await queue.push(b"too much")
            async for claim in queue.pop(wait=False):
                await claim.ack()
            assert await queue.size() == (0, 0, 0, 0)
            assert len(cluster.view.members) == 3
        finally:
            for server in servers.redis:
                await command(server, "CONFIG", "SET", "maxmemory", "0")
        await queue.push(b"room again")


@pytest.mark.parametrize("primary", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
async def test_one_full_server_of_three(
    servers: local.Servers, monkeypatch: pytest.MonkeyPatch, primary: bool, key: str | None
) -> None:
    """Its limit is the namespace's: pushes end with the truth within about a second, whatever they are, and name it."""
    told: list[zkrq.Event] = []
    async with over_zookeeper(servers, new_namespace(), on_event=told.append, operation_timeout=60) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push_many(range(100))
        leading = cluster.view.primary(QUEUE)
        full = next(server for server in servers.redis if (server.name == leading) == primary)
        try:
            await command(full, "CONFIG", "SET", "maxmemory", "1")
            first: type[zkrq.ZkrqError] = zkrq.Unavailable if primary and key else zkrq.OutcomeUnknown
            with pytest.raises(first, match=full.name):
                await queue.push("first", id="first", key=key)
            for other in ("other", None):
                with pytest.raises(zkrq.Unavailable, match=f"nothing was written: no room on {full.name}"):
                    await queue.push("refused", key=other)
            with pytest.raises(zkrq.Unavailable, match="nothing was written") as many:
                await queue.push_many(range(2000))
            assert many.value.outcomes is not None
            assert all(isinstance(each, zkrq.Unavailable) for each in many.value.outcomes.outcomes())
            together = await asyncio.gather(*(queue.push(n) for n in range(50)), return_exceptions=True)
            assert {type(each) for each in together} == {zkrq.Unavailable}
            with pytest.raises(zkrq.Unavailable, match="nothing was written"):
                await cluster.queue("limited", max_size=9).push("refused")
            items: list[object] = []
            async for claim in queue.pop(wait=False):
                await claim.ack()
                items.append(claim.item)
            taken = [] if primary else ["first"]  # by the two others alone: carried on by the scrub, ten minutes later
            assert items == [*range(100), *taken], "what was refused is nowhere"
            assert await queue.size() == (0, 0, 0, 0)
        finally:
            await command(full, "CONFIG", "SET", "maxmemory", "0")
        monkeypatch.setattr("zkrq.replication.obstacles.FULL_SECONDS", 0.0)
        assert (await queue.push("room again", key=key)).replicas == 3
        assert len(cluster.view.members) == 3
        assert cluster.view.epoch == 1, "nobody was evicted"
    about = [event for event in told if isinstance(event, zkrq.ServerFull | zkrq.ServerHasRoom)]
    assert [(type(event), event.server) for event in about] == [
        (zkrq.ServerFull, full.name),
        (zkrq.ServerHasRoom, full.name),
    ]


async def save(server: local.LocalRedis, status: bytes) -> None:
    """Have the server write a snapshot, and wait for its outcome."""
    await command(server, "BGSAVE")

    async def is_written() -> bool:
        info = await command(server, "INFO", "persistence")
        return b"rdb_bgsave_in_progress:0" in info and b"rdb_last_bgsave_status:" + status in info

    await settled(is_written)


async def test_no_server_can_write_to_its_disk() -> None:
    """Each refuses every call that might write, and none is evicted for it: the client says so until one can.  Who only
    looks sees what there is."""
    namespace, hub = new_namespace(), Hub()
    async with (
        local.servers(redis=3, zookeeper=0, redis_config={"save": "3600 1"}) as servers,
        in_process(servers, namespace, hub, operation_timeout=1.0) as cluster,
    ):
        queue = cluster.queue(QUEUE)
        await queue.push("before")
        for server in servers.redis:
            (server.data / "dump.rdb").mkdir()  # in the way of the snapshot, as a full disk is
            await save(server, b"err")
        with pytest.raises(zkrq.Unavailable, match="nothing was written: redis-1: MISCONF"):
            await queue.push("refused")
        health = cluster.health()
        assert not health.ok
        assert health.trouble[0].startswith("no server in sync can be used: redis-1, redis-2, redis-3: MISCONF")
        assert cluster.view.epoch == 1
        async with in_process(servers, namespace, hub, found=False, only_looks=True) as looking:
            assert (await looking.statistics())[QUEUE].sizes.ready == 1
            assert [item.item for item in await looking.queue(QUEUE).peek()] == ["before"]
            assert await looking.consumers() == {}
        for server in servers.redis:
            (server.data / "dump.rdb").rmdir()
            await save(server, b"ok")
        await until(lambda: cluster.health().ok)
        await queue.push("after")
        assert await drain(cluster) == ["before", "after"]
