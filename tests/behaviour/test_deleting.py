"""``delete``: none of a queue's items comes back.  What is remembered of it, or of an emptied one, goes in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

import zkrq
from tests.behaviour.conftest import Connect, PassTime
from tests.behaviour.helpers import bury, is_empty, working
from tests.harness import HANG, command, settled, take
from zkrq import local
from zkrq.base import clock
from zkrq.client.inner import client_of
from zkrq.client.moments import moment_id
from zkrq.protocol import calls
from zkrq.protocol.clocks import PUT_WINDOW
from zkrq.protocol.view import Life, ServerId
from zkrq.repair.repairer import SCRUB_SECONDS
from zkrq.replication.fleet import Fleet
from zkrq.replication.replicas import Replicas
from zkrq.testing.in_process import Servers

pytestmark = pytest.mark.anyio


async def stored(cluster: zkrq.Cluster, queue: str) -> set[str]:
    """What some server has of a queue: the register's entry, and what a copy of it would begin with."""
    replicas = cluster._client.shard.replicas  # pyright: ignore[reportPrivateUsage]
    found = {"entry"} if queue in await replicas.names(calls.Queues(), everywhere=True) else set[str]()
    if isinstance(cluster, zkrq.testing.TestCluster):
        for name in cluster.servers.names:
            found |= {key for key in keys_of(cluster.servers, name) if f":q:{queue}:" in key}
    return found


def keys_of(servers: Servers, name: str) -> set[str]:
    redis = servers._servers[name].redis  # pyright: ignore[reportPrivateUsage]
    return {key.decode() for key in cast("list[bytes]", redis.execute(b"KEYS", b"*"))}


async def test_no_item_is_left(queue: zkrq.Queue[Any], cluster: zkrq.Cluster) -> None:
    await bury(queue, 3)
    await queue.push_many(range(700))
    await queue.push_many(range(3), delay=60)
    await queue.push("keyed", key="k", ttl=60)
    await queue.push("mine", priority=9)
    claim = await take(queue)
    await queue.pause()
    assert await queue.delete() == 3 + 700 + 3 + 1 + 1
    assert queue.name not in await cluster.statistics()
    assert queue.name not in await cluster.queues(), "though the servers remember it for a while"
    told = await queue.statistics()
    assert (told.paused, told.deleted) == (False, True)
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()
    assert await queue.delete() == 0
    assert await is_empty(queue)


async def test_holders_are_told(queue: zkrq.Queue[Any], connect: Connect) -> None:
    """Of any client, as by ``cancel``: the handler is stopped."""
    async with connect() as other:
        begun, stopped = asyncio.Event(), asyncio.Event()

        async def handle(item: str) -> None:
            begun.set()
            try:
                await asyncio.sleep(10 * HANG)
            except asyncio.CancelledError:
                stopped.set()
                raise

        await queue.push("x")
        async with working(other.queue(queue.name), handle):
            await asyncio.wait_for(begun.wait(), HANG)
            assert await queue.delete() == 1
            await asyncio.wait_for(stopped.wait(), HANG)
        assert await is_empty(queue)


async def test_a_push_makes_the_queue_again(queue: zkrq.Queue[Any], cluster: zkrq.Cluster) -> None:
    first = await queue.push("before", id="one", key="k")
    former = (await take(queue)).token
    await queue.delete()
    again = await queue.push("after", id="one", key="k")
    assert not first.duplicate
    assert not again.duplicate
    assert not again.done, "the queue was deleted in between"
    assert queue.name in await cluster.statistics()
    claim = await take(queue)
    assert (claim.item, claim.attempts) == ("after", 1)
    assert claim.token > former, "a database has seen that one"
    await claim.ack()
    assert (await queue.push("once more", id="one")).done


def _moment_of_a_schedule() -> str:
    return moment_id("report", clock.now() - timedelta(seconds=5))


@pytest.mark.parametrize("new_id", [zkrq.new_id, _moment_of_a_schedule])
async def test_a_push_that_is_repeated_after_a_deletion_makes_no_item(
    queue: zkrq.Queue[Any], new_id: Callable[[], str]
) -> None:
    """Its answer was lost, and a consumer was faster: such an id, and that of a schedule's moment, says when it was."""
    id = new_id()
    await queue.push("x", id=id)
    await (await take(queue)).ack()
    await queue.push("y")
    assert await queue.delete() == 1
    assert (await queue.push("x", id=id)).done
    assert await is_empty(queue)


async def test_what_is_pushed_and_acked_during_a_deletion_is_remembered(
    queue: zkrq.Queue[Any], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the queue was empty by then, and all that is left is to note that it was deleted."""
    id, delete = zkrq.new_id(), Replicas.delete

    async def push_before(replicas: Replicas, name: str, moment_ms: int) -> None:
        await other.push("x", id=id)
        await (await take(other)).ack()
        await delete(replicas, name, moment_ms)

    monkeypatch.setattr(Replicas, "delete", push_before)
    async with connect() as another:
        other = another.queue(queue.name)
        await queue.push("y")
        assert await queue.delete() == 1
        assert (await other.push("x", id=id)).done
        assert await is_empty(queue)


async def test_deleting_while_others_push_and_work(queue: zkrq.Queue[Any], connect: Connect) -> None:
    """Each item is delivered or deleted, and none that was there when a deletion began is there after it."""
    done = set[int]()
    pushed = list[int]()
    stop = False

    async def produce() -> None:
        while not stop:
            first = len(pushed)
            await queue.push_many(range(first, first + 20))
            pushed.extend(range(first, first + 20))

    async with connect() as other, asyncio.TaskGroup() as tasks:
        consumer = other.queue(queue.name)
        async with working(consumer, done.add, concurrency=4):
            producing = tasks.create_task(produce())
            for _ in range(5):
                mark = len(pushed)
                await queue.delete()
                assert all(item.item is None or item.item >= mark for item in [item async for item in queue.scan()])
            stop = True
            await producing
            await settled(lambda: is_empty(queue))
    assert await queue.delete() == 0


async def test_a_consumer_that_leaves_does_not_make_it_again(
    queue: zkrq.Queue[Any], cluster: zkrq.Cluster, connect: Connect
) -> None:
    """It gives up its owner id in all queues that it used."""
    async with connect() as other:
        await queue.push_many(range(2))
        await (await take(other.queue(queue.name))).ack()
        await take(other.queue(queue.name))
        assert await queue.delete() == 1
    assert queue.name not in await cluster.statistics()


async def test_a_waiting_consumer_gets_what_is_pushed_later(
    queue: zkrq.Queue[Any], connect: Connect, pass_time: PassTime
) -> None:
    async with connect() as other:
        waiting = asyncio.create_task(other.queue(queue.name).pop_one(timeout=HANG))
        await pass_time(0.2)
        await queue.delete()
        await queue.push("x")
        claim = await waiting
        assert claim
        assert claim.item == "x"
        await claim.ack()


# -- servers that are away ---------------------------------------------------------------------------------------------


async def test_a_server_that_was_away_does_not_bring_it_back() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(10))
        servers.kill("redis-1")
        assert await queue.delete() == 10
        await queue.push_many(range(3))  # which makes it again
        assert await queue.delete() == 3
        servers.start("redis-1")  # with all that it had
        await cluster.clock.advance(60)
        assert "redis-1" in cluster.view.members
        assert "jobs" not in await cluster.statistics()
        assert await is_empty(queue)
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        assert await stored(cluster, "jobs") == set()


async def test_what_others_may_still_need_goes_later() -> None:
    """An evicted server may be the last one that holds something: it has to meet the tombstones."""
    async with zkrq.testing.servers() as servers, servers.connect(min_replicas=2) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(10))
        servers.kill("redis-1")
        servers.kill("redis-2")
        await cluster.clock.advance(30)
        assert await queue.delete() == 10
        assert cluster.view.eligible
        assert "entry" in await stored(cluster, "jobs")
        servers.start("redis-1")
        servers.start("redis-2")
        await cluster.clock.advance(60)
        assert len(cluster.view.members) == 3
        assert await is_empty(queue)
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        assert await stored(cluster, "jobs") == set()


async def test_a_deletion_that_is_left_in_the_middle_is_done_again() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(2_000))
        async with servers.connect() as other:
            deleting = asyncio.create_task(other.queue("jobs").delete())
            while sum(await queue.size()) == 2_000:
                await asyncio.sleep(0)
            deleting.cancel()
        assert not (await queue.statistics()).paused
        left = sum(await queue.size())
        assert await queue.delete() == left
        assert "jobs" not in await cluster.statistics()


async def test_what_is_remembered_of_a_deleted_queue_goes_in_time() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        async with servers.connect() as other:
            queue = other.queue("jobs")
            await queue.push_many(range(100))
            await bury(queue, 3)
            await queue.push("keyed", key="k", ttl=60, delay=5)
            await take(queue)
            await queue.delete()
            await queue.delete()
        await cluster.clock.advance(SCRUB_SECONDS)
        assert await stored(cluster, "jobs")
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        assert await stored(cluster, "jobs") == set()


# -- emptied queues ----------------------------------------------------------------------------------------------------


async def test_what_is_set_aside_goes_with_the_queue() -> None:
    """And so it is forgotten as any other; of another queue it stays."""
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        replicas = client_of(cluster).shard.replicas
        for name in ("damaged", "kept"):
            await cluster.queue(name).push("x")
            kept = calls.SetAside(name, clock.now_ms(), "torn", [calls.Kept(b"\xff", b"bytes")])
            await replicas.tell_all(cast("calls.Call[None]", kept))
            assert "aside" in {key.rpartition(":")[2] for key in await stored(cluster, name)}
        assert await cluster.queue("damaged").delete() == 1
        assert "aside" not in {key.rpartition(":")[2] for key in await stored(cluster, "damaged")}
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        assert await stored(cluster, "damaged") == set()
        assert (await cluster.queue("kept").statistics()).damaged == 1


async def test_emptied_queues_are_forgotten_in_time() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        for name in ("emptied", "paused before", "kept"):
            await cluster.queue(name.replace(" ", "-")).push(name)
        emptied, before = cluster.queue("emptied"), cluster.queue("paused-before")
        await (await take(emptied)).ack()
        await before.clear()
        await before.pause()
        await before.resume()
        await cluster.clock.advance(SCRUB_SECONDS)
        assert set(await cluster.statistics()) == {"emptied", "paused-before", "kept"}, "a late push must be recognised"
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        # This client has claimed from it, and may do so at any time.
        assert set(await cluster.statistics()) == {"emptied", "kept"}
        assert await stored(cluster, "paused-before") == set()
        (kept,) = await cluster.queue("kept").peek(1)
        assert kept.item == "kept"
        await cluster.queue("paused-before").push("again")
        assert (await cluster.queue("paused-before").size()).ready == 1


async def test_a_queue_goes_when_its_last_consumer_has_gone() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:
        async with servers.connect() as other:
            await other.queue("jobs").push("x")
            await (await take(other.queue("jobs"))).ack()
        await cluster.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        assert await stored(cluster, "jobs") == set()


@pytest.mark.parametrize("how", ["deleted", "emptied"])
async def test_queues_that_are_gone_cost_an_idle_client_nothing(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    ask = Fleet.ask

    def count(fleet: Fleet, epoch: int, lives: Mapping[ServerId, Life], call: calls.Call[Any], **options: Any) -> Any:
        asked[call.queue] += 1
        return ask(fleet, epoch, lives, call, **options)

    monkeypatch.setattr(Fleet, "ask", count)
    async with zkrq.testing.servers() as servers, servers.connect() as idle:
        async with servers.connect() as other:
            for number in range(30):
                queue = other.queue(f"gone-{number}")
                await queue.push("x")
                await (queue.delete() if how == "deleted" else queue.clear())
        await idle.clock.advance(60)  # a look may have been under way
        assert asked["gone-0"] > 0, "until nothing of them needs to be remembered"
        await idle.clock.advance(2 * PUT_WINDOW + 3 * SCRUB_SECONDS)
        asked.clear()
        await idle.clock.advance(SCRUB_SECONDS)
        assert asked, "it looks at the servers"
        assert not [name for name in asked if name.startswith("gone-")]


async def test_on_real_servers_no_payload_is_left(
    own_cluster: zkrq.Cluster, backend: str, request: pytest.FixtureRequest
) -> None:
    if backend != "real":
        pytest.skip("looks into servers that only these have")
    servers: local.Servers = request.getfixturevalue("shared_servers")
    queue = own_cluster.queue("jobs")
    await queue.push_many(range(100))
    await (await take(queue)).release()
    await queue.delete()

    async def are_gone() -> bool:
        pattern = f"*{own_cluster.namespace}*:q:jobs:payloads"
        return all([await command(server, "KEYS", pattern) == b"*0\r\n+OK\r\n" for server in servers.redis])

    await settled(are_gone)
