"""A claim by itself, with a holder that is slow to answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zkrq.claims import Claim, Verb
from zkrq.home import Home
from zkrq.protocol.records import Record, State, Version, pack
from zkrq.retry import Again

pytestmark = pytest.mark.anyio


class SlowHolder:
    """Answers what it is asked when the test says so."""

    claim_timeout = 30.0

    def __init__(self) -> None:
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.let_go_of: list[str] = []
        self.home = Home()
        self.home.settle()

    def settle(self, claim: Claim[Any], verb: Verb, ms: int = 0, text: str = "") -> asyncio.Future[bool]:
        return self.answer

    def let_go(self, claim: Claim[Any]) -> None:
        self.let_go_of.append(claim.id)

    def after_failure(self, record: Record, delay: float | None, reason: str) -> Again | str:
        return reason


def claimed(holder: SlowHolder, seconds: float) -> Claim[str]:
    packed = pack(Record(Version(1, 2), State.CLAIMED, token="ann/1"))
    return Claim(holder, "i", packed, "item", "ann", "ann/1", asyncio.get_running_loop().time() + seconds)


async def test_an_extension_that_shortens_counts_from_the_moment_when_it_is_sent() -> None:
    """It may be carried out without its answer being heard: then somebody else is given the item that early."""
    holder = SlowHolder()
    claim = claimed(holder, 30)
    extending = asyncio.create_task(claim.extended(0.01))
    await asyncio.sleep(0.05)
    assert not claim.holds
    extending.cancel()


async def test_an_extension_that_prolongs_counts_when_it_is_answered() -> None:
    holder = SlowHolder()
    claim = claimed(holder, 30)
    before = claim.deadline_at
    extending = asyncio.create_task(claim.extend(300))
    await asyncio.sleep(0)
    assert claim.deadline_at == before
    holder.answer.set_result(True)
    await extending
    assert claim.deadline_at > before + 200


async def test_a_claim_whose_time_runs_out_during_a_failing_ack_is_lost() -> None:
    holder = SlowHolder()
    claim = claimed(holder, 0.01)
    acking = asyncio.create_task(claim.ack())
    await asyncio.sleep(0.05)
    holder.answer.set_exception(OSError())
    with pytest.raises(OSError):
        await acking
    assert claim.lost
    assert holder.let_go_of == ["i"]
