"""RabbitMQ in the fleet: a quorum queue on all nodes, which deliver as many messages to a worker as it has slots."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.peers.fleet import Duty, Handle, Item, Push, run

SETTINGS = (
    "quorum queue on 3 nodes, publisher confirms, persistent, prefetch_count=slots, workers spread over the nodes"
)


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push, None]:
    async with await aio_pika.connect_robust(duty.server) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(duty.queue, durable=True, arguments={"x-queue-type": "quorum"})

        async def publish(item: Item) -> None:
            message = aio_pika.Message(json.dumps(item).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, duty.queue)

        yield publish
        await queue.delete(if_unused=False, if_empty=False)


async def work(duty: Duty, handle: Handle) -> None:
    async def process(delivery: AbstractIncomingMessage) -> None:
        async with delivery.process():
            await handle(json.loads(delivery.body))

    async with await aio_pika.connect_robust(duty.server) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=duty.slots)
        queue = await channel.get_queue(duty.queue)
        await queue.consume(process)
        await asyncio.Future()


if __name__ == "__main__":
    run(push, work, SETTINGS)
