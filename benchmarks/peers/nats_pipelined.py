"""NATS JetStream, a work queue of three replicas in files: publishing without waiting for each, acks not confirmed."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import time

from benchmarks.peers.common import PAYLOAD, Job, Rates, rates, run
from benchmarks.peers.nats_stream import PAGE, SUBJECT, drained, work_queue

WINDOW = 4_000
SETTINGS = (
    f"R3, file store, work-queue retention; publish_async, {WINDOW} pending; pull consumer, fetch({PAGE}), ack "
    "not awaited, done when the stream is empty"
)


async def measure(job: Job) -> Rates:
    async with work_queue(job, WINDOW) as (stream, consumer):
        began = time.perf_counter()
        futures = [await stream.publish_async(SUBJECT, PAYLOAD) for _ in range(job.items)]
        await asyncio.gather(*futures)
        pushed, left = time.perf_counter(), job.items
        while left:
            messages = await consumer.fetch(min(PAGE, left), timeout=30)
            for message in messages:
                await message.ack()
            left -= len(messages)
        await drained(stream)
        consumed = time.perf_counter()
    return rates(job.items, pushed - began, consumed - pushed, SETTINGS)


if __name__ == "__main__":
    run(measure)
