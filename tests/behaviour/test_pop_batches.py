"""Batches of claims: ``pop_batches``, ``Batch``, and handlers of batches."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import FEW_ATTEMPTS, Outcomes, are_sizes, is_empty, stop
from tests.harness import HANG, settled, stolen, take, until
from zkrq.consuming.claims import lease_of
from zkrq.consuming.identity import Identity
from zkrq.consuming.line import Line
from zkrq.working.outcomes import Ending

pytestmark = pytest.mark.anyio


async def batches_of(queue: zkrq.Queue[Any], *sizes: int) -> list[int]:
    """Ack what is ready; the number of items in each batch."""
    return [len(batch) async for batch in queue.pop_batches(*sizes, wait=False) if await batch.ack() == []]


def never(_: object) -> bool:
    """A session that is never certain."""
    return False


async def one_batch(queue: zkrq.Queue[Any], size: int = 100) -> zkrq.Batch[Any]:
    async with queue.pop_batches(size) as batches:
        async for batch in batches:
            return batch
    raise AssertionError


# -- pop_batches -------------------------------------------------------------------------------------------------------


async def test_every_item_once_in_full_batches(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(1_050))
    seen: list[int] = []
    sizes: list[int] = []
    async for batch in queue.pop_batches(100, wait=False):
        async with batch:
            assert batch.items == [claim.item for claim in batch]
            seen += batch.items
            sizes.append(len(batch))
    assert sorted(seen) == list(range(1_050))
    assert sizes[:10] == [100] * 10, "a batch is full while there are items"
    assert await is_empty(queue)


async def test_items_pushed_one_by_one_are_batches_too(queue: zkrq.Queue[Any]) -> None:
    for number in range(5):
        await queue.push(number)
    assert await batches_of(queue, 4) == [4, 1]
    assert await is_empty(queue)


async def test_a_batch_is_what_is_ready_and_waits_for_its_first(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    waiting = asyncio.create_task(one_batch(queue))
    await pass_time(0.1)
    assert not waiting.done()
    await queue.push_many(["a", "b"])
    assert (await waiting).items == ["a", "b"]


async def test_within_waits_for_more(queue: zkrq.Queue[Any]) -> None:
    await queue.push("first")
    async with queue.pop_batches(3, within=HANG) as batches:
        waiting = asyncio.create_task(anext(batches))
        await settled(lambda: are_sizes(queue, 0, 1))
        await queue.push("second")
        await settled(lambda: are_sizes(queue, 0, 2))
        assert not waiting.done()
        await queue.push("third")
        batch = await waiting
        assert batch.items == ["first", "second", "third"]
        async with batch:
            pass
    assert await is_empty(queue)


async def test_within_ends_with_what_there_is(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await queue.push("first")
    async with queue.pop_batches(3, within=0.2) as batches:
        waiting = asyncio.create_task(anext(batches))
        await settled(lambda: are_sizes(queue, 0, 1))
        await pass_time(0.3)
        assert (await waiting).items == ["first"]


async def test_a_batch_that_waited_while_its_session_may_have_ended_goes_back(
    queue: zkrq.Queue[Any], pass_time: PassTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may have fenced this process, and others may have been given its items."""
    identity = queue._parts.context.identity  # pyright: ignore[reportPrivateUsage]
    take_more: Callable[..., Awaitable[list[zkrq.Claim[Any]]]] = getattr(Line, "_take_more")  # noqa: B009

    async def doubt(*args: Any) -> list[zkrq.Claim[Any]]:
        """The batch has begun to wait for more."""
        monkeypatch.setattr(identity, "certain_until", -math.inf)
        monkeypatch.setattr(Identity, "is_certain", never)
        return await take_more(*args)

    monkeypatch.setattr(Line, "_take_more", doubt)
    await queue.push("x")
    async with queue.pop_batches(2, within=0.2) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        while not waiting.done():
            await pass_time(0.3)
        batch = await waiting
        assert batch.items == ["x"]
        assert batch[0].attempts == 1, "the claim that waited does not count"
        assert batch[0].token[1] > 2, "and this is another one"
        await batch.ack()


async def test_cancelled_while_a_batch_waits_its_items_are_others(queue: zkrq.Queue[Any]) -> None:
    await queue.push("first")
    async with queue.pop_batches(3, within=HANG) as batches:
        waiting = asyncio.create_task(anext(batches))
        await settled(lambda: are_sizes(queue, 0, 1))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await settled(lambda: are_sizes(queue, 1, 0))
    claim = await take(queue)
    assert claim.attempts == 1, "nobody has begun with it"
    await claim.ack()


async def test_closed_while_a_batch_waits_its_items_go_back(cluster: zkrq.Cluster, name: str, connect: Connect) -> None:
    queue = cluster.queue(name)
    async with connect() as other:
        await queue.push("first")
        theirs = other.queue(name)
        waiting = asyncio.create_task(anext(theirs.pop_batches(3, within=HANG)))
        await until(lambda: theirs.held == 1)
    with pytest.raises(StopAsyncIteration):
        await waiting
    await settled(lambda: are_sizes(queue, 1, 0))
    claim = await take(queue)
    assert claim.attempts == 1
    await claim.ack()


async def test_a_limit_counts_items(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(50))
    seen: list[int] = []
    async for batch in queue.pop_batches(20, limit=45):
        async with batch:
            seen += batch.items
    assert len(seen) == 45
    await settled(lambda: are_sizes(queue, 5, 0))
    assert [batch async for batch in queue.pop_batches(20, limit=0)] == []


async def test_leaving_the_loop_hands_back_what_was_claimed_ahead(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(300))
    async with queue.pop_batches(10, prefetch=100) as batches:
        batch = await anext(batches)
        await batch.ack()
    await settled(lambda: are_sizes(queue, 290, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"max_size": 0},
        {"max_size": 501},
        {"max_size": 2.5},
        {"within": -1},
        {"within": 61},
        {"within": float("nan")},
        {"prefetch": -1},
        {"limit": -1},
    ],
)
async def test_bad_arguments_are_refused_before_anything_is_claimed(queue: zkrq.Queue[Any], options: Any) -> None:
    await queue.push("x")
    with pytest.raises(zkrq.ConfigError):
        queue.pop_batches(**options)
    assert await queue.size() == (1, 0, 0, 0)


# -- a batch -----------------------------------------------------------------------------------------------------------


async def test_a_batch_is_a_sequence_of_claims(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(list("abc"))
    batch = await one_batch(queue)
    assert [batch[0].item, batch[-1].item, len(batch)] == ["a", "c", 3]
    assert [claim.item for claim in batch[1:]] == ["b", "c"]
    assert batch[1] in batch
    assert batch.queue == queue.name
    assert repr(batch) == f"<Batch of 3 of queue {queue.name}: 3 held>"
    assert await batch.release() == []
    await settled(lambda: are_sizes(queue, 3, 0))


async def test_what_the_body_settles_itself_is_not_settled_again(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(6))
    async with await one_batch(queue) as batch:
        await batch[0].nack(delay=60)
        await batch[1].bury("bad")
        await batch[2].ack()
        async with batch[3]:
            pass
    assert [str(claim.settled) for claim in batch] == ["nack", "bury", "ack", "ack", "ack", "ack"]
    assert await queue.size() == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("error", "endings"),
    [
        (ZeroDivisionError(), {1: "nack", 2: "bury"}),
        (zkrq.RetryLater(delay=60), {1: "nack", 2: "bury"}),
        (zkrq.Reject("bad"), {1: "bury", 2: "bury"}),
        (zkrq.Snooze(60), {1: "release", 2: "release"}),
    ],
)
async def test_an_exception_settles_each_item_by_its_own_attempts(
    cluster: zkrq.Cluster, name: str, error: Exception, endings: dict[int, str]
) -> None:
    queue = cluster.queue(name, retry=FEW_ATTEMPTS)
    await queue.push("old")
    await (await take(queue)).nack(delay=0)
    await settled(lambda: are_sizes(queue, 1, 0))
    await queue.push("new")
    batch = await one_batch(queue)
    with suppress(ZeroDivisionError):
        async with batch:
            assert {claim.item: claim.attempts for claim in batch} == {"old": 2, "new": 1}
            raise error
    assert {claim.attempts: str(claim.settled) for claim in batch} == endings


async def test_a_batch_is_put_off(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(3))
    batch = await one_batch(queue)
    assert await batch.release(delay=60) == []
    assert await queue.size() == (0, 3, 0, 0)


async def test_a_cancellation_hands_the_items_back_uncounted(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(3))
    inside = asyncio.Event()

    async def work() -> None:
        async with await one_batch(queue) as batch:
            await batch[0].ack()
            inside.set()
            await asyncio.sleep(HANG)

    task = asyncio.create_task(work())
    await inside.wait()
    await stop(task)
    await settled(lambda: are_sizes(queue, 2, 0))
    batch = await one_batch(queue)
    assert [claim.attempts for claim in batch] == [1, 1]
    await batch.ack()


async def test_lost_claims_are_told_and_the_others_acked(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(4))
    batch = await one_batch(queue)
    with pytest.raises(zkrq.ClaimLost, match=batch[1].id) as raised:
        async with batch:
            await queue.cancel(batch[1].id)
    assert raised.value.id == batch[1].id
    assert batch.lost == [batch[1]]
    assert [claim.settled for claim in batch] == ["ack", None, "ack", "ack"]
    assert await is_empty(queue)


async def test_ack_returns_those_that_another_consumer_has(
    cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    queue = cluster.queue(name, claim_timeout=0.5)
    await queue.push_many(range(4))
    batch = await one_batch(queue)
    for claim in batch[2:]:
        lease_of(claim).stop_extending()
    await pass_time(0.6)
    again = [await take(queue), await take(queue)]
    assert await batch.ack() == list(batch[2:])
    assert await batch.ack() == list(batch[2:]), "again"
    assert await cluster.queue(name).ack_many(again) == []
    assert await is_empty(queue)


async def test_the_body_is_stopped_when_nothing_of_it_holds(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(3))
    batch = await one_batch(queue)
    stopped = False
    with pytest.raises(zkrq.ClaimLost, match="2 of 3 claims"):
        async with batch:
            await batch[0].ack()
            try:
                for claim in batch[1:]:
                    await queue.cancel(claim.id)
                await asyncio.sleep(HANG)
            except asyncio.CancelledError:
                stopped = True
                raise
    assert stopped
    assert batch.lost == list(batch[1:])
    await asyncio.sleep(0)  # the cancellation was for the body only


async def test_a_batch_that_is_lost_before_the_work_begins(queue: zkrq.Queue[Any]) -> None:
    await queue.push("x")
    batch = await one_batch(queue)
    await queue.cancel(batch[0].id)
    await until(lambda: bool(batch.lost))
    with pytest.raises(zkrq.ClaimLost):
        async with batch:
            raise AssertionError


async def test_observers_see_each_item(own_cluster: zkrq.Cluster) -> None:
    log: list[object] = []

    class Watch(zkrq.Observer):
        def before_delivery(self, claim: zkrq.Claim[Any]) -> None:
            log.append(f"before {claim.item}")

        def after_delivery(self, claim: zkrq.Claim[Any], error: BaseException | None) -> None:
            log.append(f"after {claim.item}")

        def settled(self, queue: str, verb: zkrq.Verb, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
            log.append((verb, len(seconds), outcomes))

    own_cluster.observe(Watch())
    queue = own_cluster.queue("jobs")
    await queue.push_many(list("abc"))
    batch = await one_batch(queue)
    await stolen(batch[2]).bury("by an operator")
    log.clear()
    with pytest.raises(zkrq.ClaimLost):
        async with batch, batch[0]:
            log.append("body")
    assert log == [
        *("before a", "before b", "before c", "body", ("ack", 1, {"done": 1}), "after c", "after b", "after a"),
        ("ack", 2, {"done": 1, "lost": 1}),
    ]


# -- workers -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def working(
    queue: zkrq.Queue[Any], handler: Any, *, concurrency: int = 10, grace: float = HANG, **options: Any
) -> AsyncGenerator[zkrq.Worker, None]:
    """A worker of batches in the background, drained at the end."""
    worker = zkrq.Worker(concurrency=concurrency, grace=grace).add(queue, handler, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await stop(task)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_gets_batches_up_to_its_size(queue: zkrq.Queue[Any], in_thread: bool) -> None:
    await queue.push_many(range(205))
    batches: list[list[int]] = []

    def keep(items: list[int]) -> None:
        batches.append(items)

    async def handle(items: list[int]) -> None:
        keep(items)

    async with working(queue, keep if in_thread else handle, batch=50, concurrency=3) as worker:
        await settled(lambda: is_empty(queue))
        await until(lambda: worker.statistics().running == 0)
    assert sorted(itertools.chain(*batches)) == list(range(205))
    assert max(map(len, batches)) == 50
    assert len(batches) <= 8
    assert worker.statistics().done == 205


async def test_concurrency_counts_batches(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(40))
    gate, begun = asyncio.Event(), list[int]()

    async def handle(items: list[int]) -> None:
        begun.append(len(items))
        await gate.wait()

    async with working(queue, handle, batch=10, concurrency=2) as worker:
        await settled(lambda: are_sizes(queue, 20, 20))
        await until(lambda: len(begun) == 2)
        assert begun == [10, 10]
        assert worker.statistics().running == 20
        assert repr(worker) == f"<Worker of {queue.name}: 2 of 2 running>"
        gate.set()
        await settled(lambda: is_empty(queue))


async def test_a_batch_of_a_worker_waits_for_more(queue: zkrq.Queue[Any]) -> None:
    batches: list[list[int]] = []

    async def handle(items: list[int]) -> None:
        batches.append(items)

    async with working(queue, handle, batch=3, within=HANG):
        for number in range(3):
            assert batches == []
            await queue.push(number)
            await settled(lambda number=number: are_sizes(queue, 0, number + 1) if number < 2 else is_empty(queue))
    assert batches == [[0, 1, 2]]


async def test_drained_while_a_batch_waits_its_items_go_back(queue: zkrq.Queue[Any]) -> None:
    async def handle(items: list[int]) -> None:
        raise AssertionError

    async with working(queue, handle, batch=3, within=HANG):
        await queue.push(1)
        await settled(lambda: are_sizes(queue, 0, 1))
    # The servers knew of the claim before this process did, so its answer may come after the drain, and go back then.
    await settled(lambda: are_sizes(queue, 1, 0))
    claim = await take(queue)
    assert claim.attempts == 1
    await claim.ack()


async def test_what_a_handler_raises_fails_what_it_has_not_settled(
    cluster: zkrq.Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, outcomes = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes()
    await queue.push_many(range(5))

    async def handle(items: list[int], batch: zkrq.Batch[int]) -> None:
        for claim in batch:
            if claim.item == 0:
                await claim.ack()
            if claim.item == 1:
                await claim.bury("bad")
        raise ZeroDivisionError("by zero")

    async with working(queue, handle, batch=5, concurrency=1, after=outcomes) as worker:
        await until(lambda: len(outcomes.list) >= 8)
    endings = {item: [o.ending for i, o in outcomes.list if i == item] for item in range(5)}
    assert (endings[0], endings[1]) == ([Ending.ACKED], [Ending.BURIED])
    assert [endings[item][-1] for item in (2, 3, 4)] == [Ending.BURIED] * 3
    assert {type(outcome.error) for _, outcome in outcomes.list} == {ZeroDivisionError}
    assert await queue.size() == (0, 0, 0, 4)
    counts = worker.statistics()
    assert (counts.done, counts.failed, counts.running) == (1, 7, 0)
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "batch of 5 items" in loud[0], "one line for each batch"
    assert len(loud) <= 4


async def test_lost_claims_of_a_handled_batch_are_not_told_as_done(queue: zkrq.Queue[Any]) -> None:
    outcomes = Outcomes()
    await queue.push_many(range(3))

    async def handle(items: list[int], batch: zkrq.Batch[int]) -> None:
        await queue.cancel(batch[1].id)
        await until(lambda: bool(batch.lost))

    async with working(queue, handle, batch=3, after=outcomes) as worker:
        await until(lambda: len(outcomes.list) == 3)
    assert outcomes.endings == [Ending.ACKED, Ending.LOST, Ending.ACKED]
    assert [type(outcome.error) for _, outcome in outcomes.list] == [type(None), zkrq.ClaimLost, type(None)]
    assert (worker.statistics().done, worker.statistics().lost) == (2, 1)


async def test_hooks_are_called_for_each_item_and_may_settle_it(queue: zkrq.Queue[Any]) -> None:
    outcomes, handled = Outcomes(), list[list[str]]()
    await queue.push_many(["kept", "buried", "kept too"])

    async def before(claim: zkrq.Claim[Any]) -> None:
        if claim.item == "buried":
            await claim.bury("not today")

    async def handle(items: list[str]) -> None:
        handled.append(items)

    async with working(queue, handle, batch=3, before=before, after=outcomes):
        await until(lambda: len(outcomes.list) == 3)
    assert handled == [["kept", "kept too"]]
    assert Counter(outcomes.endings) == {Ending.ACKED: 2, Ending.BURIED: 1}


async def test_beyond_its_time_a_batch_has_failed(cluster: zkrq.Cluster, name: str) -> None:
    queue, outcomes = cluster.queue(name, retry=zkrq.Retry(max_attempts=1)), Outcomes()
    await queue.push_many(range(3))

    async def handle(items: list[int]) -> None:
        await asyncio.sleep(HANG)

    async with working(queue, handle, batch=3, time_limit=0.05, after=outcomes):
        await until(lambda: len(outcomes.list) == 3)
    assert outcomes.endings == [Ending.BURIED] * 3
    assert "time limit" in str(outcomes.list[0][1].error)


async def test_cut_off_at_the_end_of_the_grace_a_batch_goes_back(queue: zkrq.Queue[Any]) -> None:
    begun = asyncio.Event()
    await queue.push_many(range(3))

    async def handle(items: list[int], batch: zkrq.Batch[int]) -> None:
        await batch[0].ack()
        begun.set()
        await asyncio.sleep(HANG)

    async with working(queue, handle, batch=3, grace=0) as worker:
        await begun.wait()
    assert worker.statistics().cut_off == 1
    assert await are_sizes(queue, 2, 0)


async def test_a_worker_of_several_queues_never_mixes_them(cluster: zkrq.Cluster, name: str) -> None:
    queues = [cluster.queue(f"{name}-{number}") for number in range(3)]
    batches: list[list[str]] = []

    async def handle(items: list[str]) -> None:
        batches.append(items)

    async def handle_one(item: str) -> None:
        batches.append([item])

    worker = zkrq.Worker(concurrency=2).add(queues[0], handle_one)
    for queue in queues[1:]:
        worker.add(queue, handle, batch=10)
    for queue in queues:
        await queue.push_many([queue.name] * 25)
    await worker.run(burst=True)
    for queue in queues:
        assert await is_empty(queue)
    assert Counter(itertools.chain(*batches)) == {queue.name: 25 for queue in queues}
    assert all(len(set(batch)) == 1 for batch in batches)
    assert max(map(len, batches)) == 10


@pytest.mark.parametrize(
    "options", [{"batch": 0}, {"batch": 501}, {"batch": 5, "within": -1}, {"batch": 5, "within": 61}, {"within": 1}]
)
async def test_bad_options_of_a_worker_are_refused(queue: zkrq.Queue[Any], options: Any) -> None:
    with pytest.raises(zkrq.ConfigError):
        zkrq.Worker().add(queue, print, **options)


async def test_a_handler_of_batches_takes_the_items(queue: zkrq.Queue[Any]) -> None:
    with pytest.raises(zkrq.ConfigError, match="the items, or the items and their batch"):
        zkrq.Worker().add(queue, lambda: None, batch=5)  # type: ignore[misc]
