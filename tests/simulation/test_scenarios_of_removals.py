"""Cancels, clears and dead letters whose replies are lost: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio

import pytest

from tests.every import every
from tests.simulation.stage import HANGS, Stage, scenario
from tests.simulation.wire import Break
from zkrq import Cancellation, OutcomeUnknown


@scenario()
async def test_an_item_that_is_cancelled_while_it_is_claimed_is_not_handed_out(stage: Stage) -> None:
    """The follower that hears of the cancel first says so in its answer to the claim."""
    near, far = await stage.enter("near"), await stage.enter("far")
    primary, follower = stage.primary, stage.followers[0]
    pushed = await far.push("x")

    # The claim is decided and on its way to a follower, which hears of the cancel first.
    stage.cut(near, follower)
    claiming = near.begin(near.queue.pop_one(timeout=3))
    await asyncio.sleep(HANGS / 2)
    stage.cut(near, primary)  # the message that notifies the consumer is held up, so only the follower's answer says it
    assert await far.cancel(pushed.id) is Cancellation.SIGNALLED
    stage.mend(near, follower)
    assert await claiming is None
    stage.mend(near, primary)


@every("held", [False, True])
@scenario()
async def test_a_removal_whose_reply_is_lost_is_told_to_all_servers_and_to_its_caller(stage: Stage, held: bool) -> None:
    """What the call did is not lost with the reply: neither to its caller nor to the other servers."""
    near = await stage.enter("near")
    queue, primary = near.queue, stage.primary
    pushed = await near.push("x")
    if held:
        await near.claim()
    for call in (queue.redrive, queue.discard):
        await near.do(call(["none"]))  # so that the server knows the script: the call's own reply is to be lost

    stage.lose_reply(near)
    assert await near.cancel(pushed.id) is (Cancellation.SIGNALLED if held else Cancellation.REMOVED)
    assert stage.path(near, primary).breaking is None
    ids = await near.bury("y", "z")
    stage.lose_reply(near)
    assert await near.do(queue.redrive(ids[:1])) == 1
    stage.lose_reply(near)
    assert await near.do(queue.discard(ids[1:])) == 1
    stage.expect_agreement()

    stage.kill(primary)
    assert [claim.item for claim in await near.claim_many(3, timeout=20)] == ["y"]
    assert (await near.do(queue.size())).dead == 0


@scenario()
async def test_what_a_clear_removed_whose_reply_is_lost_does_not_come_back(stage: Stage) -> None:
    """Every server applies the clear, although its caller hears of it from the second try only."""
    near = await stage.enter("near")
    await near.do(near.queue.clear())  # so that the server knows the script: the call's own reply is to be lost
    for item in ("x", "y"):
        await near.push(item)
    stage.lose_reply(near)
    assert await near.do(near.queue.clear()) == 2
    stage.expect_agreement()
    stage.kill(stage.primary)
    await near.expect_none(3, timeout=20)


@scenario()
async def test_what_a_cancel_did_not_find_is_gone_for_good(stage: Stage) -> None:
    """A client that finds a removal which only the primary knows tells the other servers of it."""
    near, far = await stage.enter("near"), await stage.enter("far")
    pushed, primary = await near.push("x"), stage.primary

    # The cancel reaches the primary alone, and its caller dies.
    stage.cut(near, *stage.followers)
    near.begin(near.queue.cancel(pushed.id))
    await asyncio.sleep(HANGS)
    stage.drop(near)
    assert await far.cancel(pushed.id) is Cancellation.NOT_FOUND
    stage.kill(primary)
    await far.expect_none(1, timeout=20)


@scenario()
async def test_a_cancel_that_may_be_executed_yet_is_not_told_as_not_found(stage: Stage) -> None:
    """Its outcome is unknown while an earlier try may still reach the server."""
    near = await stage.enter("near")
    stage.path(near, stage.primary).breaking = Break.EXECUTED_LATER
    with pytest.raises(OutcomeUnknown):
        await near.cancel("own")
    assert await near.cancel("own") is Cancellation.NOT_FOUND
