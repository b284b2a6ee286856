"""Limits, groups in order and a history in a namespace of several shards: every item of such a queue goes home."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import pytest

import zkrq
from tests.behaviour.homes import ONE, SECOND, B, all_now, connect, name_at, there
from tests.harness import take
from zkrq.client.declaring import read_shared
from zkrq.client.everywhere import Everywhere
from zkrq.client.inner import client_of
from zkrq.client.resharding import Resharding
from zkrq.client.shards import Shards
from zkrq.protocol import shards as shard_maps
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, shard_of
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 4


@pytest.fixture
async def one(own: Servers) -> AsyncGenerator[TestCluster]:
    """A client of a namespace that has one shard yet."""
    async with connect(own) as cluster:
        yield cluster


@pytest.fixture
async def two(own: Servers, one: TestCluster) -> TestCluster:
    """A client of a namespace of two shards."""
    await one.add_shard(B, own.urls(*SECOND))
    return one


def homed(cluster: zkrq.Cluster) -> set[str]:
    """What the map says, as this client knows it."""
    return {*client_of(cluster).shards.map.homed}


@pytest.mark.parametrize("home", [FIRST, B])
async def test_every_item_goes_home_whoever_pushes_it(own: Servers, two: TestCluster, home: ShardName) -> None:
    name, other = name_at(home), B if home == FIRST else FIRST
    queue = two.queue(name, limits=zkrq.Limits(concurrency=3))
    async with connect(own) as elsewhere:
        plain = elsewhere.queue(name)
        await queue.push(0)
        await asyncio.gather(*(plain.push(n) for n in range(20)))
        await plain.push_many(range(20))
        await plain.push("delayed", delay=60)
        await plain.push("named", id="mine")
    assert (await there(two, name, home), await there(two, name, other)) == (43, 0)
    assert len(await all_now(queue)) == 3
    statistics = await queue.statistics()
    assert (statistics.limits, statistics.limited) == (zkrq.Limits(3), "limited: 3 of 3 claimed")


@pytest.mark.parametrize("home", [FIRST, B])
async def test_a_client_with_the_map_of_before_cannot_push_elsewhere(
    own: Servers, two: TestCluster, home: ShardName, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_at(home)
    async with connect(own) as deaf:
        monkeypatch.setattr(client_of(deaf).shards, "register_changed", lambda _: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        await deaf.queue("other").push("so that it is connected")
        await two.queue(name).set_limits(ONE)
        assert name not in homed(deaf)
        receipts = [await deaf.queue(name).push(n) for n in range(10)]
    assert {shard_of(receipt.id) for receipt in receipts} == {home}


async def test_items_of_a_group_keep_their_order(two: TestCluster) -> None:
    queue = two.queue(name_at(B), groups=zkrq.Groups(ordered=True))
    for number in range(12):
        await queue.push(number, group=f"order-{number % 2}")
    seen: dict[str, list[int]] = {}
    tokens: dict[str, list[tuple[int, int]]] = {}
    while claims := await all_now(queue):
        assert len({claim.group for claim in claims}) == len(claims), "one at a time"
        for claim in claims:
            seen.setdefault(claim.group or "", []).append(claim.item)
            tokens.setdefault(claim.group or "", []).append(claim.token)
            await claim.ack()
    assert seen == {"order-0": [0, 2, 4, 6, 8, 10], "order-1": [1, 3, 5, 7, 9, 11]}
    assert all(grown == sorted(grown) for grown in tokens.values())


async def test_a_program_that_starts_is_not_refused_for_an_item_that_came_late(own: Servers, two: TestCluster) -> None:
    """One that was pushed before, and again under its id after the declaration."""
    name = name_at(FIRST)
    queue = two.queue(name)
    while shard_of((receipt := await queue.push("early")).id) != B:
        pass
    for claim in await all_now(queue):
        await claim.ack()
    await queue.set_limits(ONE)
    assert not (await queue.push("early", id=receipt.id)).new, "it is done, and the shard that had it knows"
    async with connect(own) as other:
        await other.queue(name, limits=ONE).push("x")
    assert await there(two, name, B) == 0


async def test_limits_are_in_force_on_a_shard_that_is_added(own: Servers, one: TestCluster) -> None:
    names = [name_at(FIRST), name_at(B), name_at(B, "other")]
    queues = [one.queue(name) for name in names]
    await queues[0].set_limits(ONE)
    await queues[1].set_groups(zkrq.Groups(concurrency=1))
    await queues[2].set_history(5)
    for queue in queues:
        await queue.push("x", group="g")
    await one.add_shard(B, own.urls(*SECOND))
    assert homed(one) == {*names[:2]}
    for queue in queues[:2]:
        receipts = [await queue.push(n, group="g") for n in range(10)]
        assert {shard_of(receipt.id) for receipt in receipts} == {FIRST}, "they stay where they are"
        assert len(await all_now(queue)) == 1
    for name, queue, section in zip(names, queues, ("limits", "groups", "history"), strict=True):
        main, b = [await read_shared(shard.replicas, name) for shard in client_of(one).shards.open.values()]
        assert main == b, queue
        assert b.sections[section]
    assert await queues[0].limits() == ONE
    assert (await queues[1].statistics()).group_limits == zkrq.Groups(1)
    assert (await queues[2].statistics()).history == 5


async def test_a_history_is_kept_on_every_shard(two: TestCluster) -> None:
    queue = two.queue("reports", history=40)
    receipts = [await queue.push(n) for n in range(20)]
    assert {shard_of(receipt.id) for receipt in receipts} == {FIRST, B}
    assert homed(two) == set()
    for claim in await all_now(queue):
        await claim.ack()
    assert {item.id for item in await queue.history()} == {receipt.id for receipt in receipts}


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_without_limits_the_queue_is_spread_again(two: TestCluster, *, is_deleted: bool) -> None:
    name = name_at(B)
    queue = two.queue(name)
    await queue.set_limits(ONE)
    await queue.set_groups(zkrq.Groups(concurrency=1))
    await queue.set_limits(zkrq.Limits())
    assert homed(two) == {name}, "its groups have a limit"
    if is_deleted:
        await queue.push("x")
        assert await queue.delete() == 1
    else:
        await queue.set_groups(zkrq.Groups())
    assert homed(two) == set()
    receipts = [await queue.push(n) for n in range(20)]
    assert {shard_of(receipt.id) for receipt in receipts} == {FIRST, B}
    assert len(await all_now(queue)) == 20


@pytest.mark.parametrize("home", [FIRST, B])
async def test_statistics_tell_of_a_rate_though_nothing_is_left(two: TestCluster, home: ShardName) -> None:
    queue = two.queue(name_at(home), limits=zkrq.Limits(rate=(1, 60.0)))
    await queue.push("x")
    await (await take(queue)).ack()
    assert "limited: 1 claims in 60 s" in ((await queue.statistics()).limited or "")


async def test_limits_go_on_when_the_home_is_removed(two: TestCluster) -> None:
    name = name_at(B)
    queue = two.queue(name, groups=zkrq.Groups(ordered=True))
    for _ in range(3):
        await client_of(two).shards.find(B).replicas.ask_for_map(0, after=client_of(two).shards.find(B).view.epoch)
    await queue.push("a", group="g")
    claim = await take(queue)
    await claim.ack()
    await two.drain_shard(B)
    await two.remove_shard(B, force=True)
    assert (await queue.statistics()).group_limits == zkrq.Groups(ordered=True)
    for item in "bc":
        await queue.push(item, group="g")
    (later,) = await all_now(queue)
    assert later.item == "b"
    assert later.token > claim.token


async def test_tokens_go_on_at_a_shard_that_begins_to_drain(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the next home until its servers have heard of it."""
    async with own.connect(first=2) as cluster:
        for name, server in ((B, "redis-3"), ("c", "redis-4")):
            await cluster.add_shard(name, own.urls(server), min_replicas=1)
        await cluster.queue("any").set_groups(zkrq.Groups(ordered=True))
        shards = client_of(cluster).shards
        c, b = shards.find(ShardName("c")), shards.find(B)

        async def die(*_: object) -> None:
            raise Died

        with monkeypatch.context() as patched:
            patched.setattr(Resharding, "_ask_for_map", die)
            with pytest.raises(Died):
                await cluster.drain_shard("c")
        await cluster.drain_shard(B)
        await b.replicas.ask_for_map(0, after=c.view.epoch + 5)
        last = b.view.epoch
        await cluster.remove_shard(B, force=True)
        assert shards.map.shards[c.name].is_leaving
        assert c.view.epoch > last


# -- when something fails ---------------------------------------------------------------------------------------------


class Died(Exception):
    """The process of a client has ended."""


@pytest.mark.parametrize("step", ["agree", "each"])
@pytest.mark.parametrize("verb", ["set", "delete"])
async def test_a_client_dies_that_removes_limits(
    two: TestCluster, monkeypatch: pytest.MonkeyPatch, verb: str, step: str
) -> None:
    """While its home has limits, the queue goes home; the name stays in the map until limits are removed again."""
    queue = two.queue(name_at(FIRST))
    await queue.set_limits(ONE)

    async def die(*_: object) -> None:
        raise Died

    steps = {"set": lambda: queue.set_limits(zkrq.Limits()), "delete": queue.delete}
    with monkeypatch.context() as patched:
        patched.setattr(Everywhere, step, die)
        with pytest.raises(Died):
            await steps[verb]()
    assert await queue.limits() == (zkrq.Limits() if (verb, step) == ("set", "each") else ONE)
    for number in range(20):
        await queue.push(number)
    assert await there(two, queue.name, B) == 0
    await steps[verb]()
    assert homed(two) == set()


async def test_a_queue_that_cannot_be_deleted_stays_at_home(own: Servers, two: TestCluster) -> None:
    queue = two.queue(name_at(FIRST), limits=ONE)
    await queue.push("x")
    for server in SECOND:
        own.kill(server)
    with pytest.raises(zkrq.ZkrqError, match="shard b is away"):
        await queue.delete()
    assert homed(two) == {queue.name}


@pytest.mark.parametrize("options", [{"limits": ONE}, {"groups": zkrq.Groups(ordered=True)}, {"history": 5}], ids=str)
async def test_a_program_starts_while_another_shard_is_away(
    own: Servers, two: TestCluster, options: dict[str, Any]
) -> None:
    """Its declaration holds already.  What is declared later waits for all shards."""
    name = name_at(FIRST)
    await client_of(two).queue(name, options).push("x")
    for server in SECOND:
        own.kill(server)
    async with connect(own) as started:
        queue = client_of(started).queue(name, options)
        await queue.push("y")
        assert await take(queue)
        with pytest.raises(zkrq.Unavailable, match="shard b is away"):
            await queue.set_limits(ONE)


# -- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_shard_that_is_added_while_limits_are_declared(
    own: Servers, one: TestCluster, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before each look at the shards."""
    queue, whole, looks = one.queue(name_at(B)), Shards.all_used, itertools.count(1)

    async def add_first(self: Shards) -> Sequence[Any]:
        if self is client_of(one).shards and next(looks) == at:
            async with connect(own) as operator:
                await operator.add_shard(B, own.urls(*SECOND))
        return await whole(self)

    with monkeypatch.context() as patched:
        patched.setattr(Shards, "all_used", add_first)
        await queue.set_limits(ONE)
    assert next(looks) > at
    assert homed(one) == {queue.name}
    async with connect(own) as other:
        for n in range(5):
            await other.queue(queue.name).push(n)
    assert len(await all_now(queue)) == 1


KINDS = (ONE, zkrq.Groups(concurrency=1))

Some = zkrq.Limits | zkrq.Groups


async def set_to(queue: zkrq.Queue[Any], limits: Some) -> None:
    await (queue.set_limits(limits) if isinstance(limits, zkrq.Limits) else queue.set_groups(limits))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("theirs", [*KINDS, zkrq.Limits(), zkrq.Groups()], ids=str)
@pytest.mark.parametrize("mine", [*KINDS, zkrq.Limits(), zkrq.Groups()], ids=str)
async def test_two_change_the_limits_at_the_same_time(
    own: Servers, two: TestCluster, monkeypatch: pytest.MonkeyPatch, mine: Some, theirs: Some, when: str
) -> None:
    """Around a change of the map: in the end the queue goes home if it has limits."""
    name, whole = name_at(B), Shards.change
    async with connect(own) as other:
        queue, others = two.queue(name), other.queue(name)
        if mine == type(mine)():
            await set_to(queue, next(some for some in KINDS if isinstance(some, type(mine))))

        async def change(self: Shards, *args: Any, **named: Any) -> ShardMap:
            is_mine = self is client_of(two).shards
            if is_mine and when == "before":
                await set_to(others, theirs)
            map = await whole(self, *args, **named)
            if is_mine and when == "after":
                await set_to(others, theirs)
            return map

        with monkeypatch.context() as patched:
            patched.setattr(Shards, "change", change)
            with suppress(zkrq.OutcomeUnknown):  # they do it each time
                await set_to(queue, mine)
        statistics = await others.statistics()
        has_limits = statistics.limits != zkrq.Limits() or statistics.group_limits != zkrq.Groups()
        assert has_limits <= (name in (await client_of(other).shards.refresh()).homed)
        await set_to(queue, zkrq.Limits())
        await set_to(queue, zkrq.Groups())
        assert name not in (await client_of(other).shards.refresh()).homed


async def test_limits_are_declared_after_the_last_look_of_one_who_removes_them(
    own: Servers, two: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = client_of(two).coordinator
    swap = coordinator.swap
    async with connect(own) as other:
        queue, others = two.queue(name_at(B)), other.queue(name_at(B))
        await queue.set_limits(ONE)

        async def declare_first(*args: Any, **named: Any) -> Any:
            monkeypatch.setattr(coordinator, "swap", swap)
            await others.set_limits(ONE)
            return await swap(*args, **named)

        monkeypatch.setattr(coordinator, "swap", declare_first)
        await queue.set_limits(zkrq.Limits())
        assert await others.limits() == ONE
        assert (await client_of(other).shards.refresh()).homed.keys() == {queue.name}


async def test_a_program_that_starts_changes_neither_the_map_nor_a_view(own: Servers, two: TestCluster) -> None:
    """Each change of a view renews all leases."""
    options: dict[str, Any] = {"limits": ONE, "groups": zkrq.Groups(ordered=True), "history": 5}
    await client_of(two).queue(name_at(B), options).push("x")
    shards = client_of(two).shards
    before = await shards.refresh(), [shard.view for shard in shards.open.values()]
    async with connect(own) as started:
        await client_of(started).queue(name_at(B), options).push("x")
    assert (await shards.refresh(), [shard.view for shard in shards.open.values()]) == before


async def test_no_more_queues_are_homed_than_a_map_should_hold(
    two: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_maps, "HOMED_MAX", 2)
    for name in "ab":
        await two.queue(name).set_limits(ONE)
    with pytest.raises(zkrq.ConfigError, match="2 queues have limits or groups in order, the most"):
        await two.queue("c").set_limits(ONE)
    await two.queue("a").set_limits(zkrq.Limits())
    await two.queue("c").set_limits(ONE)
