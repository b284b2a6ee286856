"""Flows: what comes after is handed out once every member is done; bad input writes nothing, and nothing waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import is_empty, working
from tests.harness import HANG, settled, take

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


async def is_held(queue: Queue) -> bool:
    """Whether nothing is handed out."""
    return await queue.pop_one(timeout=0) is None


async def test_what_follows_is_handed_out_once_every_member_is_done(queue: Queue) -> None:
    async with queue.flow("import") as flow:
        assert (flow.name, flow.queue) == ("import", queue.name)
        receipt = await flow.push("one")
        receipts = await flow.push_many(["two", "three"])
        follows = await flow.then("report")
    assert all(each.new for each in (receipt, *receipts, follows))
    claims = [await take(queue) for _ in range(3)]
    assert sorted(claim.item for claim in claims) == ["one", "three", "two"]
    assert (await flow.status()).state is zkrq.FlowState.RUNNING
    for claim in claims:
        assert await is_held(queue)
        await claim.ack()
    status = await flow.result(timeout=HANG)
    assert (status.name, status.queue, status.state) == ("import", queue.name, "done")
    last = await take(queue)
    assert (last.item, last.id) == ("report", follows.id)
    await last.ack()
    assert await flow.result() == status
    assert await settled_empty(queue)


async def settled_empty(queue: Queue) -> bool:
    await settled(lambda: is_empty(queue))
    return True


async def test_an_open_flow_does_not_end(queue: Queue) -> None:
    flow = await queue.flow().begin()
    await flow.then("after")
    await flow.push("a")
    await (await take(queue)).ack()
    assert (await flow.status()).state is zkrq.FlowState.OPEN
    assert (await flow.result(timeout=0)).state is zkrq.FlowState.OPEN
    assert await is_held(queue)
    await flow.seal()
    assert (await flow.result(timeout=HANG)).state.has_ended
    assert (await take(queue)).item == "after"


async def test_a_flow_without_members_ends_immediately(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.then("after")
    assert (await take(queue)).item == "after"
    assert (await flow.status()).state is zkrq.FlowState.DONE


async def test_members_push_members(queue: Queue) -> None:
    """Items add items to a sealed flow until none is left."""
    async with queue.flow("crawl") as flow:
        await flow.push(3)
        await flow.then("end")
    seen = list[Any]()

    async def crawl(depth: Any, claim: zkrq.Claim[Any]) -> None:
        assert claim.flow
        assert (claim.flow.queue, claim.flow.name) == (queue.name, "crawl")
        if isinstance(depth, int) and depth:
            await claim.flow.push_many([depth - 1] * 2)
        seen.append(depth)

    async with working(queue, crawl, concurrency=4):
        assert (await flow.result(timeout=HANG)).state is zkrq.FlowState.DONE
        await settled(lambda: is_empty(queue))
    assert seen.pop() == "end"
    assert sorted(seen) == [0] * 8 + [1] * 4 + [2] * 2 + [3]


async def test_a_flow_that_is_cancelled_drops_what_follows(queue: Queue) -> None:
    flow = await queue.flow().begin()
    await flow.then("after")
    await flow.cancel()
    await flow.cancel()
    assert (await flow.status()).state is zkrq.FlowState.CANCELLED
    assert await settled_empty(queue)


async def test_a_flow_that_is_finished_is_done_whatever_is_left(queue: Queue) -> None:
    async with queue.flow() as flow:
        await flow.push("bad")
        await flow.then("after")
    await (await take(queue)).bury("why")
    assert (await flow.status()).state is zkrq.FlowState.RUNNING
    await flow.finish()
    assert (await take(queue)).item == "after"
    with pytest.raises(zkrq.FlowEnded, match=r"has ended \(done\)"):
        await flow.cancel()


async def test_an_exception_cancels_a_flow_unless_it_says_that_the_work_is_repeated(queue: Queue) -> None:
    flow = queue.flow("a")
    with pytest.raises(ZeroDivisionError):
        async with flow:
            await flow.push("member")
            raise ZeroDivisionError
    assert (await flow.status()).state is zkrq.FlowState.CANCELLED
    flow = queue.flow("b")
    with pytest.raises(zkrq.Unavailable):
        async with flow:
            await flow.push("member")
            raise zkrq.Unavailable
    assert (await flow.status()).state is zkrq.FlowState.OPEN
    async with queue.flow("b") as flow:
        await flow.push("another")
    assert (await flow.status()).state is zkrq.FlowState.RUNNING


async def test_nothing_comes_into_a_flow_that_has_ended(queue: Queue) -> None:
    async with queue.flow("once") as flow:
        pass
    await flow.result(timeout=HANG)
    with pytest.raises(zkrq.FlowEnded):
        await flow.push("late")
    with pytest.raises(zkrq.FlowEnded):
        await flow.then("late")
    with pytest.raises(zkrq.FlowEnded) as caught:
        await flow.push_many(["late", "later"])
    assert caught.value.outcomes is not None
    assert [type(error) for error in caught.value.outcomes.errors] == [zkrq.FlowEnded] * 2
    with pytest.raises(zkrq.FlowEnded, match="done") as caught:
        await queue.flow("once").begin()
    assert caught.value.outcome == "done"
    assert await is_empty(queue)


async def test_a_flow_that_was_not_begun_takes_nothing(queue: Queue) -> None:
    flow = queue.flow("never")
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.push("a")
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.push_many(["a"])
    with pytest.raises(zkrq.ConfigError, match="was not begun"):
        await flow.then("a")
    assert (await flow.status()).state is zkrq.FlowState.UNKNOWN
    for call in (flow.seal, flow.cancel, flow.finish, flow.result):
        with pytest.raises(zkrq.FlowEnded, match="unknown"):
            await call()
    assert await is_empty(queue)


@pytest.mark.parametrize("bad", ["", "a/b", "a b", "x" * 65, ".a", 7])
async def test_a_bad_name_is_refused(queue: Queue, bad: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="the flow's name"):
        queue.flow(bad)


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 10**9}, {"deadline": -1}, {"deadline": 0}])
async def test_a_bad_policy_is_refused(queue: Queue, options: Any) -> None:
    with pytest.raises(zkrq.ConfigError):
        queue.flow("a", **options)


async def test_options_of_members_are_those_of_pushes(queue: Queue) -> None:
    async with queue.flow() as flow:
        with pytest.raises(TypeError, match="'delay'"):
            await flow.push("a", countdown=3)  # pyright: ignore[reportCallIssue]
        with pytest.raises(TypeError, match="push_many"):
            await flow.push_many(["a"], id="b")  # pyright: ignore[reportCallIssue]
        with pytest.raises(zkrq.ConfigError, match="priority"):
            await flow.push("a", priority=10)
        with pytest.raises(zkrq.ConfigError, match="not a str"):
            await flow.push_many("abc")
        assert (await flow.push("a", id="mine", priority=3, headers={"trace": "1"})).id == "mine"
        assert (await flow.push("a", id="mine")).new is False
        assert (await flow.push("b", key="k")).new
        assert (await flow.push("b", key="k")).duplicate
    claim = await take(queue)
    assert (claim.id, claim.priority, claim.headers) == ("mine", 3, {"trace": "1"})
    await claim.ack()
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_nothing_is_held_in_a_queue_that_keeps_an_order(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True))
    async with queue.flow() as flow:
        await flow.push("a", group="g")
        with pytest.raises(zkrq.ConfigError, match="keeps the order"):
            await flow.then("b")
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_many_pushes_share_calls(queue: Queue) -> None:
    async with queue.flow() as flow:
        receipts = await asyncio.gather(*(flow.push(number) for number in range(100)))
        await flow.then("after")
    assert len({receipt.id.partition("~")[0] for receipt in receipts}) < 10
    for claim in await queue.pop_many(100, timeout=HANG):
        await claim.ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    assert (await take(queue)).item == "after"


async def test_the_item_that_follows_names_its_flow(queue: Queue) -> None:
    async with queue.flow("import") as flow:
        await flow.then("report")
    claim = await take(queue)
    assert claim.flow
    assert (await claim.flow.status()).state == "done"
    with pytest.raises(zkrq.FlowEnded):
        await claim.flow.push("late")
    await claim.ack()
    await queue.push("alone")
    assert (await take(queue)).flow is None
