"""Looking at items, cancelling them, dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import bury
from tests.behaviour.test_queue import Careless
from tests.harness import HANG, settled, take

pytestmark = pytest.mark.anyio


async def test_get_and_peek(queue: zkrq.Queue[Any]) -> None:
    ready = await queue.push("ready", priority=3)
    later = await queue.push("later", delay=3600)
    assert (await queue.get(ready.id), await queue.get("nobody")) == ((await queue.peek())[0], None)
    (item,) = await queue.peek()
    assert (item.id, item.item, item.payload, item.state, item.priority) == (ready.id, "ready", b'"ready"', "ready", 3)
    assert (item.seconds_left, item.owner, item.reason, item.attempts) == (None, None, None, 0)
    (scheduled,) = await queue.peek(state="scheduled")
    assert scheduled.id == later.id
    assert scheduled.seconds_left is not None
    assert 3000 < scheduled.seconds_left <= 3600
    claim = await take(queue)
    (held,) = await queue.peek(state="claimed")
    assert (held.id, held.owner, held.attempts) == (claim.id, claim.owner, 1)
    assert await queue.peek() == []


async def test_scan_sees_everything_in_pages(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.RAW)
    receipts = await queue.push_many([b"x"] * 1200)
    large = await queue.push_many([bytes(400_000)] * 5)
    seen = [item.id async for item in queue.scan()]
    assert sorted(seen) == sorted(receipt.id for receipt in receipts + large)
    await queue.push(b"later", delay=3600)
    assert [item.payload async for item in queue.scan("scheduled")] == [b"later"]


async def test_what_cannot_be_decoded_is_shown_as_bytes(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=Careless())
    await queue.push(b"\xff no JSON")
    (item,) = await queue.peek()
    assert (item.item, item.payload) == (None, b"\xff no JSON")


async def test_cancel(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, claim_timeout=1)
    ready, later = await queue.push("a"), await queue.push("b", delay=3600)
    assert await queue.cancel(ready.id)
    assert await queue.cancel(later.id)
    assert not await queue.cancel(ready.id)
    assert not await queue.cancel("nobody")
    await queue.push("c")
    claim = await take(queue)
    assert await queue.cancel(claim.id)
    with pytest.raises(zkrq.ClaimLost):
        async with claim:
            await pass_time(HANG)  # the holder learns of it when the claim is extended, at the latest
    assert await queue.size() == (0, 0, 0, 0)


async def test_dead_letters_are_listed_redriven_and_discarded(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 5)
    letters = await queue.dead_letters()
    assert sorted(letter.id for letter in letters) == sorted(ids)
    assert {letter.reason for letter in letters} == {f"bad {n}" for n in range(5)}
    assert await queue.redrive([ids[0], "nobody"]) == 1
    claim = await take(queue)
    assert (claim.id, claim.attempts, claim.failures) == (ids[0], 1, 0)
    assert await queue.redrive([claim.id]) == 0, "it is no dead letter any more"
    await claim.ack()
    assert await queue.discard([ids[1]]) == 1
    assert await queue.discard() == 3
    assert await queue.size() == (0, 0, 0, 0)


async def test_redrive_everything_at_a_rate(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await bury(queue, 30)
    redriving = asyncio.create_task(queue.redrive(rate=100))
    await pass_time(0.15)
    assert not redriving.done()
    await pass_time(0.25)
    assert await redriving == 30
    assert await queue.size() == (30, 0, 0, 0)
    with pytest.raises(zkrq.ConfigError, match="rate"):
        await queue.redrive(rate=0)


async def test_an_item_that_kills_its_consumers_becomes_a_dead_letter(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    """Nobody lives to count a failure, so deliveries are counted."""
    queue = cluster.queue(name, claim_timeout=0.5, retry=zkrq.Retry(max_attempts=3))
    await queue.push("poison")
    for attempt in (1, 2, 3):
        claim = await take(queue)
        assert claim.attempts == attempt
        del claim  # as if the process had died: it is extended no more
        await pass_time(0.5)
    await settled(lambda: _is_dead(queue))
    (letter,) = await queue.dead_letters()
    assert letter.attempts == 3
    assert letter.reason == "delivered 3 times, and settled by none of those consumers"


async def _is_dead(queue: zkrq.Queue[Any]) -> bool:
    assert await queue.pop_one(timeout=0) is None
    return (await queue.size()).dead == 1


async def test_bad_input_is_refused(queue: zkrq.Queue[Any]) -> None:
    for call in (
        queue.get(""),
        queue.cancel("x" * 200),
        queue.peek(0),
        queue.peek(501),
        queue.peek(state="asleep"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(zkrq.ConfigError):
            await call
