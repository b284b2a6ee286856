"""NATS JetStream in the fleet: a work queue of three replicas in files; the pull consumer of each slot waits."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from nats.errors import TimeoutError as NothingCame
from nats.js import JetStreamContext

from benchmarks.peers.fleet import Duty, Handle, Push, run
from benchmarks.peers.nats_stream import CONSUMER, connected, make

WAIT = 30
SETTINGS = f"R3, file store, work-queue retention; publish awaited; fetch(1, timeout={WAIT}) in each slot; ack()"


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push, None]:
    async with connected(duty.servers) as stream:
        await make(stream, duty.queue, duty.queue)
        yield lambda item: stream.publish(duty.queue, json.dumps(item).encode())
        await stream.delete_stream(duty.queue)


async def work(duty: Duty, handle: Handle) -> None:
    async with connected(duty.servers) as stream:
        await asyncio.gather(*(slot(stream, duty, handle) for _ in range(duty.slots)))


async def slot(stream: JetStreamContext, duty: Duty, handle: Handle) -> None:
    consumer = await stream.pull_subscribe_bind(consumer=CONSUMER, stream=duty.queue)
    while True:
        try:
            (message,) = await consumer.fetch(1, timeout=WAIT)
        except NothingCame:
            continue
        await handle(json.loads(message.data))
        await message.ack()


if __name__ == "__main__":
    run(push, work, SETTINGS)
