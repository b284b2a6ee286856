"""NATS JetStream, a work queue of three replicas in files: every publish and every ack awaited."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import time

from benchmarks.peers.common import PAYLOAD, Job, Rates, rates, run, share
from benchmarks.peers.nats_stream import PAGE, SUBJECT, drained, work_queue

SETTINGS = f"R3, file store, work-queue retention; publish awaited; pull consumer, fetch({PAGE}), ack_sync awaited"


async def measure(job: Job) -> Rates:
    async with work_queue(job) as (stream, consumer):
        pushing = await share(job.items, job.tasks, lambda: stream.publish(SUBJECT, PAYLOAD, timeout=30))
        began, left = time.perf_counter(), job.items
        while left:
            messages = await consumer.fetch(min(PAGE, left), timeout=30)
            await asyncio.gather(*(message.ack_sync(timeout=30) for message in messages))
            left -= len(messages)
        consuming = time.perf_counter() - began
        await drained(stream)
    return rates(job.items, pushing, consuming, SETTINGS)


if __name__ == "__main__":
    run(measure)
