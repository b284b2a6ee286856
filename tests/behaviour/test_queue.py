"""Pushing, claiming, settling; waiting, order and time."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import Careless, is_empty, is_ready
from tests.harness import A_WHILE, HANG, settled, stolen, take
from zkrq.consuming.claims import lease_of
from zkrq.protocol.calls import Clear, Decision

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    what: str
    count: int = 1


async def test_push_claim_ack(queue: zkrq.Queue[Any]) -> None:
    receipt = await queue.push({"to": "ann"})
    assert receipt.replicas == 3
    claim = await queue.pop_one(timeout=HANG)
    assert claim is not None
    assert (claim.id, claim.item, claim.attempts, claim.failures) == (receipt.id, {"to": "ann"}, 1, 0)
    assert await queue.size() == (0, 0, 1, 0)
    await claim.ack()
    assert await queue.size() == (0, 0, 0, 0)
    assert await queue.pop_one(timeout=0) is None


async def test_items_come_in_the_order_of_their_pushes(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(700))
    seen: list[int] = []
    async for claim in queue.pop(wait=False):
        async with claim:
            seen.append(claim.item)
    assert seen == list(range(700))


async def test_many_producers_and_consumers_lose_and_double_nothing(queue: zkrq.Queue[Any]) -> None:
    seen: list[int] = []

    async def consume() -> None:
        async for claim in queue.pop():
            async with claim:
                seen.append(claim.item)

    async def produce(start: int) -> None:
        for number in range(start, start + 100):
            await queue.push(number)

    consumers = [asyncio.create_task(consume()) for _ in range(16)]
    await asyncio.gather(*(produce(start) for start in range(0, 1000, 100)))
    await settled(partial(is_empty, queue))
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert sorted(seen) == list(range(1000))


async def test_a_push_wakes_a_waiting_consumer(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    """No polling: it is there long before the next sweep, which is what this would wait for otherwise."""
    waiting = asyncio.create_task(queue.pop_one(timeout=HANG))
    await pass_time(0.2)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await queue.push("wake up")
    claim = await waiting
    assert claim is not None
    assert claim.item == "wake up"
    assert loop.time() - began < 4


async def test_a_delayed_item_is_not_early(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await queue.push("later", delay=0.3)
    await queue.push("moment", at=datetime.now(UTC) + timedelta(seconds=0.6))
    await queue.push("now")
    assert await queue.size() == (1, 2, 0, 0)
    came: list[tuple[str, float]] = []

    async def consume() -> None:
        async for claim in queue.pop(limit=3):
            async with claim:
                came.append((claim.item, loop.time() - began))

    consuming = asyncio.create_task(consume())
    await pass_time(0.7)
    await consuming
    assert [item for item, _ in came] == ["now", "later", "moment"]
    _, later, moment = (seconds for _, seconds in came)
    assert later >= 0.3
    assert moment >= 0.59


async def test_priority_goes_first(queue: zkrq.Queue[Any]) -> None:
    for priority in (0, 9, 5, 9):
        await queue.push(priority, priority=priority)
    assert [claim.item async for claim in queue.pop(wait=False)] == [9, 9, 5, 0]


async def test_the_same_id_is_there_once(queue: zkrq.Queue[Any]) -> None:
    """Repeating a push whose outcome is unknown cannot double it, also when it is done already."""
    for id in ("order 17", zkrq.new_id()):
        await queue.push("once", id=id)
        await queue.push("once", id=id)
        assert (await queue.size()).ready == 1
        claim = await queue.pop_one(timeout=HANG)
        assert claim is not None
        assert claim.id == id
        await queue.push("once", id=id)
        await claim.ack()
        await queue.push("once", id=id)
        assert await queue.size() == (0, 0, 0, 0)


@pytest.mark.parametrize("max_size", [None, 100], ids=["plain", "limited"])
async def test_receipt_tells_whether_the_id_is_new(cluster: zkrq.Cluster, name: str, max_size: int | None) -> None:
    """A plain push is told by what the servers knew, one into a queue with a limit is decided."""
    queue = cluster.queue(name, max_size=max_size)
    first = await queue.push("once", id="order 17")
    assert (first.new, (await queue.push("once", id="order 17")).new) == (True, False)
    claim = await take(queue)
    again = await queue.push("once", id="order 17")
    assert (again.id, again.new, again.done) == ("order 17", False, False), "in a consumer's hands"
    await claim.bury("bad")
    assert (await queue.push("once", id="order 17")).new is False
    assert await queue.discard() == 1
    again = await queue.push("once", id="order 17")
    assert (again.new, again.done) == (False, True)
    others = await asyncio.gather(*(queue.push(n, ttl=60) for n in range(3)), *(queue.push(n) for n in range(3)))
    assert all(receipt.new for receipt in [*others, *await queue.push_many(range(5))])


@pytest.mark.parametrize("max_size", [None, 100], ids=["plain", "limited"])
async def test_one_of_several_pushes_of_an_id_is_new(connect: Connect, name: str, max_size: int | None) -> None:
    async with connect() as one, connect() as two:
        producers = [each.queue(name, max_size=max_size) for each in (one, two)]
        told = await asyncio.gather(*(producers[n % 2].push(n, id=f"order {n // 2 % 5}") for n in range(40)))
        for id in {receipt.id for receipt in told}:
            assert Counter(receipt.new for receipt in told if receipt.id == id) == {True: 1, False: 7}
        assert await producers[0].size() == (5, 0, 0, 0)


# -- claims -----------------------------------------------------------------------------------------------------------


async def test_an_exception_nacks_with_the_policys_delay(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0.2)))
    await queue.push("hard")
    with pytest.raises(ZeroDivisionError):
        async with await take(queue):
            _ = 1 / 0
    assert await queue.size() == (0, 1, 0, 0)
    await pass_time(0.2)
    claim = await take(queue)
    assert (claim.attempts, claim.failures) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        async with claim:
            _ = 1 / 0
    assert await queue.size() == (0, 0, 0, 1), "after max_attempts it is a dead letter"


async def test_handlers_say_what_they_want(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("never")
    async with await take(queue):
        raise zkrq.Reject("bad address")
    assert await queue.size() == (0, 0, 0, 1)
    await queue.push("soon")
    async with await take(queue):
        raise zkrq.RetryLater(delay=0.1)
    await pass_time(0.1)
    assert (await take(queue)).failures == 1


@pytest.mark.parametrize(("max_attempts", "letters"), [(3, 1), (None, 0)])
async def test_retry_later_counts_as_an_attempt(
    cluster: zkrq.Cluster, name: str, max_attempts: int | None, letters: int
) -> None:
    """So a handler that polls for long needs a queue without a limit."""
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=max_attempts))
    await queue.push("not yet")
    for _ in range(3):
        async with await take(queue):
            raise zkrq.RetryLater(delay=0)
    assert await queue.size() == (1 - letters, 0, 0, letters)


async def test_what_is_put_off_counts_nothing_until_it_is_too_old(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=1))
    await queue.push("not yet")
    for _ in range(3):
        async with await take(queue) as claim:
            assert (claim.attempts, claim.failures) == (1, 0)
            raise zkrq.Snooze(0.1)
        assert await queue.size() == (0, 1, 0, 0)
        await pass_time(0.1)
    await (await take(queue)).release(delay=0.1)
    assert await queue.size() == (0, 1, 0, 0)
    await pass_time(0.1)
    assert (await take(queue)).attempts == 1


@pytest.mark.parametrize("how", ["deferred", "failed"])
@pytest.mark.parametrize("backend", ["testing"], indirect=True)  # by a clock that stands still while it is young
async def test_what_is_too_old_is_a_dead_letter_when_it_fails_or_is_put_off(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime, how: str
) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=None, max_age=0.2))
    await queue.push("x")
    claim = await take(queue)
    await (claim.release(delay=3600) if how == "deferred" else claim.nack(delay=3600))
    assert await queue.size() == (0, 1, 0, 0), "as long as it is young enough"
    await pass_time(0.2)
    async with await take(queue):  # its last delivery, an hour before the one that was asked for
        raise zkrq.Snooze(0.1) if how == "deferred" else zkrq.RetryLater(0.1)
    (letter,) = await queue.peek(state="dead")
    assert str(letter.reason).startswith(f"{how} at an age of ")


async def test_a_failed_item_goes_behind_those_that_wait_and_a_released_one_does_not(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(["first", "second"])
    await (await take(queue)).nack(delay=0)
    claim = await take(queue)
    assert claim.item == "second"
    await claim.release()
    claims = await queue.pop_many(2, timeout=HANG)
    assert [claim.item for claim in claims] == ["second", "first"]
    assert [(claim.attempts, claim.failures) for claim in claims] == [(1, 0), (2, 1)]


async def test_an_item_that_is_released_again_and_again_does_not_die(cluster: zkrq.Cluster, name: str) -> None:
    """A long poller: no delivery failed, and none killed its holder."""
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=3))
    await queue.push("not yet")
    for _ in range(10):
        await (await take(queue)).release()
    claim = await take(queue)
    assert (claim.item, claim.attempts) == ("not yet", 1)
    await claim.nack(delay=0)
    assert (await take(queue)).attempts == 2, "a failure counts as before"
    assert (await queue.size()).dead == 0


async def test_a_cancelled_handler_hands_back_without_a_failure(queue: zkrq.Queue[Any]) -> None:
    await queue.push("interrupted")
    began = asyncio.Event()

    async def handle() -> None:
        async with await take(queue):
            began.set()
            await asyncio.sleep(HANG)

    task = asyncio.create_task(handle())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    claim = await take(queue)
    assert (claim.item, claim.failures) == ("interrupted", 0)


async def test_claims_are_extended_while_they_are_held(cluster: zkrq.Cluster, name: str, pass_time: PassTime) -> None:
    queue = cluster.queue(name, claim_timeout=2.4)  # an event loop may stand still for 1.2 s of it
    await queue.push("long")
    async with await take(queue) as claim:
        await pass_time(4.0)
        assert await queue.pop_one(timeout=0) is None, "somebody else was given a held item"
        assert not claim.lost
    assert await queue.size() == (0, 0, 0, 0)


async def test_an_item_comes_back_when_its_claim_is_not_extended(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    """The deadline, for a holder of which nobody knows any more."""
    queue = cluster.queue(name, claim_timeout=0.5)
    await queue.push("forgotten")
    claim = await take(queue)
    lease_of(claim).stop_extending()
    await pass_time(0.5)
    again = await take(queue)
    assert again.id == claim.id
    assert again.attempts == 2
    assert again.token > claim.token
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()
    await again.ack()
    assert await queue.size() == (0, 0, 0, 0)


async def test_a_lost_claim_stops_the_handler(cluster: zkrq.Cluster, name: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()  # 1 after a failed task group of another test, in Python 3.11
    queue = cluster.queue(name, claim_timeout=0.5)
    await queue.push("stolen")
    claim = await take(queue)
    with pytest.raises(zkrq.ClaimLost):
        async with claim:
            # Behind its back, as by an operator: the claim's request is shown by somebody else.
            await stolen(claim).nack(delay=30)
            assert await claim.lost
            await asyncio.sleep(HANG)
    assert claim.lost
    assert task.cancelling() == before, "the cancellation was the claim's own"


async def test_extend_settle_twice_and_after_the_loss(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, claim_timeout=5)
    await queue.push("x")
    claim = await take(queue)
    before = claim.deadline
    await claim.extend(60)
    assert claim.deadline > before + timedelta(seconds=30)
    await claim.ack()
    for again in (claim.ack, claim.nack, claim.release, claim.extend):
        with pytest.raises(zkrq.ClaimLost):
            await again()


async def test_what_cannot_be_decoded_goes_to_the_dead_letters(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=Careless())
    await queue.push(b"\xff not json")
    await queue.push(b'"good"')
    assert (await take(queue)).item == "good"

    async def buried() -> bool:
        return (await queue.size()).dead == 1

    await settled(buried)
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.payload) == (None, b"\xff not json")


# -- pop --------------------------------------------------------------------------------------------------------------


async def test_items_may_have_a_type(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, codec=zkrq.typed.MsgPack(Order))
    await queue.push(Order("tea", 3))
    claim = await take(queue)
    assert claim.item == Order("tea", 3)
    bad: Any = {"what": "tea", "count": "three"}
    with pytest.raises(zkrq.CodecError):
        await queue.push(bad)
    assert await queue.size() == (0, 0, 1, 0)


async def test_pop_many_takes_what_is_there(queue: zkrq.Queue[Any]) -> None:
    assert await queue.pop_many(10, timeout=A_WHILE) == []
    await queue.push_many(range(5))
    assert [claim.item for claim in await queue.pop_many(3, timeout=HANG)] == [0, 1, 2]
    assert [claim.item for claim in await queue.pop_many(1000, timeout=HANG)] == [3, 4]


async def test_what_was_claimed_ahead_goes_back_when_the_loop_is_left(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(50))
    async for claim in queue.pop(prefetch=20):
        await claim.ack()
        break
    gc.collect()
    await settled(lambda: is_ready(queue, 49))
    claim = await take(queue)
    assert (claim.item, claim.attempts) == (1, 1), "in its old place, and the delivery does not count"


async def test_a_cancelled_pop_keeps_nothing(queue: zkrq.Queue[Any]) -> None:
    for _ in range(20):
        waiting = asyncio.create_task(queue.pop_one())
        await asyncio.sleep(0)
        pushing = asyncio.create_task(queue.push("x"))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, pushing, return_exceptions=True)
        if not waiting.cancelled() and (claim := waiting.result()):
            await claim.release()
    await settled(lambda: is_ready(queue, 20))


async def test_clear_leaves_what_is_claimed(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(1200))
    await queue.push("later", delay=60)
    claim = await take(queue)
    assert await queue.clear() == 1200
    assert await queue.size() == (0, 0, 1, 0)
    await claim.ack()


@pytest.mark.parametrize("delay", [0, 60])
async def test_clear_ends_however_much_is_pushed(
    queue: zkrq.Queue[Any], delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of its steps something is pushed, of higher priority than what is there: so the queue is never empty.
    What was there when it began is gone."""
    pushes = (queue.push(n, id=f"old-{n}", delay=delay) for n in range(600))  # none of them in a bundle
    old = {receipt.id for receipt in await asyncio.gather(*pushes)}
    replicas = queue._parts.shards[0].replicas  # pyright: ignore[reportPrivateUsage]
    decide, steps = replicas.decide, 0

    async def push_and_decide(call: Decision[Any]) -> Any:
        nonlocal steps
        steps += isinstance(call, Clear)
        assert steps < 100, "it goes on and on"
        if steps > 1:
            await queue.push_many(["new"] * 100, priority=9, delay=delay / 2)
        return await decide(call)

    monkeypatch.setattr(replicas, "decide", push_and_decide)
    assert await queue.clear() >= len(old)
    left = {item.id async for item in queue.scan()}
    assert left
    assert not left & old


async def test_queues_are_separate_and_named(cluster: zkrq.Cluster, name: str) -> None:
    before = await cluster.queues()
    one, two = f"{name}-1", f"{name}-2"
    await cluster.queue(one).push(1)
    await cluster.queue(two).push(2)
    assert (await take(cluster.queue(two))).item == 2
    assert await cluster.queues() == sorted([*before, one, two])
    assert cluster.queue(one) is cluster.queue(one)


async def test_pop_with_a_limit_claims_no_more_than_is_still_to_come(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(10))
    taken: list[int] = []
    async for claim in queue.pop(limit=4):
        taken.append(claim.item)
        sizes = await queue.size()
        assert sizes.claimed <= 4 - len(taken) + 1
        await claim.ack()
    assert taken == [0, 1, 2, 3]
    assert (await queue.size())[:3] == (6, 0, 0)
