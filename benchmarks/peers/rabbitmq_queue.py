"""RabbitMQ, a quorum queue on all nodes: publisher confirms awaited, prefetched messages acked one by one."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import time

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.peers.common import PATIENCE, PAYLOAD, Countdown, Job, Rates, rates, run, share

PREFETCH = 500
QUEUE = "bench"


async def measure(job: Job) -> Rates:
    settings = f"quorum queue on {len(job.servers)} node(s), publisher confirms, persistent, prefetch_count={PREFETCH}"
    connection = await aio_pika.connect(job.servers[0])
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(PAYLOAD, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        pushing = await share(
            job.items, job.tasks, lambda: channel.default_exchange.publish(message, QUEUE, timeout=PATIENCE)
        )
        done = Countdown(job.items)

        async def handle(delivery: AbstractIncomingMessage) -> None:
            await delivery.ack()
            done.count()

        began = time.perf_counter()
        tag = await queue.consume(handle)
        await done.wait()
        await queue.cancel(tag)  # answered after all earlier acks
        consuming = time.perf_counter() - began
        await queue.delete(if_unused=False, if_empty=False)
    return rates(job.items, pushing, consuming, settings)


if __name__ == "__main__":
    run(measure)
