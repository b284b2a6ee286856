"""No item waits that a free worker could begin: without the sweeps, which would hide that nobody was woken."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import zkrq
from tests.behaviour.helpers import working
from zkrq.consuming.core import dispatch, supply
from zkrq.testing import TestCluster, servers

pytestmark = pytest.mark.anyio

WORKERS, SLOTS = 3, 2
STEPS = 40
SETTLED = (0.3, 1.2)
"""Seconds between two calls: within them all that can be claimed is."""

LIMITS = (zkrq.Limits(), zkrq.Limits(concurrency=1), zkrq.Limits(concurrency=3))
GROUPS = (None, None, zkrq.Groups(), zkrq.Groups(concurrency=1), zkrq.Groups(concurrency=2), zkrq.Groups(ordered=True))


class Walk:
    """Random calls; after each, what could be claimed is."""

    def __init__(self, seed: int, settled: float) -> None:
        self.settled = settled
        self.chance = random.Random(seed)
        self.limits, self.groups = self.chance.choice(LIMITS), self.chance.choice(GROUPS)
        self.shards = self.chance.choice((1, 1, 2))
        self.running: list[asyncio.Future[None]] = []
        self.paused = False
        self.log = [f"seed {seed}: {self.limits}, {self.groups}, {self.shards} shard(s)"]

    async def run(self) -> None:
        retry = zkrq.Retry(max_attempts=1000, backoff=zkrq.constant(self.chance.choice((0.0, 0.0, 2.0))))
        async with AsyncExitStack() as stack:
            own = await stack.enter_async_context(servers(2))
            first = 1 if self.shards == 2 else 2

            async def connect() -> TestCluster:
                return await stack.enter_async_context(own.connect(first=first))

            cluster = await connect()
            if self.shards == 2:
                await cluster.add_shard("b", own.urls("redis-2"))
            for client in [cluster, *[await connect() for _ in range(WORKERS - 1)]]:
                queue = client.queue("jobs", limits=self.limits, groups=self.groups, retry=retry)
                await stack.enter_async_context(working(queue, self.handle, concurrency=SLOTS, grace=0))
            self.cluster, self.queue = cluster, cluster.queue("jobs")
            for _ in range(STEPS):
                await self.step()
                await cluster.clock.advance(self.settled)
                await self.check()

    async def handle(self, _: Any) -> None:
        verdict: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running.append(verdict)
        try:
            await verdict
        finally:
            self.running.remove(verdict)

    async def step(self) -> None:
        acts = (
            [self.push] * 4
            + [self.push_many] * 2
            + [self.end] * 7
            + [self.fail] * 3
            + [self.pause, self.wait, self.cancel]
        )
        act = self.chance.choice(acts)
        self.log.append(act.__name__)
        await act()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.groups is not None or self.chance.random() < 0.3:
            options["group"] = self.chance.choice(("x", "y", "z"))
        if not (self.groups and self.groups.ordered) and self.chance.random() < 0.3:
            options["delay"] = self.chance.choice((0.5, 2.0))
        return options

    async def push(self) -> None:
        await self.queue.push("x", **self._options())

    async def push_many(self) -> None:
        await self.queue.push_many(range(self.chance.choice((2, 4, 12))), **self._options())

    async def end(self) -> None:
        if self.running:
            self.chance.choice(self.running).set_result(None)

    async def fail(self) -> None:
        if self.running:
            self.chance.choice(self.running).set_exception(LookupError())

    async def pause(self) -> None:
        self.paused = not self.paused
        await (self.queue.pause() if self.paused else self.queue.resume())

    async def wait(self) -> None:
        await self.cluster.clock.advance(2)

    async def cancel(self) -> None:
        if items := [item async for item in self.queue.scan()]:
            await self.queue.cancel(self.chance.choice(items).id)

    async def check(self) -> None:
        items = [item async for item in self.queue.scan()]
        free = WORKERS * SLOTS - len(self.running)
        if self.limits.concurrency is not None:
            free = min(free, self.limits.concurrency - sum(item.state == "claimed" for item in items))
        waiting = 0 if self.paused else min(free, self.claimable(items))
        told = [f"{item.id} {item.state} {item.group} {item.seconds_left}" for item in items]
        assert waiting <= 0, "\n".join([*self.log, f"{waiting} wait in vain:", *told])

    def claimable(self, items: Sequence[zkrq.Item[Any]]) -> int:
        is_later = {item.id for item in items if item.state == "scheduled" and (item.seconds_left or 0) > 0}
        waits = [item for item in items if item.state in ("ready", "scheduled")]
        due = Counter(item.group for item in waits if item.id not in is_later)
        later = Counter(item.group for item in waits if item.id in is_later)
        held = Counter(item.group for item in items if item.state == "claimed")
        if self.groups is None or not self.groups.settings:
            return due.total()
        if self.groups.ordered:
            return sum(not held[group] and not later[group] for group in due)
        assert self.groups.concurrency
        return sum(min(due[group], self.groups.concurrency - held[group]) for group in due)


FEW = (*range(3), 1006, 2004)
"""1006: nobody was woken for what came later, in a queue with limits.  2004: a slot came free after what was ready had
been cancelled, and nobody had learned of the rest."""


@pytest.mark.parametrize(
    "seeds",
    [FEW, range(3, 12), pytest.param(range(2000, 2500), marks=pytest.mark.chaos)],
    ids=["few", "more", "many"],
)
async def test_no_item_waits_that_a_free_worker_could_begin(
    seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "SWEEP_SECONDS", 3600.0)
    monkeypatch.setattr(supply, "PASS_ON_LEAST", 0.05)
    for seed in seeds:
        for settled in SETTLED:
            await Walk(seed, settled).run()


async def leave_a_channel(cluster: TestCluster, queue: zkrq.Queue[Any], other: zkrq.Queue[Any]) -> None:
    """Have the last request of a process leave its channel, and no consumer wait."""
    taking = asyncio.ensure_future(queue.pop_many(2))
    await cluster.clock.advance(0.01)
    await other.push("first")
    await cluster.clock.advance(0.01)
    (claim,) = await taking
    await claim.ack()
    await cluster.clock.advance(0.01)


@pytest.mark.parametrize("waits", ["already", "later"])
@pytest.mark.parametrize("rest", [0.0, 2.0], ids=["soon", "after a while"])
async def test_who_waits_is_woken_though_the_session_was_lost(waits: str, rest: float) -> None:
    """A new session has another channel, and the former one is removed from the servers."""
    async with servers(1) as own, own.connect() as cluster, own.connect() as other:
        queue, theirs = cluster.queue("jobs"), other.queue("jobs")
        taking = None
        if waits == "already":
            taking = asyncio.ensure_future(queue.pop_one())
            await cluster.clock.advance(0.05)
        else:
            await leave_a_channel(cluster, queue, theirs)
        cluster.lose_session()
        await cluster.clock.advance(0.05)
        elsewhere = asyncio.ensure_future(cluster.queue("elsewhere").pop_one())  # this begins the next channel
        await cluster.clock.advance(0.05 + rest)
        taking = taking or asyncio.ensure_future(queue.pop_one())
        await cluster.clock.advance(0.05)
        await theirs.push("x")
        await cluster.clock.advance(0.05)
        assert taking.done()
        claim = await taking
        assert claim is not None
        await claim.ack()
        elsewhere.cancel()


async def test_a_consumer_asks_where_a_rate_had_stopped_the_last_request() -> None:
    """That left no channel, and the rate may be another one by now."""
    async with servers(1) as own, own.connect() as cluster, own.connect() as other:
        queue = cluster.queue("jobs", limits=zkrq.Limits(rate=(1, 60.0)))
        await queue.push_many(range(5))
        taken = await queue.pop_many(3)
        assert len(taken) == 1
        await other.queue("jobs").set_limits(zkrq.Limits())
        taking = asyncio.ensure_future(queue.pop_one())
        await cluster.clock.advance(0.05)
        assert taking.done()
        for claim in (*taken, await taking):
            assert claim is not None
            await claim.ack()
