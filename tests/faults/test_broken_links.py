"""A client that does not reach a server which others reach: it fails, and does not evict again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, until
from tests.load import Load
from tests.proxy import Connection, Proxy
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator

pytestmark = pytest.mark.anyio

BROKEN = "redis-2"

CHECK = f"{BROKEN}: it does not answer this client, but it does answer others: check the network between them"

PATIENCE = 2.5
"""Seconds for which the client behind the proxy retries a call; more than its two time-outs."""


def behind(proxy: Proxy, servers: local.Servers, namespace: str, hub: Hub, events: list[zkrq.Event]) -> Cluster:
    """A client whose way to one server leads through the proxy."""
    settings = Settings(
        namespace=namespace,
        found=True,
        description="test",
        command_timeout=1.0,
        operation_timeout=PATIENCE,
        on_event=events.append,
    )
    return Cluster({**servers.redis_urls, BROKEN: f"redis://{proxy.address}"}, MemoryCoordinator(hub), settings)


def broken_server(servers: local.Servers) -> local.LocalRedis:
    return next(server for server in servers.redis if server.name == BROKEN)


async def leave_one_dead(servers: local.Servers, namespace: str, hub: Hub) -> None:
    """A namespace with one item, all clients gone, and a dead server that nobody has evicted."""
    async with in_process(servers, namespace, hub) as first:
        await first.queue("jobs").push("before")
    await broken_server(servers).kill()


@asynccontextmanager
async def proxy_for(servers: local.Servers) -> AsyncGenerator[Proxy]:
    server = broken_server(servers)
    async with Proxy(server.host, server.port) as proxy:
        yield proxy


def refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut(reset=True)


def evictions(events: list[zkrq.Event]) -> int:
    return len([event for event in events if isinstance(event, zkrq.ServerEvicted)])


async def push_in_vain(cluster: Cluster) -> None:
    """Push until that was retried for its whole time; from then on the client says what is wrong without retrying."""
    queue = cluster.queue("other")
    while f"server {CHECK}" not in cluster.health().trouble:
        with pytest.raises((zkrq.OutcomeUnknown, zkrq.Unavailable)):
            await queue.push("in vain")
    with pytest.raises(zkrq.Unavailable, match=CHECK):
        await queue.push("in vain")
    async with asyncio.timeout(HANG / 2):
        for _ in range(20):
            with pytest.raises(zkrq.Unavailable, match=CHECK):
                await queue.push("in vain")
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("harm", [refuse, Proxy.stall])
async def test_a_newcomer_behind_a_broken_link_evicts_nobody(
    servers: local.Servers, harm: Callable[[Proxy], None]
) -> None:
    """It accuses, the others refute it; it takes part as soon as its link works."""
    namespace, hub = new_namespace(), Hub()
    events: list[zkrq.Event] = []
    async with proxy_for(servers) as proxy, in_process(servers, namespace, hub) as healthy:
        harm(proxy)
        load = Load(healthy)
        async with load.running(producers=2, consumers=2), behind(proxy, servers, namespace, hub, events) as newcomer:
            await push_in_vain(newcomer)
            assert f"server {CHECK}" in newcomer.health().trouble
            assert not newcomer.health().ok
            told = [event for event in events if isinstance(event, zkrq.ServerUnusableHere)]
            assert [event.server for event in told] == [BROKEN]
            await until(load.progress(100))
            await proxy.accept()
            proxy.flow()
            proxy.cut()
            await until(lambda: newcomer.health().ok)
            assert (await newcomer.queue("other").push("at last")).replicas == 3
        assert not load.uncertain
        assert healthy.view.epoch == 1, "nobody was evicted, and no claim got another lease for it"
        assert not evictions(events)


async def test_a_link_that_breaks_again_and_again_costs_one_eviction(servers: local.Servers) -> None:
    """The first one is made in good faith; after the server was admitted again, its client has to be borne out."""
    namespace, hub = new_namespace(), Hub()
    events: list[zkrq.Event] = []
    async with proxy_for(servers) as proxy, in_process(servers, namespace, hub) as healthy:
        load = Load(healthy)
        async with load.running(producers=2, consumers=2), behind(proxy, servers, namespace, hub, events) as broken:
            for round in range(3):
                await until(lambda: BROKEN in broken.view.members)
                await until(lambda: broken.health().ok)
                await broken.queue("other").push("well")
                refuse(proxy)
                if round == 0:
                    await broken.queue("other").push("with the two others")
                    assert evictions(events) == 1
                else:
                    await push_in_vain(broken)
                await proxy.accept()
            await until(lambda: BROKEN in healthy.view.members)
            assert evictions(events) == 1
            assert healthy.view.epoch == 4, "evicted, a learner, a member"
        assert not load.uncertain


async def test_a_newcomer_alone_with_a_dead_server(servers: local.Servers) -> None:
    """Nobody refutes it, so after some seconds it goes on without that server."""
    namespace, hub = new_namespace(), Hub()
    await leave_one_dead(servers, namespace, hub)
    events: list[zkrq.Event] = []
    async with in_process(servers, namespace, hub, on_event=events.append) as newcomer:
        assert (await newcomer.queue("jobs").push("after")).replicas == 2
        assert evictions(events) == 1


async def test_newcomers_together_with_a_dead_server(servers: local.Servers) -> None:
    """One accuses, another bears witness."""
    namespace, hub = new_namespace(), Hub()
    await leave_one_dead(servers, namespace, hub)
    newcomer = partial(in_process, servers, namespace, hub)
    async with newcomer() as one, newcomer() as other:
        receipts = await asyncio.gather(*(each.queue("jobs").push("after") for each in (one, other)))
        assert [receipt.replicas for receipt in receipts] == [2, 2]
        assert one.view.epoch == 2


async def test_a_dead_server_is_evicted_at_once_by_those_that_knew_it(servers: local.Servers) -> None:
    """A newcomer that accuses is borne out by the first who is asked."""
    namespace, hub = new_namespace(), Hub()
    events: list[zkrq.Event] = []
    async with in_process(servers, namespace, hub, on_event=events.append) as old:
        await old.queue("jobs").push("before")
        async with proxy_for(servers) as proxy, behind(proxy, servers, namespace, hub, []) as newcomer:
            await broken_server(servers).kill()
            assert (await newcomer.queue("jobs").push("after")).replicas == 2
            assert old.view.epoch == newcomer.view.epoch == 2


async def test_an_accuser_that_hears_from_the_server_withdraws(servers: local.Servers) -> None:
    """Also where no other client is there to refute it; else the next silence would find the time of grace over."""
    namespace, hub = new_namespace(), Hub()
    hanging = broken_server(servers)
    async with in_process(servers, namespace, hub, command_timeout=0.3) as alone:
        queue = alone.queue("jobs")
        await queue.push("well")
        hanging.pause()
        await queue.push("without it")  # it had answered this client, and is evicted
        hanging.resume()
        await until(lambda: BROKEN in alone.view.members)
        hanging.pause()
        pushing = asyncio.create_task(queue.push("accused"))
        await until(lambda: BROKEN in alone.view.accusations)
        hanging.resume()
        assert (await pushing).replicas == 3
        await until(lambda: not alone.view.accusations)


@pytest.mark.parametrize("max_size", [None, 100], ids=["plain", "limited"])
async def test_a_push_whose_reply_is_lost_does_not_take_its_own_item_for_anothers(
    servers: local.Servers, max_size: int | None
) -> None:
    """It is repeated, and whether the id is new remains open if the primary's reply was lost; an id that zkrq has made
    is new whatever becomes of the replies."""
    async with proxy_for(servers) as proxy, behind(proxy, servers, new_namespace(), Hub(), []) as cluster:
        names = {cluster.view.primary(name): name for name in map("jobs-{}".format, range(30))}
        for primary, name in names.items():
            queue = cluster.queue(name, max_size=max_size)
            await queue.push("so that the server knows the script")
            proxy.lose_reply_to(b"order 17")
            first = await queue.push("x", id="order 17")
            assert (first.replicas, first.new) == (3, None if primary == BROKEN else True)
            assert (await queue.push("x", id="order 17")).new is False
            proxy.lose_reply_to(b"the payload")
            assert (await queue.push("the payload", ttl=60)).new
            assert await queue.size() == (3, 0, 0, 0)


@pytest.mark.parametrize("reset", [False, True])
async def test_replies_that_are_cut_in_the_middle(servers: local.Servers, *, reset: bool) -> None:
    """The calls are repeated over a new connection, where no half of a reply is left; nobody is evicted for it."""
    events: list[zkrq.Event] = []
    replies = cuts = 0

    def cut_some(connection: Connection, data: bytes) -> bytes:
        nonlocal replies, cuts
        replies += 1
        if replies % 60:
            return data
        cuts += 1
        asyncio.get_running_loop().call_later(0.002, partial(connection.cut, reset=reset))
        return data[: len(data) // 2]

    async with proxy_for(servers) as proxy, behind(proxy, servers, new_namespace(), Hub(), events) as cluster:
        proxy.on_reply = cut_some
        load = Load(cluster)
        async with load.running(producers=2, consumers=2):
            await until(lambda: cuts >= 10)
            await until(load.progress(100))
        assert not load.uncertain
        assert not evictions(events)
