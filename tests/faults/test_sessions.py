"""Consumers that die or sleep, and ZooKeeper failing, under load."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

import zkrq
from tests.harness import (
    HANG,
    SESSION_TIMEOUT,
    consumer_process,
    in_process,
    new_namespace,
    over_zookeeper,
    settled,
    take,
    until,
)
from zkrq import local
from zkrq.consuming.claims import lease_of
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper.hosts import Address
from zkrq.coordination.zookeeper.link import Greeting, ZooKeeperLink
from zkrq.protocol.calls import Count, Settle, runs
from zkrq.protocol.records import VERSION_BYTES
from zkrq.protocol.shards import shard_of

pytestmark = pytest.mark.anyio

QUEUE = "jobs"


async def test_a_killed_consumers_claims_are_delivered_again(servers: local.Servers) -> None:
    """Long before their deadline: the claims die with the session."""
    namespace = new_namespace()
    events: list[zkrq.Event] = []
    async with (
        over_zookeeper(servers, namespace, on_event=events.append) as cluster,
        consumer_process(servers, namespace, QUEUE) as consumer,
    ):
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        await queue.push_many(range(20))
        _, *ids = await consumer.ask("claim 20")
        assert len(ids) == 20
        assert (await queue.size()).claimed == 20
        consumer.signal(signal.SIGKILL)
        again = [claim.id async for claim in queue.pop(limit=20)]
        assert sorted(again) == sorted(ids)
        await until(lambda: any(isinstance(event, zkrq.OwnerFenced) and event.items == 20 for event in events))


async def test_a_consumer_stopped_past_its_session_learns_that_its_claims_are_lost(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with (
        over_zookeeper(servers, namespace) as cluster,
        consumer_process(servers, namespace, QUEUE) as consumer,
    ):
        queue = cluster.queue(QUEUE)
        await queue.push_many(range(5))
        await consumer.ask("claim 5")
        consumer.signal(signal.SIGSTOP)
        claims = [claim async for claim in queue.pop(limit=5)]
        consumer.signal(signal.SIGCONT)
        assert await consumer.ask("ack") == ["acked", "0", "lost", "5"]
        for claim in claims:
            await claim.ack()
        assert await queue.size() == (0, 0, 0, 0)
        await queue.push("it goes on under a new name")
        assert len(await consumer.ask("claim 1")) == 2
        assert await consumer.ask("ack") == ["acked", "1", "lost", "0"]


async def test_500_items_while_the_zookeeper_leader_is_killed_again_and_again(servers: local.Servers) -> None:
    namespace = new_namespace()
    kills = 0
    done = asyncio.Event()

    async def kill_leaders() -> None:
        nonlocal kills
        while not done.is_set():
            leader = await servers.zookeeper_leader()
            await leader.kill()
            kills += 1
            await asyncio.sleep(0.5)
            await leader.start()

    async with over_zookeeper(servers, namespace) as cluster:
        queue = cluster.queue(QUEUE)
        killer = asyncio.create_task(kill_leaders())
        for number in range(500):
            await queue.push(number)
            await asyncio.sleep(0.01)
        done.set()
        await killer
        seen: list[int] = []
        async for claim in queue.pop(limit=500):
            async with claim:
                seen.append(claim.item)
    assert kills >= 3
    assert seen == list(range(500))


async def test_zookeeper_sees_nothing_of_the_items(servers: local.Servers) -> None:
    """Its transaction id does not move while 10,000 items pass, and others over two shards, with ids and keys."""
    async with local.servers(redis=1, zookeeper=1) as own:
        namespace = new_namespace()
        async with zkrq.connect(servers.redis_urls, own.zookeeper_hosts, found=True, namespace=namespace) as cluster:
            queue = cluster.queue(QUEUE)
            await queue.push("the first enrols the consumer")
            await (await take(queue)).ack()
            before = await zxid(own.zookeeper[0])
            await asyncio.gather(queue.push_many(range(10_000)), drain(queue, 10_000))
            assert await zxid(own.zookeeper[0]) == before

            await cluster.add_shard("b", {"b": own.redis[0].url})
            await queue.push("the first has its home written", id="first")
            await (await take(queue)).ack()
            before = await zxid(own.zookeeper[0])
            receipts, named, keyed, _ = await asyncio.gather(
                queue.push_many(range(2_000)),
                asyncio.gather(*(queue.push("x", id=f"item-{at}") for at in range(100))),
                asyncio.gather(*(queue.push("x", key=f"item-{at}") for at in range(100))),
                drain(queue, 2_200),
            )
            await queue.pause()
            await queue.resume()
            assert await zxid(own.zookeeper[0]) == before
            assert {shard_of(receipt.id) for receipt in receipts} == {"b", "main"}
            assert all(receipt.new for receipt in (*named, *keyed))


async def test_work_goes_on_without_zookeeper(servers: local.Servers) -> None:
    """As long as no change of the view is needed; and one that is needed waits for ZooKeeper."""
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace, operation_timeout=3) as cluster:
        queue = cluster.queue(QUEUE)
        await queue.push("enrol")
        await (await take(queue)).ack()
        await asyncio.gather(*(server.kill() for server in servers.zookeeper))
        await until(lambda: cluster.health().session == "suspended")
        await asyncio.gather(queue.push_many(range(500)), drain(queue, 500))
        victim = next(server for server in servers.redis if server.name == cluster.view.primary(QUEUE))
        await victim.kill()
        with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
            await queue.push("nobody may be evicted now", id="x")
        await servers.start()

        async def pushed() -> bool:
            try:
                await queue.push("nobody may be evicted now", id="x")
            except zkrq.ZkrqError:
                return False
            return True

        await settled(pushed)
        assert (await take(queue)).id == "x"
        assert len(cluster.view.members) == 2


async def test_a_session_that_ends_stops_its_handlers_and_the_next_one_goes_on(servers: local.Servers) -> None:
    hub = Hub(session_timeout=SESSION_TIMEOUT)
    events: list[zkrq.Event] = []
    async with in_process(servers, new_namespace(), hub, on_event=events.append) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        await queue.push("x")
        claim = await take(queue)
        with pytest.raises(zkrq.ClaimLost):
            async with claim:
                asyncio.get_running_loop().call_soon(hub.expire, claim.owner)
                await asyncio.sleep(10 * HANG)
        again = await take(queue)
        assert again.id == claim.id
        assert again.owner != claim.owner
        assert again.token > claim.token
        await again.ack()
        told = {zkrq.SessionLost, zkrq.ClaimsLost, zkrq.OwnerFenced}
        await until(lambda: told <= {type(event) for event in events})


async def test_a_live_consumer_that_was_declared_dead_goes_on_under_a_new_id(servers: local.Servers) -> None:
    """Its entry in the registry is deleted by hand, while its session lives on."""
    namespace = new_namespace()
    events: list[zkrq.Event] = []
    async with over_zookeeper(servers, namespace, on_event=events.append) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        await queue.push("x")
        claim = await take(queue)
        await delete_entry(servers, namespace, claim.owner)
        await until(lambda: any(isinstance(event, zkrq.OwnerFenced) and event.items == 1 for event in events))
        again = await take(queue)
        assert (again.id, again.owner) == (claim.id, f"{claim.owner}.2")
        assert again.token > claim.token
        assert claim.lost is not None
        with pytest.raises(zkrq.ClaimLost):
            await claim.ack()
        assert set(await cluster.consumers()) == {again.owner}
        await again.ack()
        assert await queue.size() == (0, 0, 0, 0)
        for _ in range(2):  # woken, as before
            popping = asyncio.create_task(take(queue))
            await queue.push("y")
            claim = await popping
            assert claim.owner == again.owner
            await claim.ack()
        assert {type(event) for event in events} >= {zkrq.DeclaredDead, zkrq.ClaimsLost}
        assert not any(isinstance(event, zkrq.SessionLost) for event in events)


async def test_a_live_consumer_that_was_declared_dead_twice(servers: local.Servers) -> None:
    namespace = new_namespace()
    events: list[zkrq.Event] = []
    async with over_zookeeper(servers, namespace, on_event=events.append) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        await queue.push("x")
        claims = [await take(queue)]
        for count in (1, 2):
            await delete_entry(servers, namespace, claims[-1].owner)
            await until(lambda count=count: sum(isinstance(event, zkrq.OwnerFenced) for event in events) == count)
            claims.append(await take(queue))
        first = claims[0].owner
        assert [claim.owner for claim in claims] == [first, f"{first}.2", f"{first}.3"]
        assert [bool(claim.lost) for claim in claims] == [True, True, False]


async def test_what_else_a_consumer_held_that_was_declared_dead_in_one_queue(servers: local.Servers) -> None:
    """Its old entry is taken out of the registry, so its claims in other queues come back too."""
    async with over_zookeeper(servers, new_namespace()) as cluster:
        queue, other = cluster.queue(QUEUE), cluster.queue("other", claim_timeout=10 * HANG)
        await asyncio.gather(queue.push("x"), other.push("y"))
        claim, elsewhere = await take(queue), await take(other)
        await cluster._client.shard.replicas.fence(QUEUE, claim.owner)  # pyright: ignore[reportPrivateUsage]
        taking = asyncio.create_task(take(queue))
        with pytest.raises(zkrq.ClaimLost):
            async with elsewhere:
                await asyncio.sleep(10 * HANG)
        again = await taking
        assert again.owner == f"{claim.owner}.2"
        assert set(await cluster.consumers()) == {again.owner}
        back = await take(other)
        assert (back.id, back.owner) == (elsewhere.id, again.owner)


async def delete_entry(servers: local.Servers, namespace: str, owner: str) -> None:
    """As an operator would, by hand."""
    server = servers.zookeeper[0]
    link = ZooKeeperLink(Address(server.host, server.port), lambda path: None)
    await link.open(Greeting(0, bytes(16), SESSION_TIMEOUT), 0)
    serving = asyncio.create_task(link.serve(SESSION_TIMEOUT))
    await link.delete(f"/{namespace}/consumers/{owner}")
    await link.end_session()
    await serving
    await link.close()


async def test_a_claim_under_way_when_the_session_ends_is_not_handed_out(servers: local.Servers) -> None:
    hub = Hub(session_timeout=SESSION_TIMEOUT)
    async with in_process(servers, new_namespace(), hub) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        for _ in range(10):
            await queue.push("x")
            popping = asyncio.create_task(queue.pop_one(timeout=HANG))
            await asyncio.sleep(0.001)
            owner = cluster._client.identity.owner  # pyright: ignore[reportPrivateUsage]
            if owner:
                hub.expire(owner)
            claim = await popping
            assert claim is not None
            if claim.lost:
                claim = await take(queue)
            await claim.ack()


@pytest.mark.parametrize("verb", ["ack", "release"])
async def test_what_a_dead_consumer_had_decided_on_the_primary_alone(servers: local.Servers, verb: str) -> None:
    """It is carried on to the others when the consumer is fenced, so that nothing seems to be claimed by the dead."""
    hub = Hub(session_timeout=SESSION_TIMEOUT)
    async with in_process(servers, new_namespace(), hub) as cluster:
        queue = cluster.queue(QUEUE, claim_timeout=10 * HANG)
        # Three of one bundle, whose record is told to the others when its third item is requeued, and three alone, for
        # which nothing is left to requeue.
        await queue.push_many(range(3))
        for item in range(3, 6):
            await queue.push(item)
        claims = await queue.pop_many(6, timeout=HANG)
        membership = cluster._client.shard.membership  # pyright: ignore[reportPrivateUsage]
        view = cluster.view
        for claim in (*claims[:2], *claims[3:5]):
            how = "ack" if verb == "ack" else f"{verb} 0 "
            lease = lease_of(claim)
            grant = lease.grant
            settlement = (grant.bundle, runs([lease.position]), grant.packed[VERSION_BYTES], grant.request, how)
            settle = Settle(QUEUE, 0, 0, [settlement])
            await membership.fleet.ask_in(view, [view.primary(QUEUE)], settle)
        hub.expire(claims[0].owner)

        async def nobody_holds_anything() -> bool:
            count = Count(QUEUE)
            answers = await membership.fleet.ask_in(view, view.members, count)
            return [count.read(answer.body).claimed for answer in answers.values()] == [0, 0, 0]

        await settled(nobody_holds_anything)
        leading = next(server for server in servers.redis if server.name == view.primary(QUEUE))
        await leading.kill()
        left = [claim.item async for claim in queue.pop(wait=False)]
        assert sorted(left) == ([2, 5] if verb == "ack" else [0, 1, 2, 3, 4, 5])


async def drain(queue: zkrq.Queue[Any], count: int) -> None:
    left = count
    while left:
        claims = await queue.pop_many(500, timeout=HANG)
        await asyncio.gather(*(claim.ack() for claim in claims))
        left -= len(claims)


async def zxid(server: local.LocalZooKeeper) -> str:
    """The last transaction that the server knows."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"srvr")
    async with asyncio.timeout(HANG):
        answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return next(line for line in answer.splitlines() if line.startswith("Zxid"))


async def test_what_was_claimed_ahead_is_not_given_out_once_others_may_have_it(servers: local.Servers) -> None:
    """Cut off from the coordinator it cannot know that it was fenced, and that others have done the work meanwhile."""
    hub, namespace = Hub(session_timeout=SESSION_TIMEOUT), new_namespace()
    async with in_process(servers, namespace, hub) as cut_off, in_process(servers, namespace, hub) as other:
        await other.queue(QUEUE).push_many(range(5))
        stream = cut_off.queue(QUEUE, claim_timeout=10 * HANG).pop(prefetch=5)
        first = await anext(stream)
        await settled(lambda: _all_claimed(other))
        coordinator = cut_off._client.coordinator  # pyright: ignore[reportPrivateUsage]
        assert isinstance(coordinator, MemoryCoordinator)
        hub.suspend(coordinator)
        claims = [await take(other.queue(QUEUE)) for _ in range(5)]  # as soon as its session is over
        await asyncio.gather(*(claim.ack() for claim in claims))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(stream)
        with pytest.raises(zkrq.ClaimLost):
            await first.ack()
        await stream.aclose()


async def _all_claimed(cluster: zkrq.Cluster) -> bool:
    return (await cluster.queue(QUEUE).size()).claimed == 5
