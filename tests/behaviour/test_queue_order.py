"""A queue whose order somebody has declared keeps it, also for programs that know nothing of it."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import zkrq
from zkrq.replication.batching import MAX_BATCH

pytestmark = pytest.mark.anyio

ORDERED = zkrq.Groups(ordered=True)


async def take(queue: zkrq.Queue[Any], count: int) -> list[zkrq.Claim[Any]]:
    """Claim and ack this many items, one after the other."""
    claims = list[zkrq.Claim[Any]]()
    async for claim in queue.pop(limit=count):
        claims.append(claim)
        await claim.ack()
    return claims


@pytest.fixture
async def queue(cluster: zkrq.Cluster, name: str) -> zkrq.Queue[Any]:
    """A queue of a program that does not say that it keeps an order."""
    queue = cluster.queue(name)
    await queue.set_groups(ORDERED)
    return queue


async def test_pushes_come_in_order_with_tokens_that_grow(queue: zkrq.Queue[Any]) -> None:
    receipts = await queue.push_many(["created", "paid"], group="order-1")
    receipt = await queue.push("closed", id="the last", group="order-1")
    assert (receipt.id, receipt.new) == ("the last", True)
    claims = await take(queue, 3)
    assert [claim.item for claim in claims] == ["created", "paid", "closed"]
    assert [claim.id for claim in claims] == [
        *(each.id for each in receipts.outcomes() if isinstance(each, zkrq.Receipt)),
        "the last",
    ]
    assert all(former.token < later.token for former, later in itertools.pairwise(claims))
    again = await queue.push("closed", id="the last", group="order-1")
    assert (again.new, again.done) == (False, True)


@pytest.mark.parametrize("group", ["order-1", None])
async def test_items_of_before_come_one_at_a_time_with_tokens_that_grow(
    cluster: zkrq.Cluster, name: str, group: str | None
) -> None:
    """A consumer that holds an item since before the order was declared has a smaller token than all after it."""
    queue = cluster.queue(name)
    for item in range(4):
        await queue.push(item, group=group)
    held = await queue.pop_one()
    assert held is not None
    await queue.set_groups(ORDERED)
    await queue.push(4, group=group)
    await held.release()
    claims = await take(queue, 5)
    assert [claim.item for claim in claims] == [*range(5)]
    assert all(former.token < later.token for former, later in itertools.pairwise([held, *claims]))
    async with asyncio.TaskGroup() as consumers:
        await queue.push_many(["a", "b"], group=group)
        first = await queue.pop_one()
        second = consumers.create_task(queue.pop_one())
        assert first is not None
        await first.ack()
    following = second.result()
    assert following is not None
    assert following.token > first.token > claims[-1].token


@pytest.mark.parametrize("max_size", [None, 4 * MAX_BATCH])
@pytest.mark.parametrize("as_generator", [False, True])
async def test_batches_that_leave_together_come_in_order(
    cluster: zkrq.Cluster, name: str, max_size: int | None, as_generator: bool
) -> None:
    """They are in flight together as long as nothing is known of the order."""
    queue = cluster.queue(name, max_size=max_size)
    await queue.set_groups(ORDERED)
    items = range(3 * MAX_BATCH)
    await queue.push_many(iter(items) if as_generator else items, group="a")
    for first in range(0, len(items), MAX_BATCH):
        found = await queue.peek(MAX_BATCH, group="a")
        assert [item.item for item in found] == [*items[first : first + MAX_BATCH]]
        await queue.cancel_many([item.id for item in found])


@pytest.mark.parametrize("more", [{}, {"id": "of my own"}, {"key": "user-42"}], ids=["plain", "id", "key"])
@pytest.mark.parametrize(
    "options",
    [{"delay": 5}, {"priority": 3}, {"at": datetime.now(UTC) + timedelta(hours=1)}],
    ids=["delay", "priority", "at"],
)
async def test_what_contradicts_the_order_is_refused(
    queue: zkrq.Queue[Any], options: dict[str, Any], more: dict[str, Any]
) -> None:
    with pytest.raises(zkrq.ConfigError, match="would contradict: push without it, or into another queue"):
        await queue.push("x", **options, **more)
    assert [item async for item in queue.scan()] == []
    await queue.push("y", **more)
    assert [claim.item for claim in await take(queue, 1)] == ["y"]


async def test_an_item_takes_the_place_of_the_one_that_it_replaces(queue: zkrq.Queue[Any]) -> None:
    await queue.push("old", key="user-42")
    await queue.push("other")
    receipt = await queue.push("new", key="user-42", replace=True)
    assert len(receipt.replaced) == 1
    assert [claim.item for claim in await take(queue, 2)] == ["new", "other"]


async def test_a_failed_item_holds_its_group(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(backoff=zkrq.constant(0.05)))
    await queue.set_groups(ORDERED)
    await queue.push("first", group="a")
    await queue.push("second", group="a")
    claim = await queue.pop_one(timeout=30)
    assert claim
    await claim.nack()
    assert [claim.item for claim in await take(queue, 2)] == ["first", "second"]


async def test_an_order_that_ends_allows_what_contradicted_it(queue: zkrq.Queue[Any]) -> None:
    await queue.push("in order")
    await queue.set_groups(zkrq.Groups())
    await queue.push("later", delay=0.05)
    await queue.push("urgent", priority=9)
    assert {claim.item for claim in await take(queue, 3)} == {"in order", "urgent", "later"}


async def test_an_order_that_is_declared_later_holds_for_what_is_pushed_from_then_on(
    cluster: zkrq.Cluster, name: str
) -> None:
    queue = cluster.queue(name)
    await queue.push_many(["before"] * 3)
    await queue.set_groups(ORDERED)
    await queue.push_many([f"after {n}" for n in range(5)])
    items = [claim.item for claim in await take(queue, 8)]
    assert [item for item in items if item != "before"] == [f"after {n}" for n in range(5)]
