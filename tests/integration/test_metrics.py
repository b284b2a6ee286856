"""Metrics are right, bounded in number, and say no secret; of clusters on an event loop and of those in threads."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import zkrq
import zkrq.sync
import zkrq.testing
from tests.harness import HANG, take, until
from zkrq import prometheus
from zkrq.client.flow_register import FlowRegister
from zkrq.prometheus import Metrics, instrument

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


class Scrape:
    """What Prometheus would read."""

    def __init__(self, text: bytes) -> None:
        self.text = text.decode()
        self.samples = {
            (
                sample.name,
                *(value for label, value in sorted(sample.labels.items()) if label != "cluster"),
            ): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
            if sample.labels.get("cluster", "zkrq") == "zkrq"
        }

    def __getitem__(self, key: tuple[str, ...] | str) -> float:
        name, *labels = (key,) if isinstance(key, str) else key
        return self.samples[f"zkrq_{name}", *labels]


async def scraped(metrics: Metrics) -> Scrape:
    return Scrape(await metrics.expose())


async def test_scrapes_that_overlap_do_not_disturb_each_other(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Prometheus servers scrape in threads; one that gets no answer must not say so for the other."""
    metrics = instrument(cluster, registry)
    await cluster.queue("jobs").push(1)

    def up(families: Iterable[Metric]) -> list[float]:
        return [sample.value for family in families if family.name == "zkrq_up" for sample in family.samples]

    first = iter(metrics.collect())
    await asyncio.to_thread(next, first)
    monkeypatch.setattr(prometheus, "READ_SECONDS", 0.1)
    for name in cluster.view.members:
        cluster.servers.kill(name)
    assert await asyncio.to_thread(lambda: up(metrics.collect())) == [0]
    assert await asyncio.to_thread(up, first) == [1]


async def test_what_passes_through_a_queue_is_counted_whoever_counts_it(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    """The counters never fall: not with another primary, nor with a queue that was forgotten."""
    metrics, jobs = instrument(cluster, registry), cluster.queue("jobs")
    await jobs.push_many(range(10))
    assert [(await scraped(metrics))[f"queue_{what}_items_total", "jobs"] for what in ("pushed", "removed")] == [0, 0]
    async with cluster.servers.connect() as other:
        await other.queue("jobs").push_many(range(20))
        assert not await other.queue("jobs").ack_many(await other.queue("jobs").pop_many(5, timeout=HANG))
    seen = await scraped(metrics)
    assert (seen["queue_pushed_items_total", "jobs"], seen["queue_removed_items_total", "jobs"]) == (20, 5)
    cluster.servers.kill(cluster.view.primary("jobs"))
    await jobs.push("by the next primary")
    seen = await scraped(metrics)
    assert (seen["queue_pushed_items_total", "jobs"], seen["queue_removed_items_total", "jobs"]) == (20, 5)
    await jobs.delete()
    await scraped(metrics)
    await jobs.push("anew")
    await scraped(metrics)
    await jobs.clear()
    seen = await scraped(metrics)
    assert (seen["queue_pushed_items_total", "jobs"], seen["queue_removed_items_total", "jobs"]) == (21, 6)


async def test_flows_are_counted(cluster: zkrq.testing.TestCluster, registry: CollectorRegistry) -> None:
    metrics, jobs = instrument(cluster, registry), cluster.queue("jobs")
    assert ("zkrq_flows", "jobs", "open") not in (await scraped(metrics)).samples
    flows = [await jobs.flow(name).begin() for name in "abc"]
    await flows[0].push(1)
    await flows[0].seal()
    seen = await scraped(metrics)
    assert {state: seen["flows", "jobs", state] for state in ("open", "running", "failing")} == {
        "open": 2,
        "running": 1,
        "failing": 0,
    }
    for flow in flows:
        await flow.cancel()
    left = (await scraped(metrics)).samples
    assert not any(value for name, value in left.items() if name[:2] == ("zkrq_flows", "jobs"))


async def test_flows_that_cannot_be_counted_leave_the_other_figures(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which queues have flows is known to ZooKeeper; how full they are is not."""
    metrics, jobs = instrument(cluster, registry), cluster.queue("jobs")
    await jobs.push(1)
    await jobs.flow("a").begin()

    async def read(self: FlowRegister) -> Any:
        raise zkrq.Unavailable

    monkeypatch.setattr(FlowRegister, "read", read)
    seen = await scraped(metrics)
    assert seen["queue_items", "jobs", "ready"] == 1
    assert ("zkrq_flows", "jobs", "open") not in seen.samples


async def test_items_are_counted_and_timed(cluster: zkrq.testing.TestCluster, registry: CollectorRegistry) -> None:
    metrics = instrument(cluster, registry)
    queue = cluster.queue("jobs", retry=zkrq.Retry(backoff=zkrq.constant(0)))
    await asyncio.gather(*(queue.push(number) for number in range(8)))
    await queue.push("later", delay=60)
    failed = await take(queue)
    with pytest.raises(ValueError):
        async with failed:
            raise ValueError
    for _ in range(6):
        async with await take(queue):
            pass
    await (await take(queue)).bury("bad")
    held = await take(queue)
    async with held:
        seen = await scraped(metrics)
        assert seen["handlers_running"] == 1
        assert seen["held_claims", "jobs"] == 1
        assert seen["queue_items", "jobs", "claimed"] == 1
    seen = await scraped(metrics)
    assert seen["pushes_total", "pushed", "jobs"] == seen["push_seconds_count", "jobs"] == 9
    assert seen["push_batch_items_sum", "jobs"] == 9
    assert seen["claim_attempts_count", "jobs"] == seen["claim_batch_items_sum", "jobs"] == 9
    assert seen["claim_attempts_sum", "jobs"] == 10  # one of them is delivered for the second time
    assert seen["claim_attempts_bucket", "1.0", "jobs"] == 8
    assert seen["settlements_total", "done", "jobs", "ack"] == seen["settle_seconds_count", "jobs", "ack"] == 7
    assert seen["settlements_total", "done", "jobs", "bury"] == 1
    assert seen["settlements_total", "done", "jobs", "nack"] == 1
    assert seen["handler_seconds_count", "jobs", ""] == 8
    assert seen["handler_errors_total", "jobs", ""] == 1
    assert seen["handlers_running"] == 0
    states = {state: seen["queue_items", "jobs", state] for state in ("ready", "scheduled", "claimed", "dead")}
    assert states == {"ready": 0, "scheduled": 1, "claimed": 0, "dead": 1}


async def test_handlers_are_counted_by_the_task_of_their_items(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no task of a handler has no label, and there are not many."""
    monkeypatch.setattr(prometheus, "MAX_TASKS", 3)
    metrics, queue = instrument(cluster, registry), cluster.queue("jobs", retry=zkrq.Retry(max_attempts=1))

    async def handler(item: int) -> None:
        assert item != 1

    for n in range(5):
        await queue.push(n, task=f"task-{n}")
    await queue.push(5)
    for n in range(6, 16):
        await queue.push(n, task=f"unknown-{n}")
    handlers = {"": handler, **{f"task-{n}": handler for n in range(5)}}
    async with zkrq.Worker(concurrency=1).add(queue, handlers) as worker:
        await until(lambda: worker.statistics().done == 5 and worker.statistics().released >= 10)
    seen = await scraped(metrics)
    told = {task: seen["handler_seconds_count", "jobs", task] for task in ("", "task-0", "task-2", "(other)")}
    assert told == {"": 1, "task-0": 1, "task-2": 1, "(other)": 2}
    assert [seen["handler_errors_total", "jobs", f"task-{n}"] for n in range(3)] == [0, 1, 0]
    assert "unknown-" not in seen.text


async def test_the_oldest_item_and_a_pause_are_seen(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    metrics, queue = instrument(cluster, registry), cluster.queue("jobs")
    await queue.push("x")
    await queue.pause()
    await cluster.clock.advance(100)
    seen = await scraped(metrics)
    assert 100 <= seen["queue_oldest_ready_seconds", "jobs"] < 110
    assert seen["queue_paused", "jobs"] == 1
    assert "zkrq_queue_groups{" not in seen.text


async def test_groups_are_counted_and_none_is_named(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    metrics, queue = instrument(cluster, registry), cluster.queue("jobs", groups=zkrq.Groups(concurrency=1))
    for number in range(6):
        await queue.push(number, group=f"tenant {number % 3}")
    claim = await take(queue)
    seen = await scraped(metrics)
    counted = [seen["queue_groups", "jobs", standing] for standing in ("in line", "blocked", "idle")]
    assert counted == [2, 1, 0]
    assert "tenant" not in seen.text
    await claim.ack()


async def test_a_server_that_dies_and_comes_back_is_seen(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    metrics, queue = instrument(cluster, registry), cluster.queue("jobs")
    await queue.push("x")
    seen = await scraped(metrics)
    assert seen["evictions_total", "redis-1"] == 0
    cluster.servers.kill("redis-1")
    await queue.push("y")
    seen = await scraped(metrics)
    assert seen["evictions_total", "redis-1"] == 1
    assert seen["server_place", "out", "redis-1", "main"] == 1
    assert seen["server_place", "member", "redis-1", "main"] == seen["server_connected", "redis-1", "main"] == 0
    assert (seen["in_sync_servers", "main"], seen["min_replicas", "main"], seen["healthy"]) == (2, 2, 1)
    cluster.servers.start("redis-1")
    await cluster.clock.advance(20)
    seen = await scraped(metrics)
    assert seen["server_place", "member", "redis-1", "main"] == 1
    assert seen["events_total", "ServerCaughtUp"] == 1


async def test_a_shard_that_drains_and_is_away_is_seen(registry: CollectorRegistry) -> None:
    async with zkrq.testing.servers(2) as own, own.connect(first=1) as cluster:
        metrics, queue = instrument(cluster, registry), cluster.queue("jobs")
        assert (await scraped(metrics))["shard_away", "main"] == 0
        await cluster.add_shard("b", own.urls("redis-2"))
        while not await cluster.shard_sizes("b"):
            await queue.push("x")
        seen = await scraped(metrics)
        assert (seen["shard_state", "b", "open"], seen["shard_state", "main", "open"]) == (1, 1)
        assert seen["server_place", "member", "redis-2", "b"] == seen["in_sync_servers", "b"] == 1
        every = seen["queue_items", "jobs", "ready"]
        await cluster.drain_shard("b")
        own.kill("redis-2")
        await cluster.clock.advance(1)
        seen = await scraped(metrics)
        assert (seen["shard_state", "b", "open"], seen["shard_state", "b", "draining"]) == (0, 1)
        assert (seen["shard_away", "b"], seen["shard_away", "main"], seen["trouble"], seen["up"]) == (1, 0, 1, 1)
        assert 0 <= seen["queue_items", "jobs", "ready"] < every


async def test_without_servers_a_scrape_says_what_this_process_knows(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "READ_SECONDS", 0.1)
    metrics, queue = instrument(cluster, registry), cluster.queue("jobs")
    await queue.push("x")
    assert (await scraped(metrics))["up"] == 1
    for server in cluster.servers.names:
        cluster.servers.kill(server)
    seen = await scraped(metrics)
    assert (seen["up"], seen["pushes_total", "pushed", "jobs"]) == (0, 1)
    assert ("zkrq_queue_items", "jobs", "ready") not in seen.samples


async def test_labels_are_bounded(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "MAX_QUEUES", 3)
    metrics = instrument(cluster, registry)
    for number in range(6):
        await cluster.queue(f"tenant-{number}").push("x")
    seen = await scraped(metrics)
    labels = {key[-1] for key in seen.samples if key[0] == "zkrq_push_seconds_count"}
    assert labels == {"tenant-0", "tenant-1", "tenant-2", "(other)"}
    assert seen["pushes_total", "pushed", "(other)"] == 3
    assert seen["queues"] == 6
    assert {key[1] for key in seen.samples if key[0] == "zkrq_queue_items"} == {"tenant-0", "tenant-1", "tenant-2"}


async def test_one_process_may_report_every_queue(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    await cluster.queue("elsewhere").push("x")
    async with cluster.servers.connect(description="onlooker") as onlooker:
        seen = await scraped(instrument(onlooker, registry, every_queue=True))
        assert seen["queue_items", "elsewhere", "ready"] == 1
        seen = await scraped(instrument(onlooker, CollectorRegistry()))
        assert seen["queues"] == 0


async def test_a_thread_may_scrape_while_the_loop_runs_and_while_it_is_blocked(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with zkrq.embedded() as cluster:
        instrument(cluster, registry)
        await cluster.queue("jobs").push("x")
        seen = Scrape(await asyncio.to_thread(generate_latest, registry))
        assert seen["queue_items", "jobs", "ready"] == 1
        monkeypatch.setattr(prometheus, "READ_SECONDS", -0.8)
        scrapes: list[Scrape] = []
        thread = threading.Thread(target=lambda: scrapes.append(Scrape(generate_latest(registry))))
        thread.start()
        while thread.is_alive():  # and meanwhile nothing else runs on this loop
            time.sleep(0.01)
        assert (scrapes[0]["up"], scrapes[0]["pushes_total", "pushed", "jobs"]) == (0, 1)


def test_a_cluster_of_threads_is_seen_too(registry: CollectorRegistry) -> None:
    with zkrq.sync.embedded() as cluster:
        instrument(cluster, registry)
        queue = cluster.queue("jobs")
        queue.push("x")
        claim = queue.pop_one(timeout=HANG)
        assert claim is not None
        with claim:
            pass
        seen = Scrape(generate_latest(registry))
        assert seen["pushes_total", "pushed", "jobs"] == seen["handler_seconds_count", "jobs", ""] == 1
        assert seen["queue_items", "jobs", "ready"] == 0
        cluster.ping()
    assert b"zkrq" not in generate_latest(registry)


async def test_no_id_payload_or_password_is_in_a_metric(registry: CollectorRegistry) -> None:
    """Names of servers, queues and the namespace are all that comes from outside."""
    async with zkrq.testing.cluster() as cluster:
        metrics, queue = instrument(cluster, registry), cluster.queue("jobs")
        receipt = await queue.push({"card": "4111-secret"}, id="id-secret", headers={"token": "header-secret"})
        claim = await take(queue)
        await claim.bury("reason-secret")
        text = (await scraped(metrics)).text
    assert receipt.id == "id-secret"
    assert "secret" not in text
    assert claim.owner not in text


async def test_the_documentation_lists_every_metric(
    cluster: zkrq.testing.TestCluster, registry: CollectorRegistry
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `zkrq_")]
    listed = {name for row in rows for name in re.findall(r"`(zkrq_\w+)`", row.split("|")[1])}
    metrics = instrument(cluster, registry)
    cluster.queue("jobs")
    await metrics.refresh()
    families = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.collect()}
    assert listed == families
