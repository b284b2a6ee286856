"""A bare Redis stream with a consumer group, one server: pipelines of XADD, one XACK for a whole page."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import time

from redis.asyncio import Redis

from benchmarks.peers.common import PAYLOAD, Job, Rates, rates, run
from benchmarks.peers.stream import PAGE, page

SETTINGS = f"pipelines of {PAGE} XADD, XREADGROUP COUNT {PAGE}, one XACK for a page, one connection, hiredis"


async def measure(job: Job) -> Rates:
    redis = Redis.from_url(job.servers[0])
    await redis.xgroup_create("bench", "workers", id="0", mkstream=True)
    began = time.perf_counter()
    for start in range(0, job.items, PAGE):
        pipeline = redis.pipeline(transaction=False)
        for _ in range(min(PAGE, job.items - start)):
            pipeline.xadd("bench", {b"item": PAYLOAD})
        await pipeline.execute()
    pushed, left = time.perf_counter(), job.items
    while left:
        entries = await page(redis)
        await redis.xack("bench", "workers", *(id for id, _ in entries))
        left -= len(entries)
    return rates(job.items, pushed - began, time.perf_counter() - pushed, SETTINGS)


if __name__ == "__main__":
    run(measure)
