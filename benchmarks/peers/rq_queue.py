"""RQ: one Redis server, a job per item.  It is synchronous, so its producer pushes one after the other."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
import time

from redis import Redis
from rq import Queue, SimpleWorker

from benchmarks.peers.common import ITEM, Job, Rates, rates, run

SETTINGS = "SimpleWorker (no fork for each job), burst, result_ttl=0, one pushing thread, hiredis"


def handle(item: object) -> None:
    pass


async def measure(job: Job) -> Rates:
    logging.disable()
    redis = Redis.from_url(job.servers[0])
    queue = Queue("bench", connection=redis)
    began = time.perf_counter()
    for _ in range(job.items):
        queue.enqueue("benchmarks.peers.rq_queue.handle", ITEM, result_ttl=0)
    pushed = time.perf_counter()
    SimpleWorker([queue], connection=redis).work(burst=True, logging_level="ERROR")
    consumed = time.perf_counter()
    assert len(queue) == 0, "some jobs were not done"
    return rates(job.items, pushed - began, consumed - pushed, SETTINGS)


if __name__ == "__main__":
    run(measure)
