"""A worker of taskiq inside the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from taskiq.receiver import Receiver

from tests.harness import HANG
from zkrq.taskiq import ZkrqBroker


@asynccontextmanager
async def working(broker: ZkrqBroker, **options: Any) -> AsyncGenerator[Receiver]:
    """A worker of taskiq in this process."""
    receiver = Receiver(broker, run_startup=False, max_async_tasks=10, **options)
    finish = asyncio.Event()
    task = asyncio.create_task(receiver.listen(finish))
    try:
        yield receiver
    finally:
        finish.set()
        async with asyncio.timeout(HANG):
            await task
