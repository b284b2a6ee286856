"""Clients that know different views: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation.stage import HANGS, Actor, Stage, scenario
from zkrq import Cancellation
from zkrq.protocol.enrolment import HOLD_MS
from zkrq.protocol.view import ServerId, extend


@scenario(max_size=2)
async def test_what_a_former_primary_says_is_not_believed(stage: Stage) -> None:
    """A client that reaches an evicted primary under the old view is told of the new one, and asks the new primary."""
    near, far = await stage.enter("near"), await stage.enter("far")
    for name in ("key", "other"):
        await near.push(name, key=name)
    primary, queue = stage.primary, stage.world.queue

    # One is cut off from the primary and evicts it; the other one hears nothing of that, and still reaches it.
    stage.world.hub.suspend(near.coordinator)
    stage.cut(far, primary)
    await far.ack_all(await far.claim_many(2))
    later = await far.push("later", delay=100)
    await far.do(far.queue.pause())
    assert stage.primary != primary
    assert near.cluster.view.primary(queue) == primary

    stage.world.loop.call_later(2.0, stage.world.hub.resume, near.coordinator)
    pushed, cancelled, _ = await asyncio.gather(
        near.push("again", key="key"), near.cancel(later.id), near.do(near.queue.resume())
    )
    assert not pushed.duplicate  # nor refused: that one is full, this one is not
    assert cancelled is Cancellation.REMOVED
    assert not (await far.do(far.queue.statistics())).paused


@scenario()
async def test_a_leader_that_closed_while_it_was_cut_off_leads_no_longer_than_its_session_lives(stage: Stage) -> None:
    """Its session outlives it, and the network is back before that session has timed out."""
    near, far = await stage.enter("near"), await stage.enter("far")
    session, hub, coordinator = near.coordinator.session.id, stage.world.hub, near.coordinator
    hub.suspend(coordinator)
    await asyncio.sleep(HANGS)
    await near.close()
    assert session in hub.sessions
    hub.resume(coordinator)
    await stage.until(lambda: session not in hub.sessions)
    await stage.until(lambda: far.coordinator.leading)


@scenario()
async def test_a_change_made_of_an_old_view_is_not_written(stage: Stage) -> None:
    """The caller of the change is given the present view instead."""
    near = await stage.enter("near")
    old = near.cluster.view
    stage.kill(next(iter(old.members)))
    await near.push("x")
    membership = near.cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
    present = membership.view
    assert present.epoch > old.epoch
    changed = await near.do(membership.change(old, partial(extend, server=ServerId("d"), url="redis://d")))
    assert changed == present == stage.view


async def _ack_one_beside_a_return(stage: Stage, producer: Actor, consumer: Actor) -> Any:
    """Have a server go, and come back empty, so that the view goes on, and with it what is acked; return that item."""
    server = next(iter(stage.world.servers))
    stage.kill(server)
    await producer.push(4)
    stage.start_empty(server)
    await stage.until(lambda: stage.view.epoch > 3 and len(stage.view.members) == 3)
    (claim,) = await consumer.claim_many(1)
    await consumer.ack_all([claim])
    return claim.item


async def _recover_while_both_push(stage: Stage, actors: Sequence[Actor]) -> tuple[set[int], set[int]]:
    """Recover the register while each pushes a number from 6 on; return those that were pushed, and those in doubt."""
    operator = stage.world.new_client("operator")
    cluster, _ = operator.make()
    recovering = operator.start(cluster.recover(list(stage.world.servers), older_zookeeper=True), "recover")
    pushing = [actor.begin(actor.queue.push(number)) for number, actor in enumerate(actors, 6)]
    outcomes = await asyncio.gather(*pushing, return_exceptions=True)
    await recovering
    uncertain = {number for number, outcome in enumerate(outcomes, 6) if isinstance(outcome, BaseException)}
    return {6, 7} - uncertain, uncertain


async def _drain(actor: Actor) -> list[Any]:
    """Take and ack all items; return them."""
    found = list[Any]()
    while claims := await actor.claim_many(10, timeout=1):
        found += [claim.item for claim in claims]
        await actor.ack_all(claims)
    return found


@scenario()
async def test_the_register_goes_back_and_what_the_servers_know_is_gone_on_with(stage: Stage) -> None:
    """Each item whose push returned is delivered once, and none that was acked."""
    near, far = await stage.enter("near"), await stage.enter("far")
    backup = dict(stage.world.hub.registers)
    for number in range(4):
        await near.push(number)
    acked = await _ack_one_beside_a_return(stage, near, far)
    await asyncio.sleep(HOLD_MS / 1000)

    # One client hears of nothing that follows, and knows the later view; the other one says what it sees.
    stage.world.hub.suspend(far.coordinator)
    stage.world.hub.restore(backup)
    await stage.until(lambda: bool(near.cluster.health().trouble))
    later = near.cluster.view.epoch
    await near.push(5)  # under the view that it knows
    pushed, uncertain = await _recover_while_both_push(stage, (near, far))
    stage.world.hub.resume(far.coordinator)
    await stage.until(lambda: min(each.cluster.view.epoch for each in (near, far)) >= later + 900)
    found, left = await _drain(near), {*range(6), *pushed} - {acked}
    assert left <= set(found) <= left | uncertain
    assert len(found) == len(set(found))
