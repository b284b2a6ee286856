"""A bare Redis stream with a consumer group, one server: each XADD and XACK awaited separately."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis.asyncio import Redis

from benchmarks.peers.common import PAYLOAD, Job, Rates, rates, run, share

PAGE = 256
SETTINGS = f"XADD, XREADGROUP COUNT {PAGE}, XACK; each awaited, a connection for each task, hiredis"


async def measure(job: Job) -> Rates:
    redis = Redis.from_url(job.servers[0])
    await redis.xgroup_create("bench", "workers", id="0", mkstream=True)
    pushing = await share(job.items, job.tasks, lambda: redis.xadd("bench", {b"item": PAYLOAD}))
    began, left = time.perf_counter(), job.items
    while left:
        entries = await page(redis)
        await asyncio.gather(*(redis.xack("bench", "workers", id) for id, _ in entries))
        left -= len(entries)
    return rates(job.items, pushing, time.perf_counter() - began, SETTINGS)


async def page(redis: Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Read the next entries for this consumer."""
    reply: Any = await redis.xreadgroup("workers", "worker", {"bench": ">"}, count=PAGE)
    return reply[0][1]


if __name__ == "__main__":
    run(measure)
