"""Clients that a server does not let in: a wrong password, a missing right, no room.  Only they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.faults.servers import no_room
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, command, until
from tests.load import Load
from zkrq import local
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

USER = "app"

OTHER: dict[str, Any] = {"name": "other"}
"""A queue beside that of the load."""


@pytest.fixture
async def users(hub_stage: Stage) -> AsyncGenerator[Stage]:
    """The shared servers with a user that has the password ``old`` and every right."""
    await set_user(hub_stage, "reset", "on", ">old", "~*", "&*", "+@all")
    yield hub_stage
    await each(hub_stage, "ACL", "DELUSER", USER)


async def test_a_wrong_password_is_told_at_connect(users: Stage) -> None:
    """The error names the server and what to correct."""
    async with healthy_load(users) as load:
        await set_user(users, "resetpass", ">new", count=2)
        with pytest.raises(zkrq.ConfigError, match=r"redis-1 .*WRONGPASS.*correct the user or the password"):
            async with as_user(users, "old"):
                pass
        await until(load.progress(200))


async def test_two_of_three_servers_stop_to_let_a_client_in(users: Stage) -> None:
    """It is told what to correct, writes nothing once it knows, and takes part again when it is let in."""
    async with healthy_load(users) as load, as_user(users, "old") as denied:
        await denied.push("before")
        await set_user(users, "resetpass", ">new", count=2)
        await each(users, "CLIENT", "KILL", "USER", USER, count=2)
        await learn_of_two(denied)
        await expect_nothing_written(denied)
        await until(load.progress(200))
        told = denied.events(zkrq.ServerUnusableHere)
        assert {event.server for event in told} == {"redis-1", "redis-2"}
        assert len(told) == 2
        await set_user(users, ">old")
        await until(lambda: denied.cluster.health().ok)
        await denied.push("after")
        claims = await denied.queue.pop_many(10, timeout=0)
        items = [claim.item for claim in claims]
        assert set(items) - {"may have happened"} == {"before", "after"}
        assert not denied.events(zkrq.ServerEvicted)


async def learn_of_two(denied: Actor) -> None:
    """Push until it knows of two servers that they do not let it in."""
    while len(denied.events(zkrq.ServerUnusableHere)) < 2:
        with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match=r"redis-[12] does not let this client in"):
            await denied.push("may have happened")


async def expect_nothing_written(denied: Actor) -> None:
    """Neither it pushes nor claims, nor is that in doubt."""
    for _ in range(20):
        with pytest.raises(zkrq.ConfigError, match=r"redis-[12] does not let this client in"):
            await denied.push("nothing was written")
        await asyncio.sleep(0.1)  # over several of the times after which the server is asked again
    with pytest.raises(zkrq.ConfigError):
        await denied.push("decided", key="k")
    with pytest.raises(zkrq.ConfigError):
        await denied.queue.pop_one(timeout=0)
    expect_trouble(denied, "WRONGPASS")


async def test_a_password_is_rotated(users: Stage) -> None:
    """Old and new for a while, then only new: who knows it notices nothing, and the others evict nobody."""
    async with as_user(users, "old") as late, healthy_load(users) as load:
        await set_user(users, ">new")
        async with as_user(users, "new") as timely:
            await set_user(users, "<old")
            await late.push("over the connections that it has")
            for server in users.servers.redis:
                await command(server, "CLIENT", "KILL", "USER", USER)
                await timely.push("connected again")
                with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match="WRONGPASS"):
                    await late.push("not any more")
            await until(load.progress(200))


async def test_a_right_is_missing(users: Stage) -> None:
    """The error names it."""
    async with healthy_load(users) as load, as_user(users, "old") as denied:
        await denied.push("before")
        await set_user(users, "-fcall", count=2)
        for _ in range(3):
            with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match=r"NOPERM.*the rights \+fcall"):
                await denied.push("not any more")
        await until(load.progress(200))


async def test_one_has_a_wrong_password_and_the_primary_dies(users: Stage) -> None:
    """A client that is not let in by one server does not judge another one."""
    async with as_user(users, "old") as denied:
        await denied.push("x")
        primary = denied.view.primary("other")
        dying = users.server(primary)
        shut = next(server for server in users.servers.redis if server is not dying)
        await command(shut, "ACL", "SETUSER", USER, "resetpass", ">new")
        await command(shut, "CLIENT", "KILL", "USER", USER)
        await users.kill(dying)
        with pytest.raises(zkrq.ConfigError, match=f"{shut.name} does not let this client in"):
            await denied.queue.size()
        assert denied.view.epoch == 1
        async with users.visit(OTHER) as healthy:
            await healthy.push("y")
            assert primary not in healthy.view.members
        await users.start(dying)
        await command(dying, "ACL", "SETUSER", USER, "reset", "on", ">old", "~*", "&*", "+@all")


async def test_no_room_for_a_newcomer(hub_stage: Stage) -> None:
    """It waits, writes nothing, and evicts nobody."""
    async with healthy_load(hub_stage) as load, AsyncExitStack() as stack:
        async with no_room(hub_stage.servers.redis[1]):
            newcomer = await stack.enter_async_context(hub_stage.visit(OTHER, operation_timeout=1.0))
            for _ in range(2):
                with pytest.raises(zkrq.Unavailable, match=r"nothing was written.*max number of clients reached"):
                    await newcomer.push("no room")
            expect_trouble(newcomer, "max number of clients")
            await until(load.progress(200))
        await until(lambda: newcomer.cluster.health().ok)
        await newcomer.push("room")
        assert await newcomer.queue.size() == (1, 0, 0, 0)


async def test_newcomers_without_room_neither_evict_a_server_nor_accuse_it_in_turns(hub_stage: Stage) -> None:
    """It serves one client, which refutes for all of them at once; each accusation makes all clients read the view."""
    full = hub_stage.servers.redis[1]
    async with healthy_load(hub_stage) as load, no_room(full), AsyncExitStack() as stack:
        visits = [hub_stage.visit(OTHER, operation_timeout=1.0) for _ in range(3)]
        newcomer, *_ = [await stack.enter_async_context(visit) for visit in visits]
        await until(lambda: full.name in newcomer.view.accusations)
        views = list[object]()
        for _ in range(4):
            with pytest.raises(zkrq.Unavailable, match="max number of clients reached"):
                await newcomer.push("no room")
            views.append(newcomer.view)
        assert views.count(views[-1]) >= 3, "the view is as it was"
        await until(load.progress(200))


async def test_a_server_without_room_for_anybody_leaves_and_comes_back(hub_stage: Stage) -> None:
    """All its connections broke, and ``maxclients`` is taken by others: it would halt all pushes."""
    full = hub_stage.servers.redis[1]
    client, other = await hub_stage.enter(), await hub_stage.enter(OTHER)
    async with hub_stage.load(producers=2, consumers=2) as load:
        await other.push("before")
        async with no_room(full, break_all=True):
            await hub_stage.expect_evicted(full)
            await until(load.progress(200))
            assert (await other.push("without it")).replicas == 2
        await until(lambda: hub_stage.is_member(full))
    assert not load.uncertain, "no call failed"
    (evicted,) = client.events(zkrq.ServerEvicted) + other.events(zkrq.ServerEvicted)
    assert "max number of clients" in evicted.reason


async def test_a_refused_subscription_is_told_and_polled_around(users: Stage) -> None:
    """It takes each item by its next look, or the one after."""
    await set_user(users, "resetchannels")
    async with users.visit() as producer, as_user(users, "old", {}) as deaf:
        for number in range(4):
            await expect_polled(producer, deaf, number)
        refused = deaf.events(zkrq.WakeupsRefused)
        assert [event.server for event in refused] == [deaf.view.primary("jobs")]
        assert f"{{{users.namespace}}}:wake:*" in refused[0].reason
        expect_trouble(deaf, "wake-ups")


async def expect_polled(producer: Actor, deaf: Actor, item: int) -> None:
    """A client that waits takes an item without being woken."""
    taking = asyncio.create_task(deaf.claim())
    await deaf.expect_event(zkrq.WakeupsRefused)
    await asyncio.sleep(0.6)  # a look has found nothing meanwhile
    before = looks(deaf)
    await producer.push(item)
    claim = await taking
    assert claim.item == item
    assert looks(deaf) <= before + 2, "by the next look, or the one after"
    await claim.ack()


async def test_a_client_that_may_not_publish_completes_its_calls(users: Stage) -> None:
    """A wake-up that is lost costs time, never an item."""
    await set_user(users, "resetchannels")
    async with users.visit() as consumer, as_user(users, "old", {}) as mute:
        taking = asyncio.create_task(consumer.claim())
        await until(lambda: looks(consumer) > 0)
        receipt = await mute.push("x")
        assert receipt.replicas == 3
        claim = await taking
        assert await mute.queue.cancel(claim.id)


async def test_a_server_that_lets_nobody_in_stops_nobody(hub_stage: Stage) -> None:
    """It is accused, evicted when no client is let in, and back when it lets clients in again."""
    wrong = hub_stage.servers.redis[1]
    one, other = [await hub_stage.enter(queue, operation_timeout=HANG) for queue in ({}, OTHER)]
    async with hub_stage.load(producers=2, consumers=2) as load:
        await other.push("x")
        async with closed_to_all(wrong, ends_connections=True):
            assert (await other.push("y")).replicas == 2
            await until(load.progress(100))
            assert not hub_stage.is_member(wrong)
            await asyncio.sleep(1.5)  # it is not taken back by a client whose connection is from before
            assert wrong.name not in one.view.receivers
            assert one.cluster.health().ok
        await until(lambda: wrong.name in one.view.members.keys() & other.view.members.keys())
        assert (await other.push("z")).replicas == 3
    assert not load.uncertain


async def test_a_wrong_server_is_accused_by_one_and_not_vouched_for_by_old_connections(hub_stage: Stage) -> None:
    """One client has to connect anew, the others go on over the connections that they have."""
    wrong = hub_stage.servers.redis[1]
    old, anew = await hub_stage.enter(), await hub_stage.enter()
    await old.push("x")
    await anew.push("y")
    async with closed_to_all(wrong, ends_connections=False):
        anew.fleet.servers[ServerId(wrong.name)].disconnect("for the test")
        assert (await anew.push("z")).replicas == 2
        assert (await old.push("z")).replicas == 2


# -- who is let in -----------------------------------------------------------------------------------------------------


async def each(stage: Stage, *words: str, count: int = 3) -> None:
    """Have the first servers execute a command."""
    for server in stage.servers.redis[:count]:
        reply = await command(server, *words)
        assert not reply.startswith(b"-"), reply


async def set_user(stage: Stage, *rules: str, count: int = 3) -> None:
    """Give the user passwords and rights on the first servers."""
    await each(stage, "ACL", "SETUSER", USER, *rules, count=count)


def as_user(stage: Stage, password: str, queue: dict[str, Any] = OTHER) -> AbstractAsyncContextManager[Actor]:
    """A client with a user and a password."""
    urls = {server.name: f"redis://{USER}:{password}@{server.address}" for server in stage.servers.redis}
    return stage.visit(queue, urls=urls)


@asynccontextmanager
async def healthy_load(stage: Stage) -> AsyncGenerator[Load]:
    """Items that flow through a client to which nothing happens: no push of it may fail, and no server be evicted."""
    async with stage.visit() as client:
        load = Load(client.cluster)
        async with load.running(producers=2, consumers=2):
            yield load
        assert not load.uncertain
        assert client.view.epoch == 1
        assert not client.events(zkrq.ServerEvicted)


@asynccontextmanager
async def closed_to_all(server: local.LocalRedis, *, ends_connections: bool) -> AsyncGenerator[None]:
    """A server whose password was set, and told to no client; connections that exist go on unless they are ended."""
    await command(server, "CONFIG", "SET", "requirepass", "secret")
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        commands = [b"AUTH secret"]
        if ends_connections:
            commands += [b"CLIENT KILL TYPE normal SKIPME yes", b"CLIENT KILL TYPE pubsub"]
        async with asyncio.timeout(HANG):
            for each_command in commands:
                writer.write(each_command + b"\r\n")
                await reader.readline()
        yield
    finally:
        writer.write(b'CONFIG SET requirepass ""\r\nQUIT\r\n')
        await reader.read(-1)
        writer.close()


def expect_trouble(client: Actor, text: str) -> None:
    health = client.cluster.health()
    assert not health.ok
    assert text in " ".join(health.trouble)


def looks(client: Actor) -> int:
    """How often it has looked for items."""
    return client.queue._parts.shards[0].supplier.looks  # pyright: ignore[reportPrivateUsage]
