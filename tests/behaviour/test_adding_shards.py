"""Shards that come, drain and go; and what keeps one from being added or removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import zkrq
from tests.behaviour.two_shards import SECOND, all_of, both, connect, generation, is_closed, kill
from zkrq.client import resharding
from zkrq.client.resharding import Resharding
from zkrq.client.shard import Shard
from zkrq.client.shards import Shards
from zkrq.producing.placement import read_home
from zkrq.protocol.shards import FIRST, ShardName, home, shard_of
from zkrq.replication.fleet import Fleet
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


async def test_waiting_consumers_hear_of_a_new_shard(own: Servers) -> None:
    async with connect(own) as cluster:
        queue = cluster.queue("jobs")
        stream = queue.pop()
        waiting = [asyncio.ensure_future(anext(stream)), asyncio.ensure_future(queue.pop_one())]
        await own.clock.advance(1)
        await cluster.add_shard("b", own.urls(*SECOND))
        replicas = cluster._client.shards.open  # pyright: ignore[reportPrivateUsage]
        assert list(replicas) == ["b", FIRST]
        await queue.push_many([1])
        while not all(waiter.done() for waiter in waiting):
            await queue.push("more")
        assert {(await waiter).item for waiter in waiting} <= {1, "more"}  # type: ignore[union-attr]


async def test_a_drained_shard_is_emptied_and_removed(
    own: Servers, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a queue that is at home on another one: its tombstones are waited for otherwise."""
    monkeypatch.setattr(resharding, "PUT_WINDOW", 10.0)
    name = next(name for name in map(str, range(100)) if home(name, [FIRST, ShardName("b")]) == FIRST)
    queue = cluster.queue(name)
    for at in range(40):
        await queue.push(at)
    before = (await cluster.shard_sizes("b"))[name]
    assert before.ready
    await cluster.drain_shard("b")
    assert cluster.shards["b"].state == "draining"
    for at in range(20):
        await queue.push(at)
    assert (await cluster.shard_sizes("b"))[name] == before
    with pytest.raises(zkrq.ConfigError, match=f"queue '{name}' has"):
        await cluster.remove_shard("b", force=True)
    assert cluster.shards["b"].state == "draining"
    async with connect(own) as other:
        assert len(await all_of(other.queue(name), 60)) == 60
        assert await cluster.shard_sizes("b") == {}
        with pytest.raises(zkrq.ConfigError, match="a client may repeat a push"):
            await cluster.remove_shard("b")
        await own.clock.advance(11)
        view = cluster.shards["b"].view
        assert view
        assert {id: generation(own, id) for id in SECOND} == {id: life.generation for id, life in view.members.items()}
        await cluster.remove_shard("b")
        assert not {generation(own, id) for id in SECOND} & {life.generation for life in view.members.values()}
        await own.clock.advance(10)
        kill(own, *SECOND)
        for client in (cluster, other):
            assert list(client.shards) == [FIRST]
            assert client.health().ok
            await client.queue(name).push("x")
            await client.queue(name).push("x", id=f"own-{client is other}")
            await client.queue(name).push("x", key=f"own-{client is other}")
        assert len(await all_of(other.queue(name), 6)) == 6
    with pytest.raises(zkrq.ConfigError, match="there is no shard 'b'"):
        await cluster.drain_shard("b")


async def test_the_home_of_a_queue_moves_when_its_shard_is_removed(own: Servers, cluster: TestCluster) -> None:
    at_b = [name for name in (f"queue-{n}" for n in range(20)) if home(name, ["b", FIRST]) == "b"][:3]  # type: ignore[list-item]
    for name in at_b:
        await cluster.queue(name).push("x", id="mine")
    await cluster.drain_shard("b")
    for name in at_b:
        assert not (await cluster.queue(name).push("x", id="mine")).new, "its home is still there"
        await cluster.queue(name).push("y", key="k")
        await all_of(cluster.queue(name), 2)
    with pytest.raises(zkrq.ConfigError, match=r"remembers \d+ id\(s\)"):
        await cluster.remove_shard("b")
    await cluster.remove_shard("b", force=True)
    for name in at_b:
        assert (await cluster.queue(name).push("y", key="k")).new
        assert (await cluster.queue(name).push("y", key="k")).duplicate


@pytest.mark.parametrize("seconds", [None, 60])
async def test_a_new_shard_is_paused_where_the_others_are(own: Servers, seconds: int | None) -> None:
    async with connect(own) as cluster:
        queue = cluster.queue("jobs")
        await queue.push("x")
        await queue.pause(seconds=seconds)
        await cluster.add_shard("b", own.urls(*SECOND))
        while not await cluster.shard_sizes("b"):
            await queue.push("x")
        assert await queue.pop_many(5, timeout=0) == []
        if seconds:
            await own.clock.advance(seconds + 1)
        else:
            await queue.resume()
        assert not (await queue.statistics()).paused
        assert await queue.pop_many(5, timeout=10)


@pytest.mark.parametrize(
    ("name", "names", "message"),
    [
        ("b", SECOND[:2], "there is a shard 'b' already"),
        ("c", ("redis-1",), "server redis-1 belongs to shard main"),
        ("C", SECOND, "a shard is called 'C'"),
        ("main", SECOND, "there is a shard 'main' already"),
    ],
)
async def test_shards_that_cannot_be_added(
    own: Servers, cluster: TestCluster, name: str, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(zkrq.ConfigError, match=message):
        await cluster.add_shard(name, own.urls(*names))
    assert set(cluster.shards) == {"b", "main"}
    assert (await cluster.queue("jobs").push("x")).replicas == 3


async def test_a_server_of_another_shard_under_another_name_is_refused(own: Servers, cluster: TestCluster) -> None:
    with pytest.raises(zkrq.ConfigError, match="x is server redis-1 of shard main"):
        await cluster.add_shard("c", {"x": "redis://redis-1"})
    assert (await cluster.queue("jobs").push("x")).replicas == 3


async def test_adding_a_shard_again_changes_nothing_and_opens_a_draining_one(
    own: Servers, cluster: TestCluster
) -> None:
    number = cluster._client.shards.map.number  # pyright: ignore[reportPrivateUsage]
    await cluster.add_shard("b", own.urls(*SECOND))
    assert cluster._client.shards.map.number == number  # pyright: ignore[reportPrivateUsage]
    await cluster.drain_shard("b")
    await cluster.add_shard("b", own.urls(*SECOND))
    assert cluster.shards["b"].state == "open"
    with pytest.raises(zkrq.ConfigError, match="drain it first"):
        await cluster.remove_shard("b")
    await cluster.drain_shard("b")
    with pytest.raises(zkrq.ConfigError, match="only one that takes pushes"):
        await cluster.drain_shard("main")
    with pytest.raises(zkrq.ConfigError, match="stays as long as its namespace"):
        await cluster.remove_shard("main")


@pytest.mark.parametrize("step", ["closed", "looked at", "ended", "taken out"])
async def test_a_removal_that_was_broken_off_is_repeated_by_another_client(
    own: Servers, cluster: TestCluster, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(10):
        await cluster.queue("jobs").push(at)
    await cluster.drain_shard("b")
    await all_of(cluster.queue("jobs"), 10)

    class Crash(Exception):
        pass

    async def crash(*_: object, **__: object) -> None:
        raise Crash

    places = {
        "closed": (Resharding, "_ask_for_map"),
        "looked at": (Resharding, "_end"),
        "ended": (Fleet, "identify"),
        "taken out": (Shards, "change"),
    }
    kind, method = places[step]
    async with connect(own) as other:
        with monkeypatch.context() as broken:
            if step == "taken out":
                done, change = list[int](), Shards.change

                async def change_once(self: Shards, wanted: Any, **options: Any) -> Any:
                    done.append(1)
                    return await change(self, wanted, **options) if len(done) == 1 else await crash()

                broken.setattr(kind, method, change_once)
            else:
                broken.setattr(kind, method, crash)
            with pytest.raises(Crash):
                await other.remove_shard("b", force=True)
        for at in range(5):
            await cluster.queue("jobs").push(at)
        await cluster.remove_shard("b", force=True)
        assert list(cluster.shards) == [FIRST]
        await all_of(cluster.queue("jobs"), 5)


async def test_several_clients_add_the_same_shard_at_once(own: Servers) -> None:
    async with connect(own) as one, connect(own) as two, connect(own) as three:
        clients = (one, two, three)
        await asyncio.gather(*(cluster.add_shard("b", own.urls(*SECOND)) for cluster in clients))
        for cluster in clients:
            queue = cluster.queue("jobs")
            receipts = [await queue.push("x") for _ in range(20)]
            assert {shard_of(receipt.id) for receipt in receipts} == {FIRST, "b"}
        assert len(await all_of(one.queue("jobs"), 60)) == 60


async def test_a_shard_whose_servers_cannot_be_used_is_given_up(own: Servers) -> None:
    async with connect(own) as cluster:
        kill(own, *SECOND)
        with pytest.raises(zkrq.Unavailable):
            await cluster.add_shard("b", own.urls(*SECOND))
        assert cluster.shards["b"].state == "joining"
        with pytest.raises(zkrq.ConfigError, match="add it again, or remove it"):
            await cluster.drain_shard("b")
        assert await cluster.queue("jobs").size() == (0, 0, 0, 0)
        assert cluster.health().ok
        await cluster.remove_shard("b")
        assert list(cluster.shards) == [FIRST]


async def test_a_removal_ends_in_vain_if_its_shard_is_used_again(
    own: Servers, cluster: TestCluster, queue: zkrq.Queue[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard was empty when it was looked through, and is not any more."""
    looked = Resharding._left_in  # pyright: ignore[reportPrivateUsage]
    await cluster.drain_shard("b")
    async with connect(own) as other:
        await queue.push("there")

        async def look(self: Resharding, shard: Shard, *, force: bool) -> str | None:
            found = await looked(self, shard, force=force)
            if is_closed(self, shard):
                await other.add_shard("b", own.urls(*SECOND))
                while not await other.shard_sizes("b"):
                    await other.queue("jobs").push("there")
            return found

        monkeypatch.setattr(Resharding, "_left_in", look)
        with pytest.raises(zkrq.Unavailable, match="call this again"):
            await cluster.remove_shard("b", force=True)
        monkeypatch.undo()
        assert cluster.shards["b"].state == "open"
        there = (await other.queue("jobs").size()).ready
        assert len(await all_of(queue, there)) == there
        await cluster.drain_shard("b")
        await cluster.remove_shard("b", force=True)


async def test_a_shard_that_was_removed_may_be_added_again_and_is_another_one(
    own: Servers, cluster: TestCluster
) -> None:
    at_b = [name for name in (f"queue-{n}" for n in range(20)) if home(name, ["b", FIRST]) == "b"][:3]  # type: ignore[list-item]
    coordinator = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
    for name in at_b:
        await cluster.queue(name).push("x", id="mine")
        await all_of(cluster.queue(name), 1)
    await cluster.drain_shard("b")
    assert all([(await read_home(coordinator, name))[0] for name in at_b]), "they stay where they are"
    await cluster.remove_shard("b", force=True)
    for name in SECOND:
        own.kill(name)
        own.start(name, wipe=True)
    await cluster.add_shard("b", own.urls(*SECOND))
    async with connect(own) as other:
        for name in at_b:
            assert (await cluster.queue(name).push("x", id="mine")).new
            assert not (await other.queue(name).push("x", id="mine")).new
            assert await other.queue(name).size() == (1, 0, 0, 0)


async def test_a_queue_costs_the_coordinator_nothing_unless_a_change_of_the_shards_would_move_it(
    own: Servers, cluster: TestCluster
) -> None:
    coordinator = cluster._client.coordinator  # pyright: ignore[reportPrivateUsage]
    names = [f"once-{number}" for number in range(60)]

    async def registered() -> list[str]:
        return [name for name in names if (await read_home(coordinator, name))[0]]

    for name in names:
        assert (await cluster.queue(name).push("x", id="mine")).new
    assert await registered() == []
    await cluster.drain_shard("b")
    moving = [name for name in names if home(name, [FIRST, ShardName("b")]) == "b"]
    assert await registered() == moving, "and these stay where they are"
    await cluster.add_shard("b", own.urls(*SECOND))
    await cluster.drain_shard(FIRST)
    assert sorted(await registered()) == sorted(names)
    async with connect(own) as other:
        for name in names:
            assert not (await other.queue(name).push("x", id="mine")).new


async def test_a_shard_that_is_away_keeps_others_from_being_added_and_drained(
    own: Servers, cluster: TestCluster
) -> None:
    """Pushes that do not know of the change could still go there."""
    queue = cluster.queue("jobs")
    await queue.push("x", id="mine")
    kill(own, *SECOND)
    with pytest.raises(zkrq.Unavailable):
        await cluster.drain_shard(FIRST)
    for name in SECOND:
        own.start(name)
    await cluster.drain_shard(FIRST)
    assert not (await queue.push("x", id="mine")).new


@pytest.mark.parametrize("state", ["open", "draining"])
async def test_servers_that_may_come_back_with_items_keep_shards_from_being_added_and_drained(
    own: Servers, state: str
) -> None:
    """They may have taken an id of a queue that no other server knows, and whose home would be another one."""
    async with connect(own) as cluster:

        async def change() -> None:
            await (cluster.drain_shard("b") if state == "draining" else cluster.add_shard("b", own.urls(*SECOND)))

        if state == "draining":
            await cluster.add_shard("b", own.urls(*SECOND))
        kill(own, "redis-1", "redis-2")
        while not cluster.view.eligible:
            await own.clock.advance(1)
        away = sorted(cluster.view.eligible)
        with pytest.raises(zkrq.Unavailable, match=f"{away[0]}: .* may come back with what no other server has"):
            await change()
        own.start(away[0])
        while not cluster.view.writable:
            await own.clock.advance(1)
        await change()
        assert cluster.shards["b"].state == state
