"""A consumer's settlement and its next claim request are one decision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.harness import HANG, settled, take, until
from zkrq.consuming.core.supply import IS_DUE, WAITING
from zkrq.protocol import calls
from zkrq.protocol.calls import Decision
from zkrq.protocol.deciding import Decided
from zkrq.replication.replicas import Replicas

pytestmark = pytest.mark.anyio

CONSUMING = (calls.Claim, calls.Settle, calls.Turn)


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the scripts by which consumers decide, in the order in which they were called."""
    names, decide = list[str](), Replicas.decide

    async def noted(replicas: Replicas, call: Decision[Any]) -> Decided[Any]:
        if isinstance(call, CONSUMING):
            names.append(call.script)
        return await decide(replicas, call)

    monkeypatch.setattr(Replicas, "decide", noted)
    return names


@pytest.fixture
async def queue(cluster: zkrq.Cluster, name: str) -> zkrq.Queue[Any]:
    return cluster.queue(name, claim_timeout=10 * HANG)


async def test_a_worker_acks_and_claims_in_one_decision(queue: zkrq.Queue[Any], decisions: list[str]) -> None:
    await queue.push_many(range(3))
    handled = list[int]()
    await zkrq.Worker(concurrency=1).add(queue, handled.append).run(burst=True)
    assert handled == [0, 1, 2]
    assert decisions[:4] == ["claim", "turn", "turn", "turn"]
    assert "settle" not in decisions


async def test_a_failed_item_and_the_next_request_are_one_decision(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    await queue.push_many(["bad", "good"])

    async def handle(item: str) -> None:
        if item == "bad":
            raise zkrq.RetryLater(delay=60)

    await zkrq.Worker(concurrency=1).add(queue, handle).run(burst=True)
    assert decisions[:3] == ["claim", "turn", "turn"]
    assert await queue.size() == (0, 1, 0, 0)


async def test_a_loop_finds_its_next_item_when_its_ack_returns(queue: zkrq.Queue[Any], decisions: list[str]) -> None:
    await queue.push_many(range(3))
    async with queue.pop() as stream:
        for item in range(3):  # more of them are a pace, and then some are claimed ahead of the acks
            claim = await anext(stream)
            assert claim.item == item
            await claim.ack()
    assert decisions[0] == "claim"
    assert "settle" not in decisions


async def test_a_request_leaves_when_less_than_half_is_left(queue: zkrq.Queue[Any], decisions: list[str]) -> None:
    """Also directly after another one, during which the loop went on taking: not for each item that it took."""
    items, prefetch = 2000, 200
    await queue.push_many(range(items))
    async with asyncio.TaskGroup() as acks, queue.pop(prefetch=prefetch, limit=items - prefetch) as stream:
        async for claim in stream:
            acks.create_task(claim.ack())
            await asyncio.sleep(0)
    requests = len(decisions) - decisions.count("settle")
    assert requests <= items // (prefetch // 10), "one for each item or two that it took would be several times as many"


async def test_a_batch_is_acked_and_the_next_one_claimed_in_one_decision(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    await queue.push_many(range(25))
    sizes = list[int]()
    async with queue.pop_batches(10) as stream:
        for _ in range(3):
            batch = await anext(stream)
            sizes.append(len(batch))
            await batch.ack()
    assert sizes == [10, 10, 5]
    assert set(decisions[2:]) == {"turn"}, "as a loop over single items"


async def test_a_worker_of_batches_acks_and_claims_in_one_decision(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    await queue.push_many(range(30))
    sizes = list[int]()

    async def handle(items: list[int]) -> None:
        sizes.append(len(items))

    await zkrq.Worker(concurrency=1).add(queue, handle, batch=10).run(burst=True)
    assert sizes == [10, 10, 10]
    assert decisions[:4] == ["claim", "turn", "turn", "turn"]
    assert "settle" not in decisions
    assert not any(await queue.size())


async def test_a_loop_that_waits_has_asked_with_its_ack(queue: zkrq.Queue[Any], decisions: list[str]) -> None:
    """What it settled last told it that nothing is ready, and left its wake-up channel."""
    stream = queue.pop()
    async with stream:
        for item in range(2):  # more of them are a pace, and then items are claimed ahead
            following = asyncio.ensure_future(anext(stream))
            await settled(lambda: _waits(queue))
            await queue.push(item)
            await (await following).ack()
    assert decisions == ["claim", "claim", "turn", "claim", "turn"], "the first looks, the others follow a wake-up"


async def test_a_loop_that_waits_while_its_claims_are_acked_elsewhere_is_not_asked_for(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    """As in frameworks, which ack in tasks of their own: the waiting consumer has asked already."""
    await queue.push_many(range(2))
    async with queue.pop() as stream:
        claims = [await anext(stream) for _ in range(2)]
        following = asyncio.ensure_future(anext(stream))
        await settled(lambda: _waits(queue))
        decisions.clear()
        for claim in claims:
            await claim.ack()
        assert decisions == ["settle", "settle"]
        following.cancel()
        await asyncio.wait([following])


async def test_a_loop_that_got_less_than_it_asked_for_waits_without_asking(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    """The request that brought the last item has left a wake-up channel."""
    async with queue.pop(prefetch=2) as stream:
        for item in range(3):
            following = asyncio.ensure_future(anext(stream))
            await settled(lambda: _waits(queue))
            await queue.push(item)
            await following
    assert decisions == ["claim"] * 4, "the first looks, the others follow a wake-up"


async def test_a_call_with_a_time_limit_asks_although_nothing_is_there(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    """Or an empty queue would look like servers that do not answer."""
    await queue.push("one")
    async with queue.pop(prefetch=2) as stream:
        await (await anext(stream)).ack()
        decisions.clear()
        assert await queue.pop_one(timeout=1.0) is None
    assert "claim" in decisions


async def test_a_loop_without_prefetch_claims_nothing_with_its_ack(
    queue: zkrq.Queue[Any], decisions: list[str]
) -> None:
    await queue.push_many(range(3))
    async with queue.pop(prefetch=0) as stream:
        for _ in range(3):
            await (await anext(stream)).ack()
            assert queue.held == 0
    assert "turn" not in decisions


async def test_what_was_claimed_with_the_last_ack_goes_back(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(3))
    async with queue.pop() as stream:
        for _ in range(2):
            await (await anext(stream)).ack()
        assert queue.held == 1
    claim = await take(queue)
    assert (claim.item, claim.attempts) == (2, 1)


async def test_a_queue_that_closes_claims_nothing_with_what_it_hands_back(
    queue: zkrq.Queue[Any], connect: Connect
) -> None:
    await queue.push_many(range(3))
    async with connect() as closing:
        stream = closing.queue(queue.name, claim_timeout=10 * HANG).pop(prefetch=2)
        await (await anext(stream)).ack()
    claims = await queue.pop_many(2)
    assert [(claim.item, claim.attempts) for claim in claims] == [(1, 1), (2, 1)]


async def test_an_error_concerns_both_and_the_request_is_repeated(
    queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its number, because the servers may have decided it."""
    decide, requests = Replicas.decide, list[tuple[str, int]]()

    async def lose_the_first_answer(replicas: Replicas, call: Decision[Any]) -> Decided[Any]:
        answer = await decide(replicas, call)
        if isinstance(call, calls.Claim | calls.Turn):
            requests.append((call.script, call.seq))
            if [script for script, _ in requests].count("turn") == 1 and call.script == "turn":
                raise zkrq.OutcomeUnknown("the answer was lost")
        return answer

    monkeypatch.setattr(Replicas, "decide", lose_the_first_answer)
    await queue.push_many(range(4))
    async with queue.pop() as stream:
        claims = [await anext(stream)]
        with pytest.raises(zkrq.OutcomeUnknown):
            while True:
                await claims[-1].ack()
                claims.append(await anext(stream))
        assert claims[-1].holds
        await claims[-1].ack()
        following = await anext(stream)
        assert (following.item, following.attempts) == (len(claims), 1)
    lost = next(seq for script, seq in requests if script == "turn")
    assert [seq for _, seq in requests].count(lost) == 2


async def test_a_fenced_consumer_loses_its_claim_and_claims_under_another_id(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster
) -> None:
    await queue.push_many(range(2))
    async with queue.pop() as stream:
        await (await anext(stream)).ack()
        claim = await anext(stream)
        replicas = queue._parts.shards[0].replicas  # pyright: ignore[reportPrivateUsage]
        await replicas.decide(calls.Fence(queue.name, claim.owner))
        with pytest.raises(zkrq.ClaimLost):
            await claim.ack()
        again = await anext(stream)
        assert (again.item, again.attempts) == (1, 2)
        assert again.owner != claim.owner
        await again.ack()


async def test_an_item_that_came_between_the_ack_and_the_wait_is_found(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime
) -> None:
    """Its wake-up arrived while nobody waited here: the consumer that comes back has to ask again."""
    supplier = queue._parts.shards[0].supplier  # pyright: ignore[reportPrivateUsage]
    async with connect() as other, queue.pop() as stream:
        for item in range(3):
            await other.queue(queue.name).push(item)
            claim = await asyncio.wait_for(anext(stream), HANG)
            assert claim.item == item
            await claim.ack()
            await other.queue(queue.name).push("between")
            await until(lambda: supplier.supply.state not in IS_DUE)
            between = await asyncio.wait_for(anext(stream), HANG)
            assert between.item == "between"
            await between.ack()


async def test_a_wake_up_during_a_request_leads_to_one_for_the_worker_that_comes_back(
    queue: zkrq.Queue[Any], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to one that only passes the wake-up on, for whose answer the worker's own would have to wait."""
    supplier = queue._parts.shards[0].supplier  # pyright: ignore[reportPrivateUsage]
    counts, begun, gate, decide = list[int](), asyncio.Queue[int](), asyncio.Event(), Replicas.decide

    async def noted(replicas: Replicas, call: Decision[Any]) -> Decided[Any]:
        decided = await decide(replicas, call)
        if isinstance(call, calls.Claim):
            counts.append(call.count)
            if len(counts) == 2:
                await other.queue(queue.name).push(2)
                await until(lambda: supplier.supply.state in IS_DUE)
        return decided

    async def handle(item: int) -> None:
        begun.put_nowait(item)
        await gate.wait()

    monkeypatch.setattr(Replicas, "decide", noted)
    async with connect() as other, zkrq.Worker(concurrency=3).add(queue, handle):
        await settled(lambda: _waits(queue))
        await other.queue(queue.name).push(1)
        async with asyncio.timeout(HANG):
            assert [await begun.get(), await begun.get()] == [1, 2]
        gate.set()
    assert counts[:3] == [3, 3, 2]


async def _waits(queue: zkrq.Queue[Any]) -> bool:
    """Whether a consumer waits, and its request was answered."""
    parts = queue._parts  # pyright: ignore[reportPrivateUsage]
    return bool(parts.line.dispatch.waiters) and parts.shards[0].supplier.supply.state in WAITING
