"""Servers that come back, from an old disk or too late: schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from tests.simulation.stage import HANGS, REMEMBERED, Actor, Stage, scenario
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.copying import PAGE_ITEMS
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.view import decode


async def _ack_two_long_apart(actor: Actor) -> None:
    """Ack one item, and another one when the tombstone of the first is dropped."""
    await actor.ack("x")
    await asyncio.sleep(REMEMBERED)
    await actor.ack("y")


@scenario()
async def test_a_leader_that_cannot_repair_leaves_it_to_the_others(stage: Stage) -> None:
    """The leader reaches the server that comes back, but one of the members does not let it in."""
    near, far = await stage.enter("near"), await stage.enter("far")
    closed, lost, _ = stage.view.members
    stage.shut_out(near, closed)
    stage.kill(lost)
    await far.push("x")
    assert not stage.is_member(lost)
    stage.start_empty(lost)
    await stage.expect_back(lost)
    assert stage.is_member(closed)


@scenario()
async def test_an_acked_item_is_not_brought_back_by_a_server_that_stays_away_for_long(stage: Stage) -> None:
    """The primary is only out of reach, vouched for since pushes have halted, and misses an ack."""
    near = await stage.enter("near")
    for item in ("x", "y"):
        await near.push(item)
    primary, other = stage.primary, stage.followers[0]
    stage.kill(other)
    await stage.until(lambda: other not in stage.view.members)
    stage.world.servers[primary].stop()
    await stage.expect_eligible(primary)
    await _ack_two_long_apart(near)
    stage.world.servers[primary].go_on()
    await stage.expect_back(primary)
    assert stage.primary == primary
    await near.expect_none()


@scenario()
async def test_an_old_disk_after_a_power_cut_brings_nothing_back(stage: Stage) -> None:
    """Data of another life than the view's is as old as it likes, and is not recovered from."""
    near = await stage.enter("near")
    for item in ("x", "y"):
        await near.push(item)
    server, servers = stage.primary, stage.world.servers
    old = servers[server].redis.dump()
    stage.flush(server)
    await stage.expect_evicted(server)
    await stage.expect_back(server)
    await _ack_two_long_apart(near)

    # A power cut; one of the disks is from another life.
    stage.kill(*servers)
    for name, each in servers.items():
        each.start(old if name == server else each.redis.dump())
    await stage.until(lambda: stage.world.is_whole)
    await near.expect_none()


@scenario()
async def test_an_eligible_server_counts_until_those_that_replace_it_have_answered(stage: Stage) -> None:
    """What is lost with a server that was about to be promoted comes back with the one that was eligible."""
    near = await stage.enter("near")
    last, away, learner = stage.view.members
    stage.kill(learner)
    await near.push("x")
    await stage.expect_evicted(learner)
    stage.kill(away)
    await stage.expect_eligible(away)

    # A server has been given everything, and is to be a member, when it loses its memory, and the last member its own.
    swap, lost = stage.world.hub.swap, list[str]()

    def swap_too_late(
        register: str, data: bytes, expected: int, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        if not lost and learner in decode(data).members:
            for server in (learner, last):
                stage.flush(server)
                lost.append(server)
        return swap(register, data, expected, given)

    with patch.object(stage.world.hub, "swap", swap_too_late):
        stage.start_empty(learner)
        await stage.until(lambda: learner in stage.view.members)
    await asyncio.sleep(HANGS)
    stage.start(away)
    await near.ack("x")


@scenario()
async def test_a_catch_up_goes_on_where_it_was_when_its_source_was_out_of_reach_for_a_while(stage: Stage) -> None:
    """In the middle of the copying the source does not let the copying client in for a while."""
    near, items = await stage.enter("near"), 500
    for _ in range(3):
        await near.do(near.queue.push_many(range(items), delay=REMEMBERED))  # so that each is alone
    source, lost = stage.primary, stage.followers[0]
    stage.kill(lost)
    await near.push("x")
    pages, redis, path = list[object](), stage.world.servers[source].redis, stage.path(near, source)
    execute, page = redis.execute, [b"FCALL", SCRIPTS["page"].function.encode()]

    def executed(*command: bytes) -> object:
        if list(command[:2]) == page:
            pages.append(command)
            if len(pages) == 2 * items // PAGE_ITEMS:
                stage.shut_out(near, source)
        return execute(*command)

    with patch.object(redis, "execute", executed):
        stage.start_empty(lost)
        await stage.until(lambda: bool(path.denies))
        await asyncio.sleep(5 * HANGS)
        path.denies = ""
        await stage.expect_back(lost)
    assert len(pages) <= 3 * items / PAGE_ITEMS + 2, "that one page again, and one that is not full"
