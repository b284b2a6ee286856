"""Recurring pushes, by ``Cluster.every``."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import take

pytestmark = pytest.mark.anyio


async def moments(queue: zkrq.Queue[Any], count: int) -> list[datetime]:
    """What so many items say."""
    claims = [await take(queue) for _ in range(count)]
    for claim in claims:
        await claim.ack()
    return [datetime.fromisoformat(claim.item) for claim in claims]


async def test_every_moment_once(
    cluster: zkrq.Cluster, queue: zkrq.Queue[Any], pass_time: PassTime, request: pytest.FixtureRequest
) -> None:
    async with cluster.every(0.5, queue, datetime.isoformat, name="report"):
        await pass_time(1.6)
        first, *others = await moments(queue, 3)
    after = [other - first for other in others]
    if "testing" in request.node.name:
        assert after == [timedelta(seconds=0.5), timedelta(seconds=1)]
    else:  # a busy machine may have slept over one
        assert timedelta(0) < after[0] < after[1]
        assert all(time % timedelta(seconds=0.5) == timedelta(0) for time in after)
    assert first.microsecond % 500_000 == 0


async def test_cancelled_it_stops_and_its_name_is_free(
    cluster: zkrq.Cluster, queue: zkrq.Queue[Any], pass_time: PassTime
) -> None:
    async with cluster.every(0.2, queue, 1, name="report") as handle:
        with pytest.raises(zkrq.ConfigError, match="already"):
            cluster.every(0.2, queue, 2, name="report")
        await pass_time(0.3)
        await (await take(queue)).ack()
    assert "cancelled" in repr(handle)
    handle.cancel()
    await queue.clear()
    await pass_time(0.5)
    assert (await queue.size()).ready == 0
    again = cluster.every(0.2, queue, 1, name="report")
    await pass_time(0.3)
    await (await take(queue)).ack()
    again.cancel()


@pytest.mark.skipif(find_spec("cronsim") is None, reason="cronsim is not installed")
async def test_a_cron_expression(cluster: zkrq.Cluster, queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    async with cluster.every("* * * * * *", queue, datetime.isoformat, name="report"):
        await pass_time(1.1)
        first, second = await moments(queue, 2)
    assert first.microsecond == 0
    assert second - first == timedelta(seconds=1)


async def test_a_schedule_that_cannot_be_is_refused(cluster: zkrq.Cluster, queue: zkrq.Queue[Any]) -> None:
    for when in (0, 0.01, "at noon", "61 * * * *"):
        with pytest.raises(zkrq.ConfigError):
            cluster.every(when, queue, 1, name="report")
    with pytest.raises(zkrq.ConfigError, match="name"):
        cluster.every(60, queue, datetime.isoformat)
    assert await queue.size() == (0, 0, 0, 0)
