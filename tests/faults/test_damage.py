"""Damaged entries on real servers: they are mended from another server, or set aside, and stop nothing else."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from redis.asyncio import Redis

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, take, until
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


async def scrub(client: Actor) -> None:
    for shard in client_of(client.cluster).shards.open.values():
        await shard.repairer.scrub()


async def enter_filled(stage: Stage, **options: Any) -> Actor:
    """Enter, with five items in each queue, pushed one by one."""
    client = await stage.enter(**options)
    for name in QUEUES:
        for number in range(5):
            await client.cluster.queue(name).push(number)
    return client


async def taken(client: Actor, queue: str, count: int) -> list[object]:
    """Take as many items, and ack them."""
    found: list[object] = []
    while len(found) < count:
        claim = await take(client.cluster.queue(queue))
        found.append(claim.item)
        await claim.ack()
    return sorted(found, key=str)


def placed(stage: Stage, where: str) -> local.LocalRedis:
    """The primary of the damaged queue, or the first follower."""
    primary = stage.primary("q1")
    return next(server for server in stage.servers.redis if (server is primary) == (where == "primary"))


KINDS = ("record", "payload", "id", "name", "note", "lead")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_comes_back_though_the_only_other_one_has_a_damaged_entry(stage: Stage, kind: str) -> None:
    """It becomes a member, with all that can be read; what cannot is set aside on both."""
    only, *others = stage.servers.redis
    client = await enter_filled(stage, min_replicas=1)
    await stage.kill(*others)
    await until(lambda: len(client.view.members) == 1)
    await damage(only, stage.namespace, "q1", kind)
    async with stage.out_and_back():
        await stage.start(*others)
    lost = 1 if kind in ("record", "payload") else 0
    for name in QUEUES:
        await taken(client, name, 5 - (lost if name == "q1" else 0))
    if kind in ("record", "payload", "id"):
        await expect_set_aside(stage, client)
    await scrub(client)
    assert await client.cluster.queues() == list(QUEUES)
    statistics = await client.cluster.statistics()
    assert statistics["q1"].damaged == (1 if kind in ("record", "payload", "id") else 0)
    assert sum(await client.cluster.queue("q1").size()) == 0


async def expect_set_aside(stage: Stage, client: Actor) -> None:
    """One entry is set aside on every server, and that is told."""
    (event,) = client.events(zkrq.DamageFound)
    assert (event.queue, event.mended, event.set_aside) == ("q1", 0, 1)
    assert "queue q1: 1 damaged entry is set aside" in " ".join(client.cluster.health().warnings)
    for server in stage.servers.redis:
        async with plain(server) as redis:
            assert await redis.hlen(key(stage.namespace, "q1", "aside")) == 1


@pytest.mark.parametrize("kind", ["record", "payload"])
@pytest.mark.parametrize("where", ["primary", "follower"])
async def test_the_scrub_mends_from_a_good_copy(stage: Stage, kind: str, where: str) -> None:
    """The server that had the damage alone has everything then."""
    client = await enter_filled(stage)
    bad = placed(stage, where)
    await damage(bad, stage.namespace, "q1", kind)
    await scrub(client)
    (event,) = client.events(zkrq.DamageFound)
    assert (event.mended, event.set_aside, event.left) == (1, 0, 0)
    for server in stage.servers.redis:
        if server is not bad:
            await server.kill()
    assert await taken(client, "q1", 5) == list(range(5))


async def test_a_returning_server_gets_the_good_copy_of_the_third(stage: Stage) -> None:
    """Before it is a member: as the primary it would take for forgotten what it does not know."""
    client = await enter_filled(stage)
    bad = stage.primary("q1")
    good, back = stage.followers("q1")
    await damage(bad, stage.namespace, "q1", "record")
    async with stage.out_and_back():
        await stage.restart_empty(back)
    await stage.kill(good)
    assert await taken(client, "q1", 5) == list(range(5))


@pytest.mark.parametrize("kind", ["record", "payload", "id", "note", "lead", "name"])
async def test_everything_else_is_read_claimed_and_closed(stage: Stage, kind: str) -> None:
    """Before anything is mended."""
    client = await enter_filled(stage)
    for server in stage.servers.redis:
        await damage(server, stage.namespace, "q1", kind)
    queue = client.cluster.queue("q1")
    whole = 4 if kind in ("record", "payload") else 5
    assert len([item async for item in queue.scan()]) == whole
    assert len(await queue.peek(10)) == whole
    for item in await queue.peek(10):
        assert await queue.get(item.id) is not None
    assert set(await client.cluster.statistics()) == set(QUEUES)
    await client.cluster.consumers()
    assert len(await taken(client, "q1", whole)) == whole


OWN: Mapping[str, Mapping[str, Any]] = {
    "epoch": {"epoch": "x"},
    "no epoch": {"epoch": ""},
    "generation": {"generation": b"\xff\xfe"},
    "all": dict.fromkeys(("generation", "epoch", "name", "repairer", "repaired_until_ms"), b"\xff\xfe"),
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("where", ["primary", "follower"])
async def test_a_server_whose_own_entry_is_damaged_leaves_and_comes_back(stage: Stage, kind: str, where: str) -> None:
    """No call fails: it is evicted like one that has lost its data, emptied, and caught up."""
    client = await enter_filled(stage)
    before, bad = client.view, placed(stage, where)
    async with plain(bad) as redis:
        await redis.hset(key(stage.namespace, "", "server"), mapping=OWN[kind])
    await client.cluster.queue("q1").push(5)
    await until(lambda: client.view.epoch >= before.epoch + 2 and len(client.view.members) == 3)
    assert client.view.members[ServerId(bad.name)] != before.members[ServerId(bad.name)]
    assert not client.cluster.health().warnings
    assert await taken(await stage.enter(), "q1", 6) == list(range(6))


@pytest.mark.parametrize("count", [1, 3])
async def test_what_was_saved_is_restored(stage: Stage, count: int) -> None:
    client = await stage.enter()
    queue = client.cluster.queue("q0")
    if count == 1:
        await queue.push(0)
    else:
        await queue.push_many(range(count))
    claims = await queue.pop_many(count, timeout=HANG)
    for claim in claims:
        if claim.item != 1:
            await claim.save(f"half of {claim.item}")
        await claim.release()
    for server in stage.servers.redis:
        await damage(server, stage.namespace, "q0", "record")
    await scrub(client)
    entry = await only_damaged(client, "q0")
    assert await restore_damaged(client.cluster, "q0", entry.id) == count
    saved = {claim.item: claim.saved for claim in await queue.pop_many(count, timeout=HANG)}
    assert saved == {number: None if number == 1 else f"half of {number}" for number in range(count)}


async def test_what_is_set_aside_is_restored_or_dropped(stage: Stage) -> None:
    """What can be read by now is restored; what is lost is pushed again, and dropped."""
    client = await enter_filled(stage)
    for server in stage.servers.redis:
        await damage(server, stage.namespace, "q0", "record")
        await damage(server, stage.namespace, "q1", "record")
        await damage(server, stage.namespace, "q2", "payload")
    await scrub(client)
    entry = await only_damaged(client, "q0")
    await client.cluster.queue("q0").push("the same id", id=entry.id)
    with pytest.raises(zkrq.ConfigError, match="push that under another id, then drop the entry"):
        await restore_damaged(client.cluster, "q0", entry.id)
    await client.cluster.queue("q0").push("what is left")
    await drop_damaged(client.cluster, "q0", entry.id)
    assert await taken(client, "q0", 6) == [1, 2, 3, 4, "the same id", "what is left"]
    entry = await only_damaged(client, "q1")
    assert entry.reason == "no server in sync can read it"
    assert await restore_damaged(client.cluster, "q1", entry.id) == 1
    assert await taken(client, "q1", 5) == list(range(5))
    entry = await only_damaged(client, "q2")
    with pytest.raises(zkrq.ConfigError, match="its payloads cannot be read"):
        await restore_damaged(client.cluster, "q2", entry.id)
    await drop_damaged(client.cluster, "q2", entry.id)
    await scrub(client)
    for name in QUEUES:
        assert not [each async for each in damaged_entries(client.cluster, name)]
    assert not client.cluster.health().warnings


async def only_damaged(client: Actor, queue: str) -> Any:
    """The only entry of a queue that is set aside."""
    (entry,) = [each async for each in damaged_entries(client.cluster, queue)]
    return entry
