"""User code that raises anything: one settlement with a reason, and its neighbours go on."""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest

import zkrq
from tests import odd
from tests.behaviour.helpers import FEW_ATTEMPTS, Outcomes, working
from tests.harness import settled, take, until
from zkrq.working.outcomes import Ending

pytestmark = pytest.mark.anyio

GOOD = 20
"""Innocent items beside the others."""


UNHEARD = pytest.mark.usefixtures("unheard")


def odd_errors(count: int = 60) -> Iterator[BaseException]:
    """One of each class, then some that are mixed."""
    yield from (make("text") for make in odd.CLASSES)
    chance = random.Random(47)
    yield from (odd.some(chance, odd.CLASSES) for _ in range(count))


def raising(errors: dict[str, BaseException]) -> Callable[[str], None]:
    def handle(item: str) -> None:
        if item in errors:
            raise errors[item]

    return handle


async def _all_died(queue: zkrq.Queue[Any], items: set[str]) -> bool:
    size = await queue.size()
    return size == (0, 0, 0, len(items))


@UNHEARD
@pytest.mark.parametrize("kind", ["on the loop", "in a thread", "in batches"])
async def test_a_handler_may_raise_anything(cluster: zkrq.Cluster, name: str, kind: str) -> None:
    """Also what ends programs: it would end the worker, or come back uncounted, for ever."""
    queue, outcomes = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes()
    errors = {f"bad-{n}": error for n, error in enumerate(odd_errors())}
    decide = raising(errors)

    async def on_the_loop(item: str) -> None:
        decide(item)

    async def in_batches(items: list[str]) -> None:
        decide(items[0])

    handler: Any = {"on the loop": on_the_loop, "in a thread": decide, "in batches": in_batches}[kind]
    await queue.push_many([*errors, *(f"good-{n}" for n in range(GOOD))])
    worker = zkrq.Worker(concurrency=8, after=outcomes)
    if kind == "in batches":
        worker.add(queue, handler, batch=1)
    else:
        worker.add(queue, handler)
    async with worker:
        await settled(lambda: _all_died(queue, set(errors)))
        await until(lambda: len(outcomes.list) == 2 * len(errors) + GOOD)
    letters = [letter async for letter in queue.scan("dead")]
    assert {letter.item for letter in letters} == set(errors)
    assert {(letter.attempts, letter.failures) for letter in letters} == {(2, 2)}
    assert all((letter.reason or "").startswith("failed in delivery 2 of 2: ") for letter in letters)
    ended = {item: [o.ending for each, o in outcomes.list if each == item] for item, _ in outcomes.list}
    assert all(ended[item] == [Ending.RETRIED, Ending.BURIED] for item in errors)
    assert all(ended[f"good-{n}"] == [Ending.ACKED] for n in range(GOOD))


@UNHEARD
@pytest.mark.parametrize("kind", ["on the loop", "in a thread"])
async def test_wishes_are_understood_however_they_are_raised(cluster: zkrq.Cluster, name: str, kind: str) -> None:
    queue, outcomes = cluster.queue(name, retry=FEW_ATTEMPTS), Outcomes()
    chance = random.Random(47)
    rejected = {f"reject-{n}": odd.some(chance, odd.WISHES) for n in range(20)}
    later = {f"later-{n}": odd.some(chance, odd.LATER) for n in range(20)}
    decide = raising(rejected | later)

    async def on_the_loop(item: str) -> None:
        decide(item)

    await queue.push_many([*rejected, *later])
    async with working(queue, decide if kind == "in a thread" else on_the_loop, after=outcomes):
        await until(lambda: len(outcomes.list) == len(rejected) + 2 * len(later))
    ended = {item: [o.ending for each, o in outcomes.list if each == item] for item, _ in outcomes.list}
    assert all(ended[item] == [Ending.BURIED] for item in rejected)
    assert all(ended[item] == [Ending.RETRIED, Ending.BURIED] for item in later)


@UNHEARD
async def test_a_verdict_inside_a_task_group(cluster: zkrq.Cluster, name: str) -> None:
    queue, outcomes = cluster.queue(name), Outcomes()

    async def part(error: Exception) -> None:
        raise error

    async def handle(item: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in item.split():
                tasks.create_task(part(zkrq.Reject("bad address") if each == "reject" else zkrq.RetryLater(3600)))

    await queue.push_many(["reject", "later", "later later"])
    async with working(queue, handle, after=outcomes):
        await until(lambda: len(outcomes.list) == 3)
    assert await queue.size() == (0, 2, 0, 1)
    (letter,) = await queue.dead_letters()
    assert (letter.item, letter.attempts, letter.reason) == ("reject", 1, "bad address")


@UNHEARD
async def test_inside_a_claim_anything_is_one_failure(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=1))
    errors = [error for error in odd_errors() if not isinstance(error, GeneratorExit | StopIteration)]
    await queue.push_many(range(len(errors)))
    for error in errors:
        with pytest.raises(type(error)) as raised:
            async with await take(queue):
                raise error
        assert raised.value is error
    assert await queue.size() == (0, 0, 0, len(errors))
    assert {letter.failures async for letter in queue.scan("dead")} == {1}


@UNHEARD
async def test_inside_a_batch_anything_is_one_failure_of_each(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=1))
    errors = [error for error in odd_errors(10) if not isinstance(error, GeneratorExit | StopIteration)]
    await queue.push_many(range(2 * len(errors)))
    async with aclosing(queue.pop_batches(2)) as batches:
        for error in errors:
            with pytest.raises(type(error)):
                async with await anext(batches):
                    raise error
    assert await queue.size() == (0, 0, 0, 2 * len(errors))


@UNHEARD
async def test_a_generator_that_is_closed_hands_back(queue: zkrq.Queue[Any]) -> None:
    await queue.push("x")

    async def claims() -> AsyncGenerator[zkrq.Claim[Any]]:
        async with await take(queue) as claim:
            yield claim

    async with aclosing(claims()) as each:
        await anext(each)
    (item,) = await queue.peek(1)
    assert (item.attempts, item.failures) == (0, 0)


@UNHEARD
async def test_a_hook_may_raise_anything(queue: zkrq.Queue[Any]) -> None:
    errors, acked = list(odd_errors(5)), list[int]()

    def before(claim: zkrq.Claim[int]) -> None:
        raise errors[claim.item]

    async def after(claim: zkrq.Claim[int], outcome: object) -> None:
        acked.append(claim.item)
        raise errors[claim.item]

    async def handle(item: int) -> None:
        pass

    await queue.push_many(range(len(errors)))
    async with working(queue, handle, before=before, after=after):
        await until(lambda: len(acked) == len(errors))
    assert sorted(acked) == list(range(len(errors)))
    assert await queue.size() == (0, 0, 0, 0)


@UNHEARD
async def test_a_backoff_that_raises_settles_still(cluster: zkrq.Cluster, name: str) -> None:
    def backoff(failures: int, chance: float) -> float:
        raise SystemExit(3)

    queue = cluster.queue(name, retry=zkrq.Retry(backoff=backoff))
    await queue.push("x")
    with suppress(ValueError):
        async with await take(queue):
            raise ValueError("no")
    assert await queue.size() == (0, 1, 0, 0)


@pytest.mark.parametrize("in_batches", [False, True])
async def test_a_result_that_cannot_be_kept_is_an_error_of_the_handler(
    cluster: zkrq.Cluster, name: str, in_batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With a traceback, and the part that cannot be encoded."""
    queue, outcomes = cluster.queue(name, results=zkrq.Results(), retry=zkrq.Retry(max_attempts=1)), Outcomes()
    result = {"user": {"born": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)}}

    async def handle(item: str) -> object:
        return result

    async def handle_batch(items: list[str]) -> list[object]:
        return [result for _ in items]

    await queue.push("x")
    worker = zkrq.Worker(after=outcomes)
    async with worker.add(queue, handle_batch, batch=1) if in_batches else worker.add(queue, handle):
        await until(lambda: len(outcomes.list) == 1)
    (letter,) = await queue.dead_letters()
    assert "Object of type datetime is not JSON serializable (at ['user']['born'])" in (letter.reason or "")
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info
    assert record.exc_info[0] is zkrq.CodecError


class Odd:
    """A codec that raises what it likes."""

    name = "odd"

    def __init__(self) -> None:
        self.errors = list(odd_errors(20))

    def encode(self, item: int, /) -> bytes:
        return str(item).encode()

    def decode(self, data: bytes, /) -> int:
        if (item := int(data)) < len(self.errors):
            raise self.errors[item]
        return item


@UNHEARD
async def test_a_codec_may_raise_anything(cluster: zkrq.Cluster, name: str) -> None:
    codec = Odd()
    queue, done = cluster.queue(name, codec=codec), list[int]()
    bad = len(codec.errors)
    await queue.push_many(range(bad + GOOD))

    async def handle(item: int) -> None:
        done.append(item)

    async with working(queue, handle):
        await settled(lambda: _all_died(queue, set(map(str, range(bad)))))
    assert sorted(done) == list(range(bad, bad + GOOD))
    assert all("cannot be decoded as odd: " in (each.reason or "") for each in await queue.dead_letters())


@UNHEARD
async def test_a_listener_passes_over_messages_whose_codec_raises_anything(cluster: zkrq.Cluster, name: str) -> None:
    codec = Odd()
    bad = len(codec.errors)
    async with cluster.listen(name, codec=codec) as listener:
        for number in range(bad + GOOD):
            await cluster.broadcast(name, number, codec=codec)
        assert [await anext(listener) for _ in range(GOOD)] == list(range(bad, bad + GOOD))


@UNHEARD
async def test_a_message_whose_codec_raises_anything_is_not_sent(cluster: zkrq.Cluster, name: str) -> None:
    class Raising(Odd):
        def encode(self, item: int, /) -> bytes:
            if item < len(self.errors):
                raise self.errors[item]
            return super().encode(item)

    codec = Raising()
    async with cluster.listen(name) as listener:
        for number in range(len(codec.errors)):
            with pytest.raises(zkrq.CodecError, match="nothing was sent"):
                await cluster.broadcast(name, number, codec=codec)
        await cluster.broadcast(name, "sent")
        assert await anext(listener) == "sent"
