"""taskiq for the tests of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from tests.frameworks.taskiq_tasks import sleep
from tests.frameworks.workers import Framework, Stage
from tests.harness import over_zookeeper
from zkrq.taskiq import ZkrqBroker

COMMAND = ["taskiq", "worker", "tests.frameworks.taskiq_tasks:broker", "--workers=1", "--max-async-tasks=5"]


async def framework(stage: Stage) -> AsyncGenerator[Framework]:
    """Connect a program that sends tasks."""
    broker = ZkrqBroker(lambda: over_zookeeper(stage.servers, stage.namespace))
    await broker.startup()

    async def send(numbers: Sequence[int], seconds: float) -> None:
        await asyncio.gather(*(sleep.kicker().with_broker(broker).kiq(number, seconds) for number in numbers))

    async def left() -> int:
        return sum(await broker.queue().size())

    yield Framework(COMMAND, send, left)
    await broker.shutdown()
