"""``ttl=``: items that have outlived it are no longer delivered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import take

pytestmark = pytest.mark.anyio

SHORT, LATER = 0.2, 0.25
"""A time to live, and when it is over."""

SOON, TOO_LATE = 2.0, 2.1
"""The same where the item has to be delivered before, also on a machine that is busy with something else."""


@pytest.fixture(params=[False, True], ids=["dropped", "kept"])
def kept(request: pytest.FixtureRequest) -> bool:
    """Whether what has expired becomes a dead letter."""
    return request.param


@pytest.fixture
async def keeping(cluster: zkrq.Cluster, name: str, kept: bool) -> zkrq.Queue[Any]:
    return cluster.queue(name, dead_letters=zkrq.DeadLetters(expired=kept))


async def is_over(queue: zkrq.Queue[Any], kept: bool) -> bool:
    """Whether the only item is delivered no more, and became what the queue makes of such items."""
    assert await queue.pop_one(timeout=0) is None
    return await queue.size() == (0, 0, 0, int(kept))


async def test_what_has_expired_is_not_delivered(keeping: zkrq.Queue[Any], kept: bool, pass_time: PassTime) -> None:
    receipt = await keeping.push({"to": "ann"}, ttl=SHORT)
    item = await keeping.get(receipt.id)
    assert item is not None
    assert item.expires_in is not None
    assert item.expires_in <= SHORT
    await pass_time(LATER)
    assert await is_over(keeping, kept)
    letters = await keeping.dead_letters()
    assert [(letter.id, letter.item, letter.reason, letter.attempts) for letter in letters] == (
        [(receipt.id, {"to": "ann"}, "expired", 0)] if kept else []
    )
    assert all(letter.died_at and letter.died_at > letter.pushed_at for letter in letters)


async def test_what_has_expired_is_not_counted_although_nothing_claims(
    keeping: zkrq.Queue[Any], kept: bool, pass_time: PassTime
) -> None:
    """An item in a consumer's hands still counts there, and a dead letter stays one."""
    for label in ("dead", "retried later", "claimed"):
        await keeping.push(label, ttl=SOON)
    dead, later, claimed = [await take(keeping) for _ in range(3)]
    await dead.bury("bad")
    await later.nack(delay=60)
    await keeping.push_many(["ready", "ready too"], ttl=SOON)
    await keeping.push("later", delay=SHORT, ttl=SOON)
    await keeping.push("immortal, later", delay=60)
    assert await keeping.size() == (2, 3, 1, 1)
    await pass_time(TOO_LATE)
    statistics = await keeping.statistics()
    assert (statistics.sizes, statistics.oldest_ready) == ((0, 1, 1, 1), None)
    before = asyncio.get_running_loop().time()
    await keeping.push("immortal")
    statistics = await keeping.statistics()
    waited = asyncio.get_running_loop().time() - before
    assert statistics.sizes == await keeping.size() == (1, 1, 1, 1)
    assert statistics.expiring == 5, "they are still there, and one is claimed"
    assert statistics.oldest_ready is not None
    assert statistics.oldest_ready <= waited + 0.05, "that of the item that is delivered"
    assert (await take(keeping)).item == "immortal"
    assert await keeping.size() == (0, 1, 2, 5 if kept else 1)
    assert (await keeping.statistics()).expiring == 1
    await claimed.ack()


async def test_what_is_delivered_in_time_may_be_done_later(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("x", ttl=SOON)
    async with await take(queue):
        await pass_time(TOO_LATE)
        assert await queue.size() == (0, 0, 1, 0)
    assert await queue.size() == (0, 0, 0, 0)


async def test_what_expired_in_the_hands_of_its_holder_does_not_come_again(
    keeping: zkrq.Queue[Any], kept: bool, pass_time: PassTime
) -> None:
    await keeping.push_many(["nacked", "released"], ttl=SOON)
    nacked, released = await take(keeping), await take(keeping)
    await pass_time(TOO_LATE)
    await nacked.nack(delay=0, reason="busy")
    await released.release()
    assert await keeping.pop_one(timeout=0) is None
    assert await keeping.size() == (0, 0, 0, 2 if kept else 0)


async def test_retries_do_not_prolong_it(keeping: zkrq.Queue[Any], kept: bool, pass_time: PassTime) -> None:
    """It counts from the push, however often the item fails."""
    await keeping.push("x", ttl=SOON)
    for _ in range(3):
        await (await take(keeping)).nack(delay=0)
    await (await take(keeping)).nack(delay=60)
    assert await keeping.size() == (0, 1, 0, 0)
    await pass_time(TOO_LATE)
    assert await is_over(keeping, kept)


async def test_delay_and_time_to_live_both_count_from_the_push(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("in time", delay=SHORT, ttl=60)
    await queue.push("too late", delay=SHORT, ttl=SHORT + 0.02)
    await pass_time(LATER)
    assert (await take(queue)).item == "in time"
    assert await queue.pop_one(timeout=0) is None


async def test_redriven_letter_lives_as_long_again(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, dead_letters=zkrq.DeadLetters(expired=True))
    receipt = await queue.push("x", ttl=SHORT)
    await pass_time(LATER)
    assert await is_over(queue, kept=True)
    assert await queue.redrive() == 1
    item = await queue.get(receipt.id)
    assert item is not None
    assert item.expires_in is not None
    assert item.expires_in <= SHORT
    await pass_time(LATER)
    assert await is_over(queue, kept=True)


async def test_push_many_has_it_too(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("stays")
    await queue.push_many(range(300), ttl=SHORT)
    assert (await queue.statistics()).expiring == 300
    await pass_time(LATER)
    assert (await take(queue)).item == "stays"
    assert (await queue.size()).ready == 0
    while (await queue.statistics()).expiring:  # each claim request drops some of them
        assert await queue.pop_one(timeout=0) is None


async def test_deleting_a_queue_of_which_all_has_expired(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push_many(range(3), ttl=SHORT)
    await pass_time(LATER)
    assert await queue.size() == (0, 0, 0, 0)
    assert await queue.delete() == 3
    assert (await queue.statistics()).expiring == 0
