"""A claim that nobody enters or settles is reported, once per queue."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging

import pytest

from tests.harness import take
from zkrq import OutcomeUnknown, Unavailable
from zkrq.consuming.leases import UNENTERED_SECONDS
from zkrq.testing import cluster, servers

pytestmark = pytest.mark.anyio


def reports(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    records = [record for record in caplog.records if text in record.message]
    assert all((record.levelno, record.name) == (logging.WARNING, "zkrq.claims") for record in records)
    return [f"{record.cluster} {record.queue}" for record in records]  # type: ignore[attr-defined]


async def test_a_claim_that_was_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as own:
        for name in ("jobs", "other"):
            queue = own.queue(name)
            await queue.push_many(range(3))
            for _ in range(2):
                claim = await take(queue)
                del claim
                gc.collect()
                await own.clock.advance(10)
        assert reports(caplog, "was dropped without being settled") == ["zkrq jobs", "zkrq other"]
        assert "`async with claim`" in caplog.text
        await own.clock.advance(60)
        again = await take(own.queue("jobs"))
        assert (again.item, again.attempts) == (0, 2), "as it says"


async def test_a_claim_that_is_only_kept(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as own:
        queue = own.queue("jobs")
        await queue.push_many(range(3))
        settled, kept, another = [await take(queue) for _ in range(3)]
        await own.clock.advance(UNENTERED_SECONDS / 2)
        await settled.ack()
        await own.clock.advance(UNENTERED_SECONDS * 0.9)
        assert reports(caplog, "neither entered nor settled") == []
        await own.clock.advance(UNENTERED_SECONDS)
        assert reports(caplog, "neither entered nor settled") == ["zkrq jobs"]
        assert kept.id in caplog.text
        assert kept.holds
        assert another.holds


async def test_a_claim_that_is_worked_on_for_long(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as own:
        queue = own.queue("jobs")
        await queue.push("x")
        async with await take(queue):
            await own.clock.advance(5 * UNENTERED_SECONDS)
        assert await queue.size() == (0, 0, 0, 0)
        assert reports(caplog, "neither entered nor settled") == []


async def test_a_claim_whose_loss_is_followed(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as own:
        queue = own.queue("jobs")
        await queue.push("x")
        claim = await take(queue)
        reasons: list[str] = []
        claim.on_lost(reasons.append)
        await own.clock.advance(5 * UNENTERED_SECONDS)
        assert reports(caplog, "neither entered nor settled") == []
        own.lose_session()
        await own.clock.advance(1)
        assert reasons == [claim.lost.reason]
        claim.on_lost(reasons.append)
        await own.clock.advance(1)
        assert reasons == [claim.lost.reason] * 2
        assert queue.name == claim.queue


async def test_a_call_back_of_a_settled_claim_is_not_called() -> None:
    async with cluster() as own:
        queue = own.queue("jobs")
        await queue.push("x")
        claim = await take(queue)
        reasons: list[str] = []
        claim.on_lost(reasons.append)
        await claim.ack()
        own.lose_session()
        await own.clock.advance(1)
        assert reasons == []


@pytest.mark.parametrize("is_entered", [False, True])
async def test_a_claim_whose_ack_failed_is_kept(is_entered: bool) -> None:
    """Its program goes on with the next item, and the claim stays in a variable: nobody else would get the item."""
    async with servers() as three, three.connect() as own:
        queue = own.queue("jobs", claim_timeout=60.0)
        await queue.push("x")
        claim = await take(queue)
        async with contextlib.AsyncExitStack() as stack:
            if is_entered:
                await stack.enter_async_context(claim)
            for name in three.names:
                three.kill(name)
            acking = asyncio.create_task(claim.ack())
            await own.clock.advance(20)
            with pytest.raises((OutcomeUnknown, Unavailable)):
                await acking
            assert claim.holds, "it may be acked again"
            for name in three.names:
                three.start(name)
            await own.clock.advance(100)
            assert claim.holds is is_entered
        again = await queue.pop_one(timeout=0)
        assert (again is None) is is_entered, "it was acked at the end of its block, or is delivered again"
