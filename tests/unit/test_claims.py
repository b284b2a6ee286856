"""A claim alone, with an issuer that is slow to answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.issuers import SlowIssuer, claimed
from zkrq.consuming.claims import lease_of

pytestmark = pytest.mark.anyio


async def test_an_extension_that_shortens_counts_from_the_moment_when_it_is_sent() -> None:
    """It may be carried out without its answer being heard: then somebody else is given the item that early."""
    issuer = SlowIssuer()
    claim = claimed(issuer, 30)
    extending = asyncio.create_task(lease_of(claim).extend(0.01))
    await asyncio.sleep(0.05)
    assert not claim.holds
    extending.cancel()


async def test_an_extension_that_prolongs_counts_when_it_is_answered() -> None:
    issuer = SlowIssuer()
    claim = claimed(issuer, 30)
    before = lease_of(claim).deadline_at
    extending = asyncio.create_task(claim.extend(300))
    await asyncio.sleep(0)
    assert lease_of(claim).deadline_at == before
    issuer.answer.set_result({})
    await extending
    assert lease_of(claim).deadline_at > before + 200


async def test_a_claim_whose_time_runs_out_during_a_failing_ack_is_lost() -> None:
    issuer = SlowIssuer()
    claim = claimed(issuer, 0.01)
    acking = asyncio.create_task(claim.ack())
    await asyncio.sleep(0.05)
    issuer.answer.set_exception(OSError())
    with pytest.raises(OSError):
        await acking
    assert claim.lost
    assert not lease_of(claim).extending
