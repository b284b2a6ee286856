"""Redis servers that die, hang, come back or run full under load; the queue must continue and lose nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.faults.servers import full
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, command, drain, in_process, new_namespace, settled, until
from tests.load import QUEUE
from zkrq import local
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio


def one_of(stage: Stage, role: str) -> local.LocalRedis:
    return stage.primary() if role == "primary" else stage.followers()[0]


@pytest.mark.parametrize("role", ["primary", "follower"])
async def test_a_server_is_killed_under_load(stage: Stage, role: str) -> None:
    """The pushes simply go on without it."""
    await stage.enter()
    async with stage.load() as load:
        victim = one_of(stage, role)
        await stage.kill(victim)
        await until(load.progress(500))
        assert not stage.is_member(victim)
        assert len(stage.view.members) == 2
    assert not load.uncertain
    assert max(load.delivered.values()) == 1


async def test_an_idle_client_notices_a_dead_server(stage: Stage) -> None:
    """At its next look for orphans, without any push or pop."""
    client = await stage.enter()
    (victim, _) = stage.followers()
    await stage.kill(victim)
    client.look()
    await stage.expect_evicted(victim)


@pytest.mark.parametrize("role", ["primary", "follower"])
async def test_a_server_is_stopped_under_load_and_continued(stage: Stage, role: str) -> None:
    """Stopped, it times out and is evicted; continued, it executes what waited for it, nobody believes it, and it is
    caught up."""
    await stage.enter(command_timeout=1.0)
    async with stage.load() as load:
        victim = one_of(stage, role)
        victim.pause()
        await until(load.progress(500))
        assert not stage.is_member(victim)
        victim.resume()
        await stage.expect_whole(after=1)
        await until(load.progress(500))


@pytest.mark.parametrize("wipe", [False, True], ids=["with its data", "empty"])
async def test_a_server_that_was_restarted_comes_back(stage: Stage, wipe: bool) -> None:
    """What it holds is not believed, since items would be revived or lost by that.  It is caught up instead."""
    await stage.enter()
    async with stage.load() as load:
        victim = stage.primary()
        known = stage.life(victim)
        async with stage.out_and_back():
            await victim.restart(wipe=wipe)
        await until(load.progress(500))
        assert stage.life(victim).run_id != known.run_id
        assert stage.life(victim).generation != known.generation


@pytest.mark.parametrize("how", ["scan", "find_page"])
async def test_a_scan_begins_again_in_another_life_of_the_primary(stage: Stage, how: str) -> None:
    """It has all items again, in another order: a cursor of its life before would pass over some of them."""
    queue = (await stage.enter()).queue
    receipts = await asyncio.gather(*(queue.push(n, id=f"item-{n}", delay=HANG) for n in range(1200)))
    seen = await (scan_through_another_life if how == "scan" else find_through_another_life)(stage, queue)
    assert seen == {receipt.id for receipt in receipts}


async def scan_through_another_life(stage: Stage, queue: zkrq.Queue[Any]) -> set[str]:
    seen: set[str] = set()
    async for item in queue.scan():
        seen.add(item.id)
        if len(seen) == 500:
            await lead_another_life(stage)
    return seen


async def find_through_another_life(stage: Stage, queue: zkrq.Queue[Any]) -> set[str]:
    page = await queue.find_page(limit=500)
    await lead_another_life(stage)
    seen = {item.id for item in page.items}
    page = await queue.find_page(limit=500, after=page.next)
    assert page.restarted
    seen.update(item.id for item in page.items)
    while page.next is not None:
        page = await queue.find_page(limit=500, after=page.next)
        seen.update(item.id for item in page.items)
    return seen


async def lead_another_life(stage: Stage) -> None:
    """The primary loses its data, comes back, and is the primary again."""
    leading = stage.primary()
    async with stage.out_and_back():
        await stage.restart_empty(leading)
    assert stage.primary() is leading


async def test_a_server_that_was_flushed_is_not_believed_until_it_is_caught_up(stage: Stage) -> None:
    """It answers in the same process as before, without an item."""
    await stage.enter()
    async with stage.load() as load:
        await command(stage.primary(), "FLUSHALL")
        await stage.expect_whole(after=1)
        await until(load.progress(500))


async def test_a_server_that_becomes_a_replica_is_evicted_until_it_is_none(stage: Stage) -> None:
    """Meanwhile it has got the other's data, generation and name; all that is wiped."""
    await stage.enter()
    async with stage.load() as load:
        victim, master = stage.primary(), stage.followers()[0]
        await command(victim, "REPLICAOF", master.host, str(master.port))
        await until(load.progress(500))
        assert not stage.is_member(victim)
        newcomer = await stage.enter()
        assert victim.name not in newcomer.view.members
        await newcomer.close()
        await command(victim, "REPLICAOF", "NO", "ONE")
        await stage.expect_whole(after=1)
        await until(load.progress(500))


async def test_two_of_three_servers_are_killed(stage: Stage) -> None:
    """Below min_replicas pushes are refused and say so; what is there can be claimed and acked."""
    client = await stage.enter()
    await client.push_all(range(20))
    held = await client.queue.pop_many(5, timeout=HANG)
    dead = {server.name for server in stage.followers()}
    await stage.kill(*stage.followers())
    with pytest.raises((zkrq.NotEnoughReplicas, zkrq.OutcomeUnknown)):
        while True:
            await client.push("may not be promised")
    await asyncio.gather(*(claim.ack() for claim in held))
    with pytest.raises(zkrq.NotEnoughReplicas):
        await client.push("refused at once, nothing written")
    assert not stage.view.members.keys() & dead
    # Evicted one by one, only the second takes the view below min_replicas.
    assert stage.view.eligible
    assert stage.view.eligible.keys() <= dead
    seen = await client.drain()
    assert seen[:15] == list(range(5, 20))
    assert "refused at once, nothing written" not in seen
    assert not client.cluster.health().ok
    assert len(client.events(zkrq.NotWritable)) == 1


async def test_all_servers_are_killed(stage: Stage) -> None:
    """Nothing can be promised, so nothing is; and nothing hangs."""
    client = await stage.enter(operation_timeout=3)
    await client.push("x")
    for server in stage.servers.redis:
        await stage.kill(server)
    with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
        await client.push("y")
    with pytest.raises(zkrq.Unavailable):
        await client.queue.pop_one(timeout=1)
    with pytest.raises(zkrq.Unavailable):
        await client.queue.size()


async def test_a_full_server_refuses_pushes_and_drains(stage: Stage) -> None:
    """OOM is a refusal: nobody is evicted for it, and claims and acks go on."""
    client = await stage.enter({"codec": zkrq.RAW}, operation_timeout=2)
    await client.push_all([bytes(1000)] * 100)
    async with full(*stage.servers.redis):
        with pytest.raises(zkrq.Unavailable, match="nothing was written"):
            await client.push(b"too much")
        async for claim in client.queue.pop(wait=False):
            await claim.ack()
        assert await client.queue.size() == (0, 0, 0, 0)
        assert len(stage.view.members) == 3
    await client.push(b"room again")


@pytest.mark.parametrize("primary", [False, True])
@pytest.mark.parametrize("key", [None, "key"])
async def test_one_full_server_of_three(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, primary: bool, key: str | None
) -> None:
    """Its limit is the namespace's: pushes end with the truth within about a second, whatever they are, and name it."""
    client = await stage.enter(operation_timeout=60)
    await client.push_all(range(100))
    small = stage.primary() if primary else stage.followers()[0]
    async with full(small):
        first: type[zkrq.ZkrqError] = zkrq.Unavailable if primary and key else zkrq.OutcomeUnknown
        with pytest.raises(first, match=small.name):
            await client.push("first", id="first", key=key)
        await expect_refusals(client, small)
        items: list[object] = []
        async for claim in client.queue.pop(wait=False):
            await claim.ack()
            items.append(claim.item)
        taken = [] if primary else ["first"]  # by the two others alone: carried on by the scrub, ten minutes later
        assert items == [*range(100), *taken], "what was refused is nowhere"
        assert await client.queue.size() == (0, 0, 0, 0)
    monkeypatch.setattr("zkrq.replication.obstacles.FULL_SECONDS", 0.0)
    assert (await client.push("room again", key=key)).replicas == 3
    assert len(stage.view.members) == 3
    assert stage.view.epoch == 1, "nobody was evicted"
    await client.close()
    about = [event for event in client.told if isinstance(event, zkrq.ServerFull | zkrq.ServerHasRoom)]
    assert [(type(event), event.server) for event in about] == [
        (zkrq.ServerFull, small.name),
        (zkrq.ServerHasRoom, small.name),
    ]


async def expect_refusals(client: Actor, small: local.LocalRedis) -> None:
    """No push of any kind is written while a server is full, and each error says so."""
    for other in ("other", None):
        with pytest.raises(zkrq.Unavailable, match=f"nothing was written: no room on {small.name}"):
            await client.push("refused", key=other)
    with pytest.raises(zkrq.Unavailable, match="nothing was written") as many:
        await client.push_all(range(2000))
    assert many.value.outcomes is not None
    assert all(isinstance(each, zkrq.Unavailable) for each in many.value.outcomes.outcomes())
    together = await asyncio.gather(*(client.push(n) for n in range(50)), return_exceptions=True)
    assert {type(each) for each in together} == {zkrq.Unavailable}
    with pytest.raises(zkrq.Unavailable, match="nothing was written"):
        await client.cluster.queue("limited", max_size=9).push("refused")


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
