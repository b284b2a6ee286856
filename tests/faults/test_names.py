"""Names that are resolved late or not at all: the trouble of the client that asks, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.harness import in_process, new_namespace, until, whole_again
from tests.names import Resolver, full_executor, resolving
from tests.proxy import Proxy
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator

pytestmark = pytest.mark.anyio

VICTIM = "redis-2"
NAME = f"{VICTIM}.test"


@pytest.fixture
def resolver() -> Generator[Resolver]:
    with resolving() as made:
        yield made


def by_name(servers: local.Servers, port: int, hub: Hub, namespace: str, events: list[zkrq.Event]) -> Cluster:
    """A client that knows one server by a name, behind this port."""
    settings = Settings(
        namespace=namespace, found=True, description="test", command_timeout=1.0, on_event=events.append
    )
    return Cluster({**servers.redis_urls, VICTIM: f"redis://{NAME}:{port}"}, MemoryCoordinator(hub), settings)


def victim_of(servers: local.Servers) -> local.LocalRedis:
    return next(server for server in servers.redis if server.name == VICTIM)


@asynccontextmanager
async def proxy_for(servers: local.Servers) -> AsyncGenerator[Proxy]:
    server = victim_of(servers)
    async with Proxy(server.host, server.port) as proxy:
        yield proxy


async def test_handlers_fill_the_default_executor(servers: local.Servers) -> None:
    """A server that restarts meanwhile comes back, and so does a session whose connection was cut."""
    named = {name: url.replace("127.0.0.1", "localhost") for name, url in servers.redis_urls.items()}
    hosts = servers.zookeeper_hosts.replace("127.0.0.1", "localhost")
    with full_executor():
        async with zkrq.connect(named, hosts, namespace=new_namespace(), session_timeout=3.0, found=True) as cluster:
            before, session = cluster.view, cluster.health().session
            await victim_of(servers).kill()
            await until(lambda: VICTIM not in cluster.view.members)
            await servers.start()
            await whole_again(cluster, before)
            coordinator: Any = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
            (await coordinator._session.link()).kill("the test cuts it")
            await until(lambda: cluster.health().session is not session)
            await until(lambda: cluster.health().session is session)
            assert await cluster.queue("jobs").push(1)


async def test_a_name_that_is_gone_while_its_server_lives(servers: local.Servers, resolver: Resolver) -> None:
    """A connection that breaks is made again, to the address that is known; nobody is evicted."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with proxy_for(servers) as proxy, by_name(servers, proxy.port, hub, namespace, events) as cluster:
        await cluster.queue("jobs").push(1)
        resolver.gone.add(NAME)
        asked = len(resolver.asked)
        proxy.cut(reset=True)
        await cluster.queue("jobs").push(2)
        assert len(resolver.asked) > asked
        assert len(cluster.view.members) == 3
        assert cluster.health().ok


async def test_a_resolver_that_hangs_while_the_server_lives(servers: local.Servers, resolver: Resolver) -> None:
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with proxy_for(servers) as proxy, by_name(servers, proxy.port, hub, namespace, events) as cluster:
        await cluster.queue("jobs").push(1)
        resolver.answers.clear()
        proxy.cut(reset=True)
        await cluster.queue("jobs").push(2)
        assert len(cluster.view.members) == 3


async def test_a_server_dies_and_its_name_is_gone_with_it(
    servers: local.Servers, resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes removes the name of a dead pod: it is evicted, by what happens at the address that is known."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with proxy_for(servers) as proxy, by_name(servers, proxy.port, hub, namespace, events) as cluster:
        await cluster.queue("jobs").push(1)
        resolver.gone.add(NAME)
        proxy.refuse()
        proxy.cut(reset=True)
        await cluster.queue("jobs").push(2)
        assert VICTIM not in cluster.view.members
        evicted = next(event for event in events if isinstance(event, zkrq.ServerEvicted))
        assert f"{NAME}:{proxy.port}" in str(evicted)
        assert "its name could not be resolved" in str(evicted)
    told = [record for record in caplog.records if "it is reached at its last known address" in record.message]
    assert [getattr(record, "server", None) for record in told] == [VICTIM]


@pytest.mark.parametrize("hangs", [False, True], ids=["unknown", "hangs"])
async def test_a_client_that_has_never_resolved_a_name(servers: local.Servers, resolver: Resolver, hangs: bool) -> None:
    """It says which name, and accuses nobody; others go on."""
    hub, namespace, events = Hub(), new_namespace(), list[zkrq.Event]()
    async with in_process(servers, namespace, hub) as other:
        await other.queue("jobs").push("before")
        if hangs:
            resolver.answers.clear()
        else:
            resolver.gone.add(NAME)
        async with by_name(servers, victim_of(servers).port, hub, namespace, events) as cluster:
            with pytest.raises(zkrq.Unavailable, match="its name could not be resolved"):
                await cluster.queue("jobs").push("in vain")
            assert any(f"server {VICTIM}: its name could not be resolved" in each for each in cluster.health().trouble)
            await other.queue("jobs").push("after")
            assert len(other.view.members) == 3
            assert not other.view.accusations
            resolver.gone.clear()
            resolver.answers.set()
            await until(lambda: VICTIM not in cluster._client.shard.obstacles.kept_out)  # pyright: ignore
            await cluster.queue("jobs").push("at last")
