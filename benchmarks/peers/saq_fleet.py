"""SAQ in the fleet: one Redis server, on which workers block until there is a job."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.fleet import Duty, Handle, Item, Push, run

SETTINGS = "concurrency=slots, ttl=-1 (no results kept), every other setting as it is by default, hiredis"


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push, None]:
    queue = Queue.from_url(duty.server, name=duty.queue)
    await queue.connect()
    yield lambda item: queue.enqueue("handle", item=item, ttl=-1)


async def work(duty: Duty, handle: Handle) -> None:
    async def job(_: Any, *, item: Item) -> None:
        await handle(item)

    queue = Queue.from_url(duty.server, name=duty.queue)
    await queue.connect()
    await Worker(queue, [("handle", job)], concurrency=duty.slots).start()


if __name__ == "__main__":
    run(push, work, SETTINGS)
