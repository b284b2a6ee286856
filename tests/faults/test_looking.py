"""Who only looks changes nothing: commands that show something, while servers are away, full or wrongly set up."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

import zkrq
from tests.faults.servers import dropping, no_room
from tests.faults.stage import Stage, hub_of
from tests.harness import command
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import looker

pytestmark = pytest.mark.anyio

QUEUES = [f"jobs-{number}" for number in range(6)]
"""Each server is the primary of one of them, at least."""


async def pushed(stage: Stage) -> None:
    """A namespace with an item in every queue, and no client."""
    async with stage.visit() as client:
        for name in QUEUES:
            await client.cluster.queue(name).push(name)
        assert {client.view.primary(name) for name in QUEUES} == set(client.view.members)


def looking(stage: Stage) -> Cluster:
    return stage.client(found=False, only_looks=True, command_timeout=0.5)


async def sees_everything(cluster: Cluster) -> None:
    """Every queue, by each way of reading."""
    assert {name: each.sizes.ready for name, each in (await cluster.statistics()).items()} == dict.fromkeys(QUEUES, 1)
    assert await cluster.consumers() == {}
    for name in QUEUES:
        queue = cluster.queue(name)
        assert [item.item async for item in queue.scan()] == [name]
        assert [item.item for item in await queue.peek()] == [name]


@pytest.mark.parametrize("fault", ["dead", "hung", "restarted", "evicting"])
async def test_the_view_stays_while_somebody_looks(fault: str, hub_stage: Stage) -> None:
    """Figures come from the servers that answer, and the one that does not is named."""
    await pushed(hub_stage)
    victim, hub = hub_stage.servers.redis[0], hub_of(hub_stage)
    before = [hub.read(register) for register in ("view", "map")]
    async with troubled(victim, fault), looking(hub_stage) as cluster:
        await sees_everything(cluster)
        health = await cluster.check_health()
        assert health.ok
        assert any(victim.name in text for text in health.warnings)
        assert health.servers[victim.name].place == "member"
    assert [hub.read(register) for register in ("view", "map")] == before


@asynccontextmanager
async def troubled(victim: local.LocalRedis, fault: str) -> AsyncGenerator[None]:
    """A server with a fault, and without it in the end."""
    async with AsyncExitStack() as stack:
        match fault:
            case "dead":
                await victim.kill()
                stack.push_async_callback(victim.start)
            case "hung":
                victim.pause()
                stack.callback(victim.resume)
            case "restarted":
                await victim.restart()
            case _:
                await stack.enter_async_context(dropping(victim))
        yield


async def test_too_few_servers_that_answer_are_trouble(hub_stage: Stage) -> None:
    """What the last one has is shown."""
    await pushed(hub_stage)
    await hub_stage.kill(*hub_stage.servers.redis[:2])
    async with looking(hub_stage) as cluster:
        await sees_everything(cluster)
        health = await cluster.check_health()
        assert not health.ok
        assert sum("could not be asked" in text for text in health.trouble) == 2


async def test_restarted_servers_are_recovered_by_a_client_that_runs(hub_stage: Stage) -> None:
    """One that looks says so, and leaves the view as it is."""
    hub = hub_of(hub_stage)
    await pushed(hub_stage)
    before = hub.read("view")
    for server in hub_stage.servers.redis:
        await command(server, "SAVE")
        await server.restart()
    with pytest.raises(zkrq.Unavailable, match="any client that runs continues with the data of redis-1, redis-2"):
        async with looking(hub_stage):
            pass
    assert hub.read("view") == before
    await hub_stage.enter(found=False)
    assert hub.read("view") != before
    async with looking(hub_stage) as cluster:
        await sees_everything(cluster)


async def test_figures_while_a_server_has_no_room(stage: Stage, prepared_zkrq: list[str]) -> None:
    """Workers go on, so a command that looks shows what the other servers have."""
    client, environment = await stage.enter(), stage.environment()
    for name in QUEUES:
        await client.cluster.queue(name).push(name)
    before = client.view
    async with no_room(stage.servers.redis[1]):
        stats = await anyio.run_process([*prepared_zkrq, "stats"], env=environment)
        listed = await anyio.run_process([*prepared_zkrq, "servers", "list"], env=environment)
        await client.cluster.queue(QUEUES[0]).push("on")
    shown = stats.stdout.decode()
    for name in QUEUES:
        assert f"\n{name} " in shown
    assert "\nserver redis-2: ERR max number of clients reached\n" in shown
    assert "redis-2: member, not connected (ERR max number of clients reached)" in listed.stdout.decode()
    assert client.view == before


async def test_a_client_that_only_looks_is_not_let_change_anything(stage: Stage) -> None:
    """Nor does it lead the others, where it is the only one."""
    servers = stage.servers
    options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": stage.namespace}
    async with stage.visit() as client:
        before = client.view
        async with looker(**options, found=False) as only:
            with pytest.raises(zkrq.ConfigError, match="look only"):
                await only.remove_server("redis-1")
        assert client.view == before
    async with looker(**options, found=False) as only:
        alone = only._client.coordinator  # pyright: ignore[reportPrivateUsage]
        assert not alone.leading, "a client that runs would wait for it"
