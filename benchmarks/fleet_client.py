"""zkrq in the fleet: the program of its producer and of its workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import zkrq
from benchmarks import load
from benchmarks.peers.fleet import Duty, Handle, Push, run

SETTINGS = "push(), work(concurrency=slots), JSON, every other setting as it is by default, hiredis"


@asynccontextmanager
async def queue_of(duty: Duty) -> AsyncGenerator[zkrq.Queue[Any]]:
    """Open the cluster of a duty; yield its queue."""
    servers = {f"redis-{n}": url for n, url in enumerate(duty.servers, 1)}
    async with load.cluster_of(servers, duty.zookeeper, namespace="fleet") as cluster:
        yield cluster.queue(duty.queue)


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push]:
    async with queue_of(duty) as queue:
        yield queue.push


async def work(duty: Duty, handle: Handle) -> None:
    async with queue_of(duty) as queue:
        await queue.work(handle, concurrency=duty.slots)


if __name__ == "__main__":
    run(push, work, SETTINGS)
