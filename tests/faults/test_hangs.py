"""A server that hangs for little longer than a time-out, and comes back: calls take longer, and none fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, settled, until
from tests.load import Load
from zkrq import local
from zkrq.client.moments import to_ms
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

COMMAND_TIMEOUT = 1.0
HANGING = 1.5
"""Seconds; little longer than the time-out, and less than two of them."""


IMPATIENT: dict[str, Any] = {"command_timeout": COMMAND_TIMEOUT, "operation_timeout": HANG}


async def hang(server: local.LocalRedis, seconds: float) -> None:
    server.pause()
    await asyncio.sleep(seconds)
    server.resume()


async def enter_watchers(stage: Stage) -> None:
    """Six clients that do nothing, but answer accusations; they wait longer than any server hangs."""
    for _ in range(6):
        await stage.enter(command_timeout=HANG)


async def test_a_server_that_hangs_again_and_again_costs_time_and_no_call(hub_stage: Stage) -> None:
    """The first hang evicts it, and costs this client its standing; at the later ones the others contradict it."""
    hanging = hub_stage.servers.redis[1]
    client = await hub_stage.enter(**IMPATIENT)
    await enter_watchers(hub_stage)
    load = Load(client.cluster, pause=0.001)
    async with load.running(producers=4, consumers=2):
        await hang(hanging, HANGING)
        await client.expect_event(zkrq.ServerEvicted)
        await until(lambda: hub_stage.is_member(hanging))
        evictions = client.view.epoch
        for _ in range(2):
            await hang(hanging, HANGING)
            await until(load.progress(50))
        assert client.view.epoch == evictions, "nobody was evicted again"
        assert not client.cluster.health().trouble
    assert not load.uncertain, "no call failed"


async def test_a_server_that_came_back_hangs_for_good(hub_stage: Stage) -> None:
    """It was evicted for a hang, which costs this client its standing: it accuses it, and nobody refutes that."""
    hanging = hub_stage.servers.redis[1]
    client = await hub_stage.enter(**IMPATIENT)
    for pushes in (1, 2):
        hanging.pause()
        assert (await client.push("without it")).replicas == 2
        assert len(client.events(zkrq.ServerEvicted)) == pushes
        hanging.resume()
        await until(lambda: hub_stage.is_member(hanging))


async def test_a_client_that_connects_during_a_hang(hub_stage: Stage) -> None:
    """The server has not answered it in this life, and it is contradicted by the others soon afterwards."""
    hanging = hub_stage.servers.redis[2]
    first = await hub_stage.enter(command_timeout=HANG)
    await enter_watchers(hub_stage)
    await first.push("before")
    hanging.pause()
    newcomer = await hub_stage.enter(**IMPATIENT)
    pushing = asyncio.create_task(newcomer.push("during"))
    await until(lambda: ServerId(hanging.name) in newcomer.view.accusations)
    hanging.resume()
    assert (await pushing).replicas == 3
    for _ in range(20):
        assert (await newcomer.push("after")).replicas == 3
    assert first.view.epoch == 1


async def test_a_slow_event_loop_is_not_a_servers_silence(hub_stage: Stage) -> None:
    """Each turn of the loop takes a part of the time-out, and connecting to a server that was restarted takes many."""
    turn = 0.05
    restarted = hub_stage.servers.redis[1]
    client = await hub_stage.enter(command_timeout=3 * turn, operation_timeout=HANG)
    await client.push("before")
    with blocked(turn):
        await hub_stage.kill(restarted)
        await hub_stage.start(restarted)
        # It is evicted for its new life, brought back, and used: over connections made by this very loop.
        await until(lambda: client.view.epoch > 2 and hub_stage.is_member(restarted))
        await settled(lambda: is_everywhere(client))


@contextmanager
def blocked(turn: float) -> Generator[None]:
    """A turn of the event loop takes this number of seconds."""
    is_over = False

    def block() -> None:
        time.sleep(turn)
        if not is_over:
            asyncio.get_running_loop().call_soon(block)

    block()
    try:
        yield
    finally:
        is_over = True


async def is_everywhere(client: Actor) -> bool:
    """Whether a push reaches all servers; on a machine that is busy with something else not every one may."""
    return (await client.push("after")).replicas == 3


async def test_moments_of_a_schedule_come_while_a_server_hangs(hub_stage: Stage) -> None:
    """The push of one that hangs keeps no other from being pushed when it comes; each is there once."""
    hanging = hub_stage.servers.redis[1]
    one, two = await hub_stage.enter(**IMPATIENT), await hub_stage.enter(**IMPATIENT)
    every = [each.cluster.every(0.1, each.queue, to_ms, name="tick") for each in (one, two)]
    await until(lambda: all(each.last for each in every))
    hanging.pause()
    pushes = [each._pushes for each in every]  # pyright: ignore[reportPrivateUsage]
    await until(lambda: all(len(each) >= 5 for each in pushes))
    stuck = {moment for each in pushes for moment in each}
    hanging.resume()
    got = list[int]()
    async with asyncio.timeout(HANG):
        async for claim in one.queue.pop():
            got.append(claim.item)
            await claim.ack()
            if stuck <= set(got):
                break
    assert len(got) == len(set(got))
