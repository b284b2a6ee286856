"""The stages of the faults: which servers a scenario has, and what its clients coordinate themselves by."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.faults.servers import servers_with_disks
from tests.faults.stage import Stage
from tests.harness import SESSION_TIMEOUT
from zkrq import local
from zkrq.coordination.memory import Hub


@pytest.fixture
async def stage(servers: local.Servers) -> AsyncGenerator[Stage]:
    """The shared servers; clients over ZooKeeper."""
    made = Stage(servers, None)
    yield made
    await made.exeunt()


@pytest.fixture
async def hub_stage(servers: local.Servers) -> AsyncGenerator[Stage]:
    """The shared servers; the coordinator is in this process, so that a scenario ends or suspends sessions by hand."""
    made = Stage(servers, Hub(session_timeout=SESSION_TIMEOUT))
    yield made
    await made.exeunt()


@pytest.fixture
async def disk_stage(anyio_backend: str) -> AsyncGenerator[Stage]:
    """Servers of its own that keep what they have when they are killed; the coordinator is in this process."""
    async with servers_with_disks() as servers:
        made = Stage(servers, Hub())
        yield made
        await made.exeunt()


@pytest.fixture
async def zookeeper_stage(anyio_backend: str) -> AsyncGenerator[Stage]:
    """Servers of its own, one of them ZooKeeper's; clients over that."""
    async with local.servers(redis=3, zookeeper=1) as servers:
        made = Stage(servers, None)
        yield made
        await made.exeunt()
