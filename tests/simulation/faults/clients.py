"""Faults of clients, and of their ways to the ensemble."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from tests.simulation.loop import State
from tests.simulation.world import SESSION_TIMEOUT, Client, World


def some_client(world: World, chance: random.Random) -> Client | None:
    clients = [client for client in world.clients if client.process.state is State.RUNNING and client.coordinator]
    return chance.choice(clients) if clients else None


def _anywhere(client: Client, chance: random.Random, act: Callable[[], object]) -> None:
    """Have ``act`` happen between any two steps of a client."""
    client.process.after_steps(chance.randint(1, 60), act)


async def drop(world: World, chance: random.Random) -> None:
    """kill -9, and a newcomer in its place."""
    client = some_client(world, chance)
    if client is None or sum(client.is_alive for client in world.clients) < 2:
        return

    def act() -> None:
        world.trace.count("drop", client.name)
        world.drop(client)

    _anywhere(client, chance, act)


async def cancel(world: World, chance: random.Random) -> None:
    """Calls are cancelled by their callers."""
    for _ in range(chance.randint(1, 5)):
        client = some_client(world, chance)
        if client is not None:
            _anywhere(client, chance, partial(_cancel_one, world, client, chance))
        await asyncio.sleep(chance.random())


def _cancel_one(world: World, client: Client, chance: random.Random) -> None:
    running = [(task, kind) for task, (kind, _) in client.operations.items()]
    if running:
        task, kind = chance.choice(running)
        world.trace.count("cancel", f"{client.name} {kind}")
        task.cancel()


async def pause(world: World, chance: random.Random) -> None:
    """A client is stopped, and goes on; meanwhile its session may have ended."""
    client = some_client(world, chance)
    if client is None:
        return

    def act() -> None:
        world.trace.count("pause", client.name)
        world.pause(client)

    _anywhere(client, chance, act)
    await asyncio.sleep(chance.choice((0.3, 3.0, SESSION_TIMEOUT * 2)) * chance.uniform(0.5, 1.5))
    if client.process.state is State.PAUSED:
        world.trace.note(f"{client.name} goes on")
        world.resume(client)


async def hub_cut(world: World, chance: random.Random) -> None:
    """A client is cut off from the ensemble."""
    client = some_client(world, chance)
    if client is None or client.coordinator is None or not client.coordinator.reachable:
        return
    coordinator = client.coordinator
    world.trace.count("cut from the ensemble", client.name)
    world.hub.suspend(coordinator)
    await asyncio.sleep(chance.choice((0.5, SESSION_TIMEOUT, SESSION_TIMEOUT * 3)) * chance.uniform(0.5, 1.2))
    world.trace.note(f"{client.name} reaches the ensemble again")
    world.hub.resume(coordinator)


async def hub_deaf(world: World, chance: random.Random) -> None:
    """A client's connection to the ensemble is dead, and it does not notice."""
    client = some_client(world, chance)
    if client is None or client.coordinator is None or client.coordinator.silent_since is not None:
        return
    coordinator = client.coordinator
    world.trace.count("deaf to the ensemble", client.name)
    world.hub.silence(coordinator, deaf=True)
    await asyncio.sleep(chance.choice((1.0, SESSION_TIMEOUT, SESSION_TIMEOUT * 2)) * chance.uniform(0.5, 1.2))
    if client.process.state is not State.PAUSED:
        world.hub.break_silence(coordinator, 0.0)


async def hub_expire(world: World, chance: random.Random) -> None:
    """The ensemble ends a session."""
    client = some_client(world, chance)
    if client is not None and client.coordinator is not None:
        world.trace.count("session expired", client.name)
        world.hub.expire(client.coordinator.session.id)


async def hub_lose_reply(world: World, chance: random.Random) -> None:
    """Answers of the ensemble get lost."""
    client = some_client(world, chance)
    if client is not None and client.coordinator is not None:
        world.trace.count("replies of the ensemble to be lost", client.name)
        client.coordinator.replies_to_lose += chance.randint(1, 3)


async def hub_slow(world: World, chance: random.Random) -> None:
    """Answers of the ensemble take long, so that changes of the view cross each other."""
    world.hub.slow = chance.choice((0.2, 1.0))
    world.trace.count("ensemble slow", f"by {world.hub.slow:g} s")
    await asyncio.sleep(chance.uniform(3.0, 15.0))
    world.hub.slow = 0.0


async def hub_lose_swap(world: World, chance: random.Random) -> None:
    """The answer to a client's next compare-and-set gets lost."""
    client = some_client(world, chance)
    if client is not None and client.coordinator is not None:
        client.coordinator.swaps_to_lose += chance.randint(1, 2)


async def hub_stale(world: World, chance: random.Random) -> None:
    """Reads are as old as they may be."""
    world.hub.stale = 0.7
    await asyncio.sleep(chance.uniform(5.0, 20.0))
    world.hub.stale = 0.0


async def reopen(world: World, chance: random.Random) -> None:
    """A client closes its cluster in the middle of its work, and opens another one."""
    client = some_client(world, chance)
    if client is not None and client.cluster is not None:
        world.trace.count("reopen", client.name)

        async def again() -> None:
            await client.close()
            await asyncio.sleep(chance.random())
            while client.cluster is None and not client.stopping and not await client.open():
                await asyncio.sleep(0.5)

        client.start(again(), "reopen")
