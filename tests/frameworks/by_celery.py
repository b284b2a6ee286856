"""Celery with prefork for the tests of workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from celery import Celery

import zkrq
from tests.frameworks.workers import Framework, Stage
from tests.harness import over_zookeeper
from zkrq.kombu import BROKER_URL

CONCURRENCY = 4

COMMAND = ["celery", "-A", "tests.frameworks.celery_tasks", "worker", f"--concurrency={CONCURRENCY}", "--loglevel=info"]


async def framework(stage: Stage) -> AsyncGenerator[Framework]:
    """Connect a program that sends tasks."""
    servers = stage.servers
    options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": stage.namespace}
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=stage.namespace)
    app = Celery("client", broker=BROKER_URL, broker_transport_options=options)

    async def send(numbers: Sequence[int], seconds: float) -> None:
        for number in numbers:
            await asyncio.to_thread(partial(app.send_task, "sleep", (number, seconds)))

    async with over_zookeeper(servers, stage.namespace) as cluster:
        queue = cluster.queue("celery", codec=zkrq.RAW)

        async def left() -> int:
            return sum(await queue.size())

        # Stopping, Celery flushes its pool, which forgets tasks whose start the main process has not read yet.
        yield Framework(COMMAND, send, left, forgotten=CONCURRENCY)
    app.pool.force_close_all()
