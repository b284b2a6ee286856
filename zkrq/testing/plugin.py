"""Fixtures for pytest.  One line in ``conftest.py`` brings them:

    pytest_plugins = ["zkrq.testing.plugin"]

It is a line of yours rather than an entry point, so that pytest imports zkrq only where it is wanted.  The fixtures are
asynchronous: mark tests with ``pytest.mark.anyio``, or use pytest-asyncio in its mode ``auto``.  anyio runs each test
on trio, too, where that is installed, and zkrq needs asyncio: the fixtures fail there with what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pytest

from zkrq.testing.in_process import Servers, TestCluster, cluster, servers

if TYPE_CHECKING:
    from zkrq.testing.clock import Clock

__all__ = ["zkrq_clock", "zkrq_cluster", "zkrq_servers"]


@pytest.fixture
async def zkrq_servers() -> AsyncGenerator[Servers, None]:
    """Three servers in the process, which die and return as the test says; ``connect()`` makes clients of them."""
    _need_asyncio()
    async with servers() as running:
        yield running


@pytest.fixture
async def zkrq_cluster() -> AsyncGenerator[TestCluster, None]:
    """A cluster on servers in the process, empty for each test."""
    _need_asyncio()
    async with cluster() as opened:
        yield opened


@pytest.fixture
async def zkrq_clock(zkrq_cluster: TestCluster) -> Clock:
    """The clock of ``zkrq_cluster``: ``await zkrq_clock.advance(3600)``."""
    return zkrq_cluster.clock


def _need_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pytest.fail("zkrq runs on asyncio: add to conftest.py a fixture anyio_backend that returns 'asyncio'", False)
