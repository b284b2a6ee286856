"""Results: what became of an item, and what its handler returned; told once it is on every in-sync server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import FEW_ATTEMPTS, working
from tests.harness import HANG, take
from zkrq.base.limits import RESULT_BYTES
from zkrq.client import awaiting
from zkrq.client.inner import client_of
from zkrq.client.results import reading
from zkrq.client.stored import ASKED_AT_ONCE, Rank, StoredResult, StoredResults
from zkrq.protocol import calls
from zkrq.protocol.records import unpack

pytestmark = pytest.mark.anyio

DONE, DEAD, CANCELLED, EXPIRED, QUEUED, CLAIMED, UNKNOWN = zkrq.ResultState


@pytest.fixture
async def sums(cluster: zkrq.Cluster, name: str) -> zkrq.ResultQueue[Any, Any]:
    return cluster.queue(name, results=zkrq.Results(ttl=3600), retry=FEW_ATTEMPTS)


@pytest.fixture
def nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a caller hears, it was told: by itself it asks too late."""
    monkeypatch.setattr(awaiting, "ASK_AGAIN_SECONDS", 10 * HANG)


async def double(item: Any) -> Any:
    return 2 * item


@pytest.mark.usefixtures("nobody_asks_again")
async def test_call_returns_what_the_handler_returned(sums: zkrq.ResultQueue[Any, Any]) -> None:
    async with working(sums, double):
        assert await sums.call(21, timeout=HANG) == 42
        assert await sums.call("ab", timeout=HANG) == "abab"


@pytest.mark.usefixtures("nobody_asks_again")
async def test_caller_in_another_process_is_woken(sums: zkrq.ResultQueue[Any, Any], connect: Connect) -> None:
    async with connect() as other:
        there = other.queue(sums.name, results=zkrq.Results(ttl=3600), retry=FEW_ATTEMPTS)
        receipt = await there.push(4)
        waiting = asyncio.create_task(receipt.result(timeout=HANG))
        claim = await take(sums)
        await claim.ack(result={"sum": 5})
        result = await waiting
        assert (result.state, result.value, result.has_value, result.has_ended) == (DONE, {"sum": 5}, True, True)
        assert result.get() == {"sum": 5}


@pytest.mark.parametrize("function", ["in a thread", "that returns an awaitable"])
async def test_plain_function_returns_a_result(sums: zkrq.ResultQueue[Any, Any], function: str) -> None:
    def handler(item: int) -> Any:
        return item + 1 if function == "in a thread" else double(item)

    async with working(sums, handler):
        assert await sums.call(7, timeout=HANG) == (8 if function == "in a thread" else 14)


async def test_handler_that_returns_nothing_is_done_with_none(sums: zkrq.ResultQueue[Any, Any]) -> None:
    async with working(sums, print):
        receipt = await sums.push(1)
        result = await receipt.result(timeout=HANG)
    assert (result.state, result.value, result.has_value) == (DONE, None, True)


async def test_end_of_the_context_is_done_with_none(sums: zkrq.ResultQueue[Any, Any]) -> None:
    receipt = await sums.push(1)
    async with await take(sums):
        pass
    assert (await receipt.result(timeout=HANG)).has_value


async def test_what_is_told_of_items_that_were_not_done(
    sums: zkrq.ResultQueue[Any, Any], cluster: zkrq.Cluster, pass_time: PassTime
) -> None:
    async def told(id: str) -> zkrq.Result[Any]:
        return await sums.result(id, timeout=0)

    late = await sums.push("late", ttl=0.01)
    await pass_time(0.1)
    assert await sums.pop_many(1, timeout=0) == []
    assert (await told(late.id)).state is EXPIRED
    cancelled = await sums.push("cancelled")
    await sums.cancel(cancelled.id)
    assert (await told(cancelled.id)).state is CANCELLED
    buried = await sums.push("dead")
    assert (await told(buried.id)).state is QUEUED
    claim = await take(sums)
    held = await told(buried.id)
    assert (held.state, held.owner, held.has_ended) == (CLAIMED, claim.owner, False)
    await claim.bury("no such order")
    dead = await told(buried.id)
    assert (dead.state, dead.reason) == (DEAD, "no such order")
    with pytest.raises(zkrq.NoResult, match=f"{buried.id} has no result, it is dead .no such order.") as caught:
        dead.get()
    assert caught.value.id == buried.id
    assert (await told("never pushed")).state is UNKNOWN


async def test_call_raises_when_its_item_dies(sums: zkrq.ResultQueue[Any, Any]) -> None:
    def fail(item: object) -> None:
        raise LookupError("no such order")

    async with working(sums, fail):
        with pytest.raises(zkrq.NoResult, match="LookupError: no such order"):
            await sums.call(1, timeout=HANG)


async def test_call_raises_when_nobody_has_done_its_item_in_time(sums: zkrq.ResultQueue[Any, Any]) -> None:
    with pytest.raises(zkrq.NoResult, match="it is queued: no consumer has claimed it in time") as caught:
        await sums.call(1, timeout=0.05)
    async with working(sums, double):
        assert caught.value.id
        assert (await sums.result(caught.value.id, timeout=HANG)).get() == 2


async def test_results_of_many(sums: zkrq.ResultQueue[Any, Any]) -> None:
    receipts = await sums.push_many(range(250))
    ids = [receipt.id for receipt in receipts]
    async with working(sums, double):
        found = await sums.results(ids, timeout=HANG)
    assert [found[id].value for id in ids] == [2 * n for n in range(250)]


async def test_batch_has_a_result_for_each_item(sums: zkrq.ResultQueue[Any, Any]) -> None:
    ids = [receipt.id for receipt in await sums.push_many(range(120))]
    done = 0
    async for batch in sums.pop_batches(50, wait=False):
        with pytest.raises(zkrq.ConfigError, match="give one for each"):
            await batch.ack(results=[1])
        assert await batch.ack(results=[item + 1 for item in batch.items]) == []
        done += len(batch)
    assert done == 120
    found = await sums.results(ids, timeout=0)
    assert [found[id].value for id in ids] == [n + 1 for n in range(120)]


async def test_ack_many_has_a_result_for_each_item(sums: zkrq.ResultQueue[Any, Any]) -> None:
    ids = [receipt.id for receipt in await sums.push_many(["a", "b", "c"])]
    claims = await sums.pop_many(3, timeout=HANG)
    assert await sums.ack_many(claims, ["x", None, "z" * 20_000]) == []
    found = await sums.results(ids, timeout=0)
    assert [found[id].value for id in ids] == ["x", None, "z" * 20_000]


async def test_handler_of_batches_returns_a_result_for_each_item(sums: zkrq.ResultQueue[Any, Any]) -> None:
    worker = zkrq.Worker()
    worker.add(sums, lambda items: [2 * item for item in items], batch=10)
    ids = [receipt.id for receipt in await sums.push_many(range(25))]
    await worker.run(burst=True)
    found = await sums.results(ids, timeout=0)
    assert [found[id].value for id in ids] == [2 * n for n in range(25)]


async def test_result_that_is_too_large_is_refused_and_the_item_is_not_acked(sums: zkrq.ResultQueue[Any, Any]) -> None:
    await sums.push(1)
    claim = await take(sums)
    with pytest.raises(zkrq.PayloadTooLarge, match=f"at most {RESULT_BYTES} are kept; the item was not acked"):
        await claim.ack(result="x" * RESULT_BYTES)
    with pytest.raises(zkrq.CodecError, match="the result cannot be encoded as json"):
        await claim.ack(result={1, 2})
    assert claim.holds
    await claim.ack(result="x" * (RESULT_BYTES - 2))
    assert len((await sums.result(claim.id, timeout=0)).get()) == RESULT_BYTES - 2


async def test_handler_whose_result_is_too_large_has_failed(sums: zkrq.ResultQueue[Any, Any]) -> None:
    receipt = await sums.push(1)

    def much(item: object) -> str:
        return "x" * RESULT_BYTES

    async with working(sums, much):
        result = await receipt.result(timeout=HANG)
    assert result.state is DEAD
    assert "PayloadTooLarge" in (result.reason or "")


async def test_queue_without_results_takes_none(queue: zkrq.Queue[Any]) -> None:
    assert not hasattr(queue, "result")
    await queue.push(1)
    claim = await take(queue)
    with pytest.raises(zkrq.ConfigError, match="keeps no results: give cluster"):
        await claim.ack(result=1)
    await claim.ack()


async def test_ack_of_a_consumer_that_keeps_no_results_has_none(
    sums: zkrq.ResultQueue[Any, Any], connect: Connect
) -> None:
    receipt = await sums.push(1)
    async with connect() as other:
        await (await take(other.queue(sums.name))).ack()
    result = await receipt.result(timeout=HANG)
    assert (result.state, result.has_value) == (DONE, False)
    with pytest.raises(zkrq.NoResult, match="give the queue's consumers results="):
        result.get()


async def test_cancelled_wait_leaves_the_others(sums: zkrq.ResultQueue[Any, Any]) -> None:
    receipt = await sums.push(3)
    waits = [asyncio.create_task(receipt.result(timeout=HANG)) for _ in range(3)]
    await asyncio.sleep(0)
    waits[0].cancel()
    async with working(sums, double):
        results = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [result.value for result in results[1:] if isinstance(result, zkrq.Result)] == [6, 6]


async def test_closing_ends_the_wait(own_cluster: zkrq.Cluster) -> None:
    queue = own_cluster.queue("q", results=zkrq.Results())
    receipt = await queue.push(3)
    waiting = asyncio.create_task(receipt.result(timeout=HANG))
    for _ in range(20):
        await asyncio.sleep(0)
    await own_cluster.aclose()
    with pytest.raises(zkrq.Closed):
        await waiting


@pytest.mark.parametrize("ttl", [0, 0.5, -1, 40 * 86400])
async def test_ttl_has_bounds(ttl: float) -> None:
    with pytest.raises(zkrq.ConfigError):
        zkrq.Results(ttl=ttl)


async def test_callers_of_several_faces_share_what_waits() -> None:
    """As over HTTP, where each request reads by a face of its own."""
    before = asyncio.all_tasks()
    async with zkrq.testing.cluster() as cluster:
        queue: zkrq.Queue[Any] = cluster.queue("emails")
        ids = [(await queue.push("x")).id for _ in range(4)]
        waiting: list[asyncio.Task[Any]] = []
        for id in ids[:3]:
            waiting.append(asyncio.create_task(reading(queue).result(id, timeout=None)))
            await cluster.clock.advance(0.1)
        await queue.cancel(ids[0])
        await cluster.clock.advance(1.0)
        assert [task.done() for task in waiting] == [True, False, False], "woken, not polled"
        names = [task.get_name() for task in asyncio.all_tasks() - before]
        assert sum("wait for results" in name for name in names) == 1
    await asyncio.wait(waiting, timeout=HANG)
    assert all(task.done() for task in waiting)
    assert all(isinstance(task.exception(), zkrq.Closed) for task in waiting[1:])


async def test_what_forgets_a_part_does_not_say_that_nothing_was_forgotten(
    cluster: zkrq.Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = StoredResults(cluster.queue(name, codec=zkrq.RAW))
    ids = [f"task {number}" for number in range(ASKED_AT_ONCE + 1)]
    for id in ids:
        await stored.store(id, b"done", ttl=60)
    replicas = client_of(cluster).shards.first.replicas
    decide, answers = replicas.decide, iter([True])

    async def one(call: Any) -> Any:
        if next(answers, None):
            return await decide(call)
        raise zkrq.Unavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(replicas, "decide", one)
        with pytest.raises(zkrq.OutcomeUnknown, match="a part was done"):
            await stored.forget(ids)
        with pytest.raises(zkrq.Unavailable):
            await stored.forget(ids)
    assert [kept is not None for kept in await stored.get(ids)] == [False] * ASKED_AT_ONCE + [True]


async def test_a_large_result_that_is_replaced_or_forgotten_leaves_nothing(cluster: zkrq.Cluster, name: str) -> None:
    """Nor do the parts of one that is not kept, because one of greater rank is."""
    stored = StoredResults(cluster.queue(name, codec=zkrq.RAW))
    replicas = client_of(cluster).shards.first.replicas

    async def kept() -> int:
        """How many results are kept, parts among them."""
        records = [unpack(copy.record) async for page, _ in replicas.pages(calls.Page(name, calls.START, 100))
                   for copy in page.items]  # fmt: skip
        return sum(bool(record.own) for record in records)

    large, larger = b"a" * 70_000, b"b" * 100_000
    await stored.store("task", large, ttl=60, rank=Rank.FAILED)
    assert await kept() == 4
    await stored.store("task", larger, ttl=60)
    assert (await kept(), await stored.get(["task"])) == (5, [StoredResult(larger, is_last=True)])
    await stored.store("task", large, ttl=60, rank=Rank.FAILED)
    assert (await kept(), await stored.get(["task"])) == (5, [StoredResult(larger, is_last=True)])
    await stored.store("task", b"small", ttl=60)
    assert (await kept(), await stored.get(["task"])) == (1, [StoredResult(b"small", is_last=True)])
    await stored.store("task", large, ttl=60)
    await stored.forget(["task", "another"])
    assert (await kept(), await stored.get(["task"])) == (0, [None])


async def test_a_result_is_not_kept_under_the_id_of_an_item(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    await queue.push(b"1", id="item")
    stored = StoredResults(queue)
    for value in (b"done", b"x" * 100_000):
        with pytest.raises(zkrq.ConfigError, match=f"'item' is the id of an item of queue '{name}'.*nothing was kept"):
            await stored.store("item", value, ttl=60)
    with pytest.raises(zkrq.ConfigError, match="nothing was kept"):
        await stored.count("item", "counter", ttl=60)
    item = await queue.get("item")
    assert item is not None
    assert item.state == "ready"
