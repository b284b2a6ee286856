"""What chance finds seldom: schedules made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import Mock, patch

from tests.simulation import setting
from tests.simulation.loop import Loop
from tests.simulation.patches import determined
from tests.simulation.scenario import forget
from tests.simulation.setting import Setting
from tests.simulation.trace import Trace
from tests.simulation.world import Client, World
from zkrq import Cancellation, Queue

T = TypeVar("T")

SETTING = Setting(keys=(), keyed=0, expiring=0, max_size=None, dead_letters=None, clears=False, pauses=False)

SEED = 1

HANGS = 0.5
"""Seconds after which a call is in the middle whose way to a server is cut."""


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
    loop = Loop(max_time=1_000, max_steps=1_000_000)
    with determined(loop, SEED), patch.object(setting, "draw", Mock(return_value=replace(SETTING, **changes))):
        world = World(SEED, loop, Trace(loop))
        world.min_replicas = min_replicas
        loop.run(scenario(world))
    violations = world.ledger.violations
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
    for key in ("key", "other"):
        await _run(near, near_queue.push(key, key=key))
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
