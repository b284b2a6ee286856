"""A claim alone, with an issuer that is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from zkrq.base.events import Events
from zkrq.base.loop import OwnLoop
from zkrq.base.retry import Again
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.lease import Grant, Lease, Refused, Verb
from zkrq.consuming.observing import Observers
from zkrq.protocol.records import Bundle, ItemRecord, Row, State, Version, pack

pytestmark = pytest.mark.anyio


class SlowIssuer:
    """Answers what it is asked when the test says so."""

    claim_timeout = 30.0
    queue = "jobs"
    observers = Observers(Events(None))
    keeps_results = False

    def __init__(self) -> None:
        self.answer: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self.own_loop = OwnLoop()
        self.own_loop.settle()

    def settle(self, lease: Lease, verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[Refused]:
        return self.answer

    def ack_together(self, leases: Sequence[Lease], returning: int) -> asyncio.Future[Refused]:
        return self.answer

    def report(self, lease: Lease, text: str) -> None: ...

    def encode_result(self, result: object) -> bytes:
        raise AssertionError(result)

    def after_failure(self, record: ItemRecord, delay: float | None, reason: str) -> Again | str:
        return reason


def claimed(issuer: SlowIssuer, seconds: float) -> Claim[str]:
    packed = pack(Bundle(Version(1, 2), State.CLAIMED.value, rows_of=[1], rows=[Row("ann", 1)]))
    grant = Grant(issuer, "i", packed, "ann", "ann/1")
    return Claim("item", grant, 0, asyncio.get_running_loop().time() + seconds)


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
