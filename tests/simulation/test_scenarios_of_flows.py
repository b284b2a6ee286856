"""Flows that end while clients and servers die: schedules made by hand, with the shipped client and scripts."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from tests.simulation.stage import HANGS, Actor, Stage, scenario
from zkrq.base import clock
from zkrq.protocol import calls
from zkrq.protocol.flows import CANCELLED, DONE, Kind, Look
from zkrq.protocol.flows import Stage as Step
from zkrq.protocol.operations import OPERATIONS
from zkrq.protocol.payloads import join, with_headers
from zkrq.protocol.pushing import FlowOver, Pushes
from zkrq.protocol.records import HELD, MEMBER, fresh, with_fields
from zkrq.protocol.steps import Operation
from zkrq.replication.replicas import Replicas
from zkrq.replication.runner import PrimaryDecides

T = TypeVar("T")

FLOW = "f"
KEEP_MS = 600_000


class Maker:
    """What a client does with flows, which no call of users does yet."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.queue = actor.queue.name

    async def run(self, operation: Operation[T]) -> T:
        client: Any = self.actor.cluster._client  # pyright: ignore[reportPrivateUsage]
        replicas: Replicas = (await client.shards.home(self.queue)).replicas

        async def work() -> T:
            return await replicas.run(operation)

        return await self.actor.do(work())

    async def steer(self, verb: str) -> Step:
        reply = await self.run(OPERATIONS.steer(self.queue, FLOW, verb, keep_ms=KEEP_MS))
        return Step(reply.now.decode())

    async def push(self, id: str) -> Pushes:
        return await self.run(OPERATIONS.push_plain(self.queue, [self._put(id, MEMBER)]))

    async def add(self, id: str, kind: str = MEMBER) -> Pushes:
        call = calls.PushDecided(self.queue, [self._put(id, kind)], in_order=True)
        return await self.run(OPERATIONS.push_decided(call))

    async def follow(self, id: str) -> Pushes:
        return await self.add(id, HELD)

    def _put(self, id: str, kind: str) -> calls.Put:
        record = with_fields(fresh(0, clock.now_ms()), {kind: FLOW.encode()})
        return calls.Put(id, record, join([with_headers(b'"%b"' % id.encode(), {})]))

    async def end(self) -> Look:
        look = await self.run(OPERATIONS.end_flow(self.queue, FLOW))
        if look.stage is Step.ENDED:
            await self.run(OPERATIONS.open_held(self.queue, FLOW))
        return look


@scenario()
async def test_what_follows_comes_once_all_members_are_acked(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    assert await maker.steer("begin") is Step.OPEN
    await maker.follow("then")
    for id in ("a", "b"):
        await maker.push(id)
    await maker.steer("seal")
    await near.ack("a")
    assert (await maker.end()).stage is Step.SEALED
    await near.ack("b")
    look = await maker.end()
    assert (look.stage, look.outcome) == (Step.ENDED, DONE)
    await near.ack("then")
    await near.expect_none()
    assert (await maker.end()).outcome == DONE
    stage.expect_agreement()


async def begun(maker: Maker, *ids: str) -> None:
    """A flow of these members, sealed, which an item follows."""
    await maker.steer("begin")
    await maker.follow("then")
    for id in ids:
        await maker.push(id)
    assert await maker.steer("seal") is Step.SEALED


@scenario()
async def test_an_ack_that_the_primary_alone_knows_is_everywhere_before_the_flow_ends(stage: Stage) -> None:
    """Otherwise the next primary delivers the member again, after what follows the flow."""
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, primary = Maker(far), stage.primary
    await begun(maker, "a")
    claim = await near.claim()
    stage.cut(near, *stage.followers)
    near.begin(claim.ack())
    await asyncio.sleep(HANGS / 2)
    stage.drop(near)

    assert (await maker.end()).stage is Step.ENDED
    await far.ack("then")
    stage.kill(primary)
    await far.expect_none(timeout=20)


@scenario()
async def test_what_follows_is_opened_by_whoever_looks_after_the_client_that_ended_the_flow_has_died(
    stage: Stage,
) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, other = Maker(near), Maker(far)
    await begun(maker, "a")
    await near.ack("a")
    await maker.run(OPERATIONS.end_flow(maker.queue, FLOW))
    stage.drop(near)
    await far.expect_none()
    stage.kill(stage.primary)
    assert (await other.end()).outcome == DONE
    assert (await other.end()).outcome == DONE
    await far.ack("then")
    await far.expect_none()


@scenario()
async def test_the_next_primary_ends_the_flow(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a", "b")
    await near.ack("a")
    stage.kill(stage.primary)
    assert (await maker.end()).kinds >= {Kind.LIVING}
    await near.ack("b")
    assert (await maker.end()).stage is Step.ENDED
    await near.ack("then")


@scenario()
async def test_no_flow_ends_below_min_replicas(stage: Stage) -> None:
    """A server that may come back with what it has may have a member that no other one knows."""
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a")
    await near.ack("a")
    heir, (other, *_) = stage.heir, [id for id in stage.followers if id != stage.heir]
    stage.kill(stage.primary, other)
    assert (await maker.end()).stage is Step.SEALED
    assert stage.primary == heir
    stage.start(other)
    await stage.until(lambda: len(stage.view.members) > 1 and not (stage.view.learners or stage.view.eligible), 600)
    assert (await maker.end()).stage is Step.ENDED
    await near.ack("then")


@scenario()
async def test_a_member_that_comes_after_the_end_is_refused(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker)
    assert (await maker.add("a")).exceptional == {}
    with pytest.raises(PrimaryDecides):
        await maker.push("b")
    assert (await maker.end()).stage is Step.SEALED
    await near.ack("a")
    assert (await maker.end()).stage is Step.ENDED
    assert (await maker.add("c")).exceptional == {(0, 0): FlowOver()}
    await near.ack("then")
    await near.expect_none()


@scenario()
async def test_what_follows_a_flow_that_is_cancelled_never_comes(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, other = Maker(near), Maker(far)
    await begun(maker, "a")
    stage.lose_reply(near)
    assert await maker.steer("cancel") is Step.ENDED
    assert (await other.end()).outcome == CANCELLED
    await near.ack("a")
    await near.expect_none()
    stage.kill(stage.primary)
    await far.expect_none(timeout=20)
