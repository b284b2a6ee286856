"""One loop over several queues."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect
from tests.behaviour.helpers import is_empty
from tests.harness import HANG, settled

pytestmark = pytest.mark.anyio

ITEMS = 20
"""Items in each queue, more than are claimed ahead."""


@pytest.fixture
async def queues(cluster: zkrq.Cluster, name: str) -> list[zkrq.Queue[Any]]:
    return [cluster.queue(f"{name}-{letter}") for letter in "abc"]


async def test_the_queues_take_turns(cluster: zkrq.Cluster, queues: list[zkrq.Queue[Any]]) -> None:
    for queue in queues:
        await queue.push_many([queue.name] * ITEMS)
    seen: list[str] = []
    async with asyncio.timeout(HANG), cluster.pop(*queues, prefetch=4) as claims:
        async for claim in claims:
            async with claim:
                assert claim.queue == claim.item
                seen.append(claim.queue)
            if len(seen) == 3 * ITEMS:
                break
    assert sorted(seen) == sorted(queue.name for queue in queues for _ in range(ITEMS))
    first = max(seen.index(queue.name) for queue in queues)
    assert all(queue.name in seen[first:] for queue in queues), "none is served to its end before the next one"
    for queue in queues:
        await queue.push_many([queue.name] * 4)
    async with asyncio.timeout(HANG):
        assert len([await claim.ack() async for claim in cluster.pop(*queues, wait=False)]) == 12


async def test_a_waiting_loop_hears_of_each_queue(cluster: zkrq.Cluster, queues: list[zkrq.Queue[Any]]) -> None:
    async with asyncio.timeout(HANG), cluster.pop(*queues, prefetch=0) as claims:
        for queue in [*queues, *reversed(queues)]:
            waiting = asyncio.ensure_future(anext(claims))
            await asyncio.sleep(0)
            await queue.push(queue.name)
            async with await waiting as claim:
                assert (claim.queue, claim.item) == (queue.name, queue.name)
    for queue in queues:
        await settled(partial(is_empty, queue))


async def test_a_wait_that_is_cancelled_takes_nothing(cluster: zkrq.Cluster, queues: list[zkrq.Queue[Any]]) -> None:
    async with asyncio.timeout(HANG):
        claims = cluster.pop(*queues)
        waiting = asyncio.ensure_future(anext(claims))
        await asyncio.sleep(0)
        await queues[1].push("x")
        waiting.cancel()
        await asyncio.wait([waiting])
        await claims.aclose()
        claim = None if waiting.cancelled() else waiting.result()
        again = claim or await queues[1].pop_one(timeout=HANG)
        assert again
        assert again.item == "x"
        await again.ack()


async def test_it_counts_to_its_limit(cluster: zkrq.Cluster, queues: list[zkrq.Queue[Any]]) -> None:
    for queue in queues:
        await queue.push_many(range(3))
    async with asyncio.timeout(HANG):
        taken = [claim async for claim in cluster.pop(*queues, limit=5)]
    assert len(taken) == 5
    for claim in taken:
        await claim.ack()
    left = 0
    for queue in queues:
        while claims := await queue.pop_many(9, timeout=0):
            left += len(claims)
            await queue.ack_many(claims)
    assert left <= 4


async def test_what_it_does_not_take(cluster: zkrq.Cluster, queues: list[zkrq.Queue[Any]], connect: Connect) -> None:
    async with connect() as other:
        for wrong in ([], [queues[0], other.queue(queues[0].name)]):
            with pytest.raises(zkrq.ConfigError):
                cluster.pop(*wrong)
        with pytest.raises(zkrq.ConfigError):
            cluster.pop(*queues, prefetch=-1)


async def test_a_queue_that_is_never_empty_keeps_no_other_from_its_turn(cluster: zkrq.Cluster, name: str) -> None:
    busy, quiet = cluster.queue(f"{name}-busy"), cluster.queue(f"{name}-quiet")
    await busy.push_many(range(4_000))
    await quiet.push("x")
    taken = list[zkrq.Claim[Any]]()
    async with cluster.pop(busy, quiet) as claims:
        async for claim in claims:
            await claim.ack()
            if claim.queue == busy.name and len(taken) == 300:
                await quiet.push("y")
            taken.append(claim)
            if claim.item == "y":
                break
    assert len(taken) < 3_500
