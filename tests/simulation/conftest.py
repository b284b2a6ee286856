"""The servers that tests of the simulation's Redis compare."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest

from tests.lua.connection import Connection, Listener
from tests.simulation.twins import HEARD, Twins, mini_redis
from zkrq import local
from zkrq.testing.redis.server import MiniRedis


@pytest.fixture(scope="module")
async def private_redis(anyio_backend: str) -> AsyncGenerator[local.LocalRedis, None]:
    if "redis" not in local.available():
        pytest.skip("not installed: redis")
    async with local.servers(redis=1, zookeeper=0, redis_config={"appendonly": "no"}) as servers:
        yield servers.redis[0]


@pytest.fixture
def mini() -> MiniRedis:
    return mini_redis()


@pytest.fixture
def twins(private_redis: local.LocalRedis) -> Generator[Twins, None, None]:
    host, port = private_redis.host, private_redis.port
    listeners = [Listener(host, port, channel) for channel in HEARD]
    with Connection(host, port) as real:
        real.pipeline(("CONFIG", "SET", "maxmemory", 0), ("FLUSHALL",), ("FUNCTION", "FLUSH"))
        yield Twins(real, listeners)
        real.command("CONFIG", "SET", "maxmemory", 0)
    for listener in listeners:
        listener.close()
