"""Workers: handlers, their exceptions, their time limit, hooks, and the end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import FEW_ATTEMPTS, Outcomes, are_sizes, is_empty, working
from tests.harness import HANG, settled, until
from zkrq.working.outcomes import Ending, Outcome
from zkrq.working.worker import work

pytestmark = pytest.mark.anyio


async def test_every_item_once_and_no_more_than_concurrency_at_once(queue: zkrq.Queue[Any]) -> None:
    await queue.push_many(range(200))
    seen: list[int] = []
    running, most = 0, 0

    async def handle(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        seen.append(item)

    async with working(queue, handle, concurrency=7):
        await settled(lambda: is_empty(queue))
    assert sorted(seen) == list(range(200))
    assert most == 7


async def test_it_claims_nothing_ahead(cluster: zkrq.Cluster, name: str) -> None:
    queue, gate = cluster.queue(name), asyncio.Event()
    await queue.push_many(range(10))

    async def handle(item: int) -> None:
        await gate.wait()

    async with working(queue, handle, concurrency=3):
        await settled(lambda: are_sizes(queue, 7, 3))
        gate.set()
        await settled(lambda: is_empty(queue))


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_a_handler_raises_decides(
    cluster: zkrq.Cluster, name: str, in_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue, outcomes = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes()

    def decide(item: str, claim: zkrq.Claim[str]) -> None:
        if item == "crash":
            raise ZeroDivisionError("by zero")
        if item == "never":
            raise zkrq.Reject("bad address")
        if item == "later" and claim.attempts == 1:
            raise zkrq.RetryLater(delay=0)

    async def decide_on_the_loop(item: str, claim: zkrq.Claim[str]) -> None:
        decide(item, claim)

    ids = {item: (await queue.push(item)).id for item in ("crash", "never", "later", "fine")}
    async with working(queue, decide if in_thread else decide_on_the_loop, after=outcomes, concurrency=1):
        await until(lambda: len(outcomes.list) == 6)
    endings = {item: [o.ending for i, o in outcomes.list if i == item] for item in ids}
    assert endings == {
        "crash": [Ending.RETRIED, Ending.BURIED],
        "never": [Ending.BURIED],
        "later": [Ending.RETRIED, Ending.ACKED],
        "fine": [Ending.ACKED],
    }
    errors = [type(outcome.error) for _, outcome in outcomes.list]
    assert Counter(errors) == {ZeroDivisionError: 2, zkrq.Reject: 1, zkrq.RetryLater: 1, type(None): 2}
    assert await queue.size() == (0, 0, 0, 2)
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(ids["crash"] in r.getMessage(), r.exc_info is not None) for r in loud] == [(True, True)] * 2


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_puts_its_item_off(
    cluster: zkrq.Cluster, name: str, in_thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue, outcomes, seen = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes(), list[tuple[int, int]]()
    await queue.push("x")

    def decide(item: str, claim: zkrq.Claim[str]) -> None:
        seen.append((claim.attempts, claim.failures))
        if len(seen) < 5:
            raise zkrq.Snooze(0.01)

    async def decide_on_the_loop(item: str, claim: zkrq.Claim[str]) -> None:
        decide(item, claim)

    async with working(queue, decide if in_thread else decide_on_the_loop, after=outcomes):
        await until(lambda: len(outcomes.list) == 5)
    assert seen == [(1, 0)] * 5
    assert outcomes.endings == [Ending.RELEASED] * 4 + [Ending.ACKED]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_handler_that_cancels_itself_has_failed(cluster: zkrq.Cluster, name: str) -> None:
    """Handed back without a failure it would come again at once, for ever."""
    queue, outcomes = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes()
    await queue.push("x")

    async def handle(item: str) -> None:
        gone = asyncio.create_task(asyncio.sleep(HANG))
        gone.cancel()
        await gone

    async with working(queue, handle, after=outcomes):
        await until(lambda: len(outcomes.list) == 2)
    assert outcomes.endings == [Ending.RETRIED, Ending.BURIED]


async def test_beyond_its_time_a_handler_is_cancelled_and_has_failed(cluster: zkrq.Cluster, name: str) -> None:
    queue, outcomes, stopped = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes(), list[str]()
    await queue.push_many(["slow", "quick", "own"])

    async def handle(item: str) -> None:
        try:
            if item == "slow":
                await asyncio.sleep(HANG)
            if item == "own":
                raise TimeoutError("of something else")
        except asyncio.CancelledError:
            stopped.append(item)
            raise

    async with working(queue, handle, time_limit=0.05, after=outcomes):
        await until(lambda: len(outcomes.list) == 5)
    assert stopped == ["slow", "slow"]
    told = {str(o.error) for item, o in outcomes.list if item == "slow"}
    assert told == {"the handler was stopped at its time limit of 0.05 s"}
    assert {str(o.error) for item, o in outcomes.list if item == "own"} == {"of something else"}
    assert await queue.size() == (0, 0, 0, 2)


async def test_hooks_come_before_and_after_and_their_failures_change_nothing(
    cluster: zkrq.Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, log = cluster.queue(name), list[str]()
    await queue.push("x")

    async def handle(item: str) -> None:
        log.append("handler")

    async def before(claim: zkrq.Claim[Any]) -> None:
        log.append(f"before {claim.item}")
        raise ZeroDivisionError("in before")

    def after(claim: zkrq.Claim[Any], outcome: Outcome) -> None:
        assert outcome.seconds > 0
        log.append(f"after {outcome.ending} {outcome.error}")
        raise ZeroDivisionError("in after")

    async with working(queue, handle, before=before, after=after):
        await settled(lambda: is_empty(queue))
    assert log == ["before x", "handler", "after acked None"]
    assert "in before" in caplog.text
    assert "in after" in caplog.text


async def test_who_settles_a_claim_himself_is_not_overruled(cluster: zkrq.Cluster, name: str) -> None:
    queue, outcomes, handled = cluster.queue(name), Outcomes(), list[str]()
    await queue.push_many(["before", "handler"])

    async def before(claim: zkrq.Claim[Any]) -> None:
        if claim.item == "before":
            await claim.bury("not today")

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        handled.append(item)
        await claim.nack(delay=60)

    async with working(queue, handle, before=before, after=outcomes):
        await until(lambda: len(outcomes.list) == 2)
    assert handled == ["handler"]
    assert sorted(outcomes.endings) == [Ending.BURIED, Ending.RETRIED]
    assert await queue.size() == (0, 1, 0, 1)


async def test_cancelled_it_claims_no_more_and_lets_handlers_finish(cluster: zkrq.Cluster, name: str) -> None:
    queue, gate, done = cluster.queue(name), asyncio.Event(), list[int]()
    await queue.push_many(range(10))
    begun: list[int] = []

    async def handle(item: int) -> None:
        begun.append(item)
        await gate.wait()
        done.append(item)

    task = asyncio.create_task(work(queue, handle, concurrency=3, grace=HANG))
    await until(lambda: len(begun) == 3)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(done) == begun == [0, 1, 2]
    assert await queue.size() == (7, 0, 0, 0)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("emails", r"is 'emails', must be a queue: cluster.queue\('emails'\)$"),
        (print, r"queue: cluster.queue\(name\)$"),
    ],
)
def test_a_worker_needs_a_queue_and_not_its_name(given: Any, text: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=text):
        zkrq.Worker().add(given, print)
