"""Clients that are slow, clumsy, cancelled or closed in the middle: no other client may suffer for it."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest

import zkrq
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, command, in_process, new_namespace, settled, stolen, take, until
from tests.proxy import Proxy
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.consuming.claims import lease_of
from zkrq.consuming.core.pace import AHEAD_BYTES
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.calls import Apply, Call, Claim, Count, Seal
from zkrq.protocol.keys import key
from zkrq.protocol.replies import Answer, Status
from zkrq.protocol.steps import Answers, Ask
from zkrq.replication.batching import MAX_BATCH, MAX_IN_FLIGHT
from zkrq.replication.replicas import Replicas
from zkrq.replication.runner import Runner

pytestmark = pytest.mark.anyio

BLOCKED_SECONDS = 1.5  # a command_timeout, during which the event loop is blocked and a busy server has time to answer


async def test_a_reason_that_cannot_be_sent_confuses_no_reply(hub_stage: Stage) -> None:
    """A surrogate, as in the text of an exception about a file name: each reply still goes to who asked."""
    client = await hub_stage.enter({"retry": zkrq.Retry(max_attempts=1)})
    await client.push_all(["a", "b"])
    for _ in range(2):
        with pytest.raises(ValueError, match="no file"):
            async with await client.claim():
                raise ValueError("no file \udcff")
    sizes, names = await asyncio.gather(client.queue.size(), client.cluster.queues())
    assert sizes == (0, 0, 0, 2)
    assert names == ["jobs"]
    assert len(client.view.members) == 3


async def test_a_blocked_event_loop_evicts_nobody(hub_stage: Stage) -> None:
    """The answer was there in time; only the client was late to read it."""
    client = await hub_stage.enter(command_timeout=0.5)
    await client.push("x")
    for _ in range(3):
        asking = [asyncio.create_task(client.queue.size()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(1.0)  # a handler that blocks
        await asyncio.gather(*asking)
    assert len(client.view.members) == 3


async def test_the_primary_and_another_server_die_together(hub_stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The eviction that takes the view below min_replicas waits its grace, and then happens."""
    client = await hub_stage.enter()
    await client.push("survives")
    monkeypatch.setattr("zkrq.protocol.eviction.EVICTION_GRACE", 0.5)
    await hub_stage.kill(hub_stage.primary(), hub_stage.followers()[0])
    claim = await client.claim()
    assert claim.item == "survives"
    await claim.ack()
    assert len(client.view.members) == 1


async def test_an_old_failure_does_not_shorten_the_grace_of_a_new_one(hub_stage: Stage) -> None:
    """One follower is evicted; the other one hangs later, and is back within the grace that it has by itself."""
    client = await hub_stage.enter()
    first, second = hub_stage.followers()
    await hub_stage.kill(first)
    await client.push("x")
    assert len(client.view.members) == 2
    second.pause()
    pushing = asyncio.create_task(client.push("waits"))
    await asyncio.sleep(2.5)
    second.resume()
    await pushing
    assert len(client.view.members) == 2, "it was back within the grace"
    assert not client.cluster._client.shard.witness._failing_since  # pyright: ignore[reportPrivateUsage]


async def test_a_repeated_claim_request_is_given_what_is_left_of_its_time(hub_stage: Stage) -> None:
    """Its reply was lost, and a second has passed since it was decided."""
    client = await hub_stage.enter({"claim_timeout": 5})
    await client.push("x")
    inner = client.cluster._client  # pyright: ignore[reportPrivateUsage]
    owner = await inner.identity.get()
    await inner.shard.replicas.decide(Claim("jobs", owner, 1, 1, 5_000, "", 0, "X", 0, 0))
    await asyncio.sleep(1.0)
    claim = await client.claim()  # its supplier begins with request number 1 as well
    assert claim.attempts == 1
    assert lease_of(claim).deadline_at <= asyncio.get_running_loop().time() + 4.1


async def test_a_refused_ack_does_not_cancel_the_loop_around_it(hub_stage: Stage) -> None:
    """``ClaimLost`` is raised, and nothing is cancelled beside it."""
    client = await hub_stage.enter()
    await client.push("x")
    with pytest.raises(zkrq.ClaimLost):
        async with await client.claim() as claim:
            await stolen(claim).nack(delay=30)
            await claim.ack()
    await asyncio.sleep(0)
    await client.push("the loop goes on")


async def test_a_claim_that_was_dropped_comes_back(hub_stage: Stage) -> None:
    """Nobody refers to it, so nothing extends it."""
    client = await hub_stage.enter({"claim_timeout": 0.5})
    await client.push("dropped")
    claim = await client.claim()
    id = claim.id
    del claim
    gc.collect()
    assert (await client.claim()).id == id


async def test_closing_tells_everybody_and_leaves_nothing(hub_stage: Stage) -> None:
    """Handlers are stopped, pushes that could not leave are told so, also when the servers hang."""
    client = await hub_stage.enter(command_timeout=30.0, operation_timeout=60.0)
    await client.push("x")
    began = asyncio.Event()

    async def handle() -> None:
        async with await client.claim():
            began.set()
            await asyncio.sleep(HANG)

    handling = asyncio.create_task(handle())
    await began.wait()
    for server in hub_stage.servers.redis:
        server.pause()
    pushes = [asyncio.create_task(client.push(number)) for number in range((MAX_IN_FLIGHT + 2) * MAX_BATCH)]
    await asyncio.sleep(0.1)
    await close_impatiently(client)
    async with asyncio.timeout(HANG):
        outcomes: list[object] = [*await asyncio.gather(handling, *pushes, return_exceptions=True)]
    assert isinstance(outcomes[0], zkrq.ClaimLost)
    assert {type(outcome) for outcome in outcomes[1:]} == {zkrq.Closed, zkrq.OutcomeUnknown}
    assert all(outcome.ids for outcome in outcomes if isinstance(outcome, zkrq.OutcomeUnknown))
    for call in (client.push(1), client.queue.size(), client.queue.clear(), client.cluster.queues()):
        with pytest.raises(zkrq.ZkrqError):
            await call
    await client.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("zkrq")]


async def close_impatiently(client: Actor) -> None:
    """Close a client, and cancel that twice."""
    closing = asyncio.create_task(client.close())
    for _ in range(2):
        await asyncio.sleep(0.1)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_what_was_decided_before_a_retry_reaches_every_server(
    hub_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of ``clear`` that no follower heard of: the next round decides other items, and tells of both."""
    client = await hub_stage.enter()
    await client.push_all(range(3))
    send, dropped = Runner._send, 0  # pyright: ignore[reportPrivateUsage]

    async def drop_first_applies(runner: Runner, step: Ask, call: Call[Any]) -> Answers:
        nonlocal dropped
        if isinstance(call, Apply) and dropped < 2:
            dropped += len(step.lives)
            return {id: Answer(Status.STALE, (), "STALE") for id in step.lives}
        return await send(runner, step, call)

    monkeypatch.setattr(Runner, "_send", drop_first_applies)
    assert await client.queue.clear() == 3
    assert dropped == 2
    count = Count("jobs")
    answers = await client.fleet.ask_in(client.view, client.view.members, count)
    assert [count.read(answer.body) for answer in answers.values()] == [(0, 0, 0, 0, 0)] * 3


async def test_answers_that_have_arrived_count_though_this_process_was_late(hub_stage: Stage) -> None:
    """An event loop that was blocked finds the time-out due and the answers in the sockets, at once."""
    client = await hub_stage.enter(command_timeout=BLOCKED_SECONDS)
    members = list(client.view.members)
    for late in (1.05, 1.5):
        asking = asyncio.create_task(client.fleet.ask_in(client.view, members, Seal()))
        for _ in range(3):  # it is sent, and not answered yet
            await asyncio.sleep(0)
        time.sleep(late * BLOCKED_SECONDS)
        answers = await asking
        assert [(answer.status, answer.repeated) for answer in answers.values()] == [(Status.OK, False)] * 3


async def test_a_silent_queue_does_not_keep_a_stranded_claim(hub_stage: Stage) -> None:
    """Claimed from by nobody for as long as a stopped server would be silent: its claims expire all the same."""
    client = await hub_stage.enter({"claim_timeout": 1})
    await client.push("stranded")
    claim = await client.claim()
    lease_of(claim).stop_extending()
    client.queue._parts.shards[0].supplier.close()  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(17)
    second = await hub_stage.enter()
    again = await second.queue.pop_many(1, timeout=0)
    assert [claim.item for claim in again] == ["stranded"]


async def test_a_claim_whose_time_ran_out_during_its_ack_stays_lost(hub_stage: Stage) -> None:
    """It was told to be lost, so it is extended no more and comes back, though nobody drops it."""
    client = await hub_stage.enter({"claim_timeout": 2}, command_timeout=0.3, operation_timeout=2)
    await client.push("x")
    claim = await client.claim()
    for server in hub_stage.servers.redis:
        server.pause()
    with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
        await claim.ack()
    await until(lambda: not claim.holds)
    for server in hub_stage.servers.redis:
        server.resume()
    # The ack may have been executed when the servers went on; if not, the item comes back.
    await settled(lambda: _is_gone_or_comes_back(client.queue))
    assert not claim.holds
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()


async def _is_gone_or_comes_back(queue: zkrq.Queue[Any]) -> bool:
    return await queue.pop_one(timeout=0) is not None or await queue.size() == (0, 0, 0, 0)


async def test_a_queue_that_cannot_be_fenced_does_not_keep_the_others_waiting(
    hub_stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead consumer held in the other queues comes back; the one that failed is named, and dealt with later."""
    lives, dies = await hub_stage.enter(), await hub_stage.enter()
    for name in "abc":
        await dies.cluster.queue(name).push(name)
        await take(dies.cluster.queue(name))
    monkeypatch.setattr(dies.cluster._client, "_retire", AsyncMock())  # pyright: ignore[reportPrivateUsage]
    reaper = lives.cluster._client.shard.reaper  # pyright: ignore[reportPrivateUsage]
    fence, failing = Replicas.fence, ["a"]

    async def fence_some(replicas: Replicas, queue: str, owner: str) -> int:
        if queue in failing:
            raise zkrq.Unavailable("the test says so")
        return await fence(replicas, queue, owner)

    monkeypatch.setattr(Replicas, "fence", fence_some)
    await dies.close()
    with pytest.raises(zkrq.Unavailable, match=r"in 1 queue.*'a': the test says so"):
        await reaper.reap()
    sizes = {name: (await lives.cluster.queue(name).size())[:3] for name in "abc"}
    assert sizes == {"a": (0, 0, 1), "b": (1, 0, 0), "c": (1, 0, 0)}
    failing.clear()
    await reaper.reap()
    assert (await lives.cluster.queue("a").size()).ready == 1


# -- a slow line ---------------------------------------------------------------------------------------------------

LINE_BYTES_A_SECOND = 4e6
LARGE = 256 * 1024
LARGE_ITEMS = 40  # together more than the line carries within a command_timeout


async def test_large_items_over_a_slow_line(servers: local.Servers) -> None:
    """Bytes bound a claim: each reply comes in time, no server is evicted, and pushes into other queues go on."""
    events: list[zkrq.Event] = []
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Proxy(server.host, server.port)) for server in servers.redis]
        urls = {server.name: f"redis://{line.address}" for server, line in zip(servers.redis, lines, strict=True)}
        hub, namespace = Hub(), new_namespace()
        async with in_process(servers, namespace, hub) as producer:
            await producer.queue("large", codec=zkrq.RAW).push_many([bytes(LARGE)] * LARGE_ITEMS)
        settings = Settings(
            namespace=namespace, found=True, description="slow", command_timeout=1.0, on_event=events.append
        )
        client = Cluster(urls, MemoryCoordinator(hub), settings)
        await stack.enter_async_context(client)
        large, small = client.queue("large", codec=zkrq.RAW), client.queue("small")
        await small.push("warm-up")
        for line in lines:
            line.bandwidth = LINE_BYTES_A_SECOND

        async def push_small() -> int:
            pushed = 0
            while not taken.is_set():
                pushed += (await small.push("small")).replicas == len(lines)
            return pushed

        taken = asyncio.Event()
        pushing = asyncio.create_task(push_small())
        got = 0
        async with asyncio.timeout(HANG):
            while got < LARGE_ITEMS:
                claims = await large.pop_many(300)
                assert 1 <= len(claims) <= 4
                assert await large.ack_many(claims) == []
                got += len(claims)
        taken.set()
        assert await pushing > 0
        assert len(client.view.members) == len(lines)
    assert [event for event in events if isinstance(event, zkrq.ServerEvicted)] == []


async def test_large_items_are_claimed_ahead_by_their_bytes(hub_stage: Stage) -> None:
    """However many items a consumer wants to have ahead."""
    client = await hub_stage.enter({"codec": zkrq.RAW})
    await client.push_all([bytes(1 << 20)] * 20)
    taking = client.queue.pop(prefetch=100)
    first = await anext(taking)
    await settled(partial(_has_all_ahead, client.queue))
    sizes = await client.queue.size()
    assert sizes.claimed <= 2 + AHEAD_BYTES / (1 << 20)
    assert sizes.ready >= 12
    await first.ack()
    await taking.aclose()


async def _has_all_ahead(queue: zkrq.Queue[Any]) -> bool:
    """Whether two looks found the same number of claims."""
    before = (await queue.size()).claimed
    await asyncio.sleep(0.2)
    return (await queue.size()).claimed == before


# -- what the dead leave where nothing ever was --------------------------------------------------------------------


async def owners_of(stage: Stage, queue: str) -> bytes:
    """What every server keeps of the owners of a queue."""
    owners = key(stage.namespace, queue, "owners")
    return b"".join([await command(each, "HGETALL", owners) for each in stage.servers.redis])


async def look_for_the_dead(client: Actor) -> None:
    """Have a client look at every queue for what the dead have left."""
    reaper = client.cluster._client.shard.reaper  # pyright: ignore[reportPrivateUsage]
    reaper._looks = 0  # pyright: ignore[reportPrivateUsage]
    await reaper.reap()


async def test_a_dead_consumer_of_a_queue_that_never_had_an_item_is_forgotten(hub_stage: Stage) -> None:
    """On every server, and though there is no claim of it."""
    dying, other = await hub_stage.enter(), await hub_stage.enter()
    names = [f"empty{n}" for n in range(6)]  # of each server as primary, most likely
    for name in names:
        assert await dying.cluster.queue(name).pop_one(timeout=0) is None
    owner = dying.cluster._client.identity.owner  # pyright: ignore[reportPrivateUsage]
    assert owner is not None
    assert owner.encode() in await owners_of(hub_stage, names[0])
    assert hub_stage.hub
    hub_stage.hub.expire(owner)

    async def forgotten() -> bool:
        known = [await owners_of(hub_stage, name) for name in names]
        return not any(owner.encode() in each for each in known)

    await look_for_the_dead(other)
    await settled(forgotten)


async def test_a_dead_consumer_that_only_a_follower_knows_is_forgotten(hub_stage: Stage) -> None:
    """Its late claim was applied there after its fence."""
    client = await hub_stage.enter()
    await client.push("x")
    await command(hub_stage.followers()[0], "HSET", key(hub_stage.namespace, "jobs", "owners"), "dead", "7")
    await look_for_the_dead(client)
    assert b"dead" not in await owners_of(hub_stage, "jobs")
