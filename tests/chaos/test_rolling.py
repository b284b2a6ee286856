"""Rolling from the release before to this one and back, while servers die: nothing is lost, revived, or held twice.

A namespace that the release before has founded, and its clients; then the level is raised while clients are stopped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.faults import Flushed, KilledEmpty, KilledOld, Stopped1, ZooKeeperLeaderKilled
from tests.chaos.previous import previous
from tests.chaos.report import complaints
from tests.chaos.rolling import play
from tests.chaos.stage import LONG, SHORT, restore
from tests.harness import new_namespace
from zkrq import local

pytestmark = pytest.mark.anyio


@pytest.fixture
async def whole_servers(shared_servers: local.Servers) -> AsyncGenerator[local.Servers, None]:
    """The shared servers, all of them healthy masters again afterwards."""
    yield shared_servers
    await restore(shared_servers)


ROUNDS = {
    "short": ((KilledEmpty,),),
    "long": (
        (KilledEmpty, ZooKeeperLeaderKilled),
        (KilledOld, Stopped1),
        (Flushed, KilledEmpty),
        (Stopped1, KilledOld),
    ),
}


@pytest.mark.parametrize("length", ["short", pytest.param("long", marks=pytest.mark.chaos)])
async def test_rolling_both_ways_under_load(whole_servers: local.Servers, length: str, tmp_path: Path) -> None:
    result = await play(
        whole_servers,
        previous(),
        new_namespace(),
        rounds=ROUNDS[length],
        pace=SHORT if length == "short" else replace(LONG, delay=1.0),
        directory=tmp_path,
    )
    assert not complaints(result), f"logs: {tmp_path}"
    assert result.fired
    assert result.outcome.acked
