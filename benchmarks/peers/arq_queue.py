"""arq: one Redis server, a job per item."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import time
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.common import ITEM, Job, Rates, rates, run, share

CONCURRENCY = 256
SETTINGS = f"max_jobs={CONCURRENCY}, poll_delay=0.01, keep_result=0, log_results=False, hiredis"


async def handle(_: dict[str, Any], item: object) -> None:
    pass


async def measure(job: Job) -> Rates:
    pool = await create_pool(RedisSettings.from_dsn(job.servers[0]))
    pushing = await share(job.items, job.tasks, lambda: pool.enqueue_job("handle", ITEM))
    worker = Worker(
        [handle],
        redis_pool=pool,
        burst=True,
        max_jobs=CONCURRENCY,
        poll_delay=0.01,
        keep_result=0,
        log_results=False,
        handle_signals=False,
    )
    began = time.perf_counter()
    await worker.async_run()
    consuming = time.perf_counter() - began
    assert worker.jobs_complete == job.items, f"{worker.jobs_complete} of {job.items} jobs were completed"
    return rates(job.items, pushing, consuming, SETTINGS)


if __name__ == "__main__":
    run(measure)
