"""A consumer whose event loop goes on late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import zkrq
import zkrq.testing
from zkrq.consuming.claims import lease_of
from zkrq.consuming.core.dispatch import Dispatch, Stock

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("queues", [1, 2])
async def test_a_claim_that_ends_before_its_consumer_goes_on_is_not_handed_out(
    queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull: Callable[..., list[zkrq.Claim[Any]]] = getattr(Dispatch, "_pull")  # noqa: B009
    drawn: list[zkrq.Claim[Any]] = []

    def pull_late(self: Dispatch[Any], stock: Stock[Any], want: int, now: float) -> list[zkrq.Claim[Any]]:
        """The consumer's next turn comes when the first claim has ended."""
        claims = pull(self, stock, want, now)
        if claims and not drawn:
            lease_of(claims[0]).deadline_at = asyncio.get_running_loop().time()
        drawn.extend(claims)
        return claims

    monkeypatch.setattr(Dispatch, "_pull", pull_late)
    async with zkrq.testing.cluster() as cluster:
        jobs = [cluster.queue(f"jobs-{number}", claim_timeout=2.0) for number in range(queues)]
        async with cluster.pop(*jobs) as claims:
            waiting = asyncio.create_task(anext(claims))
            await cluster.clock.advance(0.5)
            await jobs[0].push("x")
            await cluster.clock.advance(3)
            claim = await waiting
        assert claim.holds
        assert claim is not drawn[0]
        assert claim.attempts == 2
        await claim.ack()
