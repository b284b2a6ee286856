"""Schedules made by hand, which random ones seldom contain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from unittest.mock import Mock, patch

import pytest

from tests.every import every
from tests.simulation import setting
from tests.simulation.agreement import disagreements
from tests.simulation.faults import NO_RIGHT, WRONG_PASSWORD
from tests.simulation.loop import Loop
from tests.simulation.patches import determined
from tests.simulation.scenario import forget
from tests.simulation.setting import Setting, Shape
from tests.simulation.trace import Trace
from tests.simulation.wire import Break
from tests.simulation.world import CLAIM_TIMEOUT, NAMESPACE, Client, World
from zkrq import Cancellation, ConfigError, OutcomeUnknown, Queue, Unavailable, new_id
from zkrq.base import clock
from zkrq.consuming.claims import lease_of
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.calls import item_id
from zkrq.protocol.copying import PAGE_ITEMS
from zkrq.protocol.enrolment import HOLD_MS
from zkrq.protocol.keys import key
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.view import ServerId, decode, extend

T = TypeVar("T")

SETTING = Setting(keys=(), keyed=0, expiring=0, max_size=None, dead_letters=None, clears=False, pauses=False)

SEED = 1

HANGS = 0.5
"""Seconds after which a call is in the middle whose way to a server is cut."""

REMEMBERED = 1_300.0
"""Seconds after which no tombstone is kept any more that may be dropped by its age."""


async def _run(client: Client, work: Coroutine[Any, Any, T]) -> T:
    """The result of what a client does in its process."""
    task = client.start(work, "call")
    await asyncio.wait([task])
    return task.result()


async def _opened(world: World, name: str) -> tuple[Client, Queue[Any]]:
    client = world.new_client(name)
    assert await _run(client, client.open())
    queue = client.queue()
    assert queue
    hello = await _run(client, queue.push("hello"))  # so that it is connected to every server
    assert await _run(client, queue.cancel(hello.id)) is Cancellation.REMOVED
    return client, queue


def _play(scenario: Callable[[World], Coroutine[Any, Any, None]], *, min_replicas: int = 2, **changes: Any) -> None:
    loop = Loop(max_time=4_000, max_steps=1_000_000)
    shape = Shape(servers=3, min_replicas=min_replicas, queues=1, seconds=30)
    with (
        determined(loop, SEED),
        patch.object(setting, "draw", Mock(return_value=replace(SETTING, **changes))),
        patch.object(setting, "draw_shape", Mock(return_value=shape)),
    ):
        world = World(SEED, loop, Trace(loop))
        loop.run(scenario(world))
    violations = world.found.violations
    del world, loop
    forget()
    assert not violations


async def _close(*clients: Client) -> None:
    for client in clients:
        await _run(client, client.close())


async def _former_primary(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    assert near.coordinator
    for name in ("key", "other"):
        await _run(near, near_queue.push(name, key=name))
    assert world.view
    primary = world.view.primary(world.queue)

    # One is cut off from the primary and evicts it; the other one hears nothing of that, and still reaches it.
    world.hub.suspend(near.coordinator)
    world.network.path(far.name, primary).cut = True
    claims = await _run(far, far_queue.pop_many(2, timeout=5))
    assert await _run(far, far_queue.ack_many(claims)) == []
    later = await _run(far, far_queue.push("later", delay=100))
    await _run(far, far_queue.pause())
    assert world.view.primary(world.queue) != primary
    assert near.cluster
    assert near.cluster.view.primary(world.queue) == primary

    world.loop.call_later(2.0, world.hub.resume, near.coordinator)
    pushed, cancelled, _ = await asyncio.gather(
        _run(near, near_queue.push("again", key="key")),
        _run(near, near_queue.cancel(later.id)),
        _run(near, near_queue.resume()),
    )
    assert not pushed.duplicate  # nor refused: that one is full, this one is not
    assert cancelled is Cancellation.REMOVED
    assert not (await _run(far, far_queue.statistics())).paused
    await _close(near, far)


def test_what_a_former_primary_says_is_not_believed() -> None:
    _play(_former_primary, max_size=2)


async def _both(queue: Queue[Any]) -> list[str]:
    """Take and ack two items."""
    claims = [*await queue.pop_many(2, timeout=20), *await queue.pop_many(1, timeout=20)]
    assert await queue.ack_many(claims) == []
    return sorted(claim.item for claim in claims)


async def _half_an_ack(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    await _run(near, near_queue.push("first", key="key"))
    claim = await _run(near, near_queue.pop_one(timeout=5))
    assert world.view
    assert claim
    primary = world.view.primary(world.queue)

    # The ack reaches the primary alone, which has the key free for another item, and dies.
    for server in world.view.members.keys() - {primary}:
        world.network.path(near.name, server).cut = True
    near.start(claim.ack(), "ack")
    await asyncio.sleep(HANGS)
    world.drop(near)
    assert not (await _run(far, far_queue.push("second", key="key"))).duplicate
    world.servers[primary].kill()
    assert await _run(far, _both(far_queue)) == ["first", "second"]
    assert not (await _run(far, far_queue.push("third", key="key"))).duplicate
    await _close(far)


def test_a_key_whose_items_ack_only_a_dead_primary_knew_of() -> None:
    _play(_half_an_ack)


async def _half_a_push(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    assert world.view
    view = world.view
    primary = view.primary(world.queue)
    members = {id: life for id, life in view.members.items() if id != primary}
    heir = replace(view, members=members).primary(world.queue)

    # The push reaches all but the server that decides next, and that gives the key to another item.
    world.network.path(near.name, heir).cut = True
    near.start(near_queue.push("first", key="key"), "push")
    await asyncio.sleep(HANGS)
    world.drop(near)
    world.servers[primary].kill()
    assert not (await _run(far, far_queue.push("second", key="key"))).duplicate
    world.servers[heir].kill()
    assert await _run(far, _both(far_queue)) == ["first", "second"]
    assert not (await _run(far, far_queue.push("third", key="key"))).duplicate
    await _close(far)


def test_a_key_of_an_unfinished_push() -> None:
    _play(_half_a_push, min_replicas=1)


async def _until(met: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not met():
            await asyncio.sleep(0.1)


def _is_member(world: World, server: str) -> bool:
    return server in world.living_members()


async def _ack(client: Client, queue: Queue[Any], item: str) -> None:
    claim = await _run(client, queue.pop_one(timeout=20))
    assert claim
    assert claim.item == item
    await _run(client, claim.ack())


async def _cancelled_claim(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    assert world.view
    primary = world.view.primary(world.queue)
    follower = next(id for id in world.view.members if id != primary)
    pushed = await _run(far, far_queue.push("x"))

    # The claim is decided and on its way to a follower, which hears of the cancel first.
    path = world.network.path(near.name, follower)
    path.cut = True
    claiming = near.start(near_queue.pop_one(timeout=3), "pop")
    await asyncio.sleep(HANGS / 2)
    # The message that notifies the consumer is held up, so only the follower's answer says it.
    notified = world.network.path(near.name, primary)
    notified.cut = True
    assert await _run(far, far_queue.cancel(pushed.id)) is Cancellation.SIGNALLED
    world.network.mend(path)
    assert await claiming is None
    world.network.mend(notified)
    await _close(near, far)


def test_an_item_that_is_cancelled_while_it_is_claimed_is_not_handed_out() -> None:
    _play(_cancelled_claim)


async def _bury(client: Client, queue: Queue[Any], *items: str) -> list[str]:
    """Dead letters; their ids."""
    pushed = [await _run(client, queue.push(item)) for item in items]
    for claim in await _run(client, queue.pop_many(len(items), timeout=5)):
        await _run(client, claim.bury("test"))
    return [receipt.id for receipt in pushed]


async def _lost_reply(world: World, *, held: bool) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    primary = world.view.primary(world.queue)
    path = world.network.path(near.name, primary)
    pushed = await _run(near, queue.push("x"))
    if held:
        assert await _run(near, queue.pop_one(timeout=5))

    for call in (queue.redrive, queue.discard):
        await _run(near, call(["none"]))  # so that the server knows the script: the call's own reply is to be lost
    # What the call did is not lost with the reply: neither to its caller nor to the other servers.
    path.breaking = Break.REPLY_LOST
    expected = Cancellation.SIGNALLED if held else Cancellation.REMOVED
    assert await _run(near, queue.cancel(pushed.id)) is expected
    assert path.breaking is None
    ids = await _bury(near, queue, "y", "z")
    path.breaking = Break.REPLY_LOST
    assert await _run(near, queue.redrive(ids[:1])) == 1
    path.breaking = Break.REPLY_LOST
    assert await _run(near, queue.discard(ids[1:])) == 1
    assert list(disagreements(world, scrubbed=True)) == []

    world.servers[primary].kill()
    assert [claim.item for claim in await _run(near, queue.pop_many(3, timeout=20))] == ["y"]
    assert (await _run(near, queue.size())).dead == 0
    await _close(near)


def test_a_removal_whose_reply_is_lost_is_told_to_all_servers_and_to_its_caller() -> None:
    _play(partial(_lost_reply, held=False))
    _play(partial(_lost_reply, held=True))


async def _lost_reply_of_a_clear(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    primary = world.view.primary(world.queue)
    path = world.network.path(near.name, primary)
    await _run(near, queue.clear())  # so that the server knows the script: the call's own reply is to be lost
    for item in ("x", "y"):
        await _run(near, queue.push(item))
    path.breaking = Break.REPLY_LOST
    assert await _run(near, queue.clear()) == 2
    assert list(disagreements(world, scrubbed=True)) == []
    world.servers[primary].kill()
    assert await _run(near, queue.pop_many(3, timeout=20)) == []
    await _close(near)


def test_what_a_clear_removed_whose_reply_is_lost_does_not_come_back() -> None:
    _play(_lost_reply_of_a_clear)


async def _half_a_cancel(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    pushed = await _run(near, near_queue.push("x"))
    assert world.view
    primary = world.view.primary(world.queue)

    # The cancel reaches the primary alone, and its caller dies: then any client that finds it out tells the others.
    for server in world.view.members.keys() - {primary}:
        world.network.path(near.name, server).cut = True
    near.start(near_queue.cancel(pushed.id), "cancel")
    await asyncio.sleep(HANGS)
    world.drop(near)
    assert await _run(far, far_queue.cancel(pushed.id)) is Cancellation.NOT_FOUND
    world.servers[primary].kill()
    assert await _run(far, far_queue.pop_many(1, timeout=20)) == []
    await _close(far)


def test_what_a_cancel_did_not_find_is_gone_for_good() -> None:
    _play(_half_a_cancel)


async def _late_cancel(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    path = world.network.path(near.name, world.view.primary(world.queue))
    path.breaking = Break.EXECUTED_LATER
    try:
        await _run(near, queue.cancel("own"))
    except OutcomeUnknown:
        pass
    else:
        raise AssertionError("an earlier try may find it yet")
    assert await _run(near, queue.cancel("own")) is Cancellation.NOT_FOUND
    await _close(near)


def test_a_cancel_that_may_be_executed_yet_is_not_told_as_not_found() -> None:
    _play(_late_cancel)


async def _half_covered(world: World) -> None:
    far, far_queue = await _opened(world, "far")  # it leads, and repairs at once
    near, near_queue = await _opened(world, "near")
    assert world.view
    taker, *others = world.view.members

    # The push reaches one server, which then loses its memory and is caught up by those that the push has not reached.
    for server in others:
        world.network.path(near.name, server).cut = True
    pushing = near.start(near_queue.push("x"), "push")
    await asyncio.sleep(HANGS / 2)
    world.servers[taker].redis.flush()
    await _run(far, far_queue.push("y"))
    assert not _is_member(world, taker)
    await _until(lambda: _is_member(world, taker))
    assert not pushing.done()
    for server in others:
        world.network.mend(world.network.path(near.name, server))
    assert (await pushing).replicas == 3
    assert list(disagreements(world, scrubbed=True)) == []
    await _close(near, far)


def test_a_server_that_came_back_during_a_push_is_given_the_item() -> None:
    _play(_half_covered)


async def _blind_leader(world: World) -> None:
    near, _ = await _opened(world, "near")  # it leads, and repairs at once
    far, far_queue = await _opened(world, "far")
    assert world.view
    closed, lost, _ = world.view.members

    # The leader reaches the server that comes back, but one of the members does not let it in.
    path = world.network.path(near.name, closed)
    path.denies = WRONG_PASSWORD
    for wire in tuple(path.wires):
        wire.shut("the password was changed")
    world.servers[lost].kill()
    await _run(far, far_queue.push("x"))
    assert not _is_member(world, lost)
    world.servers[lost].start(None)
    await _until(lambda: _is_member(world, lost))
    assert _is_member(world, closed)
    await _close(near, far)


def test_a_leader_that_cannot_repair_leaves_it_to_the_others() -> None:
    _play(_blind_leader)


async def _closed_while_cut_off(world: World) -> None:
    near, _ = await _opened(world, "near")  # it leads
    far, _ = await _opened(world, "far")
    assert near.coordinator
    assert far.coordinator

    # Its session outlives it, and the network is back before that session has timed out.
    session, coordinator = near.coordinator.session.id, near.coordinator
    world.hub.suspend(coordinator)
    await asyncio.sleep(HANGS)
    await _close(near)
    assert session in world.hub.sessions
    world.hub.resume(coordinator)
    await _until(lambda: session not in world.hub.sessions)
    await _until(lambda: far.coordinator is not None and far.coordinator.leading)
    await _close(far)


def test_a_leader_that_closed_while_it_was_cut_off_leads_no_longer_than_its_session_lives() -> None:
    _play(_closed_while_cut_off)


async def _long_absence(world: World) -> None:
    near, queue = await _opened(world, "near")
    for item in ("x", "y"):
        await _run(near, queue.push(item))
    assert world.view
    primary = world.view.primary(world.queue)
    other = next(id for id in world.view.members if id != primary)

    # The primary is only out of reach, vouched for since pushes have halted, and misses an ack.
    world.servers[other].kill()
    await _until(lambda: world.view is not None and other not in world.view.members)
    world.servers[primary].stop()
    await _until(lambda: world.view is not None and primary in world.view.eligible)
    await _ack(near, queue, "x")
    await asyncio.sleep(REMEMBERED)
    await _ack(near, queue, "y")
    world.servers[primary].go_on()
    await _until(lambda: _is_member(world, primary))
    assert world.view.primary(world.queue) == primary
    assert await _run(near, queue.pop_many(5, timeout=0)) == []
    await _close(near)


def test_an_acked_item_is_not_brought_back_by_a_server_that_stays_away_for_long() -> None:
    _play(_long_absence)


async def _clock_set_forward(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")  # it has never claimed anything
    assert world.view
    await _run(near, near_queue.push("x"))
    claim = await _run(near, near_queue.pop_one(timeout=5))
    assert claim
    world.servers[world.view.primary(world.queue)].clock += CLAIM_TIMEOUT + 1.0
    assert await _run(far, far_queue.pop_one(timeout=1.0)) is None
    await _run(near, claim.ack())
    await _close(near, far)


def test_a_client_that_claims_for_the_first_time_notices_a_clock_that_was_set_forward() -> None:
    _play(_clock_set_forward)


async def _newcomer_after_a_step(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    assert world.view
    await _run(near, near_queue.push("x"))
    claim = await _run(near, near_queue.pop_one(timeout=5))
    assert claim
    world.servers[world.view.primary(world.queue)].clock += CLAIM_TIMEOUT + 1.0
    new, new_queue = await _opened(world, "new")
    assert await _run(new, new_queue.pop_one(timeout=3 * CLAIM_TIMEOUT)) is None
    await _run(near, claim.ack())
    await _close(near, new)


def test_a_client_that_connects_after_a_clock_was_set_forward_takes_nothing_from_others() -> None:
    """It cannot know of the step, and may come before any client that does."""
    _play(_newcomer_after_a_step)


async def _trouble_in_a_catch_up(world: World) -> None:
    near, queue = await _opened(world, "near")
    items = 500
    for _ in range(3):
        await _run(near, queue.push_many(range(items), delay=REMEMBERED))  # so that each is alone
    assert world.view
    source = world.view.primary(world.queue)
    lost = next(id for id in world.view.members if id != source)
    world.servers[lost].kill()
    await _run(near, queue.push("x"))

    # In the middle of the copying the source does not let this client in for a while.
    redis, path, pages = world.servers[source].redis, world.network.path(near.name, source), list[object]()
    execute, page = redis.execute, [b"FCALL", SCRIPTS["page"].function.encode()]

    def executed(*command: bytes) -> object:
        if list(command[:2]) == page:
            pages.append(command)
            if len(pages) == 2 * items // PAGE_ITEMS:
                path.denies = WRONG_PASSWORD
                for wire in tuple(path.wires):
                    wire.shut("the password was changed")
        return execute(*command)

    with patch.object(redis, "execute", executed):
        world.servers[lost].start(None)
        await _until(lambda: bool(path.denies))
        await asyncio.sleep(5 * HANGS)
        path.denies = ""
        await _until(lambda: _is_member(world, lost))
    assert len(pages) <= 3 * items / PAGE_ITEMS + 2, "that one page again, and one that is not full"
    await _close(near)


def test_a_catch_up_goes_on_where_it_was_when_its_source_was_out_of_reach_for_a_while() -> None:
    _play(_trouble_in_a_catch_up)


async def _claim_before_a_push(world: World) -> None:
    near, _ = await _opened(world, "near")  # it leads, and repairs at once
    maker, maker_queue = await _opened(world, "maker")
    far, far_queue = await _opened(world, "far")
    assert world.view
    assert near.coordinator
    primary = world.view.primary(world.queue)
    world.servers[primary].kill()
    await _run(far, far_queue.push("y"))
    await _ack(far, far_queue, "y")

    # The server that is to decide again has been given everything, and becomes a member a little later.
    swap, copied, go_on = near.coordinator.swap, asyncio.Event(), asyncio.Event()

    async def swap_later(register: str, data: bytes, expected: int) -> Versioned | None:
        if primary in decode(data).members:
            copied.set()
            await go_on.wait()
        return await swap(register, data, expected)

    with patch.object(near.coordinator, "swap", swap_later):
        world.servers[primary].start(None)
        await copied.wait()

        # Meanwhile an item is pushed to all but that server, by a producer that dies, and is claimed.
        world.network.path(maker.name, primary).cut = True
        maker.start(maker_queue.push("x"), "push")
        await asyncio.sleep(HANGS)
        world.drop(maker)
        claim = await _run(far, far_queue.pop_one(timeout=5))
        assert claim
        go_on.set()
        await _until(lambda: _is_member(world, primary))
    assert world.view.primary(world.queue) == primary
    await _run(far, claim.release())
    await _ack(far, far_queue, "x")
    assert list(disagreements(world, scrubbed=True)) == []
    await _close(near, far)


def test_an_item_that_was_claimed_before_a_learner_had_its_push_is_delivered_again() -> None:
    _play(_claim_before_a_push)


async def _promoted_too_late(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    last, away, learner = world.view.members
    world.servers[learner].kill()
    await _run(near, queue.push("x"))
    await _until(lambda: not _is_member(world, learner))
    world.servers[away].kill()
    await _until(lambda: world.view is not None and away in world.view.eligible)

    # A server has been given everything, and is to be a member, when it loses its memory, and the last member its own.
    swap, lost = world.hub.swap, list[str]()

    def swap_too_late(
        register: str, data: bytes, expected: int, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        if not lost and learner in decode(data).members:
            for server in (learner, last):
                world.servers[server].redis.flush()
                lost.append(server)
        return swap(register, data, expected, given)

    with patch.object(world.hub, "swap", swap_too_late):
        world.servers[learner].start(None)
        await _until(lambda: world.view is not None and learner in world.view.members)
    await asyncio.sleep(HANGS)
    world.servers[away].start(world.servers[away].redis.dump())
    await _ack(near, queue, "x")
    await _close(near)


def test_an_eligible_server_counts_until_those_that_replace_it_have_answered() -> None:
    _play(_promoted_too_late)


async def _old_disk(world: World) -> None:
    near, queue = await _opened(world, "near")
    for item in ("x", "y"):
        await _run(near, queue.push(item))
    assert world.view
    server = world.servers[world.view.primary(world.queue)]
    old = server.redis.dump()
    server.redis.flush()
    await _until(lambda: not _is_member(world, server.name))
    await _until(lambda: _is_member(world, server.name))
    await _ack(near, queue, "x")
    await asyncio.sleep(REMEMBERED)
    await _ack(near, queue, "y")

    # A power cut; one of the disks is from another life.
    for each in world.servers.values():
        each.kill()
    for each in world.servers.values():
        each.start(old if each is server else each.redis.dump())
    await _until(lambda: world.is_whole)
    assert await _run(near, queue.pop_many(5, timeout=0)) == []
    await _close(near)


def test_an_old_disk_after_a_power_cut_brings_nothing_back() -> None:
    _play(_old_disk)


async def _piecemeal(world: World) -> None:
    near, queue = await _opened(world, "near")
    bundle = new_id()

    # A bundle of which no server knows anything is pushed again item by item, and the server dies that decided.
    for position in range(3):
        await _run(near, queue.push(str(position), id=item_id(bundle, position)))
    assert world.view
    world.servers[world.view.primary(world.queue)].kill()
    claims = await _run(near, queue.pop_many(5, timeout=5))
    assert {claim.id: claim.item for claim in claims} == {item_id(bundle, at): str(at) for at in range(3)}
    assert await _run(near, queue.ack_many(claims)) == []
    await _close(near)


def test_a_bundle_may_be_pushed_again_item_by_item() -> None:
    _play(_piecemeal)


async def _without_payloads(world: World) -> None:
    near, queue = await _opened(world, "near")
    receipts = await _run(near, queue.push_many(["0", "1", "2"]))

    # As if claims had overtaken the push on every server, and those who made them had died since.
    for server in world.servers.values():
        server.redis.execute(b"DEL", key(NAMESPACE, world.queue, "payloads").encode())
    assert await _run(near, queue.pop_many(3, timeout=0)) == []
    await _run(near, queue.push("1", id=receipts[1].id))
    claims = await _run(near, queue.pop_many(3, timeout=5))
    assert [(claim.id, claim.item) for claim in claims] == [(receipts[1].id, "1")]
    await _run(near, queue.push("2", id=receipts[2].id))
    claims += await _run(near, queue.pop_many(3, timeout=5))
    assert [claim.item for claim in claims] == ["1", "2"]
    await _run(near, queue.ack_many(claims))
    await _close(near)


def test_an_item_whose_payload_never_arrived_may_be_pushed_again() -> None:
    _play(_without_payloads)


async def _alike_ids(world: World) -> None:
    near, queue = await _opened(world, "near")
    ids = [f"1A0C-1-2~{ending}" for ending in ("00", "0A")] + ["1a0c-1-2~ff", "1a0c-1-2~70"]
    for id in ids:
        await _run(near, queue.push(id, id=id))
    for id in ids:
        seen = await _run(near, queue.get(id))
        assert seen
        assert (seen.id, seen.item) == (id, id)
        assert await _run(near, queue.cancel(id)) is Cancellation.REMOVED
    await _close(near)


def test_an_id_that_only_looks_like_one_of_a_bundle_is_a_users_own() -> None:
    _play(_alike_ids)


async def _old_view(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert near.cluster
    old = near.cluster.view
    world.servers[next(iter(old.members))].kill()
    await _run(near, queue.push("x"))
    membership = near.cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
    present = membership.view
    assert present.epoch > old.epoch
    changed = await _run(near, membership.change(old, partial(extend, server=ServerId("d"), url="redis://d")))
    assert changed == present == world.view
    await _close(near)


def test_a_change_made_of_an_old_view_is_not_written() -> None:
    _play(_old_view)


async def _overtaken_push(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    assert world.view
    follower = next(id for id in world.view.members if id != world.view.primary(world.queue))

    # The item is claimed before its push has reached a follower.
    path = world.network.path(near.name, follower)
    path.cut = True
    pushing = near.start(near_queue.push("x"), "push")
    await asyncio.sleep(HANGS / 2)
    assert await _run(far, far_queue.pop_one(timeout=5))
    assert list(disagreements(world, scrubbed=True)) == []
    world.network.mend(path)
    await pushing
    await _close(near, far)


def test_a_claim_that_overtakes_its_push_brings_the_payload_with_it() -> None:
    _play(_overtaken_push)


async def _uncertain_session(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert near.coordinator
    for item in ("x", "y", "z"):
        await _run(near, queue.push(item))

    async def take() -> list[int]:
        """The numbers of the claim requests that three items came by."""
        assert near.coordinator
        async with queue.pop(prefetch=2) as stream:
            claims = [await anext(stream)]
            await asyncio.sleep(HANGS)  # the others are claimed ahead
            claims.append(await anext(stream))
            world.hub.silence(near.coordinator, deaf=True)
            await asyncio.sleep(near.coordinator.valid_until - world.loop.now + 0.01)
            claims.append(await anext(stream))
        return [int(lease_of(claim).grant.request.rpartition("/")[2]) for claim in claims]

    first, second, third = await _run(near, take())
    assert second <= first + 1
    assert third > second, "it was claimed ahead, and others may have fenced this process since"
    world.hub.break_silence(near.coordinator, 0.0)
    await _close(near)


def test_what_was_claimed_ahead_is_not_handed_out_while_the_session_is_uncertain() -> None:
    _play(_uncertain_session)


async def _handed_back(world: World) -> None:
    near, queue = await _opened(world, "near")
    items = list(map(str, range(60)))
    for item in items:
        await _run(near, queue.push(item))

    async def take() -> list[str]:
        assert near.coordinator
        taken: list[str] = []
        async for claim in queue.pop(prefetch=40, limit=len(items)):
            taken.append(claim.item)
            await claim.ack()
            if len(taken) == 5:
                await asyncio.sleep(HANGS)  # others are claimed ahead
                world.hub.silence(near.coordinator, deaf=True)
                await asyncio.sleep(near.coordinator.valid_until - world.loop.now + 0.01)
        return taken

    assert await _run(near, take()) == items
    assert near.coordinator
    world.hub.break_silence(near.coordinator, 0.0)
    await _close(near)


def test_what_was_claimed_ahead_and_handed_back_comes_in_order() -> None:
    """A claim that does not wait until all are back gets the items behind them."""
    _play(_handed_back)


async def _ended_session(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    assert near.coordinator
    await _run(near, queue.push("x"))
    follower = next(id for id in world.view.members if id != world.view.primary(world.queue))

    # The session ends while the claim is on its way to a follower.
    path = world.network.path(near.name, follower)
    path.cut = True
    claiming = near.start(queue.pop_one(timeout=20), "pop")
    await asyncio.sleep(HANGS / 2)
    world.hub.expire(near.coordinator.session.id)
    await asyncio.sleep(HANGS / 2)
    world.network.mend(path)
    claim = await claiming
    assert claim
    assert world.hub.is_live(claim.owner)
    await _close(near)


def test_a_claim_of_a_session_that_ended_meanwhile_is_not_handed_out() -> None:
    _play(_ended_session)


async def _shut_out(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert near.cluster
    path = world.network.path(near.name, next(iter(world.servers)))

    # For a moment that recurs every minute a right is missing, as while passwords are rotated.
    path.forbids = NO_RIGHT
    now = clock.now().timestamp() % 60
    async with near.cluster.every(60, queue, "x", offset=now + 1, catch_up=30):
        await asyncio.sleep(3.0)
        path.forbids = ""
        await asyncio.sleep(10.0)
    assert await _run(near, queue.size()) == (1, 0, 0, 0)
    await _close(near)


def test_a_moment_that_recurs_is_made_up_for_when_its_client_is_let_in_again() -> None:
    _play(_shut_out)


HOUR = 3_600.0


def _pushes(queue: Queue[Any]) -> list[Coroutine[Any, Any, Any]]:
    """A push of each kind."""
    return [
        queue.push("plain"),
        queue.push_many(range(3)),
        queue.push("own id", id="mine"),
        queue.push("keyed", key="k"),
        queue.push("grouped", group="g"),
        queue.push("delayed", delay=5),
    ]


async def _a_clock_is_set(world: World, seconds: float, *, of_primary: bool) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    primary = world.view.primary(world.queue)
    wrong = primary if of_primary else next(id for id in world.view.members if id != primary)
    world.servers[wrong].clock += seconds
    for work in _pushes(queue):
        await _run(near, work)
    assert near.cluster
    await _until(lambda: not _is_member(world, wrong))
    await asyncio.sleep(3.0)
    assert any(f"{wrong} is not brought back: its clock is" in text for text in near.cluster.health().warnings)
    assert near.cluster.health().ok
    world.servers[wrong].clock -= seconds
    await _until(lambda: _is_member(world, wrong))
    await _until(lambda: near.cluster is not None and not near.cluster.health().warnings)
    await _close(near)


@every("seconds", [HOUR, -HOUR, 150.0, -150.0])
@every("of_primary", [True, False])
def test_a_server_whose_clock_is_set_fails_no_push_and_comes_back(seconds: float, of_primary: bool) -> None:
    _play(partial(_a_clock_is_set, seconds=seconds, of_primary=of_primary))


async def _a_needed_clock_is_set(world: World) -> None:
    near, queue = await _opened(world, "near")
    assert world.view
    assert near.cluster
    await _run(near, queue.push("before"))
    wrong = next(id for id in world.view.members if id != world.view.primary(world.queue))
    gone = next(id for id in world.view.members if id not in (wrong, world.view.primary(world.queue)))
    world.servers[gone].kill()
    await _run(near, queue.push("by two"))
    world.servers[wrong].clock += HOUR
    with pytest.raises(OutcomeUnknown, match=f"{wrong}: its clock is .* ahead"):
        await _run(near, queue.push("touched"))
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"nothing was written: {wrong}: its clock is .* set it right"):
            await _run(near, queue.push("refused"))
    assert not near.cluster.health().ok
    assert any(f"server {wrong}: its clock is" in text for text in near.cluster.health().trouble)
    late = world.new_client("late")  # it knows this as soon as it is connected, so no push of it is in doubt
    assert await _run(late, late.open())
    late_queue = late.queue()
    assert late.cluster
    assert late_queue
    assert any(f"server {wrong}: its clock is" in text for text in late.cluster.health().trouble)
    with pytest.raises(Unavailable, match=f"nothing was written: {wrong}: its clock is .* set it right"):
        await _run(late, late_queue.push("refused"))
    for claim in await _run(near, queue.pop_many(5, timeout=5)):
        await _run(near, claim.ack())
    world.servers[wrong].clock -= HOUR
    await _until(lambda: all(client.cluster and client.cluster.health().ok for client in (near, late)))
    await _run(near, queue.push("after"))
    await _run(late, late_queue.push("after"))
    await _close(near, late)


def test_with_two_members_and_two_needed_a_wrong_clock_stops_pushes_and_nothing_else() -> None:
    _play(_a_needed_clock_is_set)


async def _the_clients_clock_is_set(world: World) -> None:
    near, queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    near.process.clock += HOUR
    with pytest.raises(ConfigError, match="the clock here differs"):
        await _run(near, queue.push("x"))
    assert near.cluster
    await _until(lambda: bool(near.cluster and not near.cluster.health().ok))
    (text,) = near.cluster.health().trouble
    assert "this client's clock is 3600" in text
    await _run(far, far_queue.push("y"))
    claim = await _run(near, queue.pop_one(timeout=5))
    assert claim
    await _run(near, claim.ack())
    assert world.view
    assert world.view.epoch == 1
    await _close(near, far)


def test_a_client_whose_own_clock_is_wrong_stops_itself_alone() -> None:
    _play(_the_clients_clock_is_set)


async def _register_goes_back(world: World) -> None:
    near, near_queue = await _opened(world, "near")
    far, far_queue = await _opened(world, "far")
    assert near.cluster
    assert far.cluster
    assert far.coordinator
    backup = dict(world.hub.registers)
    for number in range(4):
        await _run(near, near_queue.push(number))
    # A server goes, empty, and comes back: the view goes on, and with it what is acked.
    name = next(iter(world.servers))
    world.servers[name].kill()
    await _run(near, near_queue.push(4))
    world.servers[name].start(None)
    while not (world.view and world.view.epoch > 3 and len(world.view.members) == 3):
        await asyncio.sleep(0.1)
    (claim,) = await _run(far, far_queue.pop_many(1, timeout=5))
    acked = claim.item
    assert await _run(far, far_queue.ack_many([claim])) == []
    await asyncio.sleep(HOLD_MS / 1000)

    # One client hears of nothing that follows, and knows the later view; the other one says what it sees.
    world.hub.suspend(far.coordinator)
    world.hub.restore(backup)
    while not near.cluster.health().trouble:
        await asyncio.sleep(0.1)
    later = near.cluster.view.epoch
    await _run(near, near_queue.push(5))  # under the view that it knows
    operator = world.new_client("operator")
    cluster, _ = operator.make()
    recovering = _run(operator, cluster.recover(list(world.servers), older_zookeeper=True))
    pushed = [5]
    done, *rest = await asyncio.gather(
        recovering,
        *(_run(each, queue.push(6 + at)) for at, (each, queue) in enumerate(((near, near_queue), (far, far_queue)))),
        return_exceptions=True,
    )
    assert done is None, done
    uncertain = {6 + at for at, outcome in enumerate(rest) if isinstance(outcome, BaseException)}
    pushed += [6 + at for at in range(2) if 6 + at not in uncertain]
    world.hub.resume(far.coordinator)
    while min(each.cluster.view.epoch for each in (near, far) if each.cluster) < later + 900:
        await asyncio.sleep(0.1)
    found = list[Any]()
    while claims := await _run(near, near_queue.pop_many(10, timeout=1)):
        found += [claim.item for claim in claims]
        assert await _run(near, near_queue.ack_many(claims)) == []
    assert {*range(5), *pushed} - {acked} <= set(found) <= {*range(5), *pushed, *uncertain} - {acked}
    assert len(found) == len(set(found))
    await _close(near, far)


def test_the_register_goes_back_and_what_the_servers_know_is_gone_on_with() -> None:
    _play(_register_goes_back)
