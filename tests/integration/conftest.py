"""Clusters for integration tests: each test runs over ZooKeeper and over the in-process coordinator."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.harness import in_process, new_namespace, over_zookeeper
from zkrq import local
from zkrq.client.cluster import Cluster


@pytest.fixture(params=["zookeeper", "in process"])
async def cluster(request: pytest.FixtureRequest, servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    """A fresh namespace on three real Redis servers."""
    make = over_zookeeper if request.param == "zookeeper" else in_process
    async with make(servers, new_namespace()) as opened:
        yield opened
