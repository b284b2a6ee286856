"""taskiq-redis in the fleet: one Redis server, its stream broker, on which workers block until there is a task."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from taskiq import AsyncTaskiqDecoratedTask
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.fleet import Duty, Handle, Item, Push, run

SETTINGS = "RedisStreamBroker(xread_count=slots), max_async_tasks=slots, ack when executed, no results, hiredis"


def broker_of(duty: Duty, handle: Handle) -> tuple[RedisStreamBroker, AsyncTaskiqDecoratedTask]:
    """Make a broker with one task."""
    broker = RedisStreamBroker(duty.server, queue_name=duty.queue, xread_count=duty.slots, consumer_id="0")

    async def task(item: Item) -> None:
        await handle(item)

    return broker, broker.register_task(task, "handle")


async def nothing(item: Item) -> None:
    pass


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push, None]:
    broker, task = broker_of(duty, nothing)
    await broker.startup()
    yield task.kiq
    await broker.shutdown()


async def work(duty: Duty, handle: Handle) -> None:
    broker, _ = broker_of(duty, handle)
    await broker.startup()
    await run_receiver_task(broker, max_async_tasks=duty.slots, ack_time=AcknowledgeType.WHEN_EXECUTED)


if __name__ == "__main__":
    run(push, work, SETTINGS)
