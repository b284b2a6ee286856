"""Put load on zkrq: clusters on private servers, producers and consumers, and their cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import zkrq
from benchmarks.peers.common import ITEM
from benchmarks.raw import RawRedis
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.coordination.zookeeper import ZooKeeperCoordinator
from zkrq.local import Servers
from zkrq.replication.urls import dial
from zkrq.replication.wire import Dial

TASKS = 256
"""Tasks that push or consume one item at a time, by default."""

BATCH, LOOPS = 100, 8
"""Items of a batch, and loops that take batches."""

NO_REWRITE = {"auto-aof-rewrite-percentage": "0"}
"""Redis settings for measurements that fill its memory: a fork in the middle would be measured too."""


@asynccontextmanager
async def servers(redis: int = 3, config: Mapping[str, str] | None = None) -> AsyncGenerator[Servers, None]:
    """Start this many Redis servers, and three ZooKeeper servers if they are installed."""
    zookeeper = 3 if "zookeeper" in local.available() else 0
    async with local.servers(redis=redis, zookeeper=zookeeper, redis_config=config) as group:
        yield group


def cluster_of(
    redis: Mapping[str, str], zookeeper: str, *, namespace: str = "bench", dial: Dial = dial, hub: Hub | None = None
) -> Cluster:
    """Make a cluster like ``zkrq.connect``, but with other wires, and optionally without ZooKeeper."""
    settings = Settings(namespace=namespace, found=True, description="benchmark")
    coordinator = (
        ZooKeeperCoordinator(zookeeper, namespace=namespace, session_timeout=settings.session_timeout, auth=None)
        if zookeeper
        else MemoryCoordinator(hub or Hub())
    )
    return Cluster(redis, coordinator, settings, dial=dial)


def open_cluster(group: Servers, *, namespace: str = "bench", dial: Dial = dial) -> Cluster:
    """Open a cluster on these servers."""
    return cluster_of(group.redis_urls, group.zookeeper_hosts, namespace=namespace, dial=dial)


# -- producers and consumers -------------------------------------------------------------------------------------------


async def push(queue: zkrq.Queue[Any], items: int, tasks: int = TASKS, item: object = ITEM) -> None:
    """Push the items by this many tasks, each awaiting one at a time."""
    left = iter(range(items))

    async def produce() -> None:
        for _ in left:
            await queue.push(item)

    await asyncio.gather(*(produce() for _ in range(tasks)))


async def consume(queue: zkrq.Queue[Any], tasks: int = TASKS, limit: int | None = None) -> None:
    """Claim and ack one item at a time by this many tasks, until nothing is ready, or ``limit`` items are done."""

    async def work() -> None:
        async for claim in queue.pop(wait=False):
            async with claim:
                pass

    if limit is None:
        await asyncio.gather(*(work() for _ in range(tasks)))
        return
    share, more = divmod(limit, tasks)

    async def work_on(some: int) -> None:
        async for claim in queue.pop(limit=some):
            async with claim:
                pass

    await asyncio.gather(*(work_on(share + (task < more)) for task in range(tasks)))


async def consume_batches(queue: zkrq.Queue[Any], loops: int = LOOPS, size: int = BATCH) -> None:
    """Claim and ack batches of this size by this many loops, until nothing is ready."""

    async def work() -> None:
        async for batch in queue.pop_batches(size, wait=False):
            async with batch:
                pass

    await asyncio.gather(*(work() for _ in range(loops)))


async def timed(work: Awaitable[object]) -> float:
    """Return the seconds that it takes."""
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


# -- what it costs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, of this process's processor time, and of the processor time of all servers."""

    wall: float
    client: float
    servers: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.client + other.client, self.servers + other.servers)

    def each(self, items: int) -> Cost:
        """Return the cost per item in microseconds."""
        return Cost(*(seconds / items * 1e6 for seconds in (self.wall, self.client, self.servers)))


class Meter:
    """Measure what work costs, including the servers' part.  Other load on the machine disturbs processor time
    least."""

    def __init__(self, wires: Sequence[RawRedis]) -> None:
        self._wires = wires

    async def cost(self, work: Awaitable[object]) -> Cost:
        """Await the work, and return its cost."""
        servers, client, began = await self._servers(), time.process_time(), time.perf_counter()
        await work
        wall, spent = time.perf_counter() - began, time.process_time() - client
        return Cost(wall, spent, await self._servers() - servers)

    async def memory(self) -> list[int]:
        """Read ``used_memory`` of each server, in bytes."""
        return [int(fields["used_memory"]) for fields in await self._info("memory")]

    async def _servers(self) -> float:
        return sum(float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"]) for fields in await self._info("cpu"))

    async def _info(self, section: str) -> list[dict[str, str]]:
        replies = [cast("bytes", await wire.ask("INFO", section)).decode() for wire in self._wires]
        return [dict(line.split(":", 1) for line in reply.splitlines() if ":" in line) for reply in replies]


@asynccontextmanager
async def meter(urls: Iterable[str]) -> AsyncGenerator[Meter, None]:
    """Make a meter over these Redis servers."""
    wires = [await RawRedis.open(url) for url in urls]
    try:
        yield Meter(wires)
    finally:
        for wire in wires:
            wire.close()
