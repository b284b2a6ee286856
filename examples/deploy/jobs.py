"""What the worker of `compose.yaml` and of the chart does, until it is replaced by modules of yours."""

from __future__ import annotations

import asyncio
import logging

import zkrq

_log = logging.getLogger("jobs")


async def handle(item: object) -> None:
    """Take a moment for each item, and say so."""
    await asyncio.sleep(0.1)
    _log.info("done: %r", item)


def worker(cluster: zkrq.Cluster) -> zkrq.Worker:
    """Handle the queue ``jobs``."""
    return zkrq.Worker(concurrency=32, grace=30).add(cluster.queue("jobs"), handle)
