"""Keys, whose items only a dead primary knew of, or not: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio

from tests.simulation.stage import HANGS, Actor, Stage, scenario


async def _take_both(actor: Actor) -> list[str]:
    """Take and ack two items."""
    claims = [*await actor.claim_many(2, timeout=20), *await actor.claim_many(1, timeout=20)]
    await actor.ack_all(claims)
    return sorted(claim.item for claim in claims)


async def _expect_two_items_of_a_key(actor: Actor) -> None:
    """Both are there, and the key is free once they are acked."""
    assert await _take_both(actor) == ["first", "second"]
    assert not (await actor.push("third", key="key")).duplicate


@scenario()
async def test_a_key_whose_items_ack_only_a_dead_primary_knew_of(stage: Stage) -> None:
    """The item is delivered again, beside the one that got its key meanwhile."""
    near, far = await stage.enter("near"), await stage.enter("far")
    await near.push("first", key="key")
    claim, primary = await near.claim(), stage.primary

    # The ack reaches the primary alone, which has the key free for another item, and dies.
    stage.cut(near, *stage.followers)
    near.begin(claim.ack())
    await asyncio.sleep(HANGS)
    stage.drop(near)
    assert not (await far.push("second", key="key")).duplicate
    stage.kill(primary)
    await _expect_two_items_of_a_key(far)


@scenario(min_replicas=1)
async def test_a_key_of_an_unfinished_push(stage: Stage) -> None:
    """Both items are delivered where the next primary had not received the first one and gave its key away."""
    near, far = await stage.enter("near"), await stage.enter("far")
    primary, heir = stage.primary, stage.heir

    # The push reaches all but the server that decides next, and that gives the key to another item.
    stage.cut(near, heir)
    near.begin(near.queue.push("first", key="key"))
    await asyncio.sleep(HANGS)
    stage.drop(near)
    stage.kill(primary)
    assert not (await far.push("second", key="key")).duplicate
    stage.kill(heir)
    await _expect_two_items_of_a_key(far)
