"""The three kinds of clusters.  Each test has a queue of its own; the cluster may be shared by a module.

The kind is a parameter of the module, so that clusters of two kinds never exist at the same time: on ``testing`` the
event loop's clock is moved, for all of its users.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

import zkrq
import zkrq.testing
from tests.harness import new_namespace, over_zookeeper
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.coordination.memory import MemoryCoordinator

PassTime = Callable[[float], Awaitable[None]]
Connect = Callable[..., zkrq.Cluster]

_count = itertools.count()


@pytest.fixture(scope="module", params=["testing", pytest.param("embedded", marks=pytest.mark.chaos), "real"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded" and "redis" not in local.available():
        pytest.skip("not installed: redis")
    return request.param


@pytest.fixture(scope="module")
async def embedded_cluster(backend: str, anyio_backend: str) -> AsyncGenerator[zkrq.Cluster, None]:
    async with zkrq.embedded() as opened:
        yield opened


@pytest.fixture(scope="module")
async def real_cluster(backend: str, shared_servers: local.Servers) -> AsyncGenerator[zkrq.Cluster, None]:
    async with over_zookeeper(shared_servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
async def testing_cluster(backend: str, anyio_backend: str) -> AsyncGenerator[zkrq.Cluster, None]:
    async with zkrq.testing.cluster() as opened:
        yield opened


@pytest.fixture
def cluster(backend: str, request: pytest.FixtureRequest) -> zkrq.Cluster:
    """Use it with queues of new names; leave it open."""
    return request.getfixturevalue(f"{backend}_cluster")


@pytest.fixture
async def own_embedded_cluster() -> AsyncGenerator[zkrq.Cluster, None]:
    async with zkrq.embedded() as opened:
        yield opened


@pytest.fixture
async def own_real_cluster(shared_servers: local.Servers) -> AsyncGenerator[zkrq.Cluster, None]:
    async with over_zookeeper(shared_servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
def own_cluster(backend: str, request: pytest.FixtureRequest) -> zkrq.Cluster:
    """A fresh one."""
    return request.getfixturevalue("testing_cluster" if backend == "testing" else f"own_{backend}_cluster")


@pytest.fixture
async def own(request: pytest.FixtureRequest) -> AsyncGenerator[zkrq.testing.Servers]:
    """Servers in this process for one test, as many as its module's ``SERVERS`` says."""
    async with zkrq.testing.servers(cast("Any", request).module.SERVERS) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other queue has."""
    return f"jobs-{next(_count)}"


@pytest.fixture
async def queue(cluster: zkrq.Cluster, name: str) -> zkrq.Queue[Any]:
    """A new queue with the usual options."""
    return cluster.queue(name)


@pytest.fixture
def pass_time(cluster: zkrq.Cluster) -> PassTime:
    """Let so many seconds pass."""
    return cluster.clock.advance if isinstance(cluster, zkrq.testing.TestCluster) else asyncio.sleep


@pytest.fixture
def connect(cluster: zkrq.Cluster, backend: str, request: pytest.FixtureRequest) -> Connect:
    """Makes another client of the same servers, as in another process, to be opened with ``async with``; it takes
    ``description`` and ``on_event``."""
    if isinstance(cluster, zkrq.testing.TestCluster):
        return cluster.servers.connect
    if backend == "real":
        return partial(over_zookeeper, request.getfixturevalue("shared_servers"), cluster.namespace)
    coordinator = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
    assert isinstance(coordinator, MemoryCoordinator)
    hub = coordinator._hub  # pyright: ignore[reportPrivateUsage]

    def join(description: str = "test", on_event: Callable[[zkrq.Event], object] | None = None) -> zkrq.Cluster:
        settings = Settings(namespace=cluster.namespace, description=description, on_event=on_event)
        urls = {str(id): url for id, url in cluster.view.servers.items()}
        return zkrq.Cluster(urls, MemoryCoordinator(hub), settings)

    return join
