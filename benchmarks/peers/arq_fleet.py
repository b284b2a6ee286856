"""arq in the fleet: one Redis server, which workers poll."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.peers.fleet import Duty, Handle, Item, Push, run

POLL = 0.01
SETTINGS = f"poll_delay={POLL}, max_jobs=slots, keep_result=0, log_results=False, hiredis"


@asynccontextmanager
async def push(duty: Duty) -> AsyncGenerator[Push, None]:
    pool = await create_pool(RedisSettings.from_dsn(duty.server), default_queue_name=duty.queue)
    yield lambda item: pool.enqueue_job("handle", item)


async def work(duty: Duty, handle: Handle) -> None:
    async def job(_: dict[str, Any], item: Item) -> None:
        await handle(item)

    worker = Worker(
        [func(job, name="handle")],
        redis_settings=RedisSettings.from_dsn(duty.server),
        queue_name=duty.queue,
        max_jobs=duty.slots,
        poll_delay=POLL,
        keep_result=0,
        log_results=False,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    run(push, work, SETTINGS)
