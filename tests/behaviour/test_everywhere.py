"""Calls that concern all shards, by clients that have not heard of each, and while shards come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

import zkrq
from zkrq.client import resharding
from zkrq.client.administration import Administration
from zkrq.client.declaring import Shared, read_shared
from zkrq.client.inner import client_of
from zkrq.client.inspection import read_statistics
from zkrq.client.resharding import Resharding
from zkrq.client.shard import Shard
from zkrq.client.shards import MAP
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.records import State
from zkrq.protocol.shards import FIRST, ShardMap, ShardName, home, shard_of
from zkrq.replication.replicas import Replicas
from zkrq.testing import Servers, TestCluster

pytestmark = pytest.mark.anyio

SERVERS = 3


def connect(own: Servers) -> TestCluster:
    return own.connect(first=1)


@pytest.fixture
async def early(own: Servers) -> AsyncGenerator[TestCluster]:
    async with connect(own) as cluster:
        yield cluster


def hear_nothing(_: str) -> None:
    """Take a notice of the coordinator, and do nothing."""


@pytest.fixture
async def deaf(own: Servers, early: TestCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[TestCluster]:
    """A client that hears of no change by itself."""
    async with connect(own) as cluster:
        monkeypatch.setattr(client_of(cluster).shards, "register_changed", hear_nothing)
        yield cluster


@pytest.fixture
def hurried(deaf: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deaf client soon gives up a call to a shard that it has not heard was removed."""
    shards = client_of(deaf).shards
    monkeypatch.setattr(shards, "_settings", replace(client_of(deaf).settings, operation_timeout=0.2))


async def push_to(cluster: zkrq.Cluster, shard: str, count: int = 3) -> list[str]:
    """Push plain items until this shard has this many more; return the ids of all."""
    queue, ids, there = cluster.queue("jobs"), list[str](), 0
    while there < count:
        ids.append((await queue.push("x")).id)
        there += shard_of(ids[-1]) == shard
    return ids


async def paused_on(cluster: zkrq.Cluster) -> dict[str, bool]:
    """On which shards the queue is paused."""
    shards = client_of(cluster).shards.open
    return {name: (await read_statistics(shard.replicas, "jobs")).paused for name, shard in shards.items()}


async def size(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    assert sum(await queue.size()) == len(ids)


async def statistics(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    await queue.size()
    assert sum((await queue.statistics()).sizes) == len(ids)


async def peek(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    assert {item.id for item in await queue.peek(500)} == {*ids}


async def scan(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    assert {item.id async for item in queue.scan()} == {*ids}


async def get(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    for id in ids:
        assert await queue.get(id)


async def cancel(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    for id in ids:
        assert await queue.cancel(id) is zkrq.Cancellation.REMOVED


async def clear(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    assert await queue.clear() == len(ids)


async def delete(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    assert await queue.delete() == len(ids)


async def pause(queue: zkrq.Queue[Any], ids: list[str]) -> None:
    await queue.pause()
    assert (await queue.statistics()).paused


EVERY = [size, statistics, peek, scan, get, cancel, clear, delete, pause]


@pytest.mark.parametrize("act", EVERY)
async def test_a_client_that_has_not_heard_of_a_shard_covers_it(
    own: Servers, early: TestCluster, deaf: TestCluster, act: Callable[..., Awaitable[None]]
) -> None:
    await early.add_shard("b", own.urls("redis-2"))
    ids = await push_to(early, "b")
    assert list(deaf.shards) == [FIRST]
    await act(deaf.queue("jobs"), ids)
    assert list(deaf.shards) == ["b", FIRST]
    if act is pause:
        assert await early.queue("jobs").pop_many(9, timeout=0) == []
    elif act in (clear, delete, cancel):
        assert not any(await early.queue("jobs").size())


@pytest.mark.parametrize("redrives", [True, False])
async def test_dead_letters_on_a_shard_that_was_not_heard_of(
    own: Servers, early: TestCluster, deaf: TestCluster, redrives: bool
) -> None:
    await early.add_shard("b", own.urls("redis-2"))
    ids = await push_to(early, "b", 4)
    queue = deaf.queue("jobs")
    async for claim in early.queue("jobs").pop(limit=len(ids)):
        await claim.bury("bad")
    some = [id for id in ids if shard_of(id) == "b"][:2]
    act = queue.redrive if redrives else queue.discard
    assert await act(some) == 2
    assert await act() == len(ids) - 2
    assert await early.queue("jobs").size() == (len(ids) * redrives, 0, 0, 0)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("act", [size, scan, get, pause])
async def test_a_client_that_has_not_heard_that_a_shard_was_removed_goes_on_without(
    own: Servers, early: TestCluster, deaf: TestCluster, act: Callable[..., Awaitable[None]]
) -> None:
    await early.add_shard("b", own.urls("redis-2"))
    await size(deaf.queue("jobs"), [])
    await early.drain_shard("b")
    await early.remove_shard("b", force=True)
    assert list(deaf.shards) == ["b", FIRST]
    await act(deaf.queue("jobs"), await push_to(early, FIRST))


@pytest.mark.usefixtures("hurried")
async def test_a_shard_that_was_added_again_is_another_one_for_a_client_that_heard_of_neither(
    own: Servers, early: TestCluster, deaf: TestCluster
) -> None:
    await early.add_shard("b", own.urls("redis-2"))
    await size(deaf.queue("jobs"), [])
    await early.drain_shard("b")
    await early.remove_shard("b", force=True)
    await early.add_shard("b", own.urls("redis-3"))
    ids = await push_to(early, "b")
    await size(deaf.queue("jobs"), ids)
    claims = [claim async for claim in deaf.queue("jobs").pop(limit=len(ids))]
    assert {claim.id for claim in claims} == {*ids}


# -- pauses, while a shard joins ---------------------------------------------------------------------------------------


Change = Callable[[str, bytes, int], Awaitable[Versioned | None]]

Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def between(
    patch: pytest.MonkeyPatch, operator: zkrq.Cluster, at: int, when: str, act: Callable[[], Awaitable[None]]
) -> None:
    """Have something done once around one of the changes of the shard map that a client makes."""
    coordinator = client_of(operator).coordinator
    swap = coordinator.swap
    numbers: Iterator[int] = iter(range(100))

    async def swap_and_act(
        register: str, data: bytes, expected: int, *, given: tuple[str, int] | None = None
    ) -> Versioned | None:
        number = next(numbers) if register == MAP else None
        if number == at and when == "before":
            await act()
        written = await swap(register, data, expected, given=given)
        if number == at and when == "after":
            await act()
        return written

    patch.setattr(coordinator, "swap", swap_and_act)


JOINED, OPENED = 0, 1
"""The changes of the map by which a shard comes."""


def while_a_shard_joins(test: Test) -> Test:
    """Around each change of the map, by a client that hears of it and by one that does not."""
    for mark in (
        pytest.mark.parametrize("hears", [True, False], ids=["that hears", "that does not hear"]),
        pytest.mark.parametrize("when", ["before", "after"]),
        pytest.mark.parametrize("at", [JOINED, OPENED]),
    ):
        test = mark(test)
    return test


@while_a_shard_joins
@pytest.mark.parametrize("paused", [True, False], ids=["paused", "resumed"])
async def test_what_is_paused_or_resumed_while_a_shard_joins_is_so_there(
    own: Servers,
    early: TestCluster,
    deaf: TestCluster,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    when: str,
    paused: bool,
    hears: bool,
) -> None:
    async with connect(own) as hearing:
        queue = (hearing if hears else deaf).queue("jobs")
        if not paused:
            await queue.pause()
        between(monkeypatch, early, at, when, queue.pause if paused else queue.resume)
        await early.add_shard("b", own.urls("redis-2"))
        assert await paused_on(early) == {"b": paused, FIRST: paused}
        await push_to(early, "b")
        await queue.size()  # from here on it knows the new shard
        assert bool(await queue.pop_many(9, timeout=0)) is not paused


@while_a_shard_joins
async def test_limits_that_are_declared_while_a_shard_joins_hold_there(
    own: Servers,
    early: TestCluster,
    deaf: TestCluster,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    when: str,
    hears: bool,
) -> None:
    limits = zkrq.Limits(concurrency=1)
    async with connect(own) as hearing:
        queue = (hearing if hears else deaf).queue("jobs")
        between(monkeypatch, early, at, when, partial(queue.set_limits, limits))
        await early.add_shard("b", own.urls("redis-2"))
        assert await queue.limits() == limits
        told = [await read_shared(shard.replicas, "jobs") for shard in client_of(early).shards.open.values()]
        assert [each.sections["limits"] for each in told] == [limits.settings] * 2
        await asyncio.gather(*(early.queue("jobs").push(n) for n in range(9)))
        assert len(await queue.pop_many(9, timeout=0)) == 1
        assert not await queue.pop_many(9, timeout=0)


async def test_a_queue_that_is_paused_while_the_pauses_are_copied(
    own: Servers, early: TestCluster, deaf: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the operator's client hears of it before it opens the shard."""
    share, paused = Resharding._share, list[bool]()  # pyright: ignore[reportPrivateUsage]

    async def share_and_pause(self: Resharding, shard: Shard, map: ShardMap) -> None:
        await share(self, shard, map)
        if not paused:
            await deaf.queue("jobs").pause()
            await client_of(early).shards.refresh()
        paused.append((await paused_on(early))["b"])

    monkeypatch.setattr(Resharding, "_share", share_and_pause)
    await early.add_shard("b", own.urls("redis-2"))
    assert paused == [False, True]
    assert await paused_on(early) == {"b": True, FIRST: True}


async def test_a_queue_that_is_paused_after_another_client_has_opened_the_shard(
    own: Servers, early: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients add it at the same time, and the later one is still copying the pauses."""
    await early.queue("jobs").push("x")
    async with connect(own) as other:
        opened = False

        async def read_and_pause(replicas: Replicas, queue: str) -> Shared:
            nonlocal opened
            told = await read_shared(replicas, queue)
            if not opened:
                opened = True
                await other.add_shard("b", own.urls("redis-2"))
                await other.queue("jobs").pause()
            return told

        monkeypatch.setattr(resharding, "read_shared", read_and_pause)
        await early.add_shard("b", own.urls("redis-2"))
        assert await paused_on(early) == {"b": True, FIRST: True}


async def test_limits_that_are_declared_after_another_client_has_opened_the_shard(
    own: Servers, early: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are declared at the queue's home first, which is the new shard; the later client finds none on the first
    one, and must not take them away again."""
    limits, share, others = zkrq.Limits(concurrency=1), Resharding._share, list[str]()  # pyright: ignore[reportPrivateUsage]
    queue = next(name for name in map(str, range(99)) if home(name, (FIRST, ShardName("b"))) == "b")
    async with connect(own) as other, asyncio.TaskGroup() as group:
        first, may_go_on, is_at_home = client_of(other).shards.first.replicas, asyncio.Event(), asyncio.Event()
        decide = first.decide

        async def decide_later(call: Any, **options: Any) -> Any:
            is_at_home.set()
            await may_go_on.wait()
            return await decide(call, **options)

        async def declare_before(self: Resharding, shard: Shard, map: ShardMap) -> None:
            others.append(shard.name)
            if len(others) == 1:
                await other.add_shard("b", own.urls("redis-2"))
                monkeypatch.setattr(first, "decide", decide_later)
                group.create_task(other.queue(queue).set_limits(limits))
                await is_at_home.wait()
            await share(self, shard, map)

        monkeypatch.setattr(Resharding, "_share", declare_before)
        await early.add_shard("b", own.urls("redis-2"))
        assert len(others) >= 2
        at_home = await read_shared(client_of(early).shards.open[ShardName("b")].replicas, queue)
        assert at_home.sections["limits"] == limits.settings
        may_go_on.set()


async def test_a_pause_that_meets_a_shard_which_cannot_be_told_may_have_happened(
    own: Servers, early: TestCluster, deaf: TestCluster
) -> None:
    """This client has not heard of it, and its servers are down."""
    await early.add_shard("b", own.urls("redis-2"))
    own.kill("redis-2")
    with pytest.raises(zkrq.OutcomeUnknown, match="a part was done before this failed: shard b is away"):
        await deaf.queue("jobs").pause()
    with pytest.raises(zkrq.Unavailable, match="shard b is away"):
        await deaf.queue("jobs").pause()
    own.start("redis-2")
    await own.clock.advance(30)
    await deaf.queue("jobs").resume()
    assert await paused_on(early) == {"b": False, FIRST: False}


HALF_DONE: dict[str, Callable[[zkrq.Queue[Any], Sequence[str]], Awaitable[object]]] = {
    "cancel": lambda queue, ids: queue.cancel_many([*ids, "of nobody"]),
    "clear": lambda queue, ids: queue.clear(),
    "delete": lambda queue, ids: queue.delete(),
    "discard": lambda queue, ids: queue.discard(),
    "redrive": lambda queue, ids: queue.redrive(),
    "limits": lambda queue, ids: queue.set_limits(zkrq.Limits(concurrency=5)),
}


@pytest.mark.parametrize("act", HALF_DONE.values(), ids=HALF_DONE)
async def test_what_was_done_on_one_shard_is_not_told_as_if_nothing_had_happened(
    own: Servers, early: TestCluster, deaf: TestCluster, act: Callable[..., Awaitable[object]]
) -> None:
    """The other one, of which this client has not heard, is away."""
    queue = deaf.queue("jobs")
    ids = [receipt.id for receipt in await queue.push_many(["x", "y"])]
    for claim in await queue.pop_many(1):
        await claim.bury("for discard and redrive")
    await early.add_shard("b", own.urls("redis-2"))
    own.kill("redis-2")
    with pytest.raises(zkrq.OutcomeUnknown, match="a part was done before this failed: shard b is away"):
        await act(queue, ids)
    with pytest.raises(zkrq.Unavailable, match="shard b is away"):
        await queue.size()


async def test_an_item_that_was_found_is_cancelled_whatever_is_away(
    own: Servers, early: TestCluster, deaf: TestCluster
) -> None:
    """Simulation, seed 905013 with shards: its caller was told that nothing had happened."""
    queue = deaf.queue("jobs")
    pushed = await queue.push("x", key="one")
    await early.add_shard("b", own.urls("redis-2"))
    own.kill("redis-2")
    assert await queue.cancel(pushed.id) is zkrq.Cancellation.REMOVED


@pytest.mark.parametrize("first", ["pause", "resume"])
async def test_of_a_pause_and_a_resume_at_the_same_time_one_holds_on_all_shards(
    own: Servers, early: TestCluster, deaf: TestCluster, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The other one comes while the first has told one shard only."""
    await early.add_shard("b", own.urls("redis-2"))
    await early.queue("jobs").pause()
    second = deaf.queue("jobs").resume if first == "pause" else deaf.queue("jobs").pause
    tell: Any = Administration._pause  # pyright: ignore
    told = list[Replicas]()

    async def tell_and_go(self: Administration[Any], state: State, replicas: Replicas) -> None:
        told.append(replicas)
        if len(told) == 2:
            await second()
        await tell(self, state, replicas)

    monkeypatch.setattr(Administration, "_pause", tell_and_go)
    await getattr(early.queue("jobs"), first)()
    found = await paused_on(early)
    assert found["b"] == found[FIRST] == (first == "resume")
