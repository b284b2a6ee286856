"""zkrq among the programs that make flows: see ``benchmarks.peers.fan``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import zkrq
from benchmarks import load
from benchmarks.peers.common import Job
from benchmarks.peers.fan import CONCURRENCY, Notes, serve

SETTINGS = f"push_many(), then(), work(concurrency={CONCURRENCY}), JSON, every other setting as it is by default"

Item = dict[str, Any]


async def main(job: Job) -> None:
    servers = {f"redis-{n}": url for n, url in enumerate(job.servers, 1)}
    notes = Notes()

    async def handle(item: Item) -> None:
        if "number" not in item:
            notes.go_on(item["flow"])
            return
        if item["seconds"]:
            await asyncio.sleep(item["seconds"])
        notes.end(item["flow"], item["number"])

    async with load.cluster_of(servers, job.zookeeper, namespace="flows") as cluster:
        queue: zkrq.Queue[Item] = cluster.queue("members")

        async def make(name: str, count: int, seconds: float) -> None:
            while True:
                try:
                    await _make(queue, name, count, seconds)
                except (zkrq.Unavailable, zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas):
                    await asyncio.sleep(0.05)
                else:
                    return

        async with zkrq.Worker(concurrency=CONCURRENCY).add(queue, handle):
            await make(f"warm-up-{time.time_ns()}", 10, 0.0)
            await serve(make, notes, SETTINGS)


async def _make(queue: zkrq.Queue[Item], name: str, count: int, seconds: float) -> None:
    async with queue.flow(name) as flow:
        await flow.then({"flow": name}, id=f"{name}-then")
        await flow.push_many({"flow": name, "number": number, "seconds": seconds} for number in range(count))


if __name__ == "__main__":
    asyncio.run(main(Job(**json.loads(sys.argv[1]))))
