"""A server that hangs for little longer than a time-out, and comes back: calls take longer, and none fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, settled, until
from tests.load import Load
from zkrq import local
from zkrq.client.moments import to_ms
from zkrq.coordination.memory import Hub
from zkrq.protocol.view import ServerId

pytestmark = pytest.mark.anyio

COMMAND_TIMEOUT = 1.0
HANGING = 1.5
"""Seconds; little longer than the time-out, and less than two of them."""


async def hang(server: local.LocalRedis, seconds: float) -> None:
    server.pause()
    await asyncio.sleep(seconds)
    server.resume()


@asynccontextmanager
async def watchers(servers: local.Servers, namespace: str, hub: Hub) -> AsyncGenerator[None]:
    """Six clients that do nothing, but answer accusations; they wait longer than any server hangs."""
    async with AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(in_process(servers, namespace, hub, command_timeout=HANG))
        yield


async def test_a_server_that_hangs_again_and_again_costs_time_and_no_call(servers: local.Servers) -> None:
    """The first hang evicts it, and costs this client its standing; at the later ones the others contradict it."""
    namespace, hub = new_namespace(), Hub()
    hanging = servers.redis[1]
    events: list[zkrq.Event] = []
    options: dict[str, Any] = {"command_timeout": COMMAND_TIMEOUT, "operation_timeout": HANG, "on_event": events.append}
    async with in_process(servers, namespace, hub, **options) as client, watchers(servers, namespace, hub):
        load = Load(client, pause=0.001)
        async with load.running(producers=4, consumers=2):
            await hang(hanging, HANGING)
            await until(lambda: any(isinstance(event, zkrq.ServerEvicted) for event in events))
            await until(lambda: hanging.name in client.view.members)
            evictions = client.view.epoch
            for _ in range(2):
                await hang(hanging, HANGING)
                await until(load.progress(50))
            assert client.view.epoch == evictions, "nobody was evicted again"
            assert not client.health().trouble
        assert not load.uncertain, "no call failed"


async def test_a_server_that_came_back_hangs_for_good(servers: local.Servers) -> None:
    """It was evicted for a hang, which costs this client its standing: it accuses it, and nobody refutes that."""
    hanging, events = servers.redis[1], list[zkrq.Event]()
    options: dict[str, Any] = {"command_timeout": COMMAND_TIMEOUT, "operation_timeout": HANG, "on_event": events.append}
    async with in_process(servers, new_namespace(), **options) as client:
        queue = client.queue("jobs")
        for pushes in (1, 2):
            hanging.pause()
            assert (await queue.push("without it")).replicas == 2
            assert len([event for event in events if isinstance(event, zkrq.ServerEvicted)]) == pushes
            hanging.resume()
            await until(lambda: hanging.name in client.view.members)


async def test_a_client_that_connects_during_a_hang(servers: local.Servers) -> None:
    """The server has not answered it in this life, and it is contradicted by the others soon afterwards."""
    namespace, hub = new_namespace(), Hub()
    hanging = servers.redis[2]
    async with in_process(servers, namespace, hub, command_timeout=HANG) as first, watchers(servers, namespace, hub):
        await first.queue("jobs").push("before")
        hanging.pause()
        options: dict[str, Any] = {"command_timeout": COMMAND_TIMEOUT, "operation_timeout": HANG}
        async with in_process(servers, namespace, hub, **options) as newcomer:
            pushing = asyncio.create_task(newcomer.queue("jobs").push("during"))
            await until(lambda: ServerId(hanging.name) in newcomer.view.accusations)
            hanging.resume()
            assert (await pushing).replicas == 3
            for _ in range(20):
                assert (await newcomer.queue("jobs").push("after")).replicas == 3
        assert first.view.epoch == 1


async def is_everywhere(queue: zkrq.Queue[str]) -> bool:
    """Whether a push reaches all servers; on a machine that is busy with something else not every one may."""
    return (await queue.push("after")).replicas == 3


async def test_a_slow_event_loop_is_not_a_servers_silence(servers: local.Servers) -> None:
    """Each turn of the loop takes a part of the time-out, and connecting to a server that was restarted takes many."""
    turn = 0.05
    blocked = True

    def block() -> None:
        time.sleep(turn)
        if blocked:
            asyncio.get_running_loop().call_soon(block)

    restarted = servers.redis[1]
    options: dict[str, Any] = {"command_timeout": 3 * turn, "operation_timeout": HANG}
    async with in_process(servers, new_namespace(), **options) as cluster:
        await cluster.queue("jobs").push("before")
        block()
        await restarted.kill()
        await restarted.start()
        try:
            # It is evicted for its new life, brought back, and used: over connections made by this very loop.
            await until(lambda: cluster.view.epoch > 2 and restarted.name in cluster.view.members)
            await settled(lambda: is_everywhere(cluster.queue("jobs")))
        finally:
            blocked = False


async def test_moments_of_a_schedule_come_while_a_server_hangs(servers: local.Servers) -> None:
    """The push of one that hangs keeps no other from being pushed when it comes; each is there once."""
    namespace, hub, hanging = new_namespace(), Hub(), servers.redis[1]
    options: dict[str, Any] = {"command_timeout": COMMAND_TIMEOUT, "operation_timeout": HANG}
    async with (
        in_process(servers, namespace, hub, **options) as one,
        in_process(servers, namespace, hub, **options) as two,
    ):
        every = [each.every(0.1, each.queue("jobs"), to_ms, name="tick") for each in (one, two)]
        await until(lambda: all(each.last for each in every))
        hanging.pause()
        pushes = [each._pushes for each in every]  # pyright: ignore[reportPrivateUsage]
        await until(lambda: all(len(each) >= 5 for each in pushes))
        stuck = {moment for each in pushes for moment in each}
        hanging.resume()
        got = list[int]()
        async with asyncio.timeout(HANG):
            async for claim in one.queue("jobs").pop():
                got.append(claim.item)
                await claim.ack()
                if stuck <= set(got):
                    break
        assert len(got) == len(set(got))
