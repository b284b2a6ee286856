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
CONSUMER = "worker"
REPLICAS = 3
PAGE = 500
"""Messages fetched together."""


@asynccontextmanager
async def connected(servers: list[str], window: int = 4_000) -> AsyncGenerator[JetStreamContext, None]:
    """Connect; ``window`` publications may be in flight."""
    connection = await nats.connect(servers)
    try:
        yield connection.jetstream(timeout=30, publish_async_max_pending=window)
    finally:
        await connection.close()


async def make(stream: JetStreamContext, name: str, subject: str) -> JetStreamContext.PullSubscription:
    """Make a stream and a pull consumer of it; return a subscription."""
    await stream.add_stream(
        StreamConfig(
            name=name,
            subjects=[subject],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            num_replicas=REPLICAS,
        )
    )
    return await stream.pull_subscribe(
        subject, durable=CONSUMER, config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20_000)
    )


@asynccontextmanager
async def work_queue(
    job: Job, window: int = 4_000
) -> AsyncGenerator[tuple[JetStreamContext, JetStreamContext.PullSubscription], None]:
    """Make a new stream, and a pull consumer of it; the stream is removed at the end."""
    async with connected(job.servers, window) as stream:
        yield stream, await make(stream, STREAM, SUBJECT)
        await stream.delete_stream(STREAM)


async def drained(stream: JetStreamContext) -> None:
    """Wait until every message was acked, and thereby removed.  Raises ``TimeoutError``."""
    async with asyncio.timeout(PATIENCE):
        while (await stream.stream_info(STREAM)).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
