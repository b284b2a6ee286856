"""Closing a cluster: in a module without a shared cluster, because it checks every task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from functools import partial
from unittest.mock import patch

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.conftest import Connect
from tests.harness import HANG, take
from zkrq.base.settings import MAX_OPERATION_TIMEOUT, Settings
from zkrq.client import client
from zkrq.protocol.operations import Operations
from zkrq.protocol.steps import NothingDone
from zkrq.testing import in_process

pytestmark = pytest.mark.anyio


async def test_closing_hands_back_and_ends_every_wait(own_cluster: zkrq.Cluster) -> None:
    cluster = own_cluster
    queue = cluster.queue("jobs")
    await queue.push_many(range(10))
    held = await take(queue)

    async def consume() -> list[int]:
        return [claim.item async for claim in queue.pop(prefetch=0)]

    consumer = asyncio.create_task(consume())
    waiting = asyncio.create_task(cluster.queue("empty").pop_one())
    await asyncio.sleep(0.1)
    before = asyncio.all_tasks()
    await cluster.aclose()
    await consumer
    with pytest.raises(zkrq.Closed):
        await waiting
    with pytest.raises(zkrq.Closed):
        await queue.push(1)
    with pytest.raises(zkrq.Closed):
        cluster.queue("other")
    with pytest.raises(zkrq.ZkrqError):
        await held.ack()
    left = [task for task in asyncio.all_tasks() if task in before and task.get_name().startswith("zkrq")]
    assert not left
    await cluster.aclose()


async def test_a_claim_that_could_not_be_nacked_is_lost_at_the_end(
    own_cluster: zkrq.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no longer extended, but holds until its deadline: the next consumer gets the item earlier than that."""
    queue = own_cluster.queue("jobs")
    await queue.push("x")
    claim = await take(queue)

    def refuse(*_: object, **__: object) -> Generator[object]:
        raise NothingDone("no server")
        yield

    with patch.object(Operations, "decide", refuse), pytest.raises(LookupError):
        async with claim:
            raise LookupError
    assert not claim.lost
    caplog.clear()
    await own_cluster.aclose()
    assert claim.lost
    assert "ClaimsLost" not in caplog.text, "nobody works on it"


async def test_calls_that_no_server_answers_end_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "Settings", partial(Settings, operation_timeout=MAX_OPERATION_TIMEOUT))
    monkeypatch.setattr(client, "CLOSE_TIMEOUT", 0.2)
    async with zkrq.testing.servers(2) as own, own.connect() as cluster:
        queue, limited = cluster.queue("jobs"), cluster.queue("limited", limits=zkrq.Limits(concurrency=1))
        await queue.push("x")
        own.kill("redis-1")
        own.kill("redis-2")
        calls: list[Awaitable[object]] = [queue.push("y"), queue.size(), limited.pop_one()]
        calls += [limited.push(n) for n in range(9)]
        running = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.1)
        assert not any(call.done() for call in running)
        await cluster.aclose()
        done, _ = await asyncio.wait(running, timeout=HANG)
        assert len(done) == len(running)
        assert all(isinstance(call.exception(), zkrq.ZkrqError) for call in running)


async def test_it_is_opened_and_closed_in_two_places(own_cluster: zkrq.Cluster, connect: Connect) -> None:
    another = connect()
    assert await another.open() is another
    await another.queue("jobs").push("x")
    await another.aclose()
    with pytest.raises(zkrq.Closed, match="make another one"):
        await another.open()
    with pytest.raises(zkrq.Closed, match="open another one"):
        await another.queues()
