"""Doing the same with all items that are found: none is missed, none is done twice, what comes later is left alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import bury
from tests.harness import HANG, take
from zkrq.client import bulk as module
from zkrq.client.bulk import DEEDS, Bulk

pytestmark = pytest.mark.anyio

SPRING = ("campaign", "spring")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_MAX", 40)
    monkeypatch.setattr(module, "PAUSE", 0.01)


async def push_campaigns(queue: zkrq.Queue[Any], **options: Any) -> None:
    await queue.push_many(range(130), headers={"campaign": "spring"}, **options)
    await queue.push_many(range(20), headers={"campaign": "autumn"}, **options)


async def test_all_that_is_found_is_cancelled_whatever_its_state(queue: zkrq.Queue[Any]) -> None:
    await push_campaigns(queue)
    await queue.push("later", headers={"campaign": "spring"}, delay=3600)
    claim = await take(queue)
    await (await take(queue)).bury("bad")
    work = Bulk(queue, "cancel", {"header": SPRING})
    assert await work.count() == (131, 1, True)
    assert (await queue.size()) == (128 + 20, 1, 1, 1)
    await work.run()
    assert (work.found, work.changed, work.claimed, work.is_done, work.is_least) == (131, 131, 1, True, False)
    assert await queue.size() == (20, 0, 0, 0)
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()
    again = Bulk(queue, "cancel", {"header": SPRING})
    await again.run()
    assert (again.found, again.changed) == (0, 0)


@pytest.mark.parametrize("deed", ["redrive", "discard"])
async def test_dead_letters_are_redriven_or_discarded(queue: zkrq.Queue[Any], deed: str) -> None:
    await bury(queue, 100)
    await queue.push("bad 1, but not dead")
    work, seen = Bulk(queue, deed, {"error": "BAD 1"}), list[int]()
    await work.run(seen.append)
    assert (work.found, work.changed) == (11, 11)
    assert seen == sorted(seen)
    assert await queue.size() == (1 + (11 if deed == "redrive" else 0), 0, 0, 89)


async def test_what_waits_is_advanced(queue: zkrq.Queue[Any]) -> None:
    await push_campaigns(queue, delay=3600)
    await Bulk(queue, "advance", {"header": SPRING}).run()
    assert await queue.size() == (130, 20, 0, 0)


async def test_what_comes_after_the_beginning_is_left_alone(queue: zkrq.Queue[Any], pass_time: PassTime) -> None:
    await push_campaigns(queue)
    work = Bulk(queue, "cancel", {"header": SPRING})
    await pass_time(0.01)
    late = await queue.push_many(range(5), headers={"campaign": "spring"})
    await work.run()
    assert work.changed == 130
    assert [bool(await queue.get(receipt.id)) for receipt in late] == [True] * 5


async def test_letters_that_die_again_are_redriven_once(queue: zkrq.Queue[Any]) -> None:
    """A handler that is still broken buries them while others are redriven."""
    ids = await bury(queue, 90)
    deliveries: Counter[str] = Counter()

    async def fail() -> None:
        async for claim in queue.pop():
            deliveries[claim.id] += 1
            await claim.bury("still bad")

    failing = asyncio.create_task(fail())
    work = Bulk(queue, "redrive", {"error": "bad"})
    while not work.is_done:
        await work.step()
        done = work.changed
        async with asyncio.timeout(HANG):
            while deliveries.total() < done:
                await asyncio.sleep(0.01)
    failing.cancel()
    await asyncio.wait([failing])
    assert deliveries == Counter(ids)
    assert work.changed == 90


async def test_the_rest_of_a_run_that_was_stopped_is_done_by_the_next(queue: zkrq.Queue[Any]) -> None:
    ids = await bury(queue, 100)
    first = Bulk(queue, "redrive", {"error": "bad"})
    await first.step()
    assert 0 < first.changed < 100
    second = Bulk(queue, "redrive", {"error": "bad"})
    await second.run()
    assert first.changed + second.changed == 100
    claims = await queue.pop_many(200, timeout=0)
    while more := await queue.pop_many(200, timeout=0):
        claims += more
    assert sorted(claim.id for claim in claims) == sorted(ids), "each is delivered once more"


async def test_a_step_whose_result_is_lost_is_repeated(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    await push_campaigns(queue)
    cancel, fails = zkrq.Queue[Any].cancel_many, 2

    async def lose(self: zkrq.Queue[Any], ids: Sequence[str]) -> list[zkrq.Cancellation]:
        nonlocal fails
        outcomes = await cancel(self, ids)
        if fails:
            fails -= 1
            raise zkrq.OutcomeUnknown("lost")
        return outcomes

    monkeypatch.setattr(zkrq.Queue, "cancel_many", lose)
    work = Bulk(queue, "cancel", {"header": SPRING})
    await work.run()
    assert (work.found, work.is_least, fails) == (130, True, 0)
    assert work.changed < 130
    assert await queue.size() == (20, 0, 0, 0)


async def test_a_step_that_fails_for_long_ends_it(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> int:
        raise zkrq.Unavailable("no server")

    await bury(queue, 2)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(zkrq.Queue, "discard", fail)
    work = Bulk(queue, "discard", {"error": "bad"})
    with pytest.raises(zkrq.Unavailable):
        await work.run()
    assert (work.changed, work.is_done) == (0, False)


async def test_counting_ends_in_time_and_changes_nothing(queue: zkrq.Queue[Any]) -> None:
    await push_campaigns(queue)
    work, seen = Bulk(queue, "cancel", {"header": SPRING}), list[int]()
    counted = await work.count(0.0, seen.append)
    assert (counted.whole, counted.items) == (False, seen[-1])
    assert await work.count() == (130, 0, True)
    assert (await queue.size()).ready == 150


async def test_letters_are_redriven_at_a_rate(queue: zkrq.Queue[Any]) -> None:
    await bury(queue, 12)
    work = Bulk(queue, "redrive", {"error": "bad"}, rate=200)
    await work.run()
    assert work.changed == 12
    slow = Bulk(queue, "redrive", {"error": "bad"}, rate=0.5)
    assert (await slow.count()).items == 0


async def test_a_letter_whose_key_is_taken_stays(queue: zkrq.Queue[Any]) -> None:
    await queue.push("first", key="a")
    await (await take(queue)).bury("bad")
    await queue.push("second", key="a")
    work = Bulk(queue, "redrive", {"error": "bad"})
    await work.run()
    assert (work.found, work.changed) == (1, 0)
    assert await queue.size() == (1, 0, 0, 1)


async def test_what_is_meant_is_named(queue: zkrq.Queue[Any]) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("cancel", {}, "beside the state"),
        ("cancel", {"state": "ready"}, "beside the state"),
        ("redrive", {"error": "x", "state": "ready"}, "only dead items"),
        ("advance", {"state": "dead"}, "only scheduled items"),
        ("discard", {"error": ""}, "error is empty"),
    ]
    for deed, where, says in wrong:
        with pytest.raises(zkrq.ConfigError, match=says):
            Bulk(queue, deed, where)  # pyright: ignore[reportArgumentType]
    assert DEEDS.keys() == {"cancel", "redrive", "discard", "advance"}
