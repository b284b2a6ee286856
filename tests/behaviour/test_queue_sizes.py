"""The limits of a queue: ``max_size``, and the number and age of its dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import bury
from tests.harness import take
from zkrq.client.queue import parts_of

pytestmark = pytest.mark.anyio


# -- max_size ------------------------------------------------------------------------------------------------------


async def is_full(queue: zkrq.Queue[Any]) -> bool:
    """Whether a push is refused, and changes nothing."""
    before = await queue.size()
    try:
        await queue.push("more")
    except zkrq.QueueFull:
        assert await queue.size() == before
        return True
    return False


async def test_ready_scheduled_and_claimed_items_count(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, max_size=3)
    first = await queue.push("claimed")
    assert first.replicas == 3
    await queue.push("scheduled", delay=60)
    claim = await take(queue)
    await queue.push("ready")
    assert await queue.size() == (1, 1, 1, 0)
    assert await is_full(queue)
    assert (await queue.push("claimed", id=first.id)).id == first.id, "it is there already"
    await claim.ack()
    assert not await is_full(queue)
    assert await is_full(queue)


async def test_dead_letters_do_not_count(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, max_size=2)
    await bury(queue, 2)
    await bury(queue, 2)
    assert await queue.push_many(["x", "y"])
    assert await queue.size() == (2, 0, 0, 4)
    assert await queue.redrive() == 4, "whoever asks for it has them back, full or not"
    assert await is_full(queue)


async def test_it_holds_for_programs_that_do_not_know_of_it(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    """It is the queue's: once one program has declared it, all are held to it."""
    queue = cluster.queue(name, max_size=4)
    async with connect() as other:
        unaware = other.queue(name)
        await unaware.push_many(range(3))
        assert not await is_full(queue)
        assert await is_full(unaware)
        with pytest.raises(zkrq.QueueFull):
            await unaware.push_many(range(3))
        with pytest.raises(zkrq.QueueFull):
            await unaware.push("named", id="a name")
        assert await queue.size() == (4, 0, 0, 0)
        await (await take(unaware)).ack()
        assert not await is_full(unaware)


async def test_programs_push_plainly_again_once_it_is_taken_away(
    cluster: zkrq.Cluster, name: str, connect: Connect
) -> None:
    queue = cluster.queue(name, max_size=1)
    assert not await is_full(queue)
    async with connect() as other:
        unaware = other.queue(name)
        assert await is_full(unaware)
        await other.queue(name).set_max_size(None)
        for each in (queue, unaware):
            assert not await is_full(each)
            assert not parts_of(each).pusher.is_decided


async def test_it_holds_again_after_the_queue_was_deleted(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    """By somebody else.  The program goes on, and what it has declared is gone with the queue."""
    queue = cluster.queue(name, max_size=2)
    await queue.push_many(range(2))
    async with connect() as other:
        assert await is_full(queue)
        await other.queue(name).delete()
        for _ in range(2):
            await queue.push("again")
        assert await is_full(queue)
        assert (await queue.settings()).max_size == 2


async def test_pushes_at_once_do_not_exceed_it(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, max_size=10)
    outcomes = await asyncio.gather(*map(queue.push, range(50)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(zkrq.QueueFull) == 40
    assert {outcome.id for outcome in outcomes if isinstance(outcome, zkrq.Receipt)} == {
        item.id for item in await queue.peek(50)
    }
    assert await queue.size() == (10, 0, 0, 0)


async def test_push_many_into_what_is_left_of_it(cluster: zkrq.Cluster, name: str) -> None:
    """The first ones are there, and ``outcomes`` tells which."""
    queue = cluster.queue(name, max_size=700)
    with pytest.raises(zkrq.QueueFull) as raised:
        await queue.push_many(range(1200))
    receipts = raised.value.outcomes
    assert receipts is not None
    outcomes = list(receipts.outcomes())
    pushed = [outcome.id for outcome in outcomes if isinstance(outcome, zkrq.Receipt)]
    assert [type(outcome) for outcome in outcomes[700:]] == [zkrq.QueueFull] * 500
    assert pushed == [item.id for item in [*await queue.peek(500), *(await _rest(queue))]]
    assert len(receipts.errors) == 500
    with pytest.raises(zkrq.QueueFull):
        receipts[700]
    assert receipts[0].replicas == 3


async def _rest(queue: zkrq.Queue[Any]) -> list[zkrq.Item[Any]]:
    """The items behind the first 500, which are taken; one claim may hand out fewer than it is asked for."""
    taken = 0
    while taken < 500:
        taken += len(await queue.pop_many(500 - taken))
    return await queue.peek(500)


async def test_key_in_use_is_told_before_the_limit(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, max_size=1)
    first = await queue.push("x", key="k")
    assert await queue.push("x", key="k") == zkrq.Receipt(first.id, 3, duplicate=True, new=False)
    with pytest.raises(zkrq.QueueFull):
        await queue.push("x", key="another")


# -- dead letters --------------------------------------------------------------------------------------------------


async def test_only_so_many_letters_are_kept_and_the_oldest_go_first(
    name: str, connect: Connect, pass_time: PassTime
) -> None:
    events: list[zkrq.Event] = []
    async with connect(on_event=events.append) as client:
        queue = client.queue(name, dead_letters=zkrq.DeadLetters(max_count=3))
        for number in range(7):
            await queue.push(number)
            await (await take(queue)).bury("bad")
            await pass_time(0.002)
        assert await queue.pop_one(timeout=0) is None
        assert [letter.item for letter in await queue.dead_letters()] == [4, 5, 6]
        dropped = [event for event in events if isinstance(event, zkrq.DeadLettersDropped)]
        assert {event.queue for event in dropped} == {name}
        assert sum(event.items for event in dropped) == 4


async def test_no_more_letters_are_kept_although_nobody_claims(name: str, connect: Connect) -> None:
    """The limit is kept by the calls that bury."""
    events: list[zkrq.Event] = []
    async with connect(on_event=events.append) as client:
        queue = client.queue(name, dead_letters=zkrq.DeadLetters(max_count=20))
        await queue.push_many(range(300))
        claims = await queue.pop_many(300)
        await asyncio.gather(*(claim.bury("bad") for claim in claims))
        assert await queue.size() == (0, 0, 0, 20)
        assert sum(event.items for event in events if isinstance(event, zkrq.DeadLettersDropped)) == 280


async def test_items_that_kill_their_consumers_do_not_fill_the_queue(name: str, connect: Connect) -> None:
    """A dead letter made by a claim counts as nothing else."""
    async with connect() as dying:
        await dying.queue(name).push("poison")
        assert await dying.queue(name).pop_many(1)
    async with connect() as client:
        queue = client.queue(name, max_size=1, retry=zkrq.Retry(max_attempts=1))
        while not (await queue.size()).dead:
            assert await queue.pop_one(timeout=0) is None
        assert await queue.size() == (0, 0, 0, 1)
        await queue.push("next")


async def test_letters_are_kept_for_so_long(name: str, connect: Connect, pass_time: PassTime) -> None:
    events: list[zkrq.Event] = []
    async with connect(on_event=events.append) as client:
        queue = client.queue(name, dead_letters=zkrq.DeadLetters(max_age=1))
        await bury(queue, 5)
        await pass_time(0.8)
        (young,) = await bury(queue, 1)
        await pass_time(0.25)
        assert await queue.pop_one(timeout=0) is None
        assert [letter.id for letter in await queue.dead_letters()] == [young]
        assert sum(event.items for event in events if isinstance(event, zkrq.DeadLettersDropped)) == 5


async def test_letter_that_was_dropped_is_gone(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, dead_letters=zkrq.DeadLetters(max_count=1))
    ids = await bury(queue, 2)
    assert await queue.pop_one(timeout=0) is None
    (kept,) = await queue.dead_letters()
    (gone,) = set(ids) - {kept.id}
    assert await queue.redrive([gone]) == 0
    assert not await queue.cancel(gone)
    assert await queue.get(gone) is None
