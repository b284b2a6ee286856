"""An operator, and a server that no namespace has."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.advice.operator import Operator
from tests.harness import command
from zkrq import local


@pytest.fixture(scope="session")
async def spare_servers(anyio_backend: str) -> AsyncGenerator[local.Servers]:
    async with local.servers(redis=2, zookeeper=0) as more:
        yield more


@pytest.fixture
async def spare(spare_servers: local.Servers) -> AsyncGenerator[local.LocalRedis]:
    """An empty server that no namespace has."""
    for server in spare_servers.redis:
        await command(server, "FLUSHALL")
    yield spare_servers.redis[0]
    await spare_servers.start()


@pytest.fixture
async def operator(servers: local.Servers, prepared_zkrq: list[str]) -> Operator:
    operator = Operator(servers, prepared_zkrq)
    await operator.found()
    return operator
