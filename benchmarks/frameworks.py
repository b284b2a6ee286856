"""Measure taskiq and Celery over zkrq and over a Redis of their own, side by side: ``python -m benchmarks.frameworks``.

Tasks do nothing.  taskiq: one process sends them by ``SENDERS`` coroutines, then runs them in a receiver.  Celery: one
thread sends them, then a prefork worker of its own runs them, acks late.  Both frameworks take most of the time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from celery import Celery
from taskiq import AsyncBroker
from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

import zkrq
from zkrq import local
from zkrq.kombu import BROKER_URL
from zkrq.taskiq import ZkrqBroker

TASKS = {"taskiq": 5_000, "celery": 2_000}
SENDERS = 64
AT_ONCE = 100
CONCURRENCY = 2
REPEATS = 3
PATIENCE = 120.0

REDIS = {"appendonly": "yes", "appendfsync": "everysec"}

app = Celery(
    "benchmark",
    broker=os.environ.get("BENCHMARK_BROKER", BROKER_URL),
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=AT_ONCE,
)


@app.task(name="nothing")
def nothing() -> None:
    """Note the moment."""
    descriptor = os.open(os.environ["BENCHMARK_NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{time.monotonic()}\n".encode())
    os.close(descriptor)


async def measure_taskiq(broker: AsyncBroker) -> tuple[float, float]:
    """Return the tasks sent and the tasks run, per second."""
    count, done, finish = TASKS["taskiq"], 0, asyncio.Event()
    await broker.startup()

    @broker.task(task_name=f"nothing-{time.monotonic_ns()}")
    async def nothing() -> None:
        nonlocal done
        done += 1
        if done == count:
            finish.set()

    async def send(share: int) -> None:
        for _ in range(share):
            await nothing.kiq()

    began = time.monotonic()
    await asyncio.gather(*(send(count // SENDERS + (each < count % SENDERS)) for each in range(SENDERS)))
    sent = time.monotonic()
    receiver = Receiver(broker, run_startup=False, max_async_tasks=AT_ONCE, max_prefetch=AT_ONCE)
    async with asyncio.timeout(PATIENCE):
        await receiver.listen(finish)  # returns when all acks are answered
    ended = time.monotonic()
    await broker.shutdown()
    return count / (sent - began), count / (ended - sent)


async def measure_celery(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the tasks sent and the tasks run, per second."""
    return await asyncio.to_thread(_measure_celery, environment)


def _measure_celery(environment: Mapping[str, str]) -> tuple[float, float]:
    """Send in a process of its own, then run a worker."""
    count = TASKS["celery"]
    with tempfile.NamedTemporaryFile() as notes:
        variables = {**os.environ, **environment, "BENCHMARK_NOTES": notes.name}
        sender = subprocess.run(
            [sys.executable, "-m", "benchmarks.frameworks", "send", str(count)],
            env=variables,
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        command = ["-m", "celery", "-A", "benchmarks.frameworks", "worker", f"--concurrency={CONCURRENCY}"]
        with subprocess.Popen(
            [sys.executable, *command, "--loglevel=error"],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                moments = _moments(Path(notes.name), count)
            finally:
                worker.terminate()
    return float(sender.stdout.split()[-1]), (count - 1) / (moments[-1] - moments[0])


def _moments(notes: Path, count: int) -> list[float]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        moments = [float(line) for line in notes.read_text().splitlines()]
        if len(moments) >= count:
            return sorted(moments)
        time.sleep(0.2)
    raise TimeoutError("the worker of Celery is too slow, or did not start")


def send(count: int) -> None:
    """Send tasks of Celery; print how many per second."""
    nothing.delay()  # connects
    began = time.monotonic()
    for _ in range(count - 1):
        nothing.delay()
    print((count - 1) / (time.monotonic() - began))


async def main() -> None:
    """Run every contestant, in turns; print the medians and the spreads."""
    figures: dict[str, list[tuple[float, float]]] = {}
    async with local.servers(redis=3, zookeeper=3, redis_config=REDIS) as servers:
        for turn in range(REPEATS):
            namespace = f"benchmark-{turn}"
            await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
            connect = partial(zkrq.connect, servers.redis_urls, servers.zookeeper_hosts, namespace=namespace)
            alone = servers.redis[0].url
            over_zkrq = {
                "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
                "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
                "ZKRQ_NAMESPACE": namespace,
            }
            streams = RedisStreamBroker(alone, queue_name=f"stream-{turn}", consumer_id="0")
            runs: dict[str, Callable[[], Awaitable[tuple[float, float]]]] = {
                "taskiq over zkrq": partial(measure_taskiq, ZkrqBroker(connect)),
                "taskiq over taskiq-redis' streams": partial(measure_taskiq, streams),
                "Celery over zkrq": partial(measure_celery, over_zkrq),
                "Celery over Redis": partial(measure_celery, {"BENCHMARK_BROKER": alone}),
            }
            for name, run in runs.items():
                figures.setdefault(name, []).append(await run())
    print("| | tasks sent per second | tasks run per second |\n| --- | ---: | ---: |")
    for name, pairs in figures.items():
        cells = [
            f"{statistics.median(each):,.0f} ({min(each):,.0f}-{max(each):,.0f})" for each in zip(*pairs, strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(int(sys.argv[2]))
    else:
        asyncio.run(main())
