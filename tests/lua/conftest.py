"""One private Redis server for all script tests; every test finds it empty and newly enrolled.

``make fuzz`` plays more histories than the tests do: FUZZ_EXAMPLES of each kind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator

import pytest
from hypothesis import settings

from tests.lua.copying import another
from tests.lua.one_server import OneServer
from tests.lua.player import Pair
from zkrq import local

settings.register_profile("servers", deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "40")))
settings.load_profile("servers")


@pytest.fixture(scope="session")
async def private_redis(anyio_backend: str) -> AsyncGenerator[local.LocalRedis, None]:
    if "redis" not in local.available():
        pytest.skip("not installed: redis")
    async with local.servers(redis=1, zookeeper=0, redis_config={"appendonly": "no"}) as servers:
        yield servers.redis[0]


@pytest.fixture
def server(private_redis: local.LocalRedis) -> Generator[OneServer, None, None]:
    with OneServer(private_redis.host, private_redis.port) as server:
        server.reset()
        yield server


@pytest.fixture
def follower(server: OneServer) -> Generator[OneServer, None, None]:
    """Another server with the same clock."""
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        yield other


@pytest.fixture
def other(server: OneServer) -> Generator[OneServer, None, None]:
    with another(server) as other:
        yield other


@pytest.fixture(scope="module")
def pair(private_redis: local.LocalRedis) -> Generator[Pair, None, None]:
    host, port = private_redis.host, private_redis.port
    with OneServer(host, port) as one, OneServer(host, port, database=1) as two:
        yield Pair(one, two)
