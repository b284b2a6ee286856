"""Each fault for a moment, under load: no item is lost, comes back, is held twice or stranded.

``python -m tests.chaos`` does the same for longer, repeatedly, and reports its observations.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.faults.base import Lane
from tests.chaos.report import complaints
from tests.chaos.run import MIXED, NAMES, run
from tests.chaos.stage import SHORT, restore
from tests.harness import new_namespace
from zkrq import local

pytestmark = pytest.mark.anyio

LONG_ONES = {"redis-stopped-1s", "redis-stopped-5s", "redis-stopped-30s", MIXED}


def _hits_redis(name: str) -> bool:
    return name in FAULTS and FAULTS[name].lane is Lane.REDIS


ELSEWHERE = {
    "client-redis-cut",
    "client-stopped",
    "client-subscriptions-silent",
    "client-wrong-password",
    "client-zookeeper-cut",
    "redis-all-killed",
    "redis-clock-set",
    "redis-flushed",
    "redis-full",
    "redis-full-apart",
    "redis-killed-empty",
    "redis-replica",
    "zookeeper-down",
    "zookeeper-leader-killed",
}
"""Faults that a test run meets in tests/faults or tests/coordination, too."""


def _is_short(name: str, min_replicas: int) -> bool:
    """Each number of replicas is tried with half of the faults of Redis in a test run; how many servers a push needs
    makes no difference where none of them fails."""
    if name in LONG_ONES | ELSEWHERE:
        return False
    return min_replicas == (1 + NAMES.index(name) % 2 if _hits_redis(name) else 2)


CASES = [
    pytest.param(name, min_replicas, marks=() if _is_short(name, min_replicas) else pytest.mark.chaos)
    for name in NAMES
    for min_replicas in (1, 2)
]


@pytest.fixture
async def whole_servers(shared_servers: local.Servers) -> AsyncGenerator[local.Servers, None]:
    """The shared servers, all of them healthy masters again afterwards."""
    yield shared_servers
    await restore(shared_servers)


@pytest.mark.parametrize(("fault", "min_replicas"), CASES)
async def test_a_fault_under_load(whole_servers: local.Servers, fault: str, min_replicas: int, tmp_path: Path) -> None:
    result = await run(
        whole_servers,
        fault,
        new_namespace(),
        min_replicas=min_replicas,
        pace=SHORT,
        seed=f"{fault} {min_replicas}",
        directory=tmp_path,
    )
    assert not complaints(result), f"logs: {tmp_path}"
    assert result.fired
    assert result.outcome.acked
