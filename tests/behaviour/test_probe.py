"""An idle client notices a dead server: only the probe calls it."""

from __future__ import annotations

import pytest

from zkrq.repair.probe import FOLLOWER_SECONDS, UNCONNECTED_SECONDS
from zkrq.testing import servers

pytestmark = pytest.mark.anyio


async def test_idle_client_notices_a_dead_server() -> None:
    async with servers(3) as own, own.connect(min_replicas=1) as cluster:
        await cluster.queue("jobs").push("x")
        own.kill("redis-2")
        await own.clock.advance(2 * UNCONNECTED_SECONDS + FOLLOWER_SECONDS[1])
        assert set(cluster.view.members) == {"redis-1", "redis-3"}
