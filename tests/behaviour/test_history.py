"""Which items have ended last, since when an item is held, and which groups are large."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import settled, take

pytestmark = pytest.mark.anyio


async def ends(queue: zkrq.Queue[Any], n: int = 100) -> list[tuple[str, str]]:
    return [(item.id, item.state) for item in await queue.history(n)]


async def test_nothing_is_kept_unless_it_is_declared(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1)
    await (await take(queue)).ack()
    assert await queue.history() == []
    assert (await queue.statistics()).history == 0


async def test_items_that_have_ended_last_are_known(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, history=3, retry=zkrq.Retry(max_attempts=1))
    await queue.push(0, id="earlier")
    await (await take(queue)).ack()
    assert (await queue.statistics()).history == 3
    assert (await queue.statistics()).limits == zkrq.Limits()
    await queue.push(1, id="done", key="k", group="g")
    async with await take(queue) as claim:
        await pass_time(2.0)
        await claim.extend()
    await queue.push(2, id="dead")
    with pytest.raises(ZeroDivisionError):
        async with await take(queue):
            raise ZeroDivisionError("why")
    await queue.push(3, id="cancelled")
    await queue.cancel("cancelled")
    assert await ends(queue) == [("cancelled", "cancelled"), ("dead", "dead"), ("done", "done")]
    assert await ends(queue, 1) == [("cancelled", "cancelled")]
    cancelled, dead, done = await queue.history()
    assert (done.owner, done.attempts, done.key, done.group) == (claim.owner, 1, "k", "g")
    assert done.took is not None
    assert done.took >= 1.9
    assert (cancelled.took, cancelled.owner, dead.reason) == (
        None,
        None,
        "failed in delivery 1 of 1: ZeroDivisionError: why",
    )
    assert done.ended_at <= dead.ended_at <= cancelled.ended_at
    await queue.redrive()
    assert await ends(queue) == [("cancelled", "cancelled"), ("done", "done")]
    await queue.set_history(0)
    assert await queue.history() == []


async def test_bad_numbers_are_refused(cluster: zkrq.Cluster, queue: zkrq.Queue[Any], name: str) -> None:
    for bad in (-1, 10_001, 1.5, True):
        with pytest.raises(zkrq.ConfigError, match="history"):
            cluster.queue(f"{name}-bad", history=bad)  # pyright: ignore[reportArgumentType]
        with pytest.raises(zkrq.ConfigError, match="history"):
            await queue.set_history(bad)  # pyright: ignore[reportArgumentType]
    for n in (0, 10_001):
        with pytest.raises(zkrq.ConfigError, match="n is"):
            await queue.history(n)


async def test_it_is_told_how_long_an_item_is_held(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """Exactly, however often the claim is extended; of a claim that follows only from its own beginning."""
    await queue.push(1)
    claim = await take(queue)
    for _ in range(3):
        await pass_time(2.0)
        await claim.extend()
    item = await queue.get(claim.id)
    assert item is not None
    assert item.held_for is not None
    assert 5.5 <= item.held_for < 60
    (peeked,) = await queue.peek(1, "claimed")
    assert peeked.held_for is not None
    assert peeked.held_for >= item.held_for
    await claim.release()
    waiting = await queue.get(claim.id)
    assert waiting is not None
    assert waiting.held_for is None
    again = await take(queue)
    held = await queue.get(again.id)
    assert held is not None
    assert held.held_for is not None
    assert held.held_for < item.held_for
    await again.ack()


async def test_largest_groups_come_first_and_it_is_told_what_blocks_them(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(concurrency=1))
    for group, count in (("a", 3), ("b", 7), ("c", 1)):
        await queue.push_many(range(count), group=group)
    claims = [await take(queue) for _ in range(2)]
    held = {claim.group for claim in claims}
    found = await queue.groups()
    assert (found.looked, found.whole) == (3, True)
    assert [(group.name, group.waiting + group.claimed) for group in found.groups] == [("b", 7), ("a", 3), ("c", 1)]
    for group in found.groups:
        waits = {"a": 3, "b": 7, "c": 1}[group.name] - (group.name in held)
        assert (group.waiting, group.claimed) == (waits, int(group.name in held))
        blocked = "blocked" if waits else "idle"
        assert group.standing == (blocked if group.name in held else "in line")
        assert (group.oldest is None) == (not waits)
    assert [group.name for group in (await queue.groups(1)).groups] == ["b"]
    await asyncio.gather(*(claim.ack() for claim in claims))


async def test_first_item_of_an_ordered_group_that_failed_is_told(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=zkrq.Retry(backoff=zkrq.constant(600)))
    for number in range(3):
        await queue.push(number, group="g")
    await (await take(queue)).nack()
    (group,) = (await queue.groups()).groups
    assert (group.standing, group.claimed) == ("failed", 0)
    assert group.waiting >= 2


async def test_consumers_tell_their_machine_their_slots_and_since_when_they_are_there(
    cluster: zkrq.Cluster, queue: zkrq.Queue[Any]
) -> None:
    started = asyncio.Event()

    async def work(item: Any, claim: zkrq.Claim[Any]) -> None:
        started.set()
        claim.progress(0.5, "halfway")
        await asyncio.sleep(3600)

    async def is_told(slots: int) -> bool:
        return [each.slots for each in (await cluster.consumers()).values()] == [slots]

    await queue.push(1)
    async with zkrq.Worker(concurrency=7, grace=0).add(queue, work):
        await started.wait()
        await settled(lambda: is_told(7))
        (consumer,) = (await cluster.consumers()).values()
        assert (consumer.host, dict(consumer.claims)) == (socket.gethostname(), {queue.name: 1})
        assert consumer.since is not None

        async def is_reported() -> bool:
            (item,) = await queue.peek(1, "claimed")
            return str(item.progress) == "50 %, halfway"

        await settled(is_reported)
    await settled(lambda: is_told(0))
