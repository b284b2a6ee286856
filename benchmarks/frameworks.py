"""Measure taskiq and Celery over zkrq and over a Redis of their own, side by side: ``python -m benchmarks.frameworks``.

Tasks do nothing.  taskiq: one process sends them by ``SENDERS`` coroutines, then runs them in a receiver.  Celery: one
thread sends them, then a prefork worker of its own runs them, acks late, and then it gets one every ``PAUSE``, which
shows the time from ``delay`` to the start.  Both frameworks take most of the time.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

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
CONCURRENCY = 8
STARTS = 200
PAUSE = 0.02
REPEATS = 3
PATIENCE = 120.0

REDIS = {"appendonly": "yes", "appendfsync": "everysec"}

Figures: TypeAlias = tuple[float, float, float | None]
"""Tasks sent and tasks run, per second; median of the milliseconds from sending a task to its start, None: unknown."""

app = Celery(
    "benchmark",
    broker=os.environ.get("BENCHMARK_BROKER", BROKER_URL),
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=AT_ONCE,
)


@app.task(name="nothing")
def nothing(sent: float) -> None:
    """Note the moment, and the seconds since ``sent``."""
    now = time.monotonic()
    descriptor = os.open(os.environ["BENCHMARK_NOTES"], os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, f"{now} {now - sent}\n".encode())
    os.close(descriptor)


async def measure_taskiq(broker: AsyncBroker) -> Figures:
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
    return count / (sent - began), count / (ended - sent), None


async def measure_celery(environment: Mapping[str, str]) -> Figures:
    """Return the tasks sent and the tasks run, per second, and the median of the milliseconds to the start of one."""
    return await asyncio.to_thread(_measure_celery, environment)


def _measure_celery(environment: Mapping[str, str]) -> Figures:
    """Send in a process of its own, then run a worker."""
    count = TASKS["celery"]
    with tempfile.NamedTemporaryFile() as notes:
        variables = {**os.environ, **environment, "BENCHMARK_NOTES": notes.name}
        rate = _send(variables, count, 0)
        command = ["-m", "celery", "-A", "benchmarks.frameworks", "worker", f"--concurrency={CONCURRENCY}"]
        with subprocess.Popen(
            [sys.executable, *command, "--loglevel=error"],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as worker:
            try:
                moments = [moment for moment, _ in _noted(Path(notes.name), count)]
                _send(variables, STARTS, PAUSE)
                took = [seconds for _, seconds in _noted(Path(notes.name), count + STARTS)[count:]]
            finally:
                worker.terminate()
    return rate, (count - 1) / (moments[-1] - moments[0]), statistics.median(took) * 1000


def _send(variables: Mapping[str, str], count: int, pause: float) -> float:
    """Send tasks from a process of its own; return how many it sent per second."""
    command = [sys.executable, "-m", "benchmarks.frameworks", "send", str(count), str(pause)]
    sender = subprocess.run(command, env=variables, check=True, capture_output=True, timeout=PATIENCE)
    return float(sender.stdout.split()[-1])


def _noted(notes: Path, count: int) -> list[tuple[float, float]]:
    """Return when tasks began, in that order, and their seconds to the start."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        pairs = [line.partition(" ")[::2] for line in notes.read_text().splitlines()]
        if len(pairs) >= count:
            return sorted((float(moment), float(seconds)) for moment, seconds in pairs)
        time.sleep(0.2)
    raise TimeoutError("the worker of Celery is too slow, or did not start")


def send(count: int, pause: float) -> None:
    """Send tasks of Celery; print how many per second."""
    nothing.delay(time.monotonic())  # connects
    began = time.monotonic()
    for _ in range(count - 1):
        time.sleep(pause)
        nothing.delay(time.monotonic())
    print((count - 1) / (time.monotonic() - began))


async def main() -> None:
    """Run every contestant, in turns; print the medians and the spreads."""
    figures: dict[str, list[Figures]] = {}
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
            runs: dict[str, Callable[[], Awaitable[Figures]]] = {
                "taskiq over zkrq": partial(measure_taskiq, ZkrqBroker(connect)),
                "taskiq over taskiq-redis' streams": partial(measure_taskiq, streams),
                "Celery over zkrq": partial(measure_celery, over_zkrq),
                "Celery over Redis": partial(measure_celery, {"BENCHMARK_BROKER": alone}),
            }
            for name, run in runs.items():
                figures.setdefault(name, []).append(await run())
    print("| | tasks sent per second | tasks run per second | ms to the start |\n| --- | ---: | ---: | ---: |")
    for name, found in figures.items():
        cells = [_cell([value for value in each if value is not None]) for each in zip(*found, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


def _cell(values: Sequence[float]) -> str:
    """Return the median and the spread."""
    if not values:
        return ""
    digits = 0 if min(values) > 100 else 1
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}-{high})"


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(int(sys.argv[2]), float(sys.argv[3]))
    else:
        asyncio.run(main())
