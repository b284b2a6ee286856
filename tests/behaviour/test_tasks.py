"""Items that are pushed for a task, and what tells its name."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.harness import take
from zkrq.base.checks import MAX_TASK, TASK_HEADER
from zkrq.client.inner import client_of
from zkrq.protocol.payloads import with_headers

pytestmark = pytest.mark.anyio


async def test_an_item_names_its_task_wherever_it_is_seen(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1, task="welcome")
    await queue.push(2, task="app.tasks:digest-2", headers={"campaign": "spring"}, id="own", priority=1)
    await queue.push_many([3, 4], task="digest")
    await queue.push(5, headers={"campaign": "spring"})
    told = {1: "welcome", 2: "app.tasks:digest-2", 3: "digest", 4: "digest", 5: None}
    assert {item.item: item.task for item in await queue.peek()} == told
    claims = await queue.pop_many(5)
    assert {claim.item: claim.task for claim in claims} == told
    campaign = {"campaign": "spring"}
    assert {claim.item: claim.headers for claim in claims} == {1: {}, 2: campaign, 3: {}, 4: {}, 5: campaign}
    assert {claim.id: claim.headers for claim in claims}["own"] == campaign


async def test_a_redriven_item_keeps_its_task(queue: zkrq.Queue[Any]) -> None:
    await queue.push(1, task="welcome")
    await (await take(queue)).bury("bad")
    assert [letter.task for letter in await queue.dead_letters()] == ["welcome"]
    assert await queue.redrive() == 1
    assert (await take(queue)).task == "welcome"


@pytest.mark.parametrize("task", ["", "a b", "größe", "x" * (MAX_TASK + 1), ".a", 7])
async def test_a_bad_name_is_refused_before_anything_is_written(queue: zkrq.Queue[Any], task: Any) -> None:
    with pytest.raises(zkrq.ConfigError, match="task"):
        await queue.push(1, task=task)
    with pytest.raises(zkrq.ConfigError, match="task"):
        await queue.push_many([1], task=task)
    assert await queue.peek() == []


async def test_the_header_of_tasks_is_no_header_of_users(queue: zkrq.Queue[Any]) -> None:
    with pytest.raises(zkrq.ConfigError, match="kept for the item's task: give task='welcome' in its place"):
        await queue.push(1, headers={TASK_HEADER: "welcome"})
    await queue.push(1, task="x" * MAX_TASK, headers={"a": "x" * 4091})
    assert (await take(queue)).headers == {"a": "x" * 4091}, "a task takes no room from the headers"


async def test_what_is_no_name_is_no_task(queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As another program may write it."""

    def forged(item: bytes, headers: Any, saved: bytes | None = None) -> bytes:
        return with_headers(item, {TASK_HEADER: "no task\n", "a": "b"}, saved)

    monkeypatch.setattr("zkrq.producing.pusher.with_headers", forged)
    await queue.push(1, headers={"a": "b"})
    (item,) = await queue.peek()
    claim = await take(queue)
    assert (item.task, claim.task, item.headers, claim.headers) == (None, None, {"a": "b"}, {"a": "b"})


async def test_a_schedule_names_no_task_while_clients_leave_it_out(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = cluster.schedules()
    monkeypatch.setattr(type(client_of(cluster).shard.replicas), "level", 1)
    with pytest.raises(zkrq.ConfigError, match=r"for a task: this needs level 2, and .* level 1.*`zkrq upgrade`"):
        await schedules.add(queue, "nightly", 60, 1, task="report")
    await schedules.add(queue, "nightly", 60, 1)
    with pytest.raises(zkrq.ConfigError, match="this needs level 2"):
        await schedules.change(queue, "nightly", task="report")
    await queue.push(1, task="report")
    assert (await take(queue)).task == "report", "an item that is pushed is read by every release"
    await schedules.remove(queue, "nightly")


class _Adds(zkrq.Observer):
    def before_push(self, push: zkrq.Outgoing) -> None:
        push.headers["trace"] = "1"


async def test_headers_that_observers_add_stand_beside_the_task() -> None:
    async with zkrq.testing.cluster() as cluster:
        cluster.observe(_Adds())
        queue = cluster.queue("jobs")
        await queue.push(1, task="welcome")
        async with queue.flow() as flow:
            await flow.push(2, task="digest")
            await flow.push_many([3], task="digest")
        told = {(item.task, item.headers["trace"]) for item in await queue.peek()}
        assert told == {("welcome", "1"), ("digest", "1")}
