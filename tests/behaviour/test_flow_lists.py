"""Lists of flows: those that have not ended, then those whose outcome is kept, page by page."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.harness import HANG, take
from zkrq.base.flows import FlowState
from zkrq.client.cursors import BadCursor, as_text
from zkrq.client.flow_lists import FlowPlace
from zkrq.client.inner import client_of

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


@pytest.fixture
async def flows(cluster: zkrq.Cluster, queue: Queue, name: str) -> Queue:
    """Of each state one, in two queues."""
    other = cluster.queue(f"{name}-other")
    await queue.flow("open").begin()
    async with other.flow("running") as flow:
        await flow.push("a")
    async with queue.flow("done") as flow:
        await flow.push("b", name="b")
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    flow = await queue.flow("cancelled").begin()
    await flow.cancel()
    async with queue.flow("failed", fail_fast=True) as flow:
        await flow.push("c")
        await flow.push("d")
    await (await take(queue)).bury("why")
    assert (await flow.result(timeout=HANG)).state == "failed"
    return queue


async def listed(cluster: zkrq.Cluster, name: str, state: Any = None) -> list[zkrq.FlowStatus]:
    return [status async for status in cluster.flows(state) if status.queue.startswith(name)]


async def test_flows_that_have_ended_come_behind_the_others(cluster: zkrq.Cluster, flows: Queue) -> None:
    found = await listed(cluster, flows.name)
    assert [status.name for status in found] == ["open", "running", "cancelled", "done", "failed"]
    assert {status.name: status.state.value for status in found} == {status.name: status.name for status in found}
    for name in ("open", "running", "cancelled", "done", "failed"):
        assert [status.name for status in await listed(cluster, flows.name, name)] == [name]
    (done,) = await listed(cluster, flows.name, "done")
    assert (done.done, done.left, done.dead, done.missed) == (1, 0, 0, 0)
    (failed,) = await listed(cluster, flows.name, FlowState.FAILED)
    assert (failed.done, failed.dead, failed.missed) == (0, 1, 1)


async def test_a_flow_that_begins_again_is_listed_once(
    cluster: zkrq.Cluster, queue: Queue, pass_time: PassTime
) -> None:
    async with queue.flow("nightly", keep=1) as flow:
        pass
    assert (await flow.result(timeout=HANG)).state == "done"
    assert [status.state.value for status in await listed(cluster, queue.name)] == ["done"]
    await pass_time(1.5)
    assert await listed(cluster, queue.name) == []
    await queue.flow("nightly").begin()
    assert [status.state.value for status in await listed(cluster, queue.name)] == ["open"]


async def test_pages_go_on_where_the_last_one_has_ended(cluster: zkrq.Cluster, flows: Queue) -> None:
    lists, whole = client_of(cluster).flows.lists, list[str]()
    place = FlowPlace()
    for _ in range(6):
        async for status, behind in lists.walk(None, place):
            place = FlowPlace.read(behind.text())
            if status.queue.startswith(flows.name):
                whole.append(status.name)
                break
        else:
            break
    assert whole == ["open", "running", "cancelled", "done", "failed"]


BAD_PLACES = [(0, "Eq/f"), (2, "Pq/f"), (-1, "Eq/f"), (-2, "Pq/f"), (True, "Eq/f")]


@pytest.mark.parametrize("text", ["", "x", "!", "W10", *(as_text([order, "q", at]) for order, at in BAD_PLACES)])
async def test_a_bad_place_is_refused(text: str) -> None:
    with pytest.raises(BadCursor, match="after is"):
        FlowPlace.read(text)


async def test_many_flows_that_have_ended_are_all_found(cluster: zkrq.Cluster, queue: Queue) -> None:
    for number in range(250):
        flow = await queue.flow(f"f{number:03}").begin()
        await flow.finish()
    assert [status.name for status in await listed(cluster, queue.name)] == [f"f{number:03}" for number in range(250)]
    await client_of(cluster).flows.looks.look()
    assert len(await listed(cluster, queue.name, "done")) == 250
