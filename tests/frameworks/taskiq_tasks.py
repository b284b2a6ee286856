"""Tasks for ``taskiq worker tests.frameworks.taskiq_tasks:broker``; each writes down its start and its end."""

from __future__ import annotations

import asyncio

from tests.frameworks.diary import note
from zkrq.taskiq import ZkrqBroker

broker = ZkrqBroker()  # from the environment


@broker.task(task_name="sleep")
async def sleep(number: int, seconds: float) -> None:
    """Take some time."""
    note("start", number)
    await asyncio.sleep(seconds)
    note("end", number)
