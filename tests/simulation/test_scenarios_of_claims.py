"""Claims under way, claimed ahead and handed back: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from tests.simulation.stage import HANGS, Actor, Stage, scenario
from zkrq.consuming.claims import lease_of
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.view import decode


@scenario()
async def test_what_was_claimed_ahead_is_not_handed_out_while_the_session_is_uncertain(stage: Stage) -> None:
    """Others may have fenced this process since."""
    near = await stage.enter("near")
    for item in ("x", "y", "z"):
        await near.push(item)

    async def take() -> list[int]:
        """The numbers of the claim requests that three items came by."""
        async with near.queue.pop(prefetch=2) as stream:
            claims = [await anext(stream)]
            await asyncio.sleep(HANGS)  # the others are claimed ahead
            claims.append(await anext(stream))
            await stage.doubt_session(near)
            claims.append(await anext(stream))
        return [int(lease_of(claim).grant.request.rpartition("/")[2]) for claim in claims]

    first, second, third = await near.do(take())
    assert second <= first + 1
    assert third > second, "it was claimed ahead, and others may have fenced this process since"
    stage.trust_session(near)


@scenario()
async def test_what_was_claimed_ahead_and_handed_back_comes_in_order(stage: Stage) -> None:
    """A claim that does not wait until all are back gets the items behind them."""
    near, items = await stage.enter("near"), list(map(str, range(60)))
    for item in items:
        await near.push(item)

    async def take() -> list[str]:
        taken: list[str] = []
        async for claim in near.queue.pop(prefetch=40, limit=len(items)):
            taken.append(claim.item)
            if len(taken) != 5:
                await claim.ack()
                continue
            await asyncio.sleep(HANGS)  # others are claimed ahead
            await stage.doubt_session(near)
            # What is handed back waits until this ack has reached a follower, and a claim would not.
            stage.cut(near, stage.followers[0])
            near.begin(claim.ack())
            await asyncio.sleep(HANGS / 10)
            near.begin(_mend_soon(stage, near))
        return taken

    assert await near.do(take()) == items
    stage.trust_session(near)


async def _mend_soon(stage: Stage, actor: Actor) -> None:
    await asyncio.sleep(HANGS / 2)
    stage.mend(actor, *stage.followers)


@scenario()
async def test_a_claim_of_a_session_that_ended_meanwhile_is_not_handed_out(stage: Stage) -> None:
    """The session ends while the claim is on its way to a follower; the item comes with the next session."""
    near = await stage.enter("near")
    await near.push("x")
    follower = stage.followers[0]
    stage.cut(near, follower)
    claiming = near.begin(near.queue.pop_one(timeout=20))
    await asyncio.sleep(HANGS / 2)
    stage.world.hub.expire(near.coordinator.session.id)
    await asyncio.sleep(HANGS / 2)
    stage.mend(near, follower)
    claim = await claiming
    assert claim
    assert stage.world.hub.is_live(claim.owner)


@scenario()
async def test_an_item_that_was_claimed_before_a_learner_had_its_push_is_delivered_again(stage: Stage) -> None:
    """Claims of items that a learner has not received are told to it before it decides."""
    near, maker, far = await stage.enter("near"), await stage.enter("maker"), await stage.enter("far")
    primary = stage.primary
    stage.kill(primary)
    await far.push("y")
    await far.ack("y")

    # The server that is to decide again has been given everything, and becomes a member a little later.
    swap, copied, go_on = near.coordinator.swap, asyncio.Event(), asyncio.Event()

    async def swap_later(register: str, data: bytes, expected: int) -> Versioned | None:
        if primary in decode(data).members:
            copied.set()
            await go_on.wait()
        return await swap(register, data, expected)

    with patch.object(near.coordinator, "swap", swap_later):
        stage.start_empty(primary)
        await copied.wait()
        await _push_and_die(stage, maker, primary)
        claim = await far.claim()
        go_on.set()
        await stage.expect_back(primary)
    assert stage.primary == primary
    await far.do(claim.release())
    await far.ack("x")
    stage.expect_agreement()


async def _push_and_die(stage: Stage, maker: Actor, unreached: str) -> None:
    """Push an item to all servers but one, by a producer that dies."""
    stage.cut(maker, unreached)
    maker.begin(maker.queue.push("x"))
    await asyncio.sleep(HANGS)
    stage.drop(maker)
