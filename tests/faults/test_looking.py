"""Who only looks changes nothing: commands that show something, while servers are away, full or wrongly set up."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

import anyio
import pytest

import zkrq
from tests.faults.servers import dropping, no_room
from tests.harness import command, in_process, new_namespace, over_zookeeper
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.client.connecting import looker
from zkrq.client.inner import meet_servers
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio

QUEUES = [f"jobs-{number}" for number in range(6)]
"""Each server is the primary of one of them, at least."""


async def pushed(servers: local.Servers, namespace: str, hub: Hub) -> None:
    """A namespace with an item in every queue, and no client."""
    async with in_process(servers, namespace, hub) as cluster:
        for name in QUEUES:
            await cluster.queue(name).push(name)
        assert {cluster.view.primary(name) for name in QUEUES} == set(cluster.view.members)


def looking(servers: local.Servers, namespace: str, hub: Hub) -> Cluster:
    return in_process(servers, namespace, hub, found=False, only_looks=True, command_timeout=0.5)


async def sees_everything(cluster: Cluster) -> None:
    """Every queue, by each way of reading."""
    assert {name: each.sizes.ready for name, each in (await cluster.statistics()).items()} == dict.fromkeys(QUEUES, 1)
    assert await cluster.consumers() == {}
    for name in QUEUES:
        queue = cluster.queue(name)
        assert [item.item async for item in queue.scan()] == [name]
        assert [item.item for item in await queue.peek()] == [name]


@pytest.mark.parametrize("fault", ["dead", "hung", "restarted", "evicting"])
async def test_the_view_stays_while_somebody_looks(fault: str, servers: local.Servers) -> None:
    """Figures come from the servers that answer, and the one that does not is named."""
    namespace, hub = new_namespace(), Hub()
    await pushed(servers, namespace, hub)
    victim = servers.redis[0]
    before = [hub.read(register) for register in ("view", "map")]
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
        async with looking(servers, namespace, hub) as cluster:
            await sees_everything(cluster)
            health = await meet_servers(cluster)
            assert health.ok
            assert any(victim.name in text for text in health.warnings)
            assert health.servers[victim.name].place == "member"
    assert [hub.read(register) for register in ("view", "map")] == before


async def test_too_few_servers_that_answer_are_trouble(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    await pushed(servers, namespace, hub)
    async with AsyncExitStack() as stack:
        for victim in servers.redis[:2]:
            await victim.kill()
            stack.push_async_callback(victim.start)
        async with looking(servers, namespace, hub) as cluster:
            await sees_everything(cluster)
            health = await meet_servers(cluster)
            assert not health.ok
            assert sum("could not be asked" in text for text in health.trouble) == 2


async def test_restarted_servers_are_recovered_by_a_client_that_runs(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    await pushed(servers, namespace, hub)
    before = hub.read("view")
    for server in servers.redis:
        await command(server, "SAVE")
        await server.restart()
    with pytest.raises(zkrq.Unavailable, match="any client that runs continues with the data of redis-1, redis-2"):
        async with looking(servers, namespace, hub):
            pass
    assert hub.read("view") == before
    async with in_process(servers, namespace, hub, found=False):
        assert hub.read("view") != before
        async with looking(servers, namespace, hub) as cluster:
            await sees_everything(cluster)


async def test_figures_while_a_server_has_no_room(servers: local.Servers, prepared_zkrq: list[str]) -> None:
    """Workers go on, so a command that looks shows what the other servers have."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        for name in QUEUES:
            await cluster.queue(name).push(name)
        before = cluster.view
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": namespace,
        }
        async with no_room(servers.redis[1]):
            stats = await anyio.run_process([*prepared_zkrq, "stats"], env=environment)
            listed = await anyio.run_process([*prepared_zkrq, "servers", "list"], env=environment)
            await cluster.queue(QUEUES[0]).push("on")
        shown = stats.stdout.decode()
        for name in QUEUES:
            assert f"\n{name} " in shown
        assert "\nserver redis-2: ERR max number of clients reached\n" in shown
        assert "redis-2: member, not connected (ERR max number of clients reached)" in listed.stdout.decode()
        assert cluster.view == before


async def test_a_client_that_only_looks_is_not_let_change_anything(servers: local.Servers) -> None:
    namespace = new_namespace()
    options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": namespace}
    async with over_zookeeper(servers, namespace) as cluster:
        before = cluster.view
        async with looker(**options, found=False) as only:
            with pytest.raises(zkrq.ConfigError, match="look only"):
                await only.remove_server("redis-1")
        assert cluster.view == before
    async with looker(**options, found=False) as only:
        alone = only._client.coordinator  # pyright: ignore[reportPrivateUsage]
        assert not alone.leading, "a client that runs would wait for it"
