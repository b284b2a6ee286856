"""Who looks for the claims of dead consumers, and how often: not everybody, where there are many."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import patch

import pytest

import zkrq
from zkrq.repair.fencing import FOLLOWERS, INTERVAL_SECONDS, Reaper
from zkrq.testing import Servers, TestCluster, servers

pytestmark = pytest.mark.anyio

ROUNDS = 5
MANY = 14


async def consumers(own: Servers, stack: AsyncExitStack, number: int) -> list[tuple[TestCluster, zkrq.Claim[Any]]]:
    """So many clients, each with a claim."""
    opened: list[tuple[TestCluster, zkrq.Claim[Any]]] = []
    for at in range(number):
        cluster = await stack.enter_async_context(own.connect())
        queue = cluster.queue("jobs")
        await queue.push(at)
        claim = await queue.pop_one(timeout=1)
        assert claim
        opened.append((cluster, claim))
    return opened


@pytest.mark.parametrize("number", [2, FOLLOWERS + 1, MANY])
async def test_looks_do_not_grow_with_the_number_of_clients(number: int) -> None:
    looks = 0
    reap = Reaper.reap

    async def count(self: Reaper) -> None:
        nonlocal looks
        looks += 1
        await reap(self)

    with patch.object(Reaper, "reap", count):
        async with servers(1) as own, AsyncExitStack() as stack:
            opened = await consumers(own, stack, number)
            await own.clock.advance(INTERVAL_SECONDS * MANY / FOLLOWERS)  # until all have heard of all
            looks = 0
            with patch.object(Reaper, "look"):  # a consumer that a busy machine holds up is reported, and looked for
                await own.clock.advance(INTERVAL_SECONDS * ROUNDS)
    as_often_as_the_leader = min(len(opened), FOLLOWERS + 1)
    assert (as_often_as_the_leader - 1) * ROUNDS <= looks <= (as_often_as_the_leader + 2) * ROUNDS


async def test_not_all_look_that_are_started_together() -> None:
    with patch.object(Reaper, "reap", autospec=True) as reap:
        async with servers(1) as own, AsyncExitStack() as stack:
            opened = await consumers(own, stack, MANY)
            known = {call.args[0] for call in reap.await_args_list}
            with patch("zkrq.repair.fencing.INTERVAL_SECONDS", 1e6):  # nobody looks twice, however long this takes
                for _ in opened:
                    await stack.enter_async_context(own.connect())
                await own.clock.advance(0.1)
                looked = {call.args[0] for call in reap.await_args_list} - known
            assert len(looked) < len(opened)


async def test_items_of_a_dead_one_of_many_are_ready_at_once() -> None:
    async with servers(1) as own, AsyncExitStack() as stack:
        *_, (dead, _), (alive, _) = opened = await consumers(own, stack, MANY)
        dead.lose_session()
        await own.clock.advance(1)
        assert (await alive.queue("jobs").size()).claimed == len(opened) - 1
        assert await alive.queue("jobs").pop_one(timeout=1)
