"""A queue that is idle costs a client no task, and no memory either unless the program refers to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.harness import HANG
from zkrq.client import client
from zkrq.client.client import IDLE_SECONDS
from zkrq.client.inner import client_of
from zkrq.consuming.core.supply import SupplyState
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncGenerator[TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


async def look(servers: Servers, times: int = 2) -> None:
    """Let the client look for idle queues."""
    for _ in range(times):
        await servers.clock.advance(IDLE_SECONDS + 1)


def tasks_about(name: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if name in task.get_name()]


async def take(queue: zkrq.Queue[Any]) -> Any:
    claim = await queue.pop_one()
    assert claim is not None
    await claim.ack()
    return claim.item


async def test_queues_that_were_used_once_cost_nothing(cluster: TestCluster) -> None:
    names = [f"once-{number}" for number in range(20)]
    for name in names:
        await cluster.queue(name).push(1)
        assert await take(cluster.queue(name)) == 1
        await cluster.queue(name).delete()
    assert tasks_about("once-")
    await look(cluster.servers)
    assert tasks_about("once-") == []
    assert not set(names) & set(cluster.queues_in_use)


async def test_a_queue_that_was_dropped_comes_back(cluster: TestCluster) -> None:
    """Its requests are numbered above those before: servers take a lower number for a late one."""
    for number in range(5):
        await cluster.queue("again", codec=zkrq.RAW).push(b"%d" % number)
        assert await take(cluster.queue("again")) == b"%d" % number
    await look(cluster.servers)
    assert "again" not in cluster.queues_in_use
    with pytest.raises(zkrq.ConfigError, match=r"codec=zkrq.RAW, not zkrq.JSON"):
        cluster.queue("again", codec=zkrq.JSON)
    for _ in range(2):
        await cluster.queue("again").push(b"last")
        assert await take(cluster.queue("again")) == b"last"


async def test_a_queue_that_the_program_holds_works_on(cluster: TestCluster) -> None:
    queue = cluster.queue("held")
    await queue.push(1)
    assert await take(queue) == 1
    await look(cluster.servers, 3)
    assert tasks_about("held") == []
    assert cluster.queue("held") is queue
    await queue.push(2)
    assert await take(queue) == 2
    waiting = asyncio.create_task(take(queue))
    await look(cluster.servers)
    await queue.push(3)
    assert await waiting == 3


async def test_what_is_in_use_is_not_dropped(cluster: TestCluster) -> None:
    """A claim, a consumer that waits, and a stream that has not begun, all without a reference to the queue."""
    await cluster.queue("claimed").push(1)
    claim = await cluster.queue("claimed").pop_one(timeout=HANG)
    stream = cluster.queue("streamed").pop(limit=1)
    waiting = asyncio.create_task(take(cluster.queue("waited")))
    await look(cluster.servers, 3)
    assert {"claimed", "streamed", "waited"} <= set(cluster.queues_in_use)
    assert claim is not None
    assert claim.holds
    await claim.ack()
    await cluster.queue("streamed").push(2)
    async for each in stream:
        assert each.item == 2
    await cluster.queue("waited").push(3)
    assert await waiting == 3


async def test_a_wake_up_for_a_queue_at_rest_is_passed_on(cluster: TestCluster) -> None:
    """A push wakes one process only, perhaps one whose consumer has left."""
    queue = cluster.queue("passed")
    assert await queue.pop_one(timeout=1) is None  # leaves its channel on the server
    await look(cluster.servers, 1)
    (supplier,) = [shard.supplier for shard in client_of(cluster).queues["passed"].parts.shards]
    looks = supplier.looks
    supplier.wake(True)
    async with asyncio.timeout(HANG):
        while supplier.looks == looks:
            await asyncio.sleep(0)


async def test_a_consumer_of_a_queue_at_rest_asks(cluster: TestCluster) -> None:
    """Whatever the last request has left on the server: its wake-up may be lost."""
    queue = cluster.queue("asked")
    await queue.push(1)
    async with queue.pop(prefetch=2) as stream:
        await (await anext(stream)).ack()
    parts = client_of(cluster).queues["asked"].parts
    (supplier,) = [shard.supplier for shard in parts.shards]
    assert supplier.supply.state is SupplyState.LISTENING
    async with asyncio.timeout(HANG):
        while not parts.rest():
            await asyncio.sleep(0)
    looks = supplier.looks
    waiting = asyncio.ensure_future(queue.pop_one())
    async with asyncio.timeout(HANG):
        while supplier.looks == looks:
            await asyncio.sleep(0)
    await queue.push(2)
    claim = await waiting
    assert claim is not None
    await claim.ack()


async def test_many_names_at_once_are_bounded(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "IDLE_MAX", 10)
    monkeypatch.setattr(client_of(cluster), "_crowded", 10)
    kept = cluster.queue("kept")
    for number in range(100):
        await cluster.queue(f"name-{number}").size()
        assert len(cluster.queues_in_use) <= 11
    assert cluster.queue("kept") is kept


async def test_a_queue_that_is_asked_for_where_there_are_many_keeps_its_notifications(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is idle, and the program has no reference to it at that moment: it is used, not dropped."""
    await cluster.queue("asked-for").push(1)
    assert await take(cluster.queue("asked-for")) == 1
    await look(cluster.servers, times=1)
    monkeypatch.setattr(client_of(cluster), "_crowded", 1)
    queue = cluster.queue("asked-for")
    known = [name for name in client_of(cluster).shard.wakeups._waiting if b"asked-for" in name]  # pyright: ignore[reportPrivateUsage]
    assert known, "it would hear neither of items nor of cancellations"
    await queue.push(2)
    assert await take(queue) == 2
