"""``Groups(ordered=True)``: each group keeps the order of its pushes, one item at a time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import working
from zkrq.replication.batching import MAX_BATCH

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(cluster: zkrq.Cluster, name: str) -> zkrq.Queue[Any]:
    return cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=zkrq.Retry(backoff=zkrq.constant(0.05)))


async def first(queue: zkrq.Queue[Any]) -> zkrq.Claim[Any]:
    claim = await queue.pop_one(timeout=30)
    assert claim
    return claim


async def test_items_come_in_order_and_one_at_a_time(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many([f"a{n}" for n in range(5)], group="a")
    for n in range(3):
        await queue.push(f"b{n}", group="b")
    tokens: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for n in range(5):
        claims = await queue.pop_many(9, timeout=0)
        assert sorted(claim.item for claim in claims) == [f"a{n}", f"b{n}"][: 2 if n < 3 else 1]
        for claim in claims:
            tokens[str(claim.group)].append(claim.token)
        assert await queue.ack_many(claims) == []
    assert all(each == sorted(set(each)) for each in tokens.values())


async def test_nothing_is_pushed_after_what_was_not(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), max_size=MAX_BATCH + 1)
    with pytest.raises(zkrq.QueueFull) as raised:
        await queue.push_many(range(2 * MAX_BATCH + 2))
    outcomes = raised.value.outcomes
    assert outcomes is not None
    errors = [type(error) for error in outcomes.errors]
    assert errors == [zkrq.QueueFull] * (MAX_BATCH - 1) + [zkrq.Unavailable] * 2
    assert len(outcomes) == 2 * MAX_BATCH + 2
    assert "an item before it" in str(outcomes.errors[-1])
    with pytest.raises(zkrq.QueueFull) as raised:
        await queue.push_many(iter(range(2 * MAX_BATCH)))
    assert raised.value.outcomes is not None
    assert len(raised.value.outcomes) == MAX_BATCH, "those of a generator end with the batch"
    assert await queue.clear() == MAX_BATCH + 1


async def test_a_failing_item_holds_its_group_until_it_is_a_dead_letter(cluster: zkrq.Cluster, name: str) -> None:
    policy = zkrq.Retry(max_attempts=3, backoff=zkrq.constant(0.01))
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=policy)
    await queue.push_many(["bad", "good", "better"], group="a")
    seen: list[str] = []

    async def handle(item: str) -> None:
        seen.append(item)
        if item == "bad":
            raise ValueError(item)

    async with working(queue, handle, concurrency=5):
        while len(seen) < 5:
            await asyncio.sleep(0.01)
    assert seen == ["bad", "bad", "bad", "good", "better"]
    assert [letter.item for letter in await queue.peek(state="dead")] == ["bad"]
    await queue.clear()


async def test_an_item_that_is_put_off_holds_its_group(cluster: zkrq.Cluster, name: str) -> None:
    policy = zkrq.Retry(holds_group=False)
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=policy)
    await queue.push_many(["early", "good", "better"], group="a")
    seen: list[str] = []

    async def handle(item: str) -> None:
        seen.append(item)
        if seen.count("early") < 3:
            raise zkrq.Snooze(0.01)

    async with working(queue, handle, concurrency=5):
        while len(seen) < 5:
            await asyncio.sleep(0.01)
    assert seen == ["early", "early", "early", "good", "better"]


async def test_an_item_that_is_advanced_keeps_its_place(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=zkrq.Retry(backoff=zkrq.constant(3600)))
    ids = [receipt.id for receipt in await queue.push_many(["a", "b", "c"], group="g")]
    await (await first(queue)).nack()
    assert await queue.advance(ids[1:]) == 0, "they wait for the first one, not for a moment"
    assert await queue.advance(group="g") == 1
    for wanted in "abc":
        claim = await first(queue)
        assert claim.item == wanted
        await claim.ack()


async def test_a_policy_may_let_the_group_go_on(cluster: zkrq.Cluster, name: str) -> None:
    policy = zkrq.Retry(backoff=zkrq.constant(60), holds_group=False)
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=policy)
    await queue.push_many(["first", "second"], group="a")
    claim = await first(queue)
    await claim.nack(reason="later")
    assert claim.settled == "nack"
    assert (await first(queue)).item == "second"
    assert await queue.clear() == 1


async def test_a_released_item_comes_first_again(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(["a0", "a1"])
    claim = await first(queue)
    assert await queue.pop_many(1, timeout=0) == []
    await claim.release()
    again = await first(queue)
    assert again.item == "a0"
    assert again.token > claim.token
    await again.ack()
    assert (await first(queue)).item == "a1"


async def test_what_contradicts_the_order_is_refused(queue: zkrq.Queue[Any]) -> None:
    every: list[dict[str, Any]] = [{"delay": 5}, {"at": datetime.now(UTC) + timedelta(hours=1)}, {"priority": 3}]
    for options in every:
        with pytest.raises(zkrq.ConfigError, match="nothing was written"):
            await queue.push("x", group="a", **options)
        with pytest.raises(zkrq.ConfigError, match="nothing was written"):
            await queue.push_many(["x"], group="a", **options)
    assert sum((await queue.statistics()).sizes) == 0


def test_an_order_has_no_other_limit() -> None:
    with pytest.raises(zkrq.ConfigError, match="one item claimed at a time"):
        zkrq.Groups(concurrency=2, ordered=True)


async def test_the_order_belongs_to_the_queue(queue: zkrq.Queue[Any]) -> None:
    await queue.push("x", group="a")
    assert (await queue.statistics()).group_limits == zkrq.Groups(ordered=True)
    assert str(zkrq.Groups(ordered=True)) == "in order within each group"
    await queue.set_groups(zkrq.Groups())
    assert (await queue.statistics()).group_limits == zkrq.Groups()
    assert (await first(queue)).item == "x"


async def test_a_key_takes_the_place_of_the_item_that_it_replaces(queue: zkrq.Queue[Any]) -> None:
    await queue.push("old", key="k")
    await queue.push("next")
    assert (await queue.push("new", key="k", replace=True)).replaced
    assert (await queue.push("newer", key="k")).duplicate
    claim = await first(queue)
    assert claim.item == "new"
    await claim.ack()
    assert (await first(queue)).item == "next"


async def test_a_redriven_letter_comes_before_all_others(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(["a0", "a1", "a2"])
    await (await first(queue)).bury("no")
    second = await first(queue)
    assert second.item == "a1"
    await queue.redrive()
    await second.ack()
    assert (await first(queue)).item == "a0"
