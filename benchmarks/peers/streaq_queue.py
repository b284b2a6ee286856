"""streaQ: one Redis server, a task per item."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import time

from streaq import Worker

from benchmarks.peers.common import ITEM, Job, Rates, rates, run, share

CONCURRENCY = 256
SETTINGS = f"concurrency={CONCURRENCY}, prefetch={CONCURRENCY}, ttl=0 (no results kept), silent, burst"


async def measure(job: Job) -> Rates:
    handled = 0

    async def handle(item: object) -> None:
        nonlocal handled
        handled += 1

    producer = Worker(redis_url=job.servers[0])
    enqueue = producer.task(ttl=0, silent=True, name="handle")(handle).enqueue

    async def push() -> None:
        await enqueue(ITEM)

    async with producer:
        pushing = await share(job.items, job.tasks, push)
    worker = Worker(redis_url=job.servers[0], concurrency=CONCURRENCY, handle_signals=False)
    worker.task(ttl=0, silent=True, name="handle")(handle)
    worker.burst = True
    began = time.perf_counter()
    await worker.run_async()
    consuming = time.perf_counter() - began
    assert handled == job.items, f"{handled} of {job.items} tasks were handled"
    return rates(job.items, pushing, consuming, SETTINGS)


if __name__ == "__main__":
    run(measure)
