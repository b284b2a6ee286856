"""Callers that wait for results while primaries are killed, for a short time."""

from __future__ import annotations

import pytest

from tests.chaos.callers import run
from zkrq import local

pytestmark = pytest.mark.anyio

CALLERS = 1000


@pytest.mark.chaos
async def test_every_caller_is_told_the_right_result(servers: local.Servers) -> None:
    found = await run(servers, callers=CALLERS, seconds=25, kill_every=8)
    assert not found.broken
    assert len(found.late) > CALLERS
    assert found.outages, "no primary was killed"
