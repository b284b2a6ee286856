"""Make the stream and the consumer of both NATS programs."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from benchmarks.peers.common import PATIENCE, Job

SUBJECT = "bench.items"
STREAM = "bench"
REPLICAS = 3
PAGE = 500
"""Messages fetched together."""


@asynccontextmanager
async def work_queue(
    job: Job, window: int = 4_000
) -> AsyncGenerator[tuple[JetStreamContext, JetStreamContext.PullSubscription], None]:
    """Make a new stream, and a pull consumer of it; the stream is removed at the end."""
    connection = await nats.connect(job.servers)
    try:
        stream = connection.jetstream(timeout=30, publish_async_max_pending=window)
        await stream.add_stream(
            StreamConfig(
                name=STREAM,
                subjects=[SUBJECT],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                num_replicas=REPLICAS,
            )
        )
        consumer = await stream.pull_subscribe(
            SUBJECT, durable="worker", config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20_000)
        )
        yield stream, consumer
        await stream.delete_stream(STREAM)
    finally:
        await connection.close()


async def drained(stream: JetStreamContext) -> None:
    """Wait until every message was acked, and thereby removed.  Raises ``TimeoutError``."""
    async with asyncio.timeout(PATIENCE):
        while (await stream.stream_info(STREAM)).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
