"""Clocks that are set: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.every import every
from tests.simulation.stage import Actor, Stage, scenario
from tests.simulation.world import CLAIM_TIMEOUT
from zkrq import ConfigError, OutcomeUnknown, Queue, Unavailable

HOUR = 3_600.0


@scenario()
async def test_a_client_that_claims_for_the_first_time_notices_a_clock_that_was_set_forward(stage: Stage) -> None:
    """It takes no item that its holder's lease still covers."""
    near, far = await stage.enter("near"), await stage.enter("far")  # far has never claimed anything
    await near.push("x")
    claim = await near.claim()
    stage.set_clock(stage.primary, CLAIM_TIMEOUT + 1.0)
    assert await far.do(far.queue.pop_one(timeout=1.0)) is None
    await near.do(claim.ack())


@scenario()
async def test_a_client_that_connects_after_a_clock_was_set_forward_takes_nothing_from_others(stage: Stage) -> None:
    """It cannot know of the step, and may come before any client that does."""
    near = await stage.enter("near")
    await near.push("x")
    claim = await near.claim()
    stage.set_clock(stage.primary, CLAIM_TIMEOUT + 1.0)
    new = await stage.enter("new")
    assert await new.do(new.queue.pop_one(timeout=3 * CLAIM_TIMEOUT)) is None
    await near.do(claim.ack())


def _pushes(queue: Queue[Any]) -> list[Coroutine[Any, Any, Any]]:
    """A push of each kind."""
    return [
        queue.push("plain"),
        queue.push_many(range(3)),
        queue.push("own id", id="mine"),
        queue.push("keyed", key="k"),
        queue.push("grouped", group="g"),
        queue.push("delayed", delay=5),
    ]


@every("seconds", [HOUR, -HOUR, 150.0, -150.0])
@every("of_primary", [True, False])
@scenario()
async def test_a_server_whose_clock_is_set_fails_no_push_and_comes_back(
    stage: Stage, seconds: float, of_primary: bool
) -> None:
    """It is evicted, stays out with the reason until its clock is right, and no push of any kind fails."""
    near = await stage.enter("near")
    wrong = stage.primary if of_primary else stage.followers[0]
    stage.set_clock(wrong, seconds)
    for work in _pushes(near.queue):
        await near.do(work)
    await stage.expect_evicted(wrong)
    await asyncio.sleep(3.0)
    assert any(f"{wrong} is not brought back: its clock is" in text for text in near.cluster.health().warnings)
    assert near.cluster.health().ok
    stage.set_clock(wrong, -seconds)
    await stage.expect_back(wrong)
    await stage.until(lambda: not near.cluster.health().warnings)


async def _expect_refused(actor: Actor, wrong: str) -> None:
    """A push fails for the clock of this server, and nothing is written."""
    with pytest.raises(Unavailable, match=f"nothing was written: {wrong}: its clock is .* set it right"):
        await actor.push("refused")


def _expect_trouble(actor: Actor, wrong: str) -> None:
    """A client reports the clock of this server."""
    assert any(f"server {wrong}: its clock is" in text for text in actor.cluster.health().trouble)


@scenario()
async def test_with_two_members_and_two_needed_a_wrong_clock_stops_pushes_and_nothing_else(stage: Stage) -> None:
    """Pushes name the clock that they are refused for, claims and acks continue, and all is well once it is right."""
    near = await stage.enter("near")
    await near.push("before")
    wrong, gone = stage.followers
    stage.kill(gone)
    await near.push("by two")
    stage.set_clock(wrong, HOUR)
    with pytest.raises(OutcomeUnknown, match=f"{wrong}: its clock is .* ahead"):
        await near.push("touched")
    for _ in range(3):
        await _expect_refused(near, wrong)
    assert not near.cluster.health().ok
    _expect_trouble(near, wrong)

    late = await stage.enter_quietly("late")  # it knows this as soon as it is connected, so no push of it is in doubt
    _expect_trouble(late, wrong)
    await _expect_refused(late, wrong)
    for claim in await near.claim_many(5):
        await near.do(claim.ack())
    stage.set_clock(wrong, -HOUR)
    await stage.until(lambda: all(each.cluster.health().ok for each in (near, late)))
    await near.push("after")
    await late.push("after")


@scenario()
async def test_a_client_whose_own_clock_is_wrong_stops_itself_alone(stage: Stage) -> None:
    """Its pushes fail and it says why; others push, it still claims, and no server is evicted."""
    near, far = await stage.enter("near"), await stage.enter("far")
    near.client.process.clock += HOUR
    with pytest.raises(ConfigError, match="the clock here differs"):
        await near.push("x")
    await stage.until(lambda: not near.cluster.health().ok)
    (text,) = near.cluster.health().trouble
    assert "this client's clock is 3600" in text
    await far.push("y")
    claim = await near.claim()
    await near.do(claim.ack())
    assert stage.view.epoch == 1
