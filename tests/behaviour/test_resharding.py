"""Adding, draining and removing a shard while what it takes is away: the operator's client, or ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import pytest

import zkrq
from zkrq.cluster import client_of
from zkrq.coordination.coordinator import Versioned
from zkrq.protocol.shards import FIRST
from zkrq.shards import MAP
from zkrq.testing import Servers, servers

pytestmark = pytest.mark.anyio


@pytest.fixture
async def own() -> AsyncGenerator[Servers]:
    async with servers(2) as running:
        yield running


class Died(Exception):
    """The operator's client is no more."""


def let_die(operator: zkrq.Cluster, at: int, *, written: bool, patch: pytest.MonkeyPatch) -> None:
    """Let a client die at one of its changes of the shard map: before it is written, or afterwards."""
    coordinator = client_of(operator).coordinator
    swap, changes = coordinator.swap, itertools.count()

    async def dying(register: str, data: bytes, expected: int) -> Versioned | None:
        if register != MAP or next(changes) != at:
            return await swap(register, data, expected)
        if written:
            await swap(register, data, expected)
        raise Died

    patch.setattr(coordinator, "swap", dying)


@pytest.mark.parametrize("written", [False, True], ids=["before it is written", "after it is written"])
@pytest.mark.parametrize(
    ("verb", "change"), [("add", "joined"), ("add", "opened"), ("drain", "drained"), ("remove", "closed")]
)
async def test_what_an_operator_leaves_in_the_middle_another_one_ends(
    own: Servers, monkeypatch: pytest.MonkeyPatch, verb: str, change: str, written: bool
) -> None:
    """Meanwhile every plain push is accepted, and an id exists once."""
    steps: Mapping[str, Callable[[zkrq.Cluster], Awaitable[None]]] = {
        "add": lambda cluster: cluster.add_shard("b", own.urls("redis-2")),
        "drain": lambda cluster: cluster.drain_shard("b"),
        "remove": lambda cluster: cluster.remove_shard("b", force=True),
    }
    async with own.connect(first=1) as other:
        queue = other.queue("jobs")
        assert (await queue.push("x", id="mine")).new
        ended = list(itertools.takewhile(lambda step: step != verb, steps))
        for step in ended:
            await steps[step](other)
        async with own.connect(first=1) as operator:
            let_die(operator, int(change == "opened"), written=written, patch=monkeypatch)
            with pytest.raises(Died):
                await steps[verb](operator)
        for step in [step for step in steps if step not in ended]:
            before = await queue.size()
            for _ in range(5):
                await queue.push("plain")
            assert not (await queue.push("x", id="mine")).new
            assert (await queue.size()).ready == before.ready + 5
            if step == "remove":
                await queue.clear()
            await steps[step](other)
        assert list(other.shards) == [FIRST]
        assert await queue.push("plain")


async def test_a_removal_that_was_written_but_not_reported(own: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own.connect(first=1) as other:
        await other.add_shard("b", own.urls("redis-2"))
        await other.drain_shard("b")
        async with own.connect(first=1) as operator:
            let_die(operator, 1, written=True, patch=monkeypatch)
            with pytest.raises(Died):
                await operator.remove_shard("b", force=True)
        with pytest.raises(zkrq.ConfigError, match="there is no shard 'b'"):
            await other.remove_shard("b", force=True)
        assert await other.queue("jobs").push("x", id="mine")


async def test_a_shard_that_came_back_empty_is_recovered_by_a_client_that_never_had_it(own: Servers) -> None:
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        own.kill("redis-2")
        own.start("redis-2", wipe=True)
        async with own.connect(first=1) as late:
            assert late.shards["b"].away
            recovering = asyncio.ensure_future(late.recover(["redis-2"]))
            await own.clock.advance(60)
            await recovering
            assert late.shards["b"].away is None
            while not await late.shard_sizes("b"):
                await late.queue("jobs").push("x")
            with pytest.raises(zkrq.ConfigError, match="nothing to recover"):
                await late.recover(["redis-2"])


async def test_a_queue_without_a_home_gets_its_first_id_while_zookeeper_is_away(own: Servers) -> None:
    """Only that push waits for ZooKeeper: a home that is known is enough for the others, and plain items need none."""
    async with own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        known, new = cluster.queue("known"), cluster.queue("new")
        await known.push("x", id="first")
        coordinator = client_of(cluster).coordinator
        cluster.servers._hub.suspend(coordinator)  # type: ignore[arg-type]  # pyright: ignore
        pushing = asyncio.ensure_future(new.push("x", id="mine"))
        assert await new.push("plain")
        assert (await known.push("x", id="second")).new
        await cluster.clock.advance(15)
        with pytest.raises(zkrq.Unavailable):
            await pushing
        cluster.servers._hub.resume(coordinator)  # type: ignore[arg-type]  # pyright: ignore
        assert (await new.push("x", id="mine")).new
        assert await new.size() == (2, 0, 0, 0)
