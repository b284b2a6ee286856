"""Pushes that are overtaken, repeated or refused: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio

from tests.simulation.faults.access import NO_RIGHT
from tests.simulation.stage import HANGS, Stage, scenario
from tests.simulation.world import NAMESPACE
from zkrq import Cancellation, new_id
from zkrq.base import clock
from zkrq.protocol.calls import item_id
from zkrq.protocol.keys import key


@scenario()
async def test_a_server_that_came_back_during_a_push_is_given_the_item(stage: Stage) -> None:
    """An answer of a life that is over does not count for a push."""
    far, near = await stage.enter("far"), await stage.enter("near")
    taker, *others = stage.view.members

    # The push reaches one server, which then loses its memory and is caught up by those that the push has not reached.
    stage.cut(near, *others)
    pushing = near.begin(near.queue.push("x"))
    await asyncio.sleep(HANGS / 2)
    stage.flush(taker)
    await far.push("y")
    assert not stage.is_member(taker)
    await stage.expect_back(taker)
    assert not pushing.done()
    stage.mend(near, *others)
    assert (await pushing).replicas == 3
    stage.expect_agreement()


@scenario()
async def test_a_claim_that_overtakes_its_push_brings_the_payload_with_it(stage: Stage) -> None:
    """A follower that the push has not reached learns the item from the claim."""
    near, far = await stage.enter("near"), await stage.enter("far")
    follower = stage.followers[0]
    stage.cut(near, follower)
    pushing = near.begin(near.queue.push("x"))
    await asyncio.sleep(HANGS / 2)
    await far.claim()
    stage.expect_agreement()
    stage.mend(near, follower)
    await pushing


@scenario()
async def test_a_bundle_may_be_pushed_again_item_by_item(stage: Stage) -> None:
    """No item is lost with the primary that decided about a bundle of which no server knew anything."""
    near, bundle = await stage.enter("near"), new_id()
    for position in range(3):
        await near.push(str(position), id=item_id(bundle, position))
    stage.kill(stage.primary)
    claims = await near.claim_many(5)
    assert {claim.id: claim.item for claim in claims} == {item_id(bundle, at): str(at) for at in range(3)}
    await near.ack_all(claims)


@scenario()
async def test_an_item_whose_payload_never_arrived_may_be_pushed_again(stage: Stage) -> None:
    """It is handed out once its payload is there, and no earlier."""
    near = await stage.enter("near")
    receipts = await near.do(near.queue.push_many(["0", "1", "2"]))

    # As if claims had overtaken the push on every server, and those who made them had died since.
    for server in stage.world.servers.values():
        server.redis.execute(b"DEL", key(NAMESPACE, stage.world.queue, "payloads").encode())
    await near.expect_none(3)
    await near.push("1", id=receipts[1].id)
    claims = await near.claim_many(3)
    assert [(claim.id, claim.item) for claim in claims] == [(receipts[1].id, "1")]
    await near.push("2", id=receipts[2].id)
    claims += await near.claim_many(3)
    assert [claim.item for claim in claims] == ["1", "2"]
    await near.ack_all(claims)


@scenario()
async def test_an_id_that_only_looks_like_one_of_a_bundle_is_a_users_own(stage: Stage) -> None:
    """Each is one item, found under its whole id."""
    near = await stage.enter("near")
    ids = [f"1A0C-1-2~{ending}" for ending in ("00", "0A")] + ["1a0c-1-2~ff", "1a0c-1-2~70"]
    for id in ids:
        await near.push(id, id=id)
    for id in ids:
        seen = await near.do(near.queue.get(id))
        assert seen
        assert (seen.id, seen.item) == (id, id)
        assert await near.cancel(id) is Cancellation.REMOVED


@scenario()
async def test_a_moment_that_recurs_is_made_up_for_when_its_client_is_let_in_again(stage: Stage) -> None:
    """A push that a right is missing for, as while passwords are rotated, is retried until it is there."""
    near = await stage.enter("near")
    path = stage.path(near, next(iter(stage.world.servers)))
    path.forbids = NO_RIGHT
    now = clock.now().timestamp() % 60
    async with near.cluster.every(60, near.queue, "x", offset=now + 1, catch_up=30):
        await asyncio.sleep(3.0)
        path.forbids = ""
        await asyncio.sleep(10.0)
    assert await near.do(near.queue.size()) == (1, 0, 0, 0)
