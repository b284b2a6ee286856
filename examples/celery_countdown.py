"""Celery over zkrq: a task that is due later waits on the servers, not in a worker, and is run once.

Redis and SQS deliver a task again whose countdown is longer than their visibility time-out. Here the servers keep it
until it is due, and a worker that has it keeps it as long as it lives.

Run it with ``python examples/celery_countdown.py``: it starts private servers, three Redis and three ZooKeeper, and a
worker. For servers of your own give ``redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop"`` as
``broker_transport_options``, and start workers with ``celery -A tasks worker``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery

import zkrq
from zkrq import local
from zkrq.kombu import BROKER_URL

REMINDERS = 6
SECONDS = 2.0
TIMEOUT = 40.0

app = Celery(
    "reminders",
    broker=BROKER_URL,  # the servers come from the environment
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
)


@app.task(name="remind")
def remind(number: int, due: float) -> None:
    """Append a line to a file, where the program below counts them."""
    with Path(os.environ["REMINDED"]).open("a") as file:
        file.write(f"{number} {time.time() >= due}\n")


def send_and_wait() -> None:
    """Send reminders, and wait until all of them are there."""
    reminded = Path(os.environ["REMINDED"])
    for number in range(REMINDERS):
        remind.apply_async((number, time.time() + SECONDS), countdown=SECONDS, priority=number)
    print(f"{REMINDERS} reminders sent")
    end = time.monotonic() + TIMEOUT
    while len(lines := reminded.read_text().splitlines()) < REMINDERS and time.monotonic() < end:
        time.sleep(0.1)
    numbers = [line.split()[0] for line in lines]
    early = sum(line.endswith("False") for line in lines)
    print(f"{len(set(numbers))} run, {len(numbers) - len(set(numbers))} twice, {early} too early")
    app.pool.force_close_all()


async def main() -> None:
    async with local.servers(redis=3, zookeeper=3) as servers:
        await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace="shop")
        reminded = servers.all[0].data / "reminded"
        reminded.touch()
        os.environ |= {
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": "shop",
            "REMINDED": str(reminded),
        }
        command = ["-m", "celery", "-A", "celery_countdown", "worker", "--concurrency=2", "--loglevel=error"]
        with subprocess.Popen(  # noqa: ASYNC220, S603
            [sys.executable, *command], cwd=Path(__file__).parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as worker:
            try:
                await asyncio.to_thread(send_and_wait)
            finally:
                worker.terminate()


if __name__ == "__main__":
    asyncio.run(main())
