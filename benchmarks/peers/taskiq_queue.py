"""taskiq-redis: one Redis server, its stream broker, a task per item."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import cast

from redis.asyncio import Redis
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.common import ITEM, PATIENCE, Job, Rates, rates, run, share

CONCURRENCY = 256
SETTINGS = f"RedisStreamBroker(xread_count=500), max_async_tasks={CONCURRENCY}, ack when executed, no results, hiredis"


async def measure(job: Job) -> Rates:
    logging.disable()
    broker = RedisStreamBroker(job.servers[0], queue_name="bench", xread_count=500, consumer_id="0")

    @broker.task(task_name="handle")
    async def handle(item: object) -> None:
        pass

    await broker.startup()
    pushing = await share(job.items, job.tasks, lambda: handle.kiq(ITEM))
    redis = Redis.from_url(job.servers[0])
    began = time.perf_counter()
    receiving = asyncio.create_task(
        run_receiver_task(
            broker, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY, ack_time=AcknowledgeType.WHEN_EXECUTED
        )
    )
    async with asyncio.timeout(PATIENCE):
        while not await _all_acked(redis, job.items):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    consuming = time.perf_counter() - began
    receiving.cancel()
    await asyncio.wait([receiving])
    return rates(job.items, pushing, consuming, SETTINGS)


async def _all_acked(redis: Redis, items: int) -> bool:
    (group,) = await cast("Awaitable[list[dict[str, int]]]", redis.xinfo_groups("bench"))
    return group["entries-read"] == items and group["pending"] == 0


if __name__ == "__main__":
    run(measure)
