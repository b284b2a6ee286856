"""Each moment of a stored schedule is pushed once, or its loss is told: in virtual time, with several processes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import zkrq
import zkrq.testing

pytestmark = pytest.mark.anyio


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 3, 1, hour, minute, second, tzinfo=UTC)


async def items(queue: zkrq.Queue[str]) -> list[str]:
    """What is queued, in order."""
    return [each.item for each in await queue.peek(100)]


# -- the first deployment ----------------------------------------------------------------------------------------------


async def test_a_schedule_pushes_no_moment_of_before_it_was_declared_first() -> None:
    async with zkrq.testing.cluster(start=at(7, 3)) as cluster, cluster.servers.connect() as other:
        queue = cluster.queue("news")
        for each in (cluster, other):
            each.every("0,5 * * * *", each.queue("news"), datetime.isoformat, name="digest")
        await cluster.clock.advance(60)
        assert await items(queue) == []
        await cluster.clock.advance(60)
        assert await items(queue) == [at(7, 5).isoformat()]


async def test_other_moments_count_from_their_declaration() -> None:
    """Other code with the same moments leaves out none; one with others pushes none of before."""
    async with zkrq.testing.cluster(start=at(6, 59)) as cluster:
        queue = cluster.queue("news")
        cluster.every("0 7 * * *", queue, "first", name="digest").cancel()
        async with cluster.every("0 7 * * *", queue, "never", name="digest"):
            await cluster.clock.advance(1)
        await cluster.clock.advance(2 * 60)
        async with cluster.every("0 7 * * *", queue, "second", name="digest"):
            await cluster.clock.advance(1)
        assert await items(queue) == ["second"]
        async with cluster.every("0-5 7 * * *", queue, "third", name="digest"):
            await cluster.clock.advance(60)
        assert await items(queue) == ["second", "third"]
