"""Clusters for integration tests: each test runs over ZooKeeper and over the in-process coordinator."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from tests.harness import SESSION_TIMEOUT, in_process, new_namespace, over_zookeeper
from zkrq import local, sync
from zkrq.client.cluster import Cluster

pytest.register_assert_rewrite("tests.integration.scenes")


@pytest.fixture(params=["zookeeper", "in process"])
async def cluster(request: pytest.FixtureRequest, servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    """A fresh namespace on three real Redis servers."""
    make = over_zookeeper if request.param == "zookeeper" else in_process
    async with make(servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
def namespace() -> str:
    return new_namespace()


@pytest.fixture
def connect(servers: local.Servers, namespace: str) -> Callable[..., sync.Cluster]:
    """Make a client for threads of the test's namespace, which founds it where it does not exist."""

    def connect(**options: Any) -> sync.Cluster:
        settings: dict[str, Any] = {"found": True, "session_timeout": SESSION_TIMEOUT, **options}
        return sync.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, **settings)

    return connect
