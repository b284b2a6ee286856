"""What follows a failure, by the task of the item."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import Outcomes
from tests.harness import settled, take, until

pytestmark = pytest.mark.anyio

AGAIN = zkrq.constant(0)


async def fail(item: Any) -> None:
    raise ValueError("no")


async def never(item: Any) -> None:
    raise AssertionError


async def reasons(queue: zkrq.Queue[Any]) -> dict[str, str]:
    return {letter.task or "": letter.reason or "" for letter in await queue.dead_letters()}


async def test_a_task_may_have_a_policy_of_its_own(own_cluster: zkrq.Cluster, name: str) -> None:
    """A greater number than that of the queue holds, too, although servers bury what was delivered too often."""
    queue = own_cluster.queue(name, retry=zkrq.Retry(max_attempts=3, backoff=AGAIN))
    handlers: zkrq.Handlers[Any] = {
        "once": zkrq.Task(fail, retry=zkrq.Retry(max_attempts=1)),
        "usual": zkrq.Task(fail),
        "often": zkrq.Task(fail, retry=zkrq.Retry(max_attempts=5, backoff=AGAIN)),
    }
    for task in handlers:
        await queue.push(task, task=task)
    async with zkrq.Worker().add(queue, handlers) as worker:
        await until(lambda: worker.statistics().failed == 1 + 3 + 5)
    wanted = {"once": "1 of 1", "usual": "3 of 3", "often": "5 of 5"}
    assert await reasons(queue) == {task: f"failed in delivery {of}: ValueError: no" for task, of in wanted.items()}


async def test_a_handler_may_leave_the_delay_to_the_policy_of_its_task(queue: zkrq.Queue[Any]) -> None:
    seen: list[str] = []

    async def later(item: str) -> None:
        seen.append(item)
        raise zkrq.RetryLater

    async def snooze(item: str) -> None:
        seen.append(item)
        raise zkrq.Snooze(3600)

    handlers: zkrq.Handlers[Any] = {
        "later": zkrq.Task(later, retry=zkrq.Retry(max_attempts=2, backoff=AGAIN)),
        "snooze": zkrq.Task(snooze, retry=zkrq.Retry(max_age=0.001)),
    }
    await queue.push("a", task="later")
    await queue.push("b", task="snooze")
    async with zkrq.Worker().add(queue, handlers) as worker:
        await until(lambda: worker.statistics().failed == 3)
    assert sorted(seen) == ["a", "a", "b"]
    told = await reasons(queue)
    assert told["later"].startswith("failed in delivery 2 of 2")
    assert told["snooze"].startswith("deferred at an age of")


async def test_an_item_that_kills_its_consumers_is_buried_by_the_policy_of_its_task(
    own_cluster: zkrq.Cluster, name: str, pass_time: PassTime
) -> None:
    """Its handler is not called once more; another task of the queue may be delivered more often."""
    queue = own_cluster.queue(name, claim_timeout=0.5)
    await queue.push("poison", task="once")
    await queue.push("usual", task="usual")
    for claim in await queue.pop_many(2):
        del claim  # as if the process had died: it is extended no more
    await pass_time(0.5)
    outcomes, seen = Outcomes(), list[Any]()

    async def handle(item: Any, claim: zkrq.Claim[Any]) -> None:
        seen.append((item, claim.attempts))

    handlers: zkrq.Handlers[Any] = {"once": zkrq.Task(never, retry=zkrq.Retry(max_attempts=1)), "usual": handle}
    async with zkrq.Worker(after=outcomes).add(queue, handlers):
        await until(lambda: len(outcomes.list) == 2)
    assert seen == [("usual", 2)]
    assert await reasons(queue) == {"once": "delivered 1 times, and settled by none of those consumers"}


async def test_a_task_may_let_its_group_go_on(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, groups=zkrq.Groups(ordered=True), retry=zkrq.Retry(backoff=zkrq.constant(3600)))
    seen: list[str] = []

    async def note(item: str) -> None:
        seen.append(item)
        if item in "ac":
            raise ValueError("no")

    lets_go_on = zkrq.Retry(backoff=zkrq.constant(3600), holds_group=False)
    handlers: zkrq.Handlers[Any] = {"loose": zkrq.Task(note, retry=lets_go_on), "strict": note}
    for item, task in {"a": "loose", "b": "loose", "c": "strict", "d": "strict"}.items():
        await queue.push(item, group="g", task=task)
    async with zkrq.Worker().add(queue, handlers) as worker:
        await until(lambda: worker.statistics().failed == 2)
        await settled(lambda: _all_wait_but_one(queue))
    assert seen == ["a", "b", "c"]


async def _all_wait_but_one(queue: zkrq.Queue[Any]) -> bool:
    return (await queue.size()).scheduled >= 2


async def test_attempts_may_be_counted_for_each_step_of_a_task(own_cluster: zkrq.Cluster, name: str) -> None:
    queue = own_cluster.queue(name)
    seen = list[tuple[int, int]]()

    async def handle(item: str, claim: zkrq.Claim[str]) -> None:
        seen.append((claim.attempts, claim.failures))
        done = claim.saved or 0
        if claim.attempts == 2 and done < 2:
            await claim.save(done + 1)
            assert (claim.attempts, claim.failures) == (1, 0)
        raise ValueError("again")

    policy = zkrq.Retry(max_attempts=2, backoff=AGAIN, per_step=True)
    await queue.push("a", task="import")
    async with zkrq.Worker().add(queue, {"import": zkrq.Task(handle, retry=policy)}) as worker:
        await until(lambda: worker.statistics().failed == 4)
    assert seen == [(1, 0), *[(2, 1)] * 3]


async def test_what_others_claim_follows_the_policy_of_the_queue(cluster: zkrq.Cluster, name: str) -> None:
    queue = cluster.queue(name, retry=zkrq.Retry(max_attempts=1))
    zkrq.Worker().add(queue, {"t": zkrq.Task(never, retry=zkrq.Retry(max_attempts=None))})
    await queue.push("a", task="t")
    await (await take(queue)).nack(reason="no")
    assert await reasons(queue) == {"t": "failed in delivery 1 of 1: no"}


async def test_what_is_no_policy_is_refused() -> None:
    policy: Any = 5
    with pytest.raises(zkrq.ConfigError, match="retry must be a Retry, not int"):
        zkrq.Task(never, retry=policy)
