"""Flows within flows while clients and servers die: schedules made by hand, with the shipped client and scripts."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.simulation.flow_stage import Maker, ack
from tests.simulation.stage import HANGS, Actor, Stage, scenario
from zkrq import Flow
from zkrq.protocol import calls
from zkrq.protocol.operations import OPERATIONS

PARTS = "parts"
"""The home of inner flows."""

HOUR = 3_600.0
"""Seconds after which a flow fails that its maker does not keep open."""

LOOKS = 60.0
"""Seconds within which the leader looks at what is due."""


SOON = 3.0
"""Seconds within which it has not looked."""


async def made(actor: Actor, **options: Any) -> tuple[Flow, Flow]:
    """An outer flow and an inner one, both open, which items follow."""
    outer = actor.queue.flow("f", **options)
    await actor.do(outer.begin())
    await actor.do(outer.then("after"))
    inner = outer.flow("part", queue=actor.cluster.queue(PARTS))
    await actor.do(inner.begin())
    return outer, inner


async def until_ended(actor: Actor, flow: Flow, seconds: float = LOOKS) -> str:
    """How a flow has ended that nobody waits for, within so long."""
    again = actor.cluster.queue(flow.queue).flow(flow.name)
    for _ in range(round(seconds)):
        status = await actor.do(again.status())
        if status.state.has_ended:
            return status.state.value
        await asyncio.sleep(1)
    return "none"


@scenario()
async def test_the_outer_flow_ends_though_the_client_that_acked_the_last_member_dies(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    outer, inner = await made(near)
    await near.do(inner.push("x"))
    await near.do(inner.seal())
    await near.do(outer.seal())
    await ack(near, near.cluster.queue(PARTS), "x")
    stage.drop(near)
    assert await until_ended(far, outer) == "done"
    assert await until_ended(far, inner) == "done"
    await far.ack("after")
    await far.expect_none()
    stage.expect_agreement()


@scenario()
async def test_what_stands_for_a_flow_ends_everywhere_though_the_primary_alone_knows_it_and_dies(stage: Stage) -> None:
    """Otherwise the outer flow ends, and the next primary has it wait again."""
    near, far = await stage.enter("near"), await stage.enter("far")
    outer, inner = await made(near)
    await near.do(inner.seal())
    await near.do(outer.seal())
    leading = stage.view.primary(PARTS)
    maker = Maker(near)
    maker.flow = f"{PARTS}/part"
    stage.cut(near, *[id for id in stage.view.members if id != leading])
    near.begin(maker.run(OPERATIONS.decide(calls.OpenHeld(PARTS, maker.flow)), PARTS))
    await asyncio.sleep(HANGS / 2)
    stage.drop(near)
    stage.kill(leading)
    assert await until_ended(far, inner) == "done"
    assert await until_ended(far, outer) == "done"
    await far.ack("after")
    await far.expect_none()
    stage.expect_agreement()


@scenario()
async def test_inner_flows_are_cancelled_though_the_client_that_cancels_dies(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    outer, inner = await made(near)
    await near.do(inner.push("x"))
    await near.do(inner.seal())
    await near.do(outer.seal())
    await Maker(near).steer("cancel")
    stage.drop(near)
    assert await until_ended(far, outer) == "cancelled"
    assert await until_ended(far, inner) == "cancelled"
    assert not await far.do(far.cluster.queue(PARTS).pop_one(timeout=5))
    stage.expect_agreement()


@scenario()
async def test_inner_flows_fail_though_the_primary_dies(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    outer, inner = await made(near)
    await near.do(outer.on_failure("undo"))
    await near.do(inner.push("x"))
    await near.do(inner.push("y"))
    claim = await near.do(near.cluster.queue(PARTS).pop_one(timeout=5))
    assert claim
    await Maker(near).steer("fail")
    stage.kill(stage.view.primary(PARTS))
    assert await until_ended(far, outer) == "none"
    await near.do(claim.ack())
    assert await until_ended(far, inner) == "failed"
    assert await until_ended(far, outer) == "failed"
    await far.ack("undo")
    stage.expect_agreement()


@scenario()
async def test_a_flow_that_fails_ends_with_its_inner_flows(stage: Stage) -> None:
    """In the same look: it need not wait for the leader's."""
    near = await stage.enter("near")
    outer, inner = await made(near, fail_fast=True)
    await near.do(inner.flow("within").begin())
    await near.do(outer.on_failure("undo"))
    await near.do(outer.push("x"))
    claim = await near.claim()
    await near.do(claim.bury("no good"))
    assert await until_ended(near, outer, SOON) == "failed"
    assert await until_ended(near, inner, SOON) == "failed"
    await near.ack("undo")
    stage.expect_agreement()


@scenario()
async def test_the_outer_flow_does_not_wait_for_ever_for_a_maker_that_died(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    outer, inner = await made(near)
    await near.do(outer.on_failure("undo"))
    await near.do(outer.seal())
    stage.drop(near)
    assert await until_ended(far, outer) == "none"
    await asyncio.sleep(HOUR)
    assert await until_ended(far, inner) == "failed"
    assert await until_ended(far, outer) == "failed"
    await far.ack("undo")


@scenario()
async def test_a_maker_that_died_before_the_inner_flow_was_a_member_holds_nothing_up(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    outer = near.queue.flow("f")
    await near.do(outer.begin())
    maker = Maker(near)
    await maker.join(PARTS)
    await maker.run(
        OPERATIONS.steer(PARTS, f"{PARTS}/part", "begin", keep_ms=60_000, outer=maker.flow),
        PARTS,
    )
    stage.drop(near)
    again = await far.do(far.queue.flow("f").begin())
    await far.do(again.seal())
    assert await until_ended(far, again) == "done"
    assert (await far.do(far.cluster.queue(PARTS).flow("part").status())).state == "open"
