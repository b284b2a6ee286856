"""Members of flows that wait for others, by name: nothing comes early, and nothing waits for ever."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, take

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


async def push(flow: zkrq.Flow, name: str, **options: Any) -> zkrq.Receipt:
    """Push a member under a name."""
    return await flow.push(name, name=name, **options)


async def test_a_diamond_over_several_queues(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    price, stock, ship = (cluster.queue(f"{name}-{each}") for each in ("price", "stock", "ship"))
    async with queue.flow("order") as flow:
        await push(flow, "a")
        await push(flow, "b", queue=price, after="a")
        await push(flow, "c", queue=stock, after=["a"])
        await push(flow, "d", queue=ship, after=["b", "c", "b"])
        await flow.then("after")
    status = await flow.status()
    assert (status.left, len(status.ids["left"])) == (4, 4)
    for each in (price, stock, ship):
        assert await each.pop_one(timeout=0) is None
    await (await take(queue)).ack()
    await (await take(price)).ack()
    assert await ship.pop_one(timeout=0) is None
    await (await take(stock)).ack()
    last = await take(ship)
    assert (last.item, last.id) == ("d", "order.d")
    assert await queue.pop_one(timeout=0) is None
    await last.ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    assert (await take(queue)).item == "after"


async def test_a_member_that_is_acked_before_need_not_be_waited_for(queue: Queue) -> None:
    async with queue.flow() as flow:
        await push(flow, "a")
        await (await take(queue)).ack()
        await push(flow, "b", after="a")
        assert (await take(queue)).item == "b"


async def test_a_member_waits_for_all_items_of_a_chain(queue: Queue) -> None:
    async with queue.flow() as flow:
        await push(flow, "0")
        for number in range(1, 6):
            await push(flow, str(number), after=str(number - 1))
    for number in range(6):
        claim = await take(queue)
        assert claim.item == str(number)
        assert await queue.pop_one(timeout=0) is None
        await claim.ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_a_handler_adds_members_that_wait(queue: Queue) -> None:
    async with queue.flow() as flow:
        await push(flow, "a")
    claim = await take(queue)
    assert claim.flow
    await push(claim.flow, "b", after="a")
    assert await queue.pop_one(timeout=0) is None
    await claim.ack()
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


async def test_what_waits_for_a_dead_letter_comes_after_a_redrive(queue: Queue) -> None:
    async with queue.flow() as flow:
        await push(flow, "a")
        await push(flow, "b", after="a")
    await (await take(queue)).bury("why")
    status = await flow.status()
    assert (status.state, status.left, status.dead) == ("running", 1, 1)
    assert await queue.pop_one(timeout=0) is None
    assert await flow.redrive() == 1
    await (await take(queue)).ack()
    assert (await take(queue)).item == "b"


async def test_what_waits_is_removed_when_the_flow_fails(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    other = cluster.queue(f"{name}-other")
    async with queue.flow() as flow:
        await push(flow, "a")
        await push(flow, "b", after="a", queue=other)
        await push(flow, "c", after="b")
        await flow.then("then")
        await flow.on_failure("undo")
    await (await take(queue)).bury("why")
    status = await flow.result(timeout=HANG)
    assert (status.state, status.dead, status.missed) == ("failed", 1, 2)
    assert (await take(queue)).item == "undo"
    assert await other.pop_one(timeout=0) is None


async def test_what_waits_for_a_removed_member(queue: Queue) -> None:
    async with queue.flow("strict") as flow:
        await push(flow, "a")
        await push(flow, "b", after="a")
    await queue.cancel("strict.a")
    assert ((await flow.status()).state, (await flow.status()).missed) == ("running", 1)
    await flow.cancel()
    assert await queue.pop_one(timeout=0) is None
    async with queue.flow("mild", ignore_missed=True) as flow:
        await push(flow, "a")
        await push(flow, "b", after="a")
    await queue.cancel("mild.a")
    await flow.status()
    await flow.result(timeout=0)
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"


@pytest.mark.parametrize("end", ["cancel", "finish"])
async def test_what_waits_is_removed_when_the_flow_is_ended(queue: Queue, end: str) -> None:
    async with queue.flow() as flow:
        await push(flow, "a")
        await push(flow, "b", after="a")
    claim = await take(queue)
    await getattr(flow, end)()
    await claim.ack()
    assert await queue.pop_one(timeout=0) is None
    assert not any(await queue.size())


async def test_bad_names_write_nothing(cluster: zkrq.Cluster, queue: Queue, name: str) -> None:
    async with queue.flow() as flow:
        for after in ("none", "self", ["none"], {"a b"}, "x" * 64, [7]):
            with pytest.raises(zkrq.ConfigError, match="after"):
                await push(flow, "self", after=after)
        with pytest.raises(zkrq.ConfigError, match="number of after is 101"):
            await push(flow, "b", after=[f"n{number}" for number in range(101)])
        await push(flow, "a")
        with pytest.raises(zkrq.ConfigError, match="at of what is held"):
            await push(flow, "b", after="a", at=datetime.now(UTC))
        ordered: Queue = cluster.queue(f"{name}-ordered", groups=zkrq.Groups(ordered=True))
        with pytest.raises(zkrq.ConfigError, match="keeps the order"):
            await push(flow, "b", after="a", queue=ordered)
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    with pytest.raises(zkrq.FlowEnded):
        await push(flow, "late", after="a")
