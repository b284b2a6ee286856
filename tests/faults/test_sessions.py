"""Consumers that die or sleep, and ZooKeeper failing, under load."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import zkrq
from tests.faults.stage import Actor, Stage, coordinator_of, hub_of
from tests.harness import HANG, SESSION_TIMEOUT, consumer_process, new_namespace, settled, take, until
from tests.load import QUEUE
from zkrq import local
from zkrq.consuming.claims import lease_of
from zkrq.coordination.zookeeper.hosts import Address
from zkrq.coordination.zookeeper.link import Greeting, ZooKeeperLink
from zkrq.protocol.calls import Count, Settle, runs
from zkrq.protocol.records import VERSION_BYTES
from zkrq.protocol.shards import shard_of

pytestmark = pytest.mark.anyio

FOR_LONG = {"claim_timeout": 10 * HANG}
"""Options of a queue: an item that waited for the end of its claim would fail the test."""


async def test_a_killed_consumers_claims_are_delivered_again(stage: Stage) -> None:
    """Long before their deadline: the claims die with the session."""
    client = await stage.enter(FOR_LONG)
    async with consumer_process(stage.servers, stage.namespace, QUEUE) as consumer:
        await client.push_all(range(20))
        _, *ids = await consumer.ask("claim 20")
        assert len(ids) == 20
        assert (await client.queue.size()).claimed == 20
        consumer.signal(signal.SIGKILL)
        again = [claim.id for claim in await client.claim_all(20)]
        assert sorted(again) == sorted(ids)
        await until(lambda: any(event.items == 20 for event in client.events(zkrq.OwnerFenced)))


async def test_a_consumer_stopped_past_its_session_learns_that_its_claims_are_lost(stage: Stage) -> None:
    """Its acks are refused, another one's are not, and it goes on under a new name."""
    client = await stage.enter()
    async with consumer_process(stage.servers, stage.namespace, QUEUE) as consumer:
        await client.push_all(range(5))
        await consumer.ask("claim 5")
        consumer.signal(signal.SIGSTOP)
        claims = await client.claim_all(5)
        consumer.signal(signal.SIGCONT)
        assert await consumer.ask("ack") == ["acked", "0", "lost", "5"]
        for claim in claims:
            await claim.ack()
        assert await client.queue.size() == (0, 0, 0, 0)
        await client.push("it goes on under a new name")
        assert len(await consumer.ask("claim 1")) == 2
        assert await consumer.ask("ack") == ["acked", "1", "lost", "0"]


async def test_500_items_while_the_zookeeper_leader_is_killed_again_and_again(stage: Stage) -> None:
    """Pushes need no ZooKeeper, and items keep their order."""
    client = await stage.enter()
    async with killing_leaders(stage.servers) as kills:
        for number in range(500):
            await client.push(number)
            await asyncio.sleep(0.01)
    seen: list[int] = []
    async for claim in client.queue.pop(limit=500):
        async with claim:
            seen.append(claim.item)
    assert len(kills) >= 3
    assert seen == list(range(500))


@asynccontextmanager
async def killing_leaders(servers: local.Servers) -> AsyncGenerator[list[local.LocalZooKeeper]]:
    """Kill the leader of ZooKeeper again and again, and start it half a second later."""
    kills, done = list[local.LocalZooKeeper](), asyncio.Event()

    async def kill() -> None:
        while not done.is_set():
            leader = await servers.zookeeper_leader()
            await leader.kill()
            kills.append(leader)
            await asyncio.sleep(0.5)
            await leader.start()

    killer = asyncio.create_task(kill())
    try:
        yield kills
    finally:
        done.set()
        await killer


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


async def test_work_goes_on_without_zookeeper(stage: Stage) -> None:
    """As long as no change of the view is needed; and one that is needed waits for ZooKeeper."""
    client = await stage.enter(operation_timeout=3)
    await client.push("enrol")
    await client.ack()
    await asyncio.gather(*(server.kill() for server in stage.servers.zookeeper))
    await until(lambda: client.cluster.health().session == "suspended")
    await asyncio.gather(client.push_all(range(500)), drain(client.queue, 500))
    await stage.kill(stage.primary())
    with pytest.raises((zkrq.Unavailable, zkrq.OutcomeUnknown)):
        await client.push("nobody may be evicted now", id="x")
    await stage.servers.start()

    async def pushed() -> bool:
        with suppress(zkrq.ZkrqError):
            return bool(await client.push("nobody may be evicted now", id="x"))
        return False

    await settled(pushed)
    assert (await client.claim()).id == "x"
    assert len(stage.view.members) == 2


async def test_a_session_that_ends_stops_its_handlers_and_the_next_one_goes_on(hub_stage: Stage) -> None:
    """The item comes back to the same client, under its next owner's name."""
    client = await hub_stage.enter(FOR_LONG)
    await client.push("x")
    claim = await client.claim()
    with pytest.raises(zkrq.ClaimLost):
        async with claim:
            asyncio.get_running_loop().call_soon(hub_of(hub_stage).expire, claim.owner)
            await asyncio.sleep(10 * HANG)
    again = await client.claim()
    assert again.id == claim.id
    assert again.owner != claim.owner
    assert again.token > claim.token
    await again.ack()
    for kind in (zkrq.SessionLost, zkrq.ClaimsLost, zkrq.OwnerFenced):
        await client.expect_event(kind)


async def test_a_live_consumer_that_was_declared_dead_goes_on_under_a_new_id(stage: Stage) -> None:
    """Its entry in the registry is deleted by hand, while its session lives on."""
    client = await stage.enter(FOR_LONG)
    await client.push("x")
    claim = await client.claim()
    await delete_entry(stage, claim.owner)
    await until(lambda: any(event.items == 1 for event in client.events(zkrq.OwnerFenced)))
    again = await client.claim()
    assert (again.id, again.owner) == (claim.id, f"{claim.owner}.2")
    assert again.token > claim.token
    assert claim.lost is not None
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()
    assert set(await client.cluster.consumers()) == {again.owner}
    await again.ack()
    assert await client.queue.size() == (0, 0, 0, 0)
    await expect_woken(client, again.owner)
    assert client.events(zkrq.DeclaredDead)
    assert client.events(zkrq.ClaimsLost)
    assert not client.events(zkrq.SessionLost)


async def expect_woken(client: Actor, owner: str) -> None:
    """It is woken by a push, as before."""
    for _ in range(2):
        popping = asyncio.create_task(client.claim())
        await client.push("y")
        claim = await popping
        assert claim.owner == owner
        await claim.ack()


async def test_a_live_consumer_that_was_declared_dead_twice(stage: Stage) -> None:
    """Each time it goes on under its next name."""
    client = await stage.enter(FOR_LONG)
    await client.push("x")
    claims = [await client.claim()]
    for count in (1, 2):
        await delete_entry(stage, claims[-1].owner)
        await until(lambda count=count: len(client.events(zkrq.OwnerFenced)) == count)
        claims.append(await client.claim())
    first = claims[0].owner
    assert [claim.owner for claim in claims] == [first, f"{first}.2", f"{first}.3"]
    assert [bool(claim.lost) for claim in claims] == [True, True, False]


async def test_a_quiet_consumer_stays_quiet_in_its_next_session(hub_stage: Stage) -> None:
    client, operator = await hub_stage.enter(FOR_LONG), await hub_stage.enter()
    await client.push("x")
    claim = await client.claim()
    assert await operator.cluster.quiet(claim.owner) == zkrq.Quieted((claim.owner,))
    hub_of(hub_stage).expire(claim.owner)
    await client.expect_event(zkrq.SessionLost)
    with pytest.raises(zkrq.ClaimLost):
        await claim.ack()
    (again,) = await _quiet_ones(operator.cluster, 1)
    assert again != claim.owner
    assert await client.queue.pop_one(timeout=0.2) is None
    assert await operator.cluster.unquiet(again) == zkrq.Quieted((again,))
    assert (await client.claim()).id == claim.id
    assert [event.is_quiet for event in client.events(zkrq.ConsumerQuiet)] == [True, False]


async def test_a_quiet_consumer_whose_entry_was_deleted_claims_again_when_an_operator_says_so(stage: Stage) -> None:
    client, operator = await stage.enter(FOR_LONG), await stage.enter()
    await client.push("x")
    claim = await client.claim()
    await operator.cluster.quiet(claim.owner)
    await delete_entry(stage, claim.owner)
    await until(lambda: bool(client.events(zkrq.OwnerFenced) + operator.events(zkrq.OwnerFenced)))
    assert await operator.cluster.unquiet(claim.owner) == zkrq.Quieted((claim.owner,))
    assert (await client.claim()).id == claim.id


async def _quiet_ones(cluster: zkrq.Cluster, count: int) -> list[str]:
    """Return the owner ids of the quiet consumers, once there are so many."""
    found = list[str]()

    async def are_there() -> bool:
        found[:] = [owner for owner, each in (await cluster.consumers()).items() if each.quiet]
        return len(found) == count

    await settled(are_there)
    return found


async def test_what_else_a_consumer_held_that_was_declared_dead_in_one_queue(stage: Stage) -> None:
    """Its old entry is taken out of the registry, so its claims in other queues come back too."""
    client = await stage.enter()
    other = client.cluster.queue("other", claim_timeout=10 * HANG)
    await asyncio.gather(client.push("x"), other.push("y"))
    claim, elsewhere = await client.claim(), await take(other)
    await client.cluster._client.shard.replicas.fence(QUEUE, claim.owner)  # pyright: ignore[reportPrivateUsage]
    taking = asyncio.create_task(client.claim())
    with pytest.raises(zkrq.ClaimLost):
        async with elsewhere:
            await asyncio.sleep(10 * HANG)
    again = await taking
    assert again.owner == f"{claim.owner}.2"
    assert set(await client.cluster.consumers()) == {again.owner}
    back = await take(other)
    assert (back.id, back.owner) == (elsewhere.id, again.owner)


async def delete_entry(stage: Stage, owner: str) -> None:
    """As an operator would, by hand."""
    server = stage.servers.zookeeper[0]
    link = ZooKeeperLink(Address(server.host, server.port), lambda path: None)
    await link.open(Greeting(0, bytes(16), SESSION_TIMEOUT), 0)
    serving = asyncio.create_task(link.serve(SESSION_TIMEOUT))
    await link.delete(f"/{stage.namespace}/consumers/{owner}")
    await link.end_session()
    await serving
    await link.close()


async def test_a_claim_under_way_when_the_session_ends_is_not_handed_out(hub_stage: Stage) -> None:
    """Or it is known to be lost when it is."""
    client = await hub_stage.enter(FOR_LONG)
    for _ in range(10):
        await client.push("x")
        popping = asyncio.create_task(client.queue.pop_one(timeout=HANG))
        await asyncio.sleep(0.001)
        owner = client.cluster._client.identity.owner  # pyright: ignore[reportPrivateUsage]
        if owner:
            hub_of(hub_stage).expire(owner)
        claim = await popping
        assert claim is not None
        if claim.lost:
            claim = await client.claim()
        await claim.ack()


@pytest.mark.parametrize("verb", ["ack", "release"])
async def test_what_a_dead_consumer_had_decided_on_the_primary_alone(hub_stage: Stage, verb: str) -> None:
    """It is carried on to the others when the consumer is fenced, so that nothing seems to be claimed by the dead."""
    client = await hub_stage.enter(FOR_LONG)
    # Three of one bundle, whose record is told to the others when its third item is requeued, and three alone, for
    # which nothing is left to requeue.
    await client.push_all(range(3))
    for item in range(3, 6):
        await client.push(item)
    claims = await client.queue.pop_many(6, timeout=HANG)
    for claim in (*claims[:2], *claims[3:5]):
        await settle_on_the_primary(client, claim, "ack" if verb == "ack" else f"{verb} 0 ")
    hub_of(hub_stage).expire(claims[0].owner)

    async def nobody_holds_anything() -> bool:
        count = Count(QUEUE)
        answers = await client.fleet.ask_in(client.view, client.view.members, count)
        return [count.read(answer.body).claimed for answer in answers.values()] == [0, 0, 0]

    await settled(nobody_holds_anything)
    await hub_stage.kill(hub_stage.primary())
    left = [claim.item async for claim in client.queue.pop(wait=False)]
    assert sorted(left) == ([2, 5] if verb == "ack" else [0, 1, 2, 3, 4, 5])


async def settle_on_the_primary(client: Actor, claim: zkrq.Claim[Any], how: str) -> None:
    """Settle a claim as a client that dies before the other servers hear of it."""
    lease = lease_of(claim)
    grant = lease.grant
    settlement = (grant.bundle, runs([lease.position]), grant.packed[VERSION_BYTES], grant.request, how)
    view = client.view
    await client.fleet.ask_in(view, [view.primary(QUEUE)], Settle(QUEUE, 0, 0, [settlement]))


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


async def test_what_was_claimed_ahead_is_not_given_out_once_others_may_have_it(hub_stage: Stage) -> None:
    """Cut off from the coordinator it cannot know that it was fenced, and that others have done the work meanwhile."""
    cut_off, other = await hub_stage.enter(FOR_LONG), await hub_stage.enter()
    await other.push_all(range(5))
    stream = cut_off.queue.pop(prefetch=5)
    first = await anext(stream)
    await settled(lambda: _all_claimed(other))
    hub_of(hub_stage).suspend(coordinator_of(cut_off))
    await other.ack(5)  # as soon as its session is over
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await anext(stream)
    with pytest.raises(zkrq.ClaimLost):
        await first.ack()
    await stream.aclose()


async def _all_claimed(client: Actor) -> bool:
    return (await client.queue.size()).claimed == 5
