"""A worker with a handler for each task of a queue, and items whose task it does not know."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import Outcomes
from tests.harness import HANG, take, until
from zkrq.base import clock
from zkrq.base.retry import GivenUp, NotKnown
from zkrq.working import tasks

pytestmark = pytest.mark.anyio


async def test_each_item_comes_to_the_handler_of_its_task(queue: zkrq.Queue[Any]) -> None:
    seen: list[tuple[str, Any]] = []

    async def welcome(item: Any) -> None:
        seen.append(("welcome", item))

    async def digest(item: Any, claim: zkrq.Claim[Any]) -> None:
        seen.append((claim.task or "", item))

    def of_thread(item: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(("thread", item))

    async def rest(item: Any) -> None:
        seen.append(("rest", item))

    handlers: zkrq.Handlers[Any] = {"welcome": welcome, "digest": digest, "thread": zkrq.Task(of_thread), "": rest}
    for task in (*handlers, None):
        await queue.push(task, task=task or None)
    async with zkrq.Worker().add(queue, handlers) as worker:
        await until(lambda: worker.statistics().done == 5)
    assert sorted(seen, key=str) == sorted(
        [("welcome", "welcome"), ("digest", "digest"), ("thread", "thread"), ("rest", ""), ("rest", None)], key=str
    )
    assert worker.statistics().by_queue[queue.name].done == 5


async def test_a_task_may_have_a_time_limit_of_its_own(queue: zkrq.Queue[Any]) -> None:
    limits: dict[str, float | None] = {}

    async def hang(item: Any) -> None:
        await asyncio.sleep(HANG)

    async def quick(item: Any) -> None: ...

    def after(claim: zkrq.Claim[Any], outcome: zkrq.Outcome) -> None:
        limits[claim.task or ""] = None if outcome.error is None else len(str(outcome.error))
        assert str(outcome.error or "").endswith("its time limit of 0.05 s") or claim.task == "quick"

    handlers: zkrq.Handlers[Any] = {"slow": zkrq.Task(hang, time_limit=0.05), "quick": quick}
    await queue.push(1, task="slow")
    await queue.push(2, task="quick")
    async with zkrq.Worker(after=after).add(queue, handlers, time_limit=60):
        await until(lambda: limits.keys() == {"slow", "quick"})


async def never(item: Any) -> None:
    raise AssertionError


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often an item had been refused, each time; it comes again soon, but not all after the same time: two workers
    that refuse each other's items in step would be given them in step again."""
    counts: list[int] = []

    def put_off(count: int, chance: float) -> float:
        counts.append(count)
        return 0.01 * (1 + chance)

    monkeypatch.setattr(tasks, "PUT_OFF", put_off)
    return counts


async def test_an_item_of_an_unknown_task_goes_back_and_has_not_failed(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, delays: list[int]
) -> None:
    events: list[zkrq.Event] = []

    class Sees(zkrq.Observer):
        def event(self, event: zkrq.Event) -> None:
            events.append(event)

    stop = cluster.observe(Sees())
    outcomes = Outcomes()
    await queue.push("a", task="digest")
    async with zkrq.Worker(after=outcomes).add(queue, {"welcome": never, "": never}):
        await until(lambda: len(delays) >= 25)
    stop()
    assert set(outcomes.endings) == {zkrq.Ending.RELEASED}, "more often than an item may fail"
    assert delays == [*range(1, len(delays) + 1)]
    told = [event for event in events if isinstance(event, zkrq.TaskUnknown)]
    assert [(event.queue, event.task, event.known) for event in told] == [(queue.name, "digest", ("welcome", ""))]
    assert "items of task digest, for which a worker of this process has no handler" in str(told[0])
    assert str(told[0]).endswith("handlers for welcome, items without a task")
    claim = await take(queue)
    assert (claim.attempts, claim.failures) == (1, 0)


async def test_each_item_ends_at_a_worker_that_knows_its_task(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, delays: list[int]
) -> None:
    done: dict[str, list[int]] = {"old": [], "new": []}

    async def old(item: int) -> None:
        done["old"].append(item)

    async def new(item: int) -> None:
        done["new"].append(item)

    both = [zkrq.Worker(concurrency=2).add(queue, handlers) for handlers in ({"old": old}, {"new": new})]
    async with both[0], both[1]:
        for n in range(40):
            await queue.push(n, task="new" if n % 2 else "old")
        await until(lambda: len(done["old"]) + len(done["new"]) == 40)
    assert {name: sorted(some) for name, some in done.items()} == {"old": [*range(0, 40, 2)], "new": [*range(1, 40, 2)]}
    assert await queue.dead_letters() == []


async def test_nobody_knows_a_task_for_too_long(queue: zkrq.Queue[Any], delays: list[int]) -> None:
    await queue.push(1, task="digest")
    await queue.push(2)
    async with zkrq.Worker().add(queue, {"welcome": never}, unknown_after=0) as worker:
        await until(lambda: worker.statistics().failed == 2)
    letters = {letter.item: letter.reason or "" for letter in await queue.dead_letters()}
    assert letters[1].startswith("no handler for task 'digest' within 0 s of its push: this worker knows 'welcome'")
    assert letters[2].startswith("no handler for an item without a task within")
    assert await queue.redrive() == 2
    async with zkrq.Worker().add(queue, {"welcome": never}, unknown_after=0.05) as worker:
        await until(lambda: worker.statistics().failed == 2)
    assert worker.statistics().released >= 2, "not at the first delivery, although the push was long ago"
    assert await queue.redrive() == 2
    delays.clear()
    async with zkrq.Worker().add(queue, {"welcome": never}, unknown_after=None) as worker:
        await until(lambda: len(delays) >= 20)
    assert worker.statistics().failed == 0


async def test_a_day_passes_before_an_unknown_task_is_given_up(delays: list[int]) -> None:
    """What was scheduled for later than that has an hour."""
    elapsed, pushed_at = [0.0], clock.now() - timedelta(hours=23.5)
    refuse = tasks.Refusing(["welcome"], tasks.UNKNOWN_AFTER, lambda _: None, lambda: elapsed[0])

    async def outcome(after: float, *, age: float = 0.0) -> type[BaseException]:
        elapsed[0] += after
        claim: Any = SimpleNamespace(id="i", task="digest", pushed_at=pushed_at - timedelta(seconds=age))
        with pytest.raises((NotKnown, GivenUp)) as raised:
            await refuse(claim)
        return raised.type

    assert await outcome(0.0) is NotKnown
    assert await outcome(3000.0) is NotKnown
    assert await outcome(3000.0) is NotKnown, "it is no day since its push"
    assert await outcome(300.0, age=1801.0) is GivenUp
    assert await outcome(300.0, age=1801.0) is NotKnown, "a dead letter that was redriven has an hour"
    assert await outcome(3599.0, age=1801.0) is NotKnown
    assert await outcome(2.0, age=1801.0) is GivenUp
    assert await outcome(0.0, age=1801.0) is NotKnown
    assert await outcome(3601.0, age=1801.0) is NotKnown, "it did not come for an hour, and begins anew"


async def test_in_an_ordered_group_it_holds_the_group(
    cluster: zkrq.Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "PUT_OFF", zkrq.constant(3600))
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True))
    seen: list[int] = []

    async def handler(item: int) -> None:
        seen.append(item)

    await queue.push(1, group="a", task="new")
    await queue.push(2, group="a", task="old")
    await queue.push(3, group="b", task="old")
    async with zkrq.Worker().add(queue, {"old": handler}) as worker:
        await until(lambda: worker.statistics().released == 1 and seen == [3])
    assert (await queue.size()).scheduled == 1
    assert await queue.advance([(await queue.peek(state="scheduled"))[0].id]) == 1
    async with zkrq.Worker().add(queue, {"old": handler, "new": handler}):
        await until(lambda: seen == [3, 1, 2])


BAD: dict[str, Any] = {
    "the mapping of handlers is empty": {},
    "the name of a task is 'a b'": {"a b": never},
    "task 'welcome': the handler must be a function, not int": {"welcome": 7},
    "task 'welcome': the handler must take the item": {"welcome": lambda: None},
}


@pytest.mark.parametrize("text", BAD)
async def test_bad_mappings_are_refused(queue: zkrq.Queue[Any], text: str) -> None:
    with pytest.raises(zkrq.ConfigError, match=re.escape(text)):
        zkrq.Worker().add(queue, BAD[text])


async def test_a_mapping_has_no_batches(queue: zkrq.Queue[Any]) -> None:
    handlers: Any = {"welcome": never}
    with pytest.raises(zkrq.ConfigError, match="gives each handler one item: leave batch out"):
        zkrq.Worker().add(queue, handlers, batch=10)
    with pytest.raises(zkrq.ConfigError, match="time_limit"):
        zkrq.Task(never, time_limit=0)
    with pytest.raises(zkrq.ConfigError, match="unknown_after"):
        zkrq.Worker().add(queue, handlers, unknown_after=-1)


def test_what_a_worker_remembers_of_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REFUSALS_KEPT", 3)
    told: list[str | None] = []
    refuse: Any = tasks.Refusing(["welcome"], None, told.append)

    async def note() -> list[int]:
        return [refuse._note(id).times for id in ("a", "b", "c", "a", "d", "b", "a")]

    assert asyncio.run(note()) == [1, 1, 1, 2, 1, 1, 3]
