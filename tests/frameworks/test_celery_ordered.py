"""Groups that keep their order, worked on by a real worker of Celery."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from celery import Celery

import zkrq
from tests.frameworks.by_celery import COMMAND
from tests.frameworks.workers import Stage
from tests.harness import over_zookeeper, settled, until
from zkrq.kombu import BROKER_URL

pytestmark = pytest.mark.anyio

GROUPS, ITEMS = 3, 5

FAILING, FAILURES = 1, 2
"""The item of each group that fails, and how often."""


async def test_a_worker_of_celery_keeps_the_order_of_groups(stage: Stage) -> None:
    """A task that rejects its message holds its group; the worker has several processes."""
    servers = stage.servers
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=stage.namespace)
    async with over_zookeeper(servers, stage.namespace) as cluster:
        await cluster.queue("celery", codec=zkrq.RAW).set_groups(zkrq.Groups(ordered=True))
    app = Celery("client", broker=BROKER_URL)
    app.conf.broker_transport_options = {
        "redis": servers.redis_urls,
        "zookeeper": servers.zookeeper_hosts,
        "namespace": stage.namespace,
    }
    for item in range(ITEMS):
        for group in range(GROUPS):
            arguments = group * ITEMS + item, FAILURES if item == FAILING else 0
            send = partial(app.send_task, "change", arguments, headers={"zkrq_group": f"group {group}"})
            await asyncio.to_thread(send)
    async with over_zookeeper(servers, stage.namespace) as cluster, stage.worker(COMMAND, "one"):
        await until(lambda: len(stage.diary.ended()) == GROUPS * ITEMS)
        queue = cluster.queue("celery", codec=zkrq.RAW)

        async def is_empty() -> bool:
            return not any(await queue.size())

        await settled(is_empty)
    app.pool.force_close_all()
    started = [entry.number for entry in stage.diary.entries("start")]
    for group in range(GROUPS):
        of_group = [number - group * ITEMS for number in started if number // ITEMS == group]
        assert of_group == [0, *[FAILING] * (1 + FAILURES), 2, 3, 4]
