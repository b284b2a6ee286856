"""What is held for a flow: its delay and its time to live begin when it is opened."""

from __future__ import annotations

from typing import Any

import pytest

import zkrq
from tests.behaviour.conftest import PassTime
from tests.behaviour.helpers import is_empty
from tests.harness import HANG, settled, take
from zkrq.base.flows import FlowName
from zkrq.client.inner import client_of
from zkrq.protocol.operations import OPERATIONS

pytestmark = pytest.mark.anyio

Queue = zkrq.Queue[Any]


async def is_held(queue: Queue) -> bool:
    """Whether nothing is handed out."""
    return await queue.pop_one(timeout=0) is None


async def test_a_delay_begins_at_the_end_of_the_flow(queue: Queue, pass_time: PassTime) -> None:
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.then("after", delay=1.5)
    await pass_time(1.6)
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    assert await is_held(queue)
    assert (await queue.size()).scheduled == 1
    await pass_time(1.6)
    assert (await take(queue)).item == "after"


async def test_a_delay_of_a_member_begins_when_it_has_waited(queue: Queue, pass_time: PassTime) -> None:
    async with queue.flow() as flow:
        await flow.push("a", name="a")
        await flow.push("b", name="b", after="a", delay=1.5)
    await pass_time(1.6)
    async with await take(queue) as claim:
        assert claim.item == "a"
    await settled(lambda: _is_scheduled(queue))
    assert (await flow.status()).left == 1
    await pass_time(1.6)
    async with await take(queue) as claim:
        assert claim.item == "b"
    assert (await flow.result(timeout=HANG)).state == "done"


async def _is_scheduled(queue: Queue) -> bool:
    return (await queue.size()).scheduled == 1


@pytest.mark.parametrize("has_delay", [False, True])
async def test_a_time_to_live_begins_at_the_end_of_the_flow(queue: Queue, pass_time: PassTime, has_delay: bool) -> None:
    options: dict[str, Any] = {"delay": 0.5} if has_delay else {}
    async with queue.flow() as flow:
        await flow.push("a")
        await flow.always("always", priority=1)
        await flow.then("then", ttl=1.5, **options)
    await pass_time(2)
    await (await take(queue)).ack()
    assert (await flow.result(timeout=HANG)).state == "done"
    async with await take(queue) as claim:
        assert claim.item == "always"
    if has_delay:
        await pass_time(0.6)
    async with await take(queue) as claim:
        assert claim.item == "then"


async def test_what_was_held_expires_after_the_end(queue: Queue, pass_time: PassTime) -> None:
    async with queue.flow() as flow:
        await flow.push("a", name="a")
        await flow.push("b", after="a", ttl=1)
        await flow.then("then", ttl=1)
    await pass_time(1.5)
    await (await take(queue)).ack()
    await settled(lambda: _is_ready(queue))
    await pass_time(1.5)
    assert await is_held(queue)
    assert (await flow.status()).missed == 1
    await flow.finish()
    await pass_time(1.5)
    assert await is_held(queue)
    await settled(lambda: is_empty(queue))


async def _is_ready(queue: Queue) -> bool:
    return (await queue.size()).ready == 1


async def test_results_of_other_queues_are_kept_as_long_as_those_of_the_home(
    cluster: zkrq.Cluster, queue: Queue, name: str
) -> None:
    """The record of a flow in another queue says for how long its outcome is kept there."""
    other = cluster.queue(f"{name}-other", results=zkrq.Results(ttl=1))
    async with queue.flow(keep=7 * 86400.0) as flow:
        await flow.push("b", queue=other, name="b")
    home = await client_of(cluster).shards.home(other.name)
    leg = await home.replicas.run(OPERATIONS.steer(other.name, FlowName(queue.name, flow.name).key, "look"))
    assert leg.keep_ms == 7 * 86400 * 1000
    await (await take(other)).ack(result=7)
    assert (await flow.result(timeout=HANG)).state == "done"
    assert (await flow.result_of("b")).value == 7
