"""SAQ: one Redis server, a job per item."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.common import ITEM, Countdown, Job, Rates, rates, run, share

CONCURRENCY = 64
SETTINGS = (
    f"concurrency={CONCURRENCY}, max_concurrent_ops=256, ttl=-1 (no results kept), no sweeping meanwhile, hiredis"
)


async def handle(_: Any, *, item: object) -> None:
    pass


async def measure(job: Job) -> Rates:
    logging.disable()
    queue = Queue.from_url(job.servers[0], max_concurrent_ops=job.tasks)
    await queue.connect()
    pushing = await share(job.items, job.tasks, lambda: queue.enqueue("handle", item=ITEM, ttl=-1))
    done = Countdown(job.items)

    async def processed(_: Any) -> None:
        done.count()

    worker = Worker(
        queue,
        [handle],
        concurrency=CONCURRENCY,
        after_process=processed,
        dequeue_timeout=0.5,
        shutdown_grace_period_s=1,
        timers={"schedule": 60, "sweep": 600, "worker_info": 60},
    )
    worker.SIGNALS = []
    began = time.perf_counter()
    working = asyncio.create_task(worker.start())
    await done.wait()
    consuming = time.perf_counter() - began
    assert await queue.count("incomplete") == 0, "some jobs were not completed"
    await worker.stop()
    await working
    return rates(job.items, pushing, consuming, SETTINGS)


if __name__ == "__main__":
    run(measure)
