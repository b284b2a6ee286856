"""Names that are resolved late or not at all: the trouble of the client that asks, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import new_namespace, until, whole_again
from tests.names import Resolver, full_executor, resolving
from tests.proxy import Proxy
from zkrq import local

pytestmark = pytest.mark.anyio

VICTIM = "redis-2"
NAME = f"{VICTIM}.test"


@pytest.fixture
def resolver() -> Generator[Resolver]:
    with resolving() as made:
        yield made


@asynccontextmanager
async def by_name(stage: Stage, port: int) -> AsyncGenerator[Actor]:
    """A client that knows one server by a name, behind this port."""
    async with stage.visit(urls={VICTIM: f"redis://{NAME}:{port}"}, command_timeout=1.0) as actor:
        yield actor


@asynccontextmanager
async def named_proxy(stage: Stage) -> AsyncGenerator[tuple[Proxy, Actor]]:
    """A client that knows one server by the name of a proxy in front of it."""
    server = stage.server(VICTIM)
    async with Proxy(server.host, server.port) as proxy, by_name(stage, proxy.port) as actor:
        yield proxy, actor


async def test_handlers_fill_the_default_executor(servers: local.Servers) -> None:
    """A server that restarts meanwhile comes back, and so does a session whose connection was cut."""
    named = {name: url.replace("127.0.0.1", "localhost") for name, url in servers.redis_urls.items()}
    hosts = servers.zookeeper_hosts.replace("127.0.0.1", "localhost")
    with full_executor():
        async with zkrq.connect(named, hosts, namespace=new_namespace(), session_timeout=3.0, found=True) as cluster:
            before, session = cluster.view, cluster.health().session
            await next(server for server in servers.redis if server.name == VICTIM).kill()
            await until(lambda: VICTIM not in cluster.view.members)
            await servers.start()
            await whole_again(cluster, before)
            coordinator: Any = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
            (await coordinator._session.link()).kill("the test cuts it")
            await until(lambda: cluster.health().session is not session)
            await until(lambda: cluster.health().session is session)
            assert await cluster.queue("jobs").push(1)


async def test_a_name_that_is_gone_while_its_server_lives(hub_stage: Stage, resolver: Resolver) -> None:
    """A connection that breaks is made again, to the address that is known; nobody is evicted."""
    async with named_proxy(hub_stage) as (proxy, client):
        await client.push(1)
        resolver.gone.add(NAME)
        asked = len(resolver.asked)
        proxy.cut(reset=True)
        await client.push(2)
        assert len(resolver.asked) > asked
        assert len(client.view.members) == 3
        assert client.cluster.health().ok


async def test_a_resolver_that_hangs_while_the_server_lives(hub_stage: Stage, resolver: Resolver) -> None:
    """The address that is known is used, without waiting for it."""
    async with named_proxy(hub_stage) as (proxy, client):
        await client.push(1)
        resolver.answers.clear()
        proxy.cut(reset=True)
        await client.push(2)
        assert len(client.view.members) == 3


async def test_a_server_dies_and_its_name_is_gone_with_it(
    hub_stage: Stage, resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes removes the name of a dead pod: it is evicted, by what happens at the address that is known."""
    async with named_proxy(hub_stage) as (proxy, client):
        await client.push(1)
        resolver.gone.add(NAME)
        proxy.refuse()
        proxy.cut(reset=True)
        await client.push(2)
        assert VICTIM not in client.view.members
        evicted = client.events(zkrq.ServerEvicted)[0]
        assert f"{NAME}:{proxy.port}" in str(evicted)
        assert "its name could not be resolved" in str(evicted)
    told = [record for record in caplog.records if "it is reached at its last known address" in record.message]
    assert [getattr(record, "server", None) for record in told] == [VICTIM]


@pytest.mark.parametrize("hangs", [False, True], ids=["unknown", "hangs"])
async def test_a_client_that_has_never_resolved_a_name(hub_stage: Stage, resolver: Resolver, hangs: bool) -> None:
    """It says which name, and accuses nobody; others go on."""
    other = await hub_stage.enter()
    await other.push("before")
    if hangs:
        resolver.answers.clear()
    else:
        resolver.gone.add(NAME)
    async with by_name(hub_stage, hub_stage.server(VICTIM).port) as client:
        with pytest.raises(zkrq.Unavailable, match="its name could not be resolved"):
            await client.push("in vain")
        trouble = client.cluster.health().trouble
        assert any(f"server {VICTIM}: its name could not be resolved" in each for each in trouble)
        await other.push("after")
        assert len(other.view.members) == 3
        assert not other.view.accusations
        resolver.gone.clear()
        resolver.answers.set()
        await until(lambda: VICTIM not in client.cluster._client.shard.obstacles.kept_out)  # pyright: ignore
        await client.push("at last")
