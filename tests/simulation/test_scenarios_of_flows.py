"""Flows that end while clients and servers die: schedules made by hand, with the shipped client and scripts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulation.agreement import disagreements
from tests.simulation.flow_stage import OTHER, Maker, ack
from tests.simulation.stage import HANGS, Stage, scenario
from tests.simulation.world import NAMESPACE
from zkrq import NotEnoughReplicas
from zkrq.protocol.flows import CANCELLED, DONE, FAILED, Kind
from zkrq.protocol.flows import Stage as Step
from zkrq.protocol.keys import key
from zkrq.protocol.operations import OPERATIONS
from zkrq.protocol.pushing import FlowOver
from zkrq.protocol.records import Opens
from zkrq.replication.runner import PrimaryDecides


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
    await maker.steer("begin")
    await maker.follow("then")
    await maker.push("a")
    await near.ack("a")  # before the seal: one that ends the flow makes its client do so
    await maker.steer("seal")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    assert await maker.steer("end", stamp=seen.stamp) is Step.ENDED
    stage.drop(near)
    await far.expect_none()
    stage.kill(stage.primary)
    assert (await other.end()).outcome == DONE
    assert (await other.end()).outcome == DONE
    await far.ack("then")
    await far.expect_none()


@scenario()
async def test_what_follows_is_opened_though_servers_know_of_the_close_alone(stage: Stage) -> None:
    """The reply of the primary that opened it was lost; asked again it said that the flow was closed, and died."""
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, primary = Maker(near), stage.primary
    await maker.steer("begin")
    await maker.follow("then")
    await maker.steer("seal")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    assert await maker.steer("end", stamp=seen.stamp) is Step.ENDED
    stage.cut(near, *stage.followers)
    near.begin(maker.run(OPERATIONS.open_held(maker.queue, maker.flow)))
    await asyncio.sleep(HANGS / 2)
    stage.drop(near)
    told = await Maker(far).run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    assert told.is_closed
    stage.kill(primary)
    assert (await Maker(far).end()).outcome == DONE
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
async def test_a_flow_of_two_queues_ends_when_both_are_done(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await maker.steer("begin")
    assert (await maker.join()).legs == [OTHER]
    await maker.follow("then", queue=OTHER)
    await maker.push("a")
    await maker.push("b", OTHER)
    await maker.steer("seal")
    await near.ack("a")
    assert (await maker.end()).kinds >= {Kind.LIVING}
    other = near.cluster.queue(OTHER)
    await ack(near, other, "b")
    assert (await maker.end()).outcome == DONE
    await ack(near, other, "then")
    assert (await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))).is_closed
    stage.expect_agreement()


@scenario()
async def test_what_a_leg_holds_is_opened_after_the_client_that_ended_the_flow_has_died(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, other = Maker(near), Maker(far)
    await maker.steer("begin")
    await maker.join()
    await maker.follow("then", queue=OTHER)
    await maker.steer("seal")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    assert await maker.steer("end", stamp=seen.stamp) is Step.ENDED
    stage.drop(near)
    page = await other.run(OPERATIONS.read_members(maker.queue, maker.flow))
    assert (page.stage, page.legs) == (b"E", [OTHER.encode()])
    stage.kill(stage.primary)
    assert (await other.end()).outcome == DONE
    await ack(far, far.cluster.queue(OTHER), "then")


@scenario()
async def test_a_member_that_comes_into_a_leg_after_the_end_goes_again(stage: Stage) -> None:
    """Its push is told so by home, before it returns."""
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, adder = Maker(near), Maker(far)
    await maker.steer("begin")
    await maker.join()
    await maker.steer("seal")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    await adder.add("late", queue=OTHER)
    assert await adder.steer("live") is Step.SEALED
    assert await maker.steer("end", stamp=seen.stamp) is Step.SEALED, "home's stamp has been raised"
    await ack(far, far.cluster.queue(OTHER), "late")
    assert (await maker.end()).outcome == DONE
    assert await adder.steer("live") is Step.ENDED
    assert (await adder.join()).legs == []


@scenario()
async def test_home_is_told_of_a_member_that_some_servers_have_taken_before_the_primary_decides(stage: Stage) -> None:
    """They had not heard yet that the leg is sealed.  One of them may leave before it is asked what lives there."""
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, flow = Maker(near), far.queue.flow("f")
    await far.do(flow.begin())
    other = far.cluster.queue(OTHER)
    await far.do(flow.push("a", queue=other))
    await maker.steer("seal")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    leading = stage.view.primary(OTHER)
    stage.cut(near, *[id for id in stage.view.members if id != leading])
    near.begin(maker.run(OPERATIONS.steer(OTHER, maker.flow, "seal"), OTHER))
    await asyncio.sleep(HANGS / 2)
    stage.drop(near)
    await far.do(flow.push("b", queue=other))
    told = await Maker(far).run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    assert told.stamp > seen.stamp


@scenario()
async def test_a_member_that_is_redriven_in_a_leg_while_others_are_asked_holds_the_flow_up(stage: Stage) -> None:
    """Home does not know of it: the leg is looked at again."""
    near = await stage.enter("near")
    maker = Maker(near)
    await maker.steer("begin")
    await maker.join()
    await maker.follow("undo", opens=Opens.FAILURE)
    await maker.push("b", OTHER)
    await maker.steer("seal")
    other = near.cluster.queue(OTHER)
    claim = await near.do(other.pop_one(timeout=20))
    assert claim
    await near.do(claim.bury("why"))
    tending, result = OPERATIONS.end_flow(maker.flow), None
    has_redriven = False
    with pytest.raises(StopIteration) as ended:
        while True:
            at = tending.send(result)
            is_asked = getattr(at.operation, "__name__", "") == "ask_servers" and at.queue == OTHER
            result = await maker.run(at.operation, at.queue)
            if is_asked and not has_redriven:
                has_redriven = True
                await near.do(other.redrive())
    assert ended.value.value.stage is Step.SEALED
    await ack(near, other, "b")
    assert (await maker.end()).outcome == DONE


@scenario()
async def test_a_leg_that_home_does_not_name_ends_as_home_has(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await maker.steer("begin")
    seen = await maker.run(OPERATIONS.steer(maker.queue, maker.flow, "look"))
    await maker.steer("begin", OTHER, policy="l", life=seen.life)  # and its client has died
    await maker.follow("then", queue=OTHER)
    await maker.tend(OPERATIONS.tend_flow(OTHER, maker.flow))
    assert await maker.steer("look", OTHER) is Step.OPEN
    await maker.steer("cancel")
    await maker.tend(OPERATIONS.tend_flow(OTHER, maker.flow))
    assert await maker.steer("look", OTHER) is Step.ENDED
    assert not await near.do(near.cluster.queue(OTHER).pop_one(timeout=5))


@scenario()
async def test_a_failing_flow_removes_what_is_queued_in_all_queues(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await maker.steer("begin")
    await maker.join()
    await maker.follow("undo", opens=Opens.FAILURE)
    await maker.follow("then", queue=OTHER)
    await maker.push("a")
    await maker.push("b", OTHER)
    claim = await near.claim()
    await maker.steer("seal")
    assert await maker.steer("fail") is Step.FAILING
    look = await maker.end()
    assert (look.stage, Kind.LIVING in look.kinds) == (Step.FAILING, True)
    stage.kill(stage.primary)
    await near.do(claim.ack())
    assert (await maker.end()).outcome == FAILED
    await near.ack("undo")
    assert not await near.do(near.cluster.queue(OTHER).pop_one(timeout=5))
    figures = await maker.tend(OPERATIONS.read_flow(maker.flow))
    assert (figures.done, figures.missed) == (1, 1)


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
async def test_no_flow_begins_below_min_replicas(stage: Stage) -> None:
    """Its record would be lost with the only server that has it, and its legs would be those of no flow."""
    near = await stage.enter("near")
    stage.kill(stage.primary, next(id for id in stage.followers if id != stage.heir))
    await stage.until(lambda: len(stage.view.members) == 1, 600)
    with pytest.raises(NotEnoughReplicas):
        await Maker(near).steer("begin")


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
    await begun(maker, "a", "b")
    claim = await near.claim()
    stage.lose_reply(near)
    assert await maker.steer("cancel") is Step.ENDED
    assert (await other.end()).outcome == CANCELLED
    await near.do(claim.ack())  # what runs goes on, and what is queued goes
    await near.expect_none()
    stage.kill(stage.primary)
    await far.expect_none(timeout=20)


@scenario()
async def test_a_member_waits_for_others_in_whatever_queue_and_order_they_are_acked(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    other: Any = near.cluster.queue(OTHER)
    await maker.steer("begin")
    await maker.follow("then")
    for id in ("f.a", "f.b"):
        await maker.push(id)
    await maker.join()
    await maker.wait("f.c", "f.a", queue=OTHER)
    await maker.wait("f.d", "f.a", "f.b")
    await maker.wait("f.e", "f.c", of=OTHER)
    await near.ack("f.a")
    assert (await maker.end()).stage is Step.OPEN
    claim = await near.do(other.pop_one(timeout=5))
    assert claim
    assert claim.item == "f.c"
    await near.do(claim.ack())
    await maker.steer("seal")
    assert (await maker.end()).stage is Step.SEALED
    assert {(await near.claim()).item for _ in range(2)} == {"f.b", "f.e"}
    await near.expect_none()
    assert (await maker.end()).kinds >= {Kind.WAITING, Kind.LIVING}


@scenario()
async def test_an_ack_that_the_primary_alone_knows_is_everywhere_before_what_waits_for_it_goes(stage: Stage) -> None:
    """Otherwise the next primary delivers it again, after the member that waited for it."""
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, primary = Maker(far), stage.primary
    await begun(maker, "f.a")
    await maker.wait("f.b", "f.a")
    claim = await near.claim()
    stage.cut(near, *stage.followers)
    near.begin(claim.ack())
    await asyncio.sleep(HANGS / 2)
    stage.drop(near)

    for _ in range(2):
        assert (await maker.end()).stage is Step.SEALED
    await far.ack("f.b")
    stage.kill(primary)
    await far.ack("then")
    await far.expect_none(timeout=20)


@scenario()
async def test_nothing_goes_below_min_replicas_that_waits_for_a_member(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "f.a")
    await maker.wait("f.b", "f.a")
    await near.ack("f.a")
    heir, (other, *_) = stage.heir, [id for id in stage.followers if id != stage.heir]
    stage.kill(stage.primary, other)
    assert (await maker.end()).kinds >= {Kind.WAITING}
    assert stage.primary == heir
    await near.expect_none()
    stage.start(other)
    await stage.until(lambda: len(stage.view.members) > 1 and not (stage.view.learners or stage.view.eligible), 600)
    assert (await maker.end()).stage is Step.SEALED
    await near.ack("f.b")


@scenario()
async def test_a_member_that_waits_for_one_that_is_dead_goes_when_the_flow_fails(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "f.a")
    await maker.wait("f.b", "f.a")
    await maker.wait("f.c", "f.b")
    claim = await near.claim()
    await near.do(claim.bury("why"))
    assert (await maker.end()).stage is Step.SEALED
    await maker.follow("undo", opens=Opens.FAILURE)
    look = await maker.end()
    assert (look.stage, look.outcome) == (Step.ENDED, FAILED)
    await near.ack("undo")
    await near.expect_none()


@scenario()
async def test_two_clients_let_one_member_go_once(stage: Stage) -> None:
    near, far = await stage.enter("near"), await stage.enter("far")
    maker, other = Maker(near), Maker(far)
    await begun(maker, "f.a")
    await maker.wait("f.b", "f.a")
    await near.ack("f.a")
    stage.lose_reply(near)
    await asyncio.gather(maker.end(), other.end())
    await near.ack("f.b")
    await near.expect_none()
    assert (await other.end()).outcome == DONE
    await near.ack("then")


# -- the index and the records -----------------------------------------------------------------------------------------

SCRUB_SECONDS = 600
"""Within so long a scrub has seen every item."""


def write(stage: Stage, server: str, command: bytes, maker: Maker, *arguments: bytes) -> None:
    """Change the index of a server, as by hand."""
    stage.world.servers[server].redis.execute(command, key(NAMESPACE, maker.queue, "members").encode(), *arguments)


@scenario()
async def test_a_member_that_one_server_does_not_name_is_named_again(stage: Stage) -> None:
    """Otherwise the flow ends early, once this server is the only one left."""
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a")
    write(stage, stage.heir, b"ZREM", maker, b"\xfeL" + maker.flow.encode() + b"\0a")
    assert list(disagreements(stage.world, scrubbed=True))
    await stage.until(lambda: not list(disagreements(stage.world, scrubbed=True)), SCRUB_SECONDS)
    assert (await maker.end()).stage is Step.SEALED
    await near.ack("a")
    assert (await maker.end()).outcome == DONE
    await near.ack("then")


@scenario()
async def test_a_member_that_is_not_there_holds_no_flow_up_for_ever(stage: Stage) -> None:
    near = await stage.enter("near")
    maker = Maker(near)
    await begun(maker, "a")
    for server in (stage.primary, stage.heir):
        for entry in (b"L%b\0a", b"L%b\0nothing", b"D%b\0a"):
            write(stage, server, b"ZADD", maker, b"0", b"\xfe" + entry % maker.flow.encode())
    assert list(disagreements(stage.world, scrubbed=True))
    await stage.until(lambda: not list(disagreements(stage.world, scrubbed=True)), SCRUB_SECONDS)
    await near.ack("a")
    assert (await maker.end()).outcome == DONE
    await near.ack("then")
    stage.expect_agreement()
