"""Looking at items, cancelling them, dead letters: over both coordinators, and with the primary killed meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, settled, take
from zkrq import local
from zkrq.cluster import Cluster
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio


async def bury(queue: zkrq.Queue[Any], count: int) -> list[str]:
    """Push items and bury them; their ids."""
    await queue.push_many(range(count))
    claims = await queue.pop_many(count, timeout=HANG)
    while len(claims) < count:
        claims += await queue.pop_many(count - len(claims), timeout=HANG)
    await asyncio.gather(*(claim.bury(f"bad {claim.item}") for claim in claims))
    return [claim.id for claim in claims]


async def test_get_and_peek(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
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


async def test_scan_sees_everything_in_pages(cluster: Cluster) -> None:
    queue = cluster.queue("jobs", codec=zkrq.RAW)
    receipts = await queue.push_many([b"x"] * 1200)
    large = await queue.push_many([bytes(400_000)] * 5)
    seen = [item.id async for item in queue.scan()]
    assert sorted(seen) == sorted(receipt.id for receipt in receipts + large)
    await queue.push(b"later", delay=3600)
    assert [item.payload async for item in queue.scan("scheduled")] == [b"later"]


async def test_what_cannot_be_decoded_is_shown_as_bytes(servers: local.Servers) -> None:
    namespace, hub = new_namespace(), Hub()
    async with in_process(servers, namespace, hub) as first, in_process(servers, namespace, hub) as second:
        await first.queue("jobs", codec=zkrq.RAW).push(b"\xff no JSON")
        (item,) = await second.queue("jobs").peek()
        assert (item.item, item.payload) == (None, b"\xff no JSON")


async def test_cancel(cluster: Cluster) -> None:
    queue = cluster.queue("jobs", claim_timeout=1)
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
            await asyncio.sleep(HANG)  # the holder learns of it when the claim is extended
    assert await queue.size() == (0, 0, 0, 0)


async def test_dead_letters_are_listed_redriven_and_discarded(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
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


async def test_redrive_everything_at_a_rate(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
    await bury(queue, 30)
    assert await queue.redrive(rate=300) == 30
    assert await queue.size() == (30, 0, 0, 0)
    with pytest.raises(zkrq.ConfigError, match="rate"):
        await queue.redrive(rate=0)


async def test_an_item_that_kills_its_consumers_becomes_a_dead_letter(servers: local.Servers) -> None:
    """Nobody lives to count a failure, so deliveries are counted."""
    namespace = new_namespace()
    retry = zkrq.Retry(max_attempts=3)
    async with in_process(servers, namespace) as cluster:
        queue = cluster.queue("jobs", claim_timeout=0.5, retry=retry)
        await queue.push("poison")
        for attempt in (1, 2, 3):
            claim = await take(queue)
            assert claim.attempts == attempt
            del claim  # as if the process had died: it is extended no more
        await settled(lambda: _is_dead(queue))
        (letter,) = await queue.dead_letters()
        assert letter.attempts == 3
        assert letter.reason == "delivered 3 times, and settled by none of those consumers"


async def _is_dead(queue: zkrq.Queue[Any]) -> bool:
    assert await queue.pop_one(timeout=0) is None
    return (await queue.size()).dead == 1


@pytest.mark.parametrize("operation", ["cancel", "discard", "redrive", "scan"])
async def test_with_the_primary_killed_in_the_middle(servers: local.Servers, operation: str) -> None:
    async with in_process(servers, new_namespace()) as cluster:
        queue = cluster.queue("jobs")
        ids = await bury(queue, 400)
        primary = next(server for server in servers.redis if server.name == cluster.view.primary("jobs"))
        killing = asyncio.create_task(primary.kill())
        match operation:
            case "cancel":
                assert all(await asyncio.gather(*map(queue.cancel, ids)))
            case "discard":
                assert await queue.discard() == 400
            case "redrive":
                assert await queue.redrive(rate=4000) == 400
            case _:
                assert {item.id async for item in queue.scan()} == set(ids)
        await killing
        left = {"cancel": (0, 0, 0, 0), "discard": (0, 0, 0, 0), "redrive": (400, 0, 0, 0)}
        assert await queue.size() == left.get(operation, (0, 0, 0, 400))


async def test_bad_input_is_refused(cluster: Cluster) -> None:
    queue = cluster.queue("jobs")
    for call in (
        queue.get(""),
        queue.cancel("x" * 200),
        queue.peek(0),
        queue.peek(501),
        queue.peek(state="asleep"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(zkrq.ConfigError):
            await call
