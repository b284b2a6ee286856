"""Callers that wait for results while servers die: each is told the right one."""

from __future__ import annotations

import asyncio

import pytest

import zkrq
from tests.behaviour.helpers import working
from tests.harness import HANG, command, new_namespace, over_zookeeper
from zkrq import local
from zkrq.protocol.keys import key

pytestmark = pytest.mark.anyio

CALLERS = 500


async def square(item: int) -> int:
    await asyncio.sleep(0.01)
    return item * item


async def test_every_caller_has_the_right_result_though_the_primary_is_killed(servers: local.Servers) -> None:
    namespace, results = new_namespace(), zkrq.Results(ttl=600)
    async with over_zookeeper(servers, namespace) as here, over_zookeeper(servers, namespace) as there:
        asking, doing = here.queue("sums", results=results), there.queue("sums", results=results)
        receipts = [await asking.push(n) for n in range(CALLERS)]
        waiting = [asyncio.create_task(receipt.result(timeout=HANG)) for receipt in receipts]
        primary = next(server for server in servers.redis if server.name == here.view.primary("sums"))
        async with working(doing, square, concurrency=20):
            await waiting[CALLERS // 5]
            assert not all(each.done() for each in waiting)
            await primary.kill()
            told = await asyncio.gather(*waiting)
        assert primary.name not in here.view.members
        assert [result.value for result in told] == [n * n for n in range(CALLERS)]
        # And once more, by another client: what was told never changes.
        again = await doing.results([receipt.id for receipt in receipts], timeout=HANG)
        assert list(again.values()) == told


async def test_item_that_the_primary_alone_does_not_know_is_not_unknown(servers: local.Servers) -> None:
    """So it is while a client asks a primary that was evicted a moment ago, by a push that has returned."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        sums = cluster.queue("sums", results=zkrq.Results())
        receipt = await sums.push(1)
        primary = next(server for server in servers.redis if server.name == cluster.view.primary("sums"))
        await command(primary, "HDEL", key(namespace, "sums", "records"), receipt.id.rpartition("~")[0] or receipt.id)
        assert (await receipt.result(timeout=0)).state is zkrq.ResultState.QUEUED
        assert (await sums.result("never pushed", timeout=0)).state is zkrq.ResultState.UNKNOWN
