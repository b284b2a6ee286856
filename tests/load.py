"""Items pushed and consumed during a fault, and the outcome of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import zkrq
from tests.harness import HANG, settled, until
from zkrq.client.cluster import Cluster

QUEUE = "jobs"

PAUSE = 0.02
"""Seconds between the pushes of a producer: eight push some hundreds of items a second.  Without a rest a test would
cost as much as it waits."""


class Load:
    """Producers and consumers that go on whatever happens, and what they saw."""

    def __init__(self, cluster: Cluster, pause: float = PAUSE) -> None:
        """``pause``: seconds between the pushes of a producer."""
        self._queue = cluster.queue(QUEUE)
        self._pause = pause
        self._stop = False
        self._acking = 0
        self.pushed: set[str] = set()
        self.delivered: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.doubted: set[str] = set()
        self.revived: list[str] = []
        self.uncertain: list[str] = []

    async def produce(self) -> None:
        while not self._stop:
            id = zkrq.new_id()
            while True:
                try:
                    await self._queue.push({"id": id}, id=id)
                except (zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas, zkrq.Unavailable):
                    self.uncertain.append(id)
                    await asyncio.sleep(0.05)
                else:
                    break
            self.pushed.add(id)
            await asyncio.sleep(self._pause)

    async def consume(self) -> None:
        async for claim in self._queue.pop():
            if claim.id in self.acked:
                self.revived.append(claim.id)
            self.delivered[claim.id] += 1
            self._acking += 1
            try:
                await claim.ack()
            except zkrq.OutcomeUnknown:
                self.doubted.add(claim.id)
                continue
            except zkrq.ClaimLost:
                continue
            finally:
                self._acking -= 1
            self.acked.add(claim.id)

    def progress(self, items: int) -> Callable[[], bool]:
        """A condition: so many items more were pushed and acked than now."""
        pushed, acked = len(self.pushed), len(self.acked)
        return lambda: len(self.pushed) >= pushed + items and len(self.acked) >= acked + items

    @asynccontextmanager
    async def running(self, producers: int = 8, consumers: int = 8) -> AsyncGenerator[None, None]:
        """Items flow; at the end everything is drained and nothing may be missing."""
        async with asyncio.TaskGroup() as group:
            producing = [group.create_task(self.produce()) for _ in range(producers)]
            consuming = [group.create_task(self.consume()) for _ in range(consumers)]
            await until(self.progress(200))
            yield
            self._stop = True
            await asyncio.wait(producing, timeout=HANG)
            await settled(self._is_drained)
            for task in consuming:
                task.cancel()
        # An ack that may have happened, as all servers died, has happened if the item does not come again.
        assert self.pushed <= self.acked | self.doubted, f"lost: {self.pushed - self.acked - self.doubted}"
        assert not self.revived, "delivered again after an ack that had returned"

    async def _is_drained(self) -> bool:
        sizes = await self._queue.size()
        return sizes.ready + sizes.scheduled + sizes.claimed + self._acking == 0
