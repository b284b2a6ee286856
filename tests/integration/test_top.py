"""``zkrq top`` shows what happens to servers, queues and consumers, while it happens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

import zkrq
import zkrq.testing
from tests.behaviour.helpers import bury
from tests.harness import until
from zkrq.cli import top
from zkrq.cli.top import Snapshot, as_text, show, take_snapshot, watch
from zkrq.client.inner import copied_by_learners

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


def row(text: str, begin: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(begin))
    return line.split()


async def test_a_run_with_faults_is_shown(cluster: zkrq.testing.TestCluster) -> None:
    jobs, paused = cluster.queue("jobs"), cluster.queue("paused")
    before = await take_snapshot(cluster)
    await jobs.push_many(range(30))
    await bury(cluster.queue("letters"), 2)
    claims = await jobs.pop_many(10, timeout=5)
    await paused.push("x")
    await paused.pause()
    now = await take_snapshot(cluster)
    text = as_text(show(now._replace(at=before.at + 2), before))
    assert text.startswith("epoch 1, 3 in sync of 3, ready to push and claim, ZooKeeper connected")
    assert row(text, "redis-1") == ["redis-1", "member"]
    assert row(text, "jobs")[:5] == ["jobs", "20", "0", "10", "0"]
    assert row(text, "letters")[4] == "2"
    assert row(text, "paused")[-1] == "paused"
    assert "10 of jobs" in text
    assert not await jobs.ack_many(claims[:4])
    await jobs.push_many(range(7))
    later = (await take_snapshot(cluster))._replace(at=now.at + 2)
    assert row(as_text(show(later, now)), "jobs")[1:7] == ["27", "0", "6", "0", "3.5", "2.0"]
    assert row(as_text(show(later, later)), "jobs")[5:] == row(as_text(show(later, None)), "jobs")[5:]

    cluster.servers.kill("redis-1")
    await jobs.push("y")
    text = as_text(show(await take_snapshot(cluster), None))
    assert "redis-1 is not brought back: connection refused" in text
    assert row(text, "redis-1  ") == ["redis-1", "out", "not", "connected"]
    assert text.startswith("epoch 2, 2 in sync of 3")
    assert text.splitlines()[1].startswith("2 of 3 servers in sync; redis-1 out since ")
    learner = now._replace(
        copied={"redis-2": 41.7},
        health=now.health._replace(servers={"redis-2": zkrq.ServerHealth("learner", connected=True)}),
    )
    assert "42 % of the items" in as_text(show(learner, None))
    assert len(claims) == 10


async def test_shards_are_shown_where_there_are_several() -> None:
    async with zkrq.testing.servers(2) as own, own.connect(first=1) as cluster:
        await cluster.add_shard("b", own.urls("redis-2"))
        queue = cluster.queue("jobs")
        while not await cluster.shard_sizes("b"):
            await queue.push("x")
        text = as_text(show(await take_snapshot(cluster), None))
        assert text.startswith("2 shards, 2 in sync of 2, ready to push and claim")
        assert [row(text, name) for name in ("b ", "redis-1", "redis-2")] == [
            ["b", "open", str(cluster.shards["b"].view.epoch), "1", "of", "1"],  # type: ignore[union-attr]
            ["redis-1", "main", "member"],
            ["redis-2", "b", "member"],
        ]
        assert "without the items" not in text
        await cluster.drain_shard("b")
        own.kill("redis-2")
        await cluster.clock.advance(1)
        now = await take_snapshot(cluster)
        text = as_text(show(now, None))
        assert "without the items of shard b." in text
        assert (row(text, "b ")[1], row(text, "b ")[-1]) == ("draining", "away")
        told = cast("dict[str, Any]", now.value())
        assert (told["away"], told["servers"]["redis-2"]["shard"]) == (["b"], "b")
        assert told["shards"]["b"]["away"].startswith("shard b is away")


async def test_a_learner_is_asked_what_it_has(cluster: zkrq.testing.TestCluster) -> None:
    """Whichever client catches it up."""
    asked: list[asyncio.Task[Mapping[str, float]]] = []

    class Watcher(zkrq.Observer):
        def event(self, event: zkrq.Event) -> None:
            if isinstance(event, zkrq.ViewChanged) and event.learners:
                asked.append(asyncio.create_task(copied_by_learners(cluster, queues)))

    await cluster.queue("jobs").push_many(range(2000))
    queues = await cluster.statistics()
    cluster.observe(Watcher())
    cluster.servers.kill("redis-3")
    await cluster.queue("jobs").push("x")
    cluster.servers.start("redis-3", wipe=True)
    await cluster.clock.advance(20)
    copied = await asked[0]
    assert copied.keys() == {"redis-3"}
    assert 0 <= copied["redis-3"] <= 100
    assert await copied_by_learners(cluster, queues) == {}


async def test_names_of_others_are_shown_as_text(cluster: zkrq.testing.TestCluster) -> None:
    async with cluster.servers.connect(description="[bold]me[/nonsense] x") as other:
        await other.queue("jobs").push("x")
        await other.queue("jobs").pop_one(timeout=5)
        assert "[bold]me[/nonsense] x" in as_text(show(await take_snapshot(cluster), None))
    snapshot = await take_snapshot(cluster)
    hostile = snapshot._replace(consumers={"a": zkrq.Consumer("\x1b]0;owned\x07", {})})
    assert "?]0;owned?" in as_text(show(hostile, None))


async def test_it_goes_on_while_no_server_answers(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.queue("jobs").push("x")
    looks = itertools.count(1)

    async def look(cluster: zkrq.Cluster) -> Snapshot:
        if next(looks) == 2:
            raise zkrq.Unavailable("nobody answers")
        return await take_snapshot(cluster)

    drawn: list[str] = []

    def draw(now: Snapshot, before: Snapshot | None, trouble: str = "") -> object:
        drawn.append(as_text(show(now, before, trouble)))
        return drawn[-1]

    monkeypatch.setattr(top, "take_snapshot", look)
    monkeypatch.setattr(top, "show", draw)
    watching = asyncio.create_task(watch(cluster, 0.01))
    await until(lambda: len(drawn) >= 4)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert ["nobody answers" in text for text in drawn[:4]] == [False, True, False, False]
    assert all(row(text, "jobs")[1] == "1" for text in drawn)
