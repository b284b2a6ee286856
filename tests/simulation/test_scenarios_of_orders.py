"""Orders that are declared while items are there: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

from tests.simulation.stage import Stage, scenario
from zkrq import Groups

LATER = 600.0
"""Seconds after which an item that failed is delivered again."""


@scenario()
async def test_what_failed_before_the_order_is_overtaken_on_no_server_once_it_holds_its_group(stage: Stage) -> None:
    """Items that were pushed together have one record, which says of all of them whether they hold the group."""
    near = await stage.enter("near")
    await near.do(near.queue.push_many(["a", "b", "c"]))
    a, b = await near.claim_many(2)
    await near.do(b.nack(delay=LATER))
    await near.do(near.queue.set_groups(Groups(ordered=True)))
    await near.expect_none()  # has the items take their places
    await near.do(a.nack(delay=0.0))
    await near.ack("a")
    await near.expect_none()

    # A server that copies the records says the same as those that saw how they came about.
    former, follower = stage.primary, next(id for id in stage.followers if id != stage.heir)
    stage.kill(follower)
    await stage.expect_evicted(follower)
    stage.start_empty(follower)
    await stage.expect_back(follower)
    for server in (former, stage.heir):
        stage.kill(server)
        await near.expect_none()
        stage.start(server)
        await stage.expect_back(server)
    (b,) = await near.claim_many(5, timeout=2 * LATER)
    assert b.item == "b"
    await near.do(b.ack())
    await near.ack("c")
    stage.expect_agreement()
