"""Damaged entries on real servers: they are mended from another server, or set aside, and stop nothing else."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

import zkrq
from tests.harness import new_namespace, over_zookeeper, take, until, whole_again
from zkrq import local
from zkrq.client.damaged import damaged_entries, drop_damaged, restore_damaged
from zkrq.client.inner import client_of
from zkrq.protocol.keys import key
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

GARBAGE = struct.pack("<d", 0) + b"\xff\xfegarbage"
QUEUES = ("q0", "q1", "q2")


@asynccontextmanager
async def plain(server: local.LocalRedis) -> AsyncGenerator[Any, None]:
    async with cast("Any", Redis(host=server.host, port=server.port)) as connection:
        yield connection


async def damage(server: local.LocalRedis, namespace: str, queue: str, kind: str) -> None:
    """Damage one entry of a queue, as ``kind`` says."""

    def named(name: str) -> str:
        return key(namespace, queue, name)

    async with plain(server) as redis:
        first = sorted(await redis.hkeys(named("records")))[0]
        changes: Mapping[str, tuple[str, Any, Any]] = {
            "record": (named("records"), first, GARBAGE),
            "payload": (named("payloads"), first, b"\xff\xff\xff"),
            "id": (named("records"), b"\xff\xfe", await redis.hget(named("records"), first)),
            "note": (named("notes"), b"\xff\xfe", b"\xff"),
            "lead": (named("lead"), "queued", "x"),
        }
        if kind == "name":
            await redis.sadd(key(namespace, "", "queues"), b"\xff\xfe")
        else:
            await redis.hset(*changes[kind])


async def scrub(cluster: zkrq.Cluster) -> None:
    for shard in client_of(cluster).shards.open.values():
        await shard.repairer.scrub()


async def filled(cluster: zkrq.Cluster) -> None:
    """Five items in each queue, pushed one by one."""
    for name in QUEUES:
        for number in range(5):
            await cluster.queue(name).push(number)


async def taken(cluster: zkrq.Cluster, queue: str, count: int) -> list[object]:
    """Take as many items, and ack them."""
    found: list[object] = []
    while len(found) < count:
        claim = await take(cluster.queue(queue))
        found.append(claim.item)
        await claim.ack()
    return sorted(found, key=str)


def found_damage(told: list[zkrq.Event]) -> list[zkrq.DamageFound]:
    return [event for event in told if isinstance(event, zkrq.DamageFound)]


KINDS = ("record", "payload", "id", "name", "note", "lead")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_comes_back_though_the_only_other_one_has_a_damaged_entry(
    servers: local.Servers, kind: str
) -> None:
    """It becomes a member, with all that can be read; what cannot is set aside on both."""
    told: list[zkrq.Event] = []
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace, on_event=told.append, min_replicas=1) as cluster:
        await filled(cluster)
        for server in servers.redis[1:]:
            await server.kill()
        await until(lambda: len(cluster.view.members) == 1)
        await damage(servers.redis[0], namespace, "q1", kind)
        before = cluster.view
        await asyncio.gather(*(server.start() for server in servers.redis[1:]))
        await whole_again(cluster, before)
        lost = 1 if kind in ("record", "payload") else 0
        for name in QUEUES:
            await taken(cluster, name, 5 - (lost if name == "q1" else 0))
        if kind in ("record", "payload", "id"):
            (event,) = found_damage(told)
            assert (event.queue, event.mended, event.set_aside) == ("q1", 0, 1)
            assert "queue q1: 1 damaged entry is set aside" in " ".join(cluster.health().warnings)
            for server in servers.redis:
                async with plain(server) as redis:
                    assert await redis.hlen(key(namespace, "q1", "aside")) == 1
        await scrub(cluster)
        assert await cluster.queues() == list(QUEUES)
        assert (await cluster.statistics())["q1"].damaged == (1 if kind in ("record", "payload", "id") else 0)
        assert sum(await cluster.queue("q1").size()) == 0


@pytest.mark.parametrize("kind", ["record", "payload"])
@pytest.mark.parametrize("where", ["primary", "follower"])
async def test_the_scrub_mends_from_a_good_copy(servers: local.Servers, kind: str, where: str) -> None:
    told: list[zkrq.Event] = []
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace, on_event=told.append) as cluster:
        await filled(cluster)
        primary = cluster.view.primary("q1")
        bad = next(server for server in servers.redis if (server.name == primary) == (where == "primary"))
        await damage(bad, namespace, "q1", kind)
        await scrub(cluster)
        (event,) = found_damage(told)
        assert (event.mended, event.set_aside, event.left) == (1, 0, 0)
        for server in servers.redis:
            if server is not bad:
                await server.kill()
        assert await taken(cluster, "q1", 5) == list(range(5))


async def test_a_returning_server_gets_the_good_copy_of_the_third(servers: local.Servers) -> None:
    """Before it is a member: as the primary it would take for forgotten what it does not know."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await filled(cluster)
        primary = cluster.view.primary("q1")
        bad = next(server for server in servers.redis if server.name == primary)
        good, back = (server for server in servers.redis if server is not bad)
        await damage(bad, namespace, "q1", "record")
        before = cluster.view
        await back.restart(wipe=True)
        await whole_again(cluster, before)
        await good.kill()
        assert await taken(cluster, "q1", 5) == list(range(5))


@pytest.mark.parametrize("kind", ["record", "payload", "id", "note", "lead", "name"])
async def test_everything_else_is_read_claimed_and_closed(servers: local.Servers, kind: str) -> None:
    """Before anything is mended."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await filled(cluster)
        for server in servers.redis:
            await damage(server, namespace, "q1", kind)
        queue = cluster.queue("q1")
        whole = 4 if kind in ("record", "payload") else 5
        assert len([item async for item in queue.scan()]) == whole
        assert len(await queue.peek(10)) == whole
        for item in await queue.peek(10):
            assert await queue.get(item.id) is not None
        assert set(await cluster.statistics()) == set(QUEUES)
        await cluster.consumers()
        assert len(await taken(cluster, "q1", whole)) == whole


OWN: Mapping[str, Mapping[str, Any]] = {
    "epoch": {"epoch": "x"},
    "no epoch": {"epoch": ""},
    "generation": {"generation": b"\xff\xfe"},
    "all": dict.fromkeys(("generation", "epoch", "name", "repairer", "repaired_until_ms"), b"\xff\xfe"),
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("where", ["primary", "follower"])
async def test_a_server_whose_own_entry_is_damaged_leaves_and_comes_back(
    servers: local.Servers, kind: str, where: str
) -> None:
    """No call fails: it is evicted like one that has lost its data, emptied, and caught up."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await filled(cluster)
        before = cluster.view
        primary = before.primary("q1")
        bad = next(server for server in servers.redis if (server.name == primary) == (where == "primary"))
        async with plain(bad) as redis:
            await redis.hset(key(namespace, "", "server"), mapping=OWN[kind])
        await cluster.queue("q1").push(5)
        await until(lambda: cluster.view.epoch >= before.epoch + 2 and len(cluster.view.members) == 3)
        assert cluster.view.members[ServerId(bad.name)] != before.members[ServerId(bad.name)]
        assert not cluster.health().warnings
        async with over_zookeeper(servers, namespace) as second:
            assert await taken(second, "q1", 6) == list(range(6))


async def test_what_is_set_aside_is_restored_or_dropped(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        await filled(cluster)
        for server in servers.redis:
            await damage(server, namespace, "q0", "record")
            await damage(server, namespace, "q1", "record")
            await damage(server, namespace, "q2", "payload")
        await scrub(cluster)
        (entry,) = [each async for each in damaged_entries(cluster, "q0")]
        await cluster.queue("q0").push("the same id", id=entry.id)
        with pytest.raises(zkrq.ConfigError, match="push that under another id, then drop the entry"):
            await restore_damaged(cluster, "q0", entry.id)
        await cluster.queue("q0").push("what is left")
        await drop_damaged(cluster, "q0", entry.id)
        assert await taken(cluster, "q0", 6) == [1, 2, 3, 4, "the same id", "what is left"]
        (entry,) = [each async for each in damaged_entries(cluster, "q1")]
        assert entry.reason == "no server in sync can read it"
        assert await restore_damaged(cluster, "q1", entry.id) == 1
        assert await taken(cluster, "q1", 5) == list(range(5))
        (entry,) = [each async for each in damaged_entries(cluster, "q2")]
        with pytest.raises(zkrq.ConfigError, match="its payloads cannot be read"):
            await restore_damaged(cluster, "q2", entry.id)
        await drop_damaged(cluster, "q2", entry.id)
        await scrub(cluster)
        for name in QUEUES:
            assert not [each async for each in damaged_entries(cluster, name)]
        assert not cluster.health().warnings
