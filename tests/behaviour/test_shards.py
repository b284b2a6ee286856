"""One queue over several shards: where items go, who delivers them, and what a shard that is away does to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import zkrq
from tests.behaviour.two_shards import SECOND, all_of, both, connect, is_closed, kill
from zkrq.client.resharding import Resharding
from zkrq.client.shard import Shard
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.shards import FIRST, home, shard_of
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 6


@pytest.fixture
async def cluster(own: Servers) -> AsyncGenerator[TestCluster]:
    async with both(own) as made:
        yield made


@pytest.fixture
async def queue(cluster: TestCluster) -> zkrq.Queue[Any]:
    return cluster.queue("jobs")


async def test_plain_items_are_spread_and_all_are_delivered_once(cluster: TestCluster, queue: zkrq.Queue[Any]) -> None:
    receipts = [receipt for at in range(40) for receipt in await queue.push_many([(at, 0), (at, 1)])]
    places = Counter(shard_of(receipt.id) for receipt in receipts)
    assert set(places) == {FIRST, "b"}
    assert min(places.values()) > 10
    assert {receipt.replicas for receipt in receipts} == {3}
    assert await queue.size() == (80, 0, 0, 0)
    assert (await queue.statistics()).flow.pushed == 80
    claims = await all_of(queue, 80)
    assert sorted(claim.item for claim in claims) == [[at, part] for at in range(40) for part in (0, 1)]
    assert {claim.id for claim in claims} == {receipt.id for receipt in receipts}
    assert await queue.size() == (0, 0, 0, 0)


async def test_a_shard_that_is_never_empty_keeps_no_other_from_its_turn(
    cluster: TestCluster, queue: zkrq.Queue[Any]
) -> None:
    pushed, seen = 0, Counter[str | None]()
    async with queue.pop() as claims:
        while sum(map(sum, (await cluster.shard_sizes("b")).values())) < 300:
            await queue.push_many(range(100))
        async for claim in claims:
            await claim.ack()
            seen[shard_of(claim.id)] += 1
            pushed += 1
            if pushed == 200:  # from now on only the first shard gets more
                await cluster.drain_shard("b")
                assert await cluster.shard_sizes("b")
            if pushed % 100 == 0:
                await queue.push_many(range(100))
            if pushed > 300 and pushed % 100 == 0 and not await cluster.shard_sizes("b"):
                break
            assert pushed < 20_000, seen


async def test_what_has_an_identity_is_there_once(own: Servers, cluster: TestCluster) -> None:
    """From whatever client it comes, whenever it has learned of the shards."""
    async with connect(own) as other:
        for name in (f"queue-{number}" for number in range(12)):
            one, two = cluster.queue(name), other.queue(name)
            assert (await one.push("x", id="mine")).new
            assert not (await two.push("x", id="mine")).new
            first = await one.push("y", key="k")
            assert await two.push("z", key="k") == (first.id, 3, True, False, False, ())
            await two.push("plain")
            assert await one.size() == (3, 0, 0, 0)
    homes = [home(f"queue-{number}", ["b", FIRST]) for number in range(12)]  # pyright: ignore[reportArgumentType]
    left = await cluster.shard_sizes("b")
    assert {name for name, sizes in left.items() if sizes.ready > 1} == {
        f"queue-{number}" for number, where in enumerate(homes) if where == "b"
    }


async def test_a_queue_with_a_limit_is_at_home(cluster: TestCluster) -> None:
    for name in ("a", "b", "c", "d"):
        queue = cluster.queue(name, max_size=5)
        outcomes = await asyncio.gather(*(queue.push(at) for at in range(8)), return_exceptions=True)
        assert sum(isinstance(outcome, zkrq.QueueFull) for outcome in outcomes) == 3
        with pytest.raises(zkrq.QueueFull):
            await queue.push_many([1])
        assert (await queue.size()).ready == 5


async def test_a_queue_that_was_there_before_the_second_shard_stays_where_its_ids_are(own: Servers) -> None:
    names = [f"queue-{number}" for number in range(8)]
    async with connect(own) as late, connect(own) as early:
        for name in names:
            await early.queue(name).push("x", id="mine")
            await early.queue(name).push("x", key="k")
        await early.add_shard("b", own.urls(*SECOND))
        for name in names:
            for cluster in (early, late):
                assert not (await cluster.queue(name).push("x", id="mine")).new
                assert (await cluster.queue(name).push("x", key="k")).duplicate
        assert await early.shard_sizes("b") == {}


async def test_a_client_that_has_not_heard_of_the_shards_yet_cannot_push_by_the_old_map(own: Servers) -> None:
    """Neither what has an identity nor anything else: the servers ask it to read the map first."""
    async with connect(own) as late, connect(own) as early:
        await late.queue("jobs").push("x")
        placement = late._client.shards.placement  # pyright: ignore[reportPrivateUsage]
        old, follow = placement.map, placement.follow
        placement.follow = lambda *_: None  # type: ignore[method-assign]
        await early.add_shard("b", own.urls(*SECOND))
        assert placement.map is old
        pushing = [
            asyncio.ensure_future(push)
            for push in (
                late.queue("jobs").push("y"),
                late.queue("new").push("y", id="mine"),
                late.queue("new").push("y", key="k"),
                late.queue("new", max_size=None).push_many(["y", "z"]),
            )
        ]
        await own.clock.advance(1)
        assert not any(push.done() for push in pushing)
        placement.follow = follow  # type: ignore[method-assign]
        late._client.shards._found = Versioned(None, -1)  # pyright: ignore[reportPrivateUsage]
        await asyncio.gather(*pushing)
        assert not (await early.queue("new").push("y", id="mine")).new
        assert (await early.queue("new").push("y", key="k")).duplicate


async def test_a_shard_that_is_away_takes_no_push_and_keeps_none_from_being_pushed(
    own: Servers, cluster: TestCluster, queue: zkrq.Queue[Any]
) -> None:
    while not (await cluster.shard_sizes("b")).get("jobs"):
        await queue.push("there")
    there = (await cluster.shard_sizes("b"))["jobs"].ready
    before = (await queue.size()).ready - there
    kill(own, *SECOND)
    receipts = [await queue.push(at) for at in range(20)] + list(await queue.push_many(range(100)))
    assert {shard_of(receipt.id) for receipt in receipts} == {FIRST}
    assert cluster.shards["b"].away
    with pytest.raises(zkrq.Unavailable, match="shard b is away"):
        await queue.size()
    told = await queue.statistics()
    assert (told.away, told.sizes.ready) == (("b",), before + 120)
    assert not cluster.health().ok
    await cluster.ping()
    claims = await all_of(queue, before + 120)
    assert len({claim.id for claim in claims}) == before + 120
    assert [claim async for claim in queue.pop(wait=False)] == []
    waiting = asyncio.ensure_future(all_of(queue, there))
    for name in SECOND:
        own.start(name)
    assert [claim.item for claim in await waiting] == ["there"] * there
    assert await queue.size() == (0, 0, 0, 0)


async def test_a_client_opens_though_a_shard_is_away_and_finds_it_later(own: Servers, cluster: TestCluster) -> None:
    kill(own, *SECOND)
    async with connect(own) as late:
        assert late.shards["b"].view is None
        assert "b" in str(late.health().trouble)
        queue = late.queue("jobs")
        for at in range(5):
            await queue.push(at)
        with pytest.raises(zkrq.Unavailable, match="shard b is away"):
            await queue.size()
        waiting = asyncio.ensure_future(all_of(queue, 6))
        for name in SECOND:
            own.start(name)
        await own.clock.advance(30)
        assert late.shards["b"].away is None
        pushed = 5
        while not waiting.done():
            await queue.push("more")
            pushed += 1
        assert len(await waiting) == 6


async def test_looking_and_administration_cover_all_shards(cluster: TestCluster, queue: zkrq.Queue[Any]) -> None:
    ids = [(await queue.push(at)).id for at in range(30)]
    assert {shard_of(id) for id in ids} == {FIRST, "b"}
    assert sorted(int(item.item) for item in await queue.peek(30) if item.item is not None) == list(range(30))
    assert {item.item for item in await queue.peek(5)} <= set(range(15))
    assert {item.id async for item in queue.scan()} == set(ids)
    for at, id in enumerate(ids[:6]):
        found = await queue.get(id)
        assert found
        assert found.item == at
        assert await queue.cancel(id)
        assert await queue.get(id) is None
    await queue.pause()
    assert (await queue.statistics()).paused
    assert await queue.pop_many(5, timeout=0) == []
    await queue.resume()
    claims = [claim async for claim in queue.pop(limit=10)]
    consumers = await cluster.consumers()
    assert [consumer.claims for consumer in consumers.values()] == [{"jobs": 10}]
    for claim in claims:
        await claim.bury("bad")
    dead = [letter.id for letter in await queue.dead_letters()]
    assert sorted(dead) == sorted(claim.id for claim in claims)
    assert await queue.redrive(dead[:4]) == 4
    assert await queue.discard(dead[4:6]) == 2
    assert await queue.redrive() == 4
    assert await queue.size() == (22, 0, 0, 0)
    assert await queue.clear() == 22
    await queue.push_many(range(5))
    assert await queue.delete() == 5
    assert await cluster.statistics() == {}


async def test_claims_of_a_dead_consumer_come_back_from_every_shard(
    own: Servers, cluster: TestCluster, queue: zkrq.Queue[Any]
) -> None:
    for at in range(20):
        await queue.push(at)
    async with connect(own) as other:
        held = [claim async for claim in other.queue("jobs").pop(limit=20)]
        assert {shard_of(claim.id) for claim in held} == {FIRST, "b"}
        other.lose_session()
        again = await all_of(queue, 20)
        assert {claim.id for claim in again} == {claim.id for claim in held}
        assert all(claim.lost for claim in held)


async def test_scheduled_items_of_several_shards_that_are_due_are_seen(
    own: Servers, cluster: TestCluster, queue: zkrq.Queue[Any]
) -> None:
    for at in range(40):
        await queue.push(at, delay=1.0 if at % 2 else 60.0)
    await own.clock.advance(2)
    seen = await queue.peek(40, "scheduled")
    assert len(seen) == 40
    assert [item.seconds_left is None for item in seen] == [True] * 20 + [False] * 20


async def test_a_closed_shard_takes_no_push_that_is_repeated(
    own: Servers, cluster: TestCluster, queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last look at it such an item would be lost with it."""
    id = zkrq.new_id() + "@b"
    await cluster.drain_shard("b")
    look = Resharding._left_in  # pyright: ignore[reportPrivateUsage]
    refused = list[Exception]()

    async def look_and_push(self: Resharding, shard: Shard, *, force: bool) -> str | None:
        left = await look(self, shard, force=force)
        if is_closed(self, shard):
            with pytest.raises(zkrq.Unavailable, match="is being removed") as info:
                await queue.push("x", id=id)
            refused.append(info.value)
        return left

    monkeypatch.setattr(Resharding, "_left_in", look_and_push)
    await cluster.remove_shard("b", force=True)
    assert refused
    with pytest.raises(zkrq.ConfigError, match="was removed"):
        await queue.push("x", id=id)


async def test_a_plain_push_that_is_repeated_goes_where_the_first_one_went(cluster: TestCluster) -> None:
    """Not to the home of its queue, whichever that is."""
    for number in range(4):
        queue = cluster.queue(f"queue-{number}")
        receipts = [await queue.push("x") for _ in range(24)]
        receipts += await queue.push_many(range(10))
        assert {shard_of(receipt.id) for receipt in receipts} == {FIRST, "b"}
        again = [await queue.push("x", id=receipt.id) for receipt in receipts]
        assert not any(receipt.new for receipt in again)
        assert (await queue.size()).ready == 34
