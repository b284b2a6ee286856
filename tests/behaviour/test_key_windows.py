"""``key_window=``: of the items of a key one is accepted in a time, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.conftest import Connect, PassTime
from tests.harness import take

pytestmark = pytest.mark.anyio


async def push(queue: zkrq.Queue[Any], window: float = 60.0, **options: Any) -> zkrq.Receipt:
    return await queue.push("x", key="k", key_window=window, **options)


@pytest.mark.parametrize("end", ["ack", "bury", "cancel", "clear", "expire"])
async def test_one_in_a_window(queue: zkrq.Queue[Any], pass_time: PassTime, end: str) -> None:
    first = await push(queue, ttl=0.2 if end == "expire" else None)
    assert (first.new, first.duplicate) == (True, False)
    assert await push(queue) == (first.id, 3, True, False, False, ()), "it is there"
    match end:
        case "ack":
            await (await take(queue)).ack()
        case "bury":
            await (await take(queue)).bury("bad")
        case "cancel":
            await queue.cancel(first.id)
        case "clear":
            await queue.clear()
        case _:
            await pass_time(0.25)
            assert await queue.pop_one(timeout=0) is None
    is_done = end != "bury"
    assert await push(queue) == (first.id, 3, True, is_done, False, ())
    assert sum((await queue.size())[:3]) == 0
    free = await queue.push("y", key="k")
    assert free.new, "a push without a window is not kept away"


async def test_the_next_window_begins_with_the_next_item(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    first = await push(queue, 1.0)
    await (await take(queue)).ack()
    await pass_time(0.6)
    assert (await push(queue, 1.0)).id == first.id, "which does not prolong it"
    await pass_time(0.6)
    second = await push(queue, 1.0)
    assert second.new
    await (await take(queue)).ack()
    assert (await push(queue, 1.0)).id == second.id


async def test_a_window_outlives_what_is_remembered_of_items() -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("jobs")
        first = await push(queue, 3600.0, id="own")
        await (await take(queue)).ack()
        for _ in range(3):
            await cluster.clock.advance(1000.0)
            await queue.push("z")
            await (await take(queue)).ack()
        assert await push(queue) == (first.id, 3, True, True, False, ())
        assert (await push(queue, id="own")).done
        await cluster.clock.advance(700.0)
        assert (await push(queue)).new


async def test_it_outlives_a_deletion_of_the_queue(queue: zkrq.Queue[Any]) -> None:
    await push(queue)
    await queue.delete()
    assert (await push(queue)).done
    assert (await queue.push("y", key="k")).new


async def test_many_producers_at_once(queue: zkrq.Queue[Any], connect: Connect) -> None:
    async with connect() as other:
        queues = [queue, other.queue(queue.name)]
        receipts = await asyncio.gather(*(push(queues[number % 2]) for number in range(20)))
        assert sum(receipt.new is True for receipt in receipts) == 1
        assert len({receipt.id for receipt in receipts}) == 1
        await (await take(queue)).ack()
        receipts = await asyncio.gather(*(push(queues[number % 2]) for number in range(20)))
        assert all(receipt.done and receipt.duplicate for receipt in receipts)


async def test_a_repeated_push_is_the_same_item(queue: zkrq.Queue[Any]) -> None:
    first = await push(queue, id="own")
    again = await push(queue, id="own")
    assert (first.new, again.new, again.duplicate) == (True, False, False)
    await (await take(queue)).ack()
    done = await push(queue, id="own")
    assert (done.done, done.duplicate) == (True, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"key_window": 60}, "needs a key"),
        ({"key_window": 60, "key": "k", "replace": True}, "exclude each other"),
        ({"key_window": 0.5, "key": "k"}, "at least 1 s"),
        ({"key_window": 31 * 86400, "key": "k"}, "at most 2592000 s"),
        ({"key_window": -1, "key": "k"}, "at least 1 s and at most 2592000 s"),
        ({"key_window": 1e9, "key": "k"}, "at least 1 s and at most 2592000 s"),
        ({"key_window": float("nan"), "key": "k"}, "key_window is nan"),
        ({"key_window": "60", "key": "k"}, "must be seconds"),
    ],
)
async def test_what_it_refuses(queue: zkrq.Queue[Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=text):
        await queue.push("x", **options)
    assert sum(await queue.size()) == 0
