"""Clients that a server does not let in: a wrong password, a missing right, no room.  Only they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.faults.servers import no_room
from tests.harness import HANG, command, in_process, new_namespace, until
from tests.load import Load
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

USER = "app"


@pytest.fixture
async def users(servers: local.Servers) -> AsyncGenerator[local.Servers]:
    """The servers with a user that has the password ``old`` and every right."""
    await each(servers, "ACL", "SETUSER", USER, "reset", "on", ">old", "~*", "&*", "+@all")
    yield servers
    await each(servers, "ACL", "DELUSER", USER)


async def each(servers: local.Servers, *words: str, count: int = 3) -> None:
    for server in servers.redis[:count]:
        reply = await command(server, *words)
        assert not reply.startswith(b"-"), reply


def as_user(
    servers: local.Servers, namespace: str, hub: Hub, password: str, events: list[zkrq.Event] | None = None, **more: Any
) -> Cluster:
    """A client with a user and a password."""
    urls = {server.name: f"redis://{USER}:{password}@{server.address}" for server in servers.redis}
    on_event = None if events is None else events.append
    settings = Settings(namespace=namespace, found=True, description="app", on_event=on_event, **more)
    return Cluster(urls, MemoryCoordinator(hub), settings)


@asynccontextmanager
async def healthy_load(servers: local.Servers, namespace: str, hub: Hub) -> AsyncGenerator[Load]:
    """Items that flow through a client to which nothing happens: no push of it may fail, and no server be evicted."""
    events: list[zkrq.Event] = []
    async with in_process(servers, namespace, hub, on_event=events.append) as cluster:
        load = Load(cluster)
        async with load.running(producers=2, consumers=2):
            yield load
        assert not load.uncertain
        assert cluster.view.epoch == 1
        assert not [event for event in events if isinstance(event, zkrq.ServerEvicted)]


async def test_a_wrong_password_is_told_at_connect(users: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with healthy_load(users, namespace, hub) as load:
        await each(users, "ACL", "SETUSER", USER, "resetpass", ">new", count=2)
        with pytest.raises(zkrq.ConfigError, match=r"redis-1 .*WRONGPASS.*correct the user or the password"):
            async with as_user(users, namespace, hub, "old"):
                pass
        await until(load.progress(200))


async def test_two_of_three_servers_stop_to_let_a_client_in(users: local.Servers) -> None:
    """It is told what to correct, writes nothing once it knows, and takes part again when it is let in."""
    namespace, hub = new_namespace(), Hub()
    events: list[zkrq.Event] = []
    async with healthy_load(users, namespace, hub) as load, as_user(users, namespace, hub, "old", events) as denied:
        queue = denied.queue("other")
        await queue.push("before")
        await each(users, "ACL", "SETUSER", USER, "resetpass", ">new", count=2)
        await each(users, "CLIENT", "KILL", "USER", USER, count=2)
        while sum(isinstance(event, zkrq.ServerUnusableHere) for event in events) < 2:
            with pytest.raises(
                (zkrq.ConfigError, zkrq.OutcomeUnknown), match=r"redis-[12] does not let this client in"
            ):
                await queue.push("may have happened")
        for _ in range(20):
            with pytest.raises(zkrq.ConfigError, match=r"redis-[12] does not let this client in"):
                await queue.push("nothing was written")
            await asyncio.sleep(0.1)  # over several of the times after which the server is asked again
        with pytest.raises(zkrq.ConfigError):
            await queue.push("decided", key="k")
        with pytest.raises(zkrq.ConfigError):
            await queue.pop_one(timeout=0)
        health = denied.health()
        assert not health.ok
        assert "WRONGPASS" in " ".join(health.trouble)
        await until(load.progress(200))
        assert {event.server for event in events if isinstance(event, zkrq.ServerUnusableHere)} == {
            "redis-1",
            "redis-2",
        }
        assert len([event for event in events if isinstance(event, zkrq.ServerUnusableHere)]) == 2
        await each(users, "ACL", "SETUSER", USER, ">old")
        await until(lambda: denied.health().ok)
        await queue.push("after")
        claims = await queue.pop_many(10, timeout=0)
        items = [claim.item for claim in claims]
        assert set(items) - {"may have happened"} == {"before", "after"}
        assert not [event for event in events if isinstance(event, zkrq.ServerEvicted)]


async def test_a_password_is_rotated(users: local.Servers) -> None:
    """Old and new for a while, then only new: who knows it notices nothing, and the others evict nobody."""
    namespace, hub = new_namespace(), Hub()
    async with as_user(users, namespace, hub, "old") as late, healthy_load(users, namespace, hub) as load:
        await each(users, "ACL", "SETUSER", USER, ">new")
        async with as_user(users, namespace, hub, "new") as timely:
            await each(users, "ACL", "SETUSER", USER, "<old")
            await late.queue("other").push("over the connections that it has")
            for server in users.redis:
                await command(server, "CLIENT", "KILL", "USER", USER)
                await timely.queue("other").push("connected again")
                with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match="WRONGPASS"):
                    await late.queue("other").push("not any more")
            await until(load.progress(200))


async def test_a_right_is_missing(users: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with healthy_load(users, namespace, hub) as load, as_user(users, namespace, hub, "old") as denied:
        await denied.queue("other").push("before")
        await each(users, "ACL", "SETUSER", USER, "-fcall", count=2)
        for _ in range(3):
            with pytest.raises((zkrq.ConfigError, zkrq.OutcomeUnknown), match=r"NOPERM.*the rights \+fcall"):
                await denied.queue("other").push("not any more")
        await until(load.progress(200))


async def test_one_has_a_wrong_password_and_the_primary_dies(users: local.Servers) -> None:
    """A client that is not let in by one server does not judge another one."""
    namespace, hub = new_namespace(), Hub()
    async with as_user(users, namespace, hub, "old") as denied:
        queue = denied.queue("other")
        await queue.push("x")
        primary = denied.view.primary("other")
        dying = next(server for server in users.redis if server.name == primary)
        shut = next(server for server in users.redis if server.name != primary)
        await command(shut, "ACL", "SETUSER", USER, "resetpass", ">new")
        await command(shut, "CLIENT", "KILL", "USER", USER)
        await dying.kill()
        with pytest.raises(zkrq.ConfigError, match=f"{shut.name} does not let this client in"):
            await queue.size()
        assert denied.view.epoch == 1
        async with in_process(users, namespace, hub) as healthy:
            await healthy.queue("other").push("y")
            assert primary not in healthy.view.members
        await dying.start()
        await command(dying, "ACL", "SETUSER", USER, "reset", "on", ">old", "~*", "&*", "+@all")


async def test_no_room_for_a_newcomer(servers: local.Servers) -> None:
    """It waits, writes nothing, and evicts nobody."""
    namespace, hub = new_namespace(), Hub()
    async with healthy_load(servers, namespace, hub) as load, AsyncExitStack() as stack:
        async with no_room(servers.redis[1]):
            newcomer = await stack.enter_async_context(in_process(servers, namespace, hub, operation_timeout=1.0))
            for _ in range(2):
                with pytest.raises(zkrq.Unavailable, match=r"nothing was written.*max number of clients reached"):
                    await newcomer.queue("other").push("no room")
            health = newcomer.health()
            assert not health.ok
            assert "max number of clients" in " ".join(health.trouble)
            await until(load.progress(200))
        await until(lambda: newcomer.health().ok)
        await newcomer.queue("other").push("room")
        assert await newcomer.queue("other").size() == (1, 0, 0, 0)


async def test_newcomers_without_room_neither_evict_a_server_nor_accuse_it_in_turns(servers: local.Servers) -> None:
    """It serves one client, which refutes for all of them at once; each accusation makes all clients read the view."""
    namespace, hub = new_namespace(), Hub()
    full = servers.redis[1]
    newcomers = [in_process(servers, namespace, hub, operation_timeout=1.0) for _ in range(3)]
    async with (
        healthy_load(servers, namespace, hub) as load,
        no_room(full),
        newcomers[0] as newcomer,
        newcomers[1],
        newcomers[2],
    ):
        await until(lambda: full.name in newcomer.view.accusations)
        views = list[object]()
        for _ in range(4):
            with pytest.raises(zkrq.Unavailable, match="max number of clients reached"):
                await newcomer.queue("other").push("no room")
            views.append(newcomer.view)
        assert views.count(views[-1]) >= 3, "the view is as it was"
        await until(load.progress(200))


async def test_a_server_without_room_for_anybody_leaves_and_comes_back(servers: local.Servers) -> None:
    """All its connections broke, and ``maxclients`` is taken by others: it would halt all pushes."""
    namespace, hub = new_namespace(), Hub()
    full, events = servers.redis[1], list[zkrq.Event]()
    async with (
        in_process(servers, namespace, hub, on_event=events.append) as cluster,
        in_process(servers, namespace, hub, on_event=events.append) as other,
    ):
        load = Load(cluster)
        async with load.running(producers=2, consumers=2):
            await other.queue("other").push("before")
            async with no_room(full, break_all=True):
                await until(lambda: full.name not in cluster.view.members)
                await until(load.progress(200))
                assert (await other.queue("other").push("without it")).replicas == 2
            await until(lambda: full.name in cluster.view.members)
        assert not load.uncertain, "no call failed"
    (evicted,) = [event for event in events if isinstance(event, zkrq.ServerEvicted)]
    assert "max number of clients" in evicted.reason


async def test_a_refused_subscription_is_told_and_polled_around(users: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    events: list[zkrq.Event] = []
    await each(users, "ACL", "SETUSER", USER, "resetchannels")
    async with in_process(users, namespace, hub) as producer, as_user(users, namespace, hub, "old", events) as deaf:
        consumer = deaf.queue("jobs")
        for number in range(4):
            taking = asyncio.create_task(consumer.pop_one(timeout=HANG))
            await until(lambda: any(isinstance(event, zkrq.WakeupsRefused) for event in events))
            await asyncio.sleep(0.6)  # a look has found nothing meanwhile
            looks = consumer._parts.shards[0].supplier.looks  # pyright: ignore[reportPrivateUsage]
            await producer.queue("jobs").push(number)
            claim = await taking
            assert claim is not None
            assert claim.item == number
            assert consumer._parts.shards[0].supplier.looks <= looks + 2, "by the next look, or the one after"  # pyright: ignore[reportPrivateUsage]
            await claim.ack()
        refused = [event for event in events if isinstance(event, zkrq.WakeupsRefused)]
        assert [event.server for event in refused] == [deaf.view.primary("jobs")]
        assert f"{{{namespace}}}:wake:*" in refused[0].reason
        assert not deaf.health().ok
        assert "wake-ups" in " ".join(deaf.health().trouble)


async def test_a_client_that_may_not_publish_completes_its_calls(users: local.Servers) -> None:
    """A wake-up that is lost costs time, never an item."""
    namespace, hub = new_namespace(), Hub()
    await each(users, "ACL", "SETUSER", USER, "resetchannels")
    async with in_process(users, namespace, hub) as consumer, as_user(users, namespace, hub, "old") as mute:
        taking = asyncio.create_task(consumer.queue("jobs").pop_one(timeout=HANG))
        supplier = consumer.queue("jobs")._parts.shards[0].supplier  # pyright: ignore[reportPrivateUsage]
        await until(lambda: supplier.looks > 0)  # pyright: ignore[reportPrivateUsage]
        receipt = await mute.queue("jobs").push("x")
        assert receipt.replicas == 3
        claim = await taking
        assert claim is not None
        assert await mute.queue("jobs").cancel(claim.id)


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


async def test_a_server_that_lets_nobody_in_stops_nobody(servers: local.Servers) -> None:
    """It is accused, evicted when no client is let in, and back when it lets clients in again."""
    namespace, hub = new_namespace(), Hub()
    wrong = servers.redis[1]
    async with (
        in_process(servers, namespace, hub, operation_timeout=HANG) as one,
        in_process(servers, namespace, hub, operation_timeout=HANG) as other,
    ):
        load = Load(one)
        async with load.running(producers=2, consumers=2):
            await other.queue("other").push("x")
            async with closed_to_all(wrong, ends_connections=True):
                assert (await other.queue("other").push("y")).replicas == 2
                await until(load.progress(100))
                assert wrong.name not in one.view.members
                await asyncio.sleep(1.5)  # it is not taken back by a client whose connection is from before
                assert wrong.name not in one.view.receivers
                assert one.health().ok
            await until(lambda: wrong.name in one.view.members.keys() & other.view.members.keys())
            assert (await other.queue("other").push("z")).replicas == 3
        assert not load.uncertain


async def test_a_wrong_server_is_accused_by_one_and_not_vouched_for_by_old_connections(servers: local.Servers) -> None:
    """One client has to connect anew, the others go on over the connections that they have."""
    namespace, hub = new_namespace(), Hub()
    wrong = servers.redis[1]
    async with in_process(servers, namespace, hub) as old, in_process(servers, namespace, hub) as anew:
        await old.queue("jobs").push("x")
        await anew.queue("jobs").push("y")
        async with closed_to_all(wrong, ends_connections=False):
            anew._client.shard.fleet.servers[ServerId(wrong.name)].disconnect("for the test")  # pyright: ignore[reportPrivateUsage]
            assert (await anew.queue("jobs").push("z")).replicas == 2
            assert (await old.queue("jobs").push("z")).replicas == 2
