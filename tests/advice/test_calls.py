"""Next steps for programmers: a call is refused, what its error says is done, and the call returns."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from taskiq import InMemoryBroker

import zkrq
import zkrq.sync
import zkrq.testing
from tests.advice.registry import leads_out_of
from tests.behaviour.helpers import is_empty
from tests.harness import settled, take
from zkrq.base.encryption import new_key
from zkrq.cli.serve import read_tokens
from zkrq.client import timetable, timetable_form
from zkrq.client.connecting import read_given
from zkrq.client.environment import read_servers
from zkrq.client.stored import StoredResults
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.kombu.options import split_options
from zkrq.process.control import Supervised
from zkrq.replication.batching import MAX_BATCH
from zkrq.serve.connections import connections_max
from zkrq.taskiq import ZkrqResultBackend

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


@contextmanager
def refused(text: str, error: type[Exception] = zkrq.ConfigError) -> Generator[None]:
    """What is done here is refused, with this step."""
    with pytest.raises(error) as raised:
        yield
    assert text in str(raised.value), raised.value


async def _nothing(item: object) -> None:
    """Handle an item."""


@leads_out_of("base/checks.py", "give it a time zone", "give push_many([item]), or push(item)")
@leads_out_of("base/checks.py", "give task='welcome' in its place")
@leads_out_of("base/ids.py", "To repeat a push, give its whole id; or put something before yours")
@leads_out_of("operations/push.py", "use {name} alone, or {other} with a delay")
@leads_out_of("producing/options.py", "push without it, or into another queue")
async def test_pushes(cluster: zkrq.testing.TestCluster) -> None:
    jobs: zkrq.Queue[Any] = cluster.queue("jobs")
    with refused("give it a time zone"):
        await jobs.push("x", at=datetime.now() + timedelta(1))  # noqa: DTZ005
    await jobs.push("x", at=datetime.now(UTC) + timedelta(1))
    with refused("give push_many([item]), or push(item)"):
        await jobs.push_many({"to": "ann"})
    await jobs.push_many([{"to": "ann"}])
    with refused("give task='welcome' in its place"):
        await jobs.push("x", headers={"zkrq-task": "welcome"})
    await jobs.push("x", task="welcome")
    first = (await jobs.push({"to": "ann"})).id
    with refused("give its whole id; or put something before yours"):
        await jobs.push("x", id=first[:-3] + "!")
    assert not (await jobs.push({"to": "ann"}, id=first)).new
    await jobs.push("x", id=f"my-{first[:-3]}!")
    with refused("replace=True needs a key: key='user-42'"):
        await jobs.push("x", replace=True)
    await jobs.push("x", replace=True, key="user-42")
    with refused("use key_window alone, or replace=True"):
        await jobs.push("x", replace=True, key="k", key_window=60)
    await jobs.push("x", key="k", key_window=60)
    ordered = cluster.queue("ordered", groups=zkrq.Groups(ordered=True))
    with refused("push without it, or into another queue"):
        await ordered.push("x", group="a", priority=5)
    await ordered.push("x", group="a")
    await jobs.push("x", group="a", priority=5)


@leads_out_of("base/limits.py", "leave concurrency out")
@leads_out_of("client/client.py", "give the same options, or none for those it has")
@leads_out_of("client/cluster.py", "name at least one queue to pop from")
@leads_out_of("client/administration.py", "redrive takes either ids or a group")
@leads_out_of("client/inspection.py", "use scan()")
@leads_out_of("client/cursors.py", "must be `next` of the page before")
async def test_queues(cluster: zkrq.testing.TestCluster) -> None:
    with refused("leave concurrency out"):
        zkrq.Groups(concurrency=5, ordered=True)
    zkrq.Groups(ordered=True)
    jobs = cluster.queue("jobs", max_size=5)
    with refused("give the same options, or none for those it has"):
        cluster.queue("jobs", max_size=6)
    assert cluster.queue("jobs") is cluster.queue("jobs", max_size=5) is jobs
    await jobs.push("x", group="a", delay=60)
    await jobs.push("x")
    with refused("name at least one queue to pop from"):
        cluster.pop()
    async for claim in cluster.pop(jobs, wait=False):
        async with claim:
            pass
    with refused("redrive takes either ids or a group"):
        await jobs.redrive(["a"], group="b")
    await jobs.redrive(["a"])
    await jobs.redrive(group="b")
    with refused("use scan()"):
        await jobs.peek(5, "scheduled", group="a")
    assert [item.group async for item in jobs.scan(group="a")] == ["a"]
    with refused("must be `next` of the page before"):
        await jobs.find_page(group="a", after="odd")
    assert [item.group for item in (await jobs.find_page(group="a")).items] == ["a"]


@leads_out_of(
    "base/results.py",
    "look at queue.dead_letters(), and redrive or discard it",
    "it was removed before it was done; push it again",
    "its time to live was over before it was done; push it again",
    "no consumer has claimed it in time; wait longer",
    "its consumer has not settled it in time; wait longer",
)
@leads_out_of("consuming/leases.py", "keeps no results: give cluster.queue() results=Results(...)")
@leads_out_of("consuming/batch.py", "results for {} claims: give one for each")
async def test_results(cluster: zkrq.testing.TestCluster) -> None:
    """After each step the caller has its result."""
    sums = cluster.queue("sums", results=zkrq.Results(), claim_timeout=600)
    other = cluster.queue("plain")

    first = (await sums.push([1, 2])).id
    with refused("no consumer has claimed it in time; wait longer with queue.result(id)", zkrq.NoResult):
        (await sums.result(first, timeout=0)).get()
    claim = await take(sums)
    with refused("its consumer has not settled it in time; wait longer with queue.result(id)", zkrq.NoResult):
        (await sums.result(first, timeout=0)).get()
    await claim.ack(result=3)
    assert (await sums.result(first)).get() == 3

    second = (await sums.push([1, 2])).id
    await (await take(sums)).bury("odd")
    with refused("look at queue.dead_letters(), and redrive or discard it", zkrq.NoResult):
        (await sums.result(second)).get()
    assert [letter.id for letter in await sums.dead_letters()] == [second]
    await sums.redrive([second])
    await (await take(sums)).ack(result=3)
    assert (await sums.result(second)).get() == 3

    third = (await sums.push([1, 2])).id
    await sums.cancel(third)
    with refused("it was removed before it was done; push it again", zkrq.NoResult):
        (await sums.result(third)).get()
    fourth = (await sums.push([1, 2], ttl=5)).id
    await cluster.clock.advance(6)
    assert [claim async for claim in sums.pop(wait=False)] == []
    with refused("its time to live was over before it was done; push it again", zkrq.NoResult):
        (await sums.result(fourth)).get()
    again = (await sums.push([1, 2])).id
    await (await take(sums)).ack(result=3)
    assert (await sums.result(again)).get() == 3

    await other.push([1, 2])
    claim = await take(other)
    with refused("give cluster.queue() results=Results(...)"):
        await claim.ack(result=3)
    await claim.ack()
    await sums.push_many([1, 2])
    async for batch in sums.pop_batches(2, wait=False):
        with refused("give one for each"):
            await batch.ack(results=[1])
        await batch.ack(results=[1, 2])


@leads_out_of("base/results.py", "give the queue's consumers results=Results(...), too")
async def test_consumers_that_keep_no_results() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as asking, servers.connect() as working:
        sums = asking.queue("sums", results=zkrq.Results())
        first = (await sums.push([1, 2])).id
        await (await take(working.queue("sums"))).ack()
        with refused("it was acked without one: give the queue's consumers results=Results(...), too", zkrq.NoResult):
            (await sums.result(first)).get()
        async with servers.connect() as corrected:
            second = (await sums.push([1, 2])).id
            await (await take(corrected.queue("sums", results=zkrq.Results()))).ack(result=3)
        assert (await sums.result(second)).get() == 3


@leads_out_of("client/schedules.py", "give it a name")
@leads_out_of("client/scheduling.py", "say what is to be changed")
@leads_out_of("client/timetable.py", "cannot be stored: give its zone by name")
@leads_out_of("client/topics.py", "make another one by listen()")
async def test_schedules_and_topics(cluster: zkrq.testing.TestCluster) -> None:
    jobs: zkrq.Queue[Any] = cluster.queue("jobs")
    with refused("give it a name"):
        cluster.every(60, jobs, object())
    schedules = cluster.schedules()
    await schedules.add(jobs, "a", 60, "x")
    with refused("say what is to be changed"):
        await schedules.change(jobs, "a")
    await schedules.change(jobs, "a", when=30)
    listener = cluster.listen("news")
    async with listener:
        pass
    with refused("make another one by listen()", zkrq.Closed):
        async with listener:
            pass
    async with cluster.listen("news"):
        pass


@leads_out_of(
    "working/worker.py", "the worker is running: add queues before", "give batch, too", "the worker has no queue"
)
@leads_out_of("working/worker.py", "gives each handler one item: leave batch out")
@leads_out_of("working/handlers.py", "give a handler for each task")
async def test_workers(cluster: zkrq.testing.TestCluster) -> None:
    jobs = cluster.queue("jobs")
    worker: Any = zkrq.Worker()
    with refused("the worker has no queue: add one"):
        await worker.run(burst=True)
    with refused("within is for handlers of batches: give batch, too"):
        worker.add(jobs, _nothing, within=1)
    worker.add(jobs, _nothing, batch=5, within=1)
    by_task: Any = zkrq.Worker()
    with refused("the mapping of handlers is empty: give a handler for each task"):
        by_task.add(jobs, {})
    with refused("a mapping of handlers gives each handler one item: leave batch out"):
        by_task.add(jobs, {"welcome": _nothing}, batch=5)
    by_task.add(jobs, {"welcome": _nothing})
    async with worker:
        await jobs.push("x")
        await settled(lambda: is_empty(jobs))
        with refused("the worker is running: add queues before"):
            worker.add(cluster.queue("others"), _nothing)
    await zkrq.Worker().add(jobs, _nothing).add(cluster.queue("others"), _nothing).run(burst=True)


@leads_out_of("client/connecting.py", "is not set: name the servers", "is not encrypted: write rediss://")
@leads_out_of("client/environment.py", "unset one of them", "has no name, and others have one: write NAME=")
@leads_out_of("client/addresses.py", "name each one once, and in the same way in every client")
@leads_out_of("coordination/zookeeper/hosts.py", "write it once, after the last one")
def test_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS", "ZOOKEEPER"):
        monkeypatch.delenv(f"ZKRQ_{name}", raising=False)
    with refused("is not set: name the servers"):
        zkrq.connect()
    monkeypatch.setenv("ZKRQ_REDIS", "redis://a")
    monkeypatch.setenv("ZKRQ_ZOOKEEPER", "zk1")
    zkrq.connect()
    monkeypatch.setenv("ZKRQ_ZOOKEEPER_FILE", "/zk")
    with refused("are both set: unset one of them"):
        zkrq.connect()
    monkeypatch.delenv("ZKRQ_ZOOKEEPER_FILE")
    zkrq.connect()
    with refused("is not encrypted: write rediss://"):
        zkrq.connect(["redis://a"], redis_tls=zkrq.TLS())
    zkrq.connect(["rediss://a"], redis_tls=zkrq.TLS())
    with refused("name each one once, and in the same way in every client"):
        zkrq.connect(["redis://localhost", "redis://127.0.0.1"])
    zkrq.connect(["redis://localhost"])
    with refused("write it once, after the last one"):
        zkrq.connect(zookeeper="zk1/a,zk2/a")
    zkrq.connect(zookeeper="zk1,zk2/a")
    with refused("others have one: write NAME=redis://b; a server that was added without a name is called b:6379"):
        read_servers("a=redis://a,redis://b")
    assert read_servers("a=redis://a,b:6379=redis://b") == {"a": "redis://a", "b:6379": "redis://b"}


@leads_out_of("client/cluster.py", "make the cluster with found=True")
@leads_out_of("client/client.py", "make another one with connect()")
@leads_out_of("client/shard.py", "the cluster is not open: enter it first")
@leads_out_of("coordination/memory.py", "a coordinator is used once; make a new one")
async def test_opening_a_cluster() -> None:
    async with zkrq.testing.servers() as servers:
        cluster = servers.connect()
        with refused("enter it first, as in `async with zkrq.connect(...) as cluster`", zkrq.Closed):
            await cluster.queue("jobs").push("x")
        async with cluster:
            await cluster.queue("jobs").push("x")
        with refused("make another one with connect()", zkrq.Closed):
            await cluster.open()
        async with servers.connect() as another:
            await another.queue("jobs").push("x")
    coordinator = MemoryCoordinator(Hub())
    async with coordinator:
        pass
    with refused("make a new one", zkrq.Closed):
        await coordinator.__aenter__()
    async with MemoryCoordinator(Hub()):
        pass
    given: dict[str, Any] = {"redis": ["redis://a"], "zookeeper": "zk1"}
    with refused("make the cluster with found=True"):
        await zkrq.connect(**given).recover(["a:6379"], without_zookeeper=True)
    assert read_given({**given, "found": True}).settings.found


@leads_out_of("base/encryption.py", "this process has {}: give it that one")
def test_a_key_that_a_process_lacks() -> None:
    old, new = new_key(), new_key()
    item = zkrq.typed.Encrypted(zkrq.JSON, [old]).encode("secret")
    with refused("give it that one", zkrq.CodecError):
        zkrq.typed.Encrypted(zkrq.JSON, [new]).decode(item)
    assert zkrq.typed.Encrypted(zkrq.JSON, [new, old]).decode(item) == "secret"


@leads_out_of("base/loop.py", "open one of its own, with connect(), in each {}")
async def test_another_event_loop() -> None:
    async with zkrq.testing.servers() as servers, servers.connect() as cluster:

        def elsewhere() -> None:
            with refused("open one of its own, with connect(), in each event loop", zkrq.WrongLoop):
                asyncio.run(cluster.queue("jobs").size())

        await asyncio.to_thread(elsewhere)
        await cluster.queue("jobs").size()


@leads_out_of("sync/portal.py", "use zkrq.connect() and await, or call this in a thread")
def test_a_blocking_call_on_an_event_loop() -> None:
    with zkrq.sync.embedded(servers=1) as cluster:
        jobs = cluster.queue("jobs")

        async def push() -> None:
            with pytest.warns(RuntimeWarning, match=r"call this in a thread \(asyncio.to_thread\)"):
                jobs.push("x")
            await asyncio.to_thread(jobs.push, "x")

        asyncio.run(push())
        assert jobs.size().ready == 2


@leads_out_of("client/stored.py", "keep results of tasks under other ids")
@leads_out_of("producing/pusher.py", "push it again after that one")
@leads_out_of("client/administration.py", "cancel again")
async def test_what_is_done_again(cluster: zkrq.testing.TestCluster) -> None:
    """A cancellation may be repeated; ordered items that were not pushed are pushed after those that were refused."""
    jobs = cluster.queue("jobs", codec=zkrq.RAW)
    await jobs.push(b"x", id="item")
    stored = StoredResults(jobs)
    with refused("keep results of tasks under other ids"):
        await stored.store("item", b"done", ttl=60)
    await stored.store("other", b"done", ttl=60)
    assert [bool(await jobs.cancel("item")), bool(await jobs.cancel("item"))] == [True, False]

    ordered = cluster.queue("ordered", groups=zkrq.Groups(ordered=True), max_size=MAX_BATCH + 1)
    items = list(range(2 * MAX_BATCH + 2))
    with pytest.raises(zkrq.QueueFull) as raised:
        await ordered.push_many(items)
    outcomes = raised.value.outcomes
    assert outcomes
    left = [
        item for item, outcome in zip(items, outcomes.outcomes(), strict=True) if isinstance(outcome, zkrq.ZkrqError)
    ]
    assert "push it again after that one" in str(outcomes.errors[-1])
    taken: list[int] = []
    while left or await ordered.size() != (0, 0, 0, 0):
        async for claim in ordered.pop(wait=False):
            async with claim:
                taken.append(claim.item)
        await ordered.push_many(left)
        left = []
    assert taken == items


@leads_out_of("client/timetable.py", "remove some that are no longer needed")
@leads_out_of("client/timetable_form.py", "remove some, or push smaller items")
async def test_as_many_schedules_as_are_stored(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, schedules = cluster.queue("jobs"), cluster.schedules()
    monkeypatch.setattr(timetable, "SCHEDULES_MAX", 2)
    for name in ("a", "b"):
        await schedules.add(jobs, name, 60, "x")
    with refused("remove some that are no longer needed (`zkrq schedules list`, `zkrq schedules remove`)"):
        await schedules.add(jobs, "c", 60, "x")
    await schedules.remove("jobs", (await schedules.list())[0].name)
    await schedules.add(jobs, "c", 60, "x")
    monkeypatch.setattr(timetable_form, "TIMETABLE_MAX", 2_000)
    with refused("remove some, or push smaller items"):
        await schedules.change(jobs, "c", item="x" * 2_000)
    await schedules.change(jobs, "c", item="smaller")


@leads_out_of("kombu/options.py", "broker_transport_options: zkrq has no {}: remove {}{}")
@leads_out_of("kombu/options.py", "the timeouts of zkrq are", "give namespace", "give a URL for each server in redis")
@leads_out_of("kombu/options.py", "give description")
@pytest.mark.parametrize(
    ("option", "step", "instead"),
    [
        ("global_keyprefix", "give namespace", {"namespace": "shop"}),
        ("socket_timeout", "are command_timeout, operation_timeout", {"command_timeout": 1.0}),
        ("master_name", "give a URL for each server in redis", {"redis": ["redis://a"]}),
        ("client_name", "give description", {"description": "mailer"}),
        ("visibility_timeout", "remove it", {}),
    ],
)
def test_options_of_another_transport(option: str, step: str, instead: dict[str, Any]) -> None:
    given = {"redis": ["redis://a"], "zookeeper": "zk1"}
    with refused(step):
        split_options({**given, option: "x"})
    split_options({**given, **instead})


@leads_out_of("cli/serve.py", "are both given: leave one of them out")
@leads_out_of("process/control.py", "unset it, `--processes` sets it itself")
@leads_out_of("serve/connections.py", "raise `ulimit -n` to 1024")
def test_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("a-long-random-text")
    monkeypatch.setenv("ZKRQ_SERVE_TOKEN", "another-long-text")
    with refused("leave one of them out"):
        read_tokens(file)
    monkeypatch.delenv("ZKRQ_SERVE_TOKEN")
    assert read_tokens(file) == ("a-long-random-text",)
    monkeypatch.setenv("ZKRQ_WORKER_CONTROL", "999")
    with refused("unset it, `--processes` sets it itself"):
        Supervised.inherited()
    monkeypatch.delenv("ZKRQ_WORKER_CONTROL", raising=False)
    assert Supervised.inherited() is None
    limits = [20, 1024]

    def getrlimit(kind: int) -> tuple[int, int]:
        return limits[0], resource.RLIM_INFINITY

    def setrlimit(kind: int, limits: tuple[int, int]) -> None:
        """Change nothing."""

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    with refused("raise `ulimit -n` to 1024"):
        connections_max()
    limits.pop(0)
    assert connections_max() > 0


@leads_out_of("taskiq.py", "the result backend is not started: `await broker.startup()`")
async def test_a_result_backend_that_is_not_started() -> None:
    async with zkrq.testing.servers() as servers:
        backend = ZkrqResultBackend[Any](servers.connect)
        with refused("`await broker.startup()`", zkrq.Closed):
            await backend.is_result_ready("x")
        await InMemoryBroker().with_result_backend(backend).startup()
        assert not await backend.is_result_ready("x")
        await backend.shutdown()
