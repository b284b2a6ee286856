"""A znode for every claimed item, as zk-redis-queue does it: payloads on every server, an ephemeral znode per claim.

A consumer reads a page of ids from one server; for each item it creates a znode (the second consumer fails), removes
the payload from every server, and deletes the znode.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable
from typing import cast

from aiozk import ZKClient  # pyright: ignore[reportAttributeAccessIssue]
from redis.asyncio import Redis

from benchmarks.peers.common import PAYLOAD, Job, Rates, rates, run, share

IN_FLIGHT = 64
PAGE = 1_000
SETTINGS = (
    f"one ephemeral znode per claim (aiozk), {IN_FLIGHT} claims in flight, payloads on every Redis server, hiredis"
)


async def measure(job: Job) -> Rates:
    servers = [Redis.from_url(url) for url in job.servers]
    keeper = ZKClient(job.zookeeper)
    await keeper.start()
    try:
        await keeper.ensure_path("/bench/locks")
        ids = map(str, itertools.count())

        async def push() -> None:
            id = next(ids)
            await asyncio.gather(*(server.hset("bench", id, PAYLOAD) for server in servers))

        pushing = await share(job.items, job.tasks, push)
        page: deque[bytes] = deque()
        cursor = 0

        async def claim_and_ack() -> None:
            id = page.popleft().decode()
            await keeper.create(f"/bench/locks/{id}", ephemeral=True)
            await asyncio.gather(*(server.hdel("bench", id) for server in servers))
            await keeper.delete(f"/bench/locks/{id}")

        consuming, left = 0.0, job.items
        while left:
            began = time.perf_counter()
            cursor, found = await servers[0].hscan("bench", cursor, count=PAGE)
            page.extend(cast("Iterable[bytes]", found))
            left -= len(found)
            consuming += time.perf_counter() - began + await share(len(found), IN_FLIGHT, claim_and_ack)
        assert not await servers[0].exists("bench"), "some items are left"
    finally:
        await keeper.close()
    return rates(job.items, pushing, consuming, SETTINGS)


if __name__ == "__main__":
    run(measure)
