"""One private Redis server for all script tests; every test finds it empty and newly enrolled.

``make fuzz`` plays more histories than the tests do: FUZZ_EXAMPLES of each kind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator

import pytest
from hypothesis import settings

from tests.lua.one_server import OneServer
from zkrq import local

settings.register_profile("servers", deadline=None, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "40")))
settings.load_profile("servers")


@pytest.fixture(scope="session")
async def private_redis(anyio_backend: str) -> AsyncGenerator[local.LocalRedis, None]:
    if "redis" not in local.available():
        pytest.skip("not installed: redis")
    async with local.servers(redis=1, zookeeper=0, redis_config={"appendonly": "no"}) as servers:
        yield servers.redis[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With the scripts as servers since Redis 7 get them; in long runs also as older ones do.

    What makes a difference there, the gate, is tried both ways in every run (``either``).  A thousand cases that a run
    leaves out in any case are not even made, because each costs every worker a millisecond.
    """
    if "server" in metafunc.fixturenames and "either" not in metafunc.fixturenames:
        flags = [pytest.param(True, id="flags")]
        if metafunc.config.getoption("markexpr") != "not chaos":
            flags.append(pytest.param(False, id="noflags", marks=pytest.mark.chaos))
        metafunc.parametrize("server", flags, indirect=True)


@pytest.fixture
def server(private_redis: local.LocalRedis, request: pytest.FixtureRequest) -> Generator[OneServer, None, None]:
    with OneServer(private_redis.host, private_redis.port, flags=request.param) as server:
        server.reset()
        yield server


@pytest.fixture(params=[True, False], ids=["flags", "noflags"])
def either(private_redis: local.LocalRedis, request: pytest.FixtureRequest) -> Generator[OneServer, None, None]:
    """With the scripts as servers since Redis 7 get them, then as older ones do."""
    with OneServer(private_redis.host, private_redis.port, flags=request.param) as server:
        server.reset()
        yield server


@pytest.fixture
def flagged(private_redis: local.LocalRedis) -> Generator[OneServer, None, None]:
    """Only with the scripts as servers since Redis 7 get them."""
    with OneServer(private_redis.host, private_redis.port) as server:
        server.reset()
        yield server
