"""Observers see what a client does, and can add headers; what they raise changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.harness import take
from zkrq.base import stalls
from zkrq.consuming.lease import Verb
from zkrq.consuming.observing import Observer, Outgoing, PushOutcome

pytestmark = pytest.mark.anyio

REQUEST: ContextVar[str] = ContextVar("request", default="none")


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


class Watcher(Observer):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.events: list[zkrq.Event] = []
        self.pushes: list[tuple[Outgoing, PushOutcome]] = []
        self.deliveries: list[tuple[str, str, BaseException | None]] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.timed = 0

    def event(self, event: zkrq.Event) -> None:
        self.events.append(event)

    def after_push(self, push: Outgoing, outcome: PushOutcome) -> None:
        self.pushes.append((push, outcome))

    def after_delivery(self, claim: zkrq.Claim[Any], error: BaseException | None) -> None:
        self.deliveries.append((claim.queue, claim.item, error))

    def pushed(self, queue: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        self._count("push", seconds, outcomes)

    def claimed(self, queue: str, claims: Sequence[zkrq.Claim[Any]], seconds: float) -> None:
        self.counts["claim", "items"] += len(claims)

    def settled(self, queue: str, verb: Verb, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        self._count(verb, seconds, outcomes)

    def _count(self, what: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
        assert len(seconds) == sum(outcomes.values())
        assert min(seconds) >= 0
        for outcome, count in outcomes.items():
            self.counts[what, outcome] += count


async def test_an_observer_sees_pushes_claims_and_settlements(cluster: zkrq.testing.TestCluster) -> None:
    watcher = Watcher()
    cluster.observe(watcher)
    queue = cluster.queue("jobs", retry=zkrq.Retry(backoff=zkrq.constant(0)))
    await asyncio.gather(*(queue.push(number) for number in range(5)))
    await queue.push("one", key="k")
    await queue.push("one again", key="k")
    await queue.push_many(["many"] * 3)
    claims = await queue.pop_many(9, timeout=5)
    await queue.ack_many(claims[:4])
    await claims[4].nack()
    await claims[5].bury("bad")
    await claims[6].release()
    await claims[7].extend()
    await cluster._client.shard.replicas.fence("jobs", claims[8].owner)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(zkrq.ClaimLost):
        await claims[8].ack()
    assert watcher.counts == {
        ("push", "pushed"): 9,
        ("push", "duplicate"): 1,
        ("claim", "items"): 9,
        ("ack", "done"): 4,
        ("ack", "lost"): 1,
        ("nack", "done"): 1,
        ("bury", "done"): 1,
        ("release", "done"): 1,
        ("extend", "done"): 1,
    }


async def test_pushes_that_fail_are_counted_by_their_errors(cluster: zkrq.testing.TestCluster) -> None:
    watcher = Watcher()
    cluster.observe(watcher)
    full = cluster.queue("full", max_size=1)
    await full.push("fits")
    with pytest.raises(zkrq.QueueFull):
        await full.push("does not")
    with pytest.raises(zkrq.CodecError):
        await full.push(object())
    assert watcher.counts == {("push", "pushed"): 1, ("push", "QueueFull"): 1}  # the last one reached no batch
    assert [type(outcome) for _, outcome in watcher.pushes] == [zkrq.Receipt, zkrq.QueueFull, zkrq.CodecError]


async def test_what_is_added_to_a_push_reaches_the_consumer(cluster: zkrq.testing.TestCluster) -> None:
    class Stamp(Observer):
        def before_push(self, push: Outgoing) -> None:
            push.headers["request"] = REQUEST.get()

    cluster.observe(Stamp())
    queue = cluster.queue("jobs")
    REQUEST.set("r-1")
    await queue.push("a", headers={"own": "x"})
    await queue.push_many(["b", "c"])
    claims = await queue.pop_many(3, timeout=5)
    assert [dict(claim.headers) for claim in claims] == [{"own": "x", "request": "r-1"}, *[{"request": "r-1"}] * 2]


async def test_headers_that_do_not_fit_are_left_out(
    cluster: zkrq.testing.TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Greedy(Observer):
        def before_push(self, push: Outgoing) -> None:
            push.headers["much"] = "x" * 5000

    cluster.observe(Greedy())
    queue = cluster.queue("jobs")
    await queue.push("a", headers={"own": "x"})
    assert (await take(queue)).headers == {"own": "x"}
    assert "left out" in caplog.text
    with pytest.raises(zkrq.ConfigError):
        await queue.push("a", headers={"own": "x" * 5000})


async def test_work_is_seen_in_a_worker_and_in_a_loop_of_ones_own(cluster: zkrq.testing.TestCluster) -> None:
    watcher = Watcher()
    cluster.observe(watcher)
    queue = cluster.queue("jobs", retry=zkrq.Retry(max_attempts=1))
    await queue.push_many(["good", "bad"])
    problem = ValueError("bad")

    async def handle(item: str) -> None:
        if item == "bad":
            raise problem

    await zkrq.Worker(concurrency=1).add(queue, handle).run(burst=True)
    await queue.push("by hand")
    async with await take(queue):
        pass
    assert watcher.deliveries == [("jobs", "good", None), ("jobs", "bad", problem), ("jobs", "by hand", None)]


async def test_several_observers_and_the_listener_see_each_event() -> None:
    heard: list[zkrq.Event] = []
    one, other = Watcher(), Watcher()
    async with zkrq.testing.cluster(on_event=heard.append) as cluster:
        cluster.observe(one)
        remove = cluster.observe(other)
        cluster.servers.kill("redis-1")
        await cluster.queue("jobs").push("x")
        remove()
        seen = len(other.events)
        cluster.servers.start("redis-1")
        await cluster.clock.advance(20)
    assert [type(event) for event in other.events[:2]] == [zkrq.ViewChanged, zkrq.ServerEvicted]
    assert heard[-len(one.events) :] == one.events
    assert len(one.events) > seen == len(other.events)


async def test_an_observer_that_raises_changes_nothing(
    cluster: zkrq.testing.TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Observer):
        def before_push(self, push: Outgoing) -> None:
            raise RuntimeError("before")

        def pushed(self, queue: str, seconds: Sequence[float], outcomes: Mapping[str, int]) -> None:
            raise RuntimeError("pushed")

        def before_delivery(self, claim: zkrq.Claim[Any]) -> None:
            raise RuntimeError("delivery")

    watcher = Watcher()
    cluster.observe(Broken())
    cluster.observe(watcher)
    queue = cluster.queue("jobs")
    await queue.push("x")
    async with await take(queue):
        pass
    assert caplog.text.count("an observer raised") == 3
    assert watcher.counts["push", "pushed"] == watcher.counts["ack", "done"] == len(watcher.deliveries) == 1


async def test_a_blocked_event_loop_is_told_with_what_it_cost(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stalls, "BLOCKED_SECONDS", 0.1)
    watcher = Watcher()
    cluster.observe(watcher)
    queue = cluster.queue("jobs", claim_timeout=1)
    await queue.push("x")
    claim = await take(queue)
    time.sleep(stalls.LOOK_SECONDS + 0.5)
    async with asyncio.timeout(5):
        while not any(isinstance(event, zkrq.LoopBlocked) for event in watcher.events):
            await asyncio.sleep(0.01)
    (blocked,) = (event for event in watcher.events if isinstance(event, zkrq.LoopBlocked))
    assert blocked.seconds >= 0.1
    assert (blocked.held, blocked.expired, blocked.session_uncertain) == (1, 1, False)
    assert "the event loop was blocked for" in caplog.text
    del claim


async def test_a_blocked_event_loop_is_told_with_the_handler(
    cluster: zkrq.testing.TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "BLOCKED_SECONDS", 0.1)
    watcher, blocked = Watcher(), asyncio.Event()
    cluster.observe(watcher)
    queue = cluster.queue("jobs")
    await queue.push("x")

    async def slow(item: object) -> None:
        time.sleep(stalls.LOOK_SECONDS + 0.5)
        await blocked.wait()

    async with zkrq.Worker().add(queue, slow), asyncio.timeout(10):
        while not (told := [event for event in watcher.events if isinstance(event, zkrq.LoopBlocked)]):
            await asyncio.sleep(0.01)
        blocked.set()
    assert told[0].handlers == ("test_a_blocked_event_loop_is_told_with_the_handler.slow",)


async def test_a_ping_asks_the_servers() -> None:
    async with zkrq.testing.cluster(min_replicas=2) as cluster:
        await cluster.ping()
        cluster.servers.kill("redis-1")
        assert cluster.health().ok  # remembered
        await cluster.ping()  # asked: it is evicted, and two are enough
        assert len(cluster.view.members) == 2
        cluster.servers.kill("redis-2")
        pinging = asyncio.create_task(cluster.ping())
        await cluster.clock.advance(20)
        with pytest.raises((zkrq.NotEnoughReplicas, zkrq.Unavailable)):
            await pinging
    with pytest.raises(zkrq.Closed):
        await cluster.ping()
