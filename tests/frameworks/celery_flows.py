"""Tasks for ``celery -A tests.frameworks.celery_flows worker`` whose results are kept by zkrq."""

from __future__ import annotations

import os
import time

from celery import Celery

from zkrq.kombu import BROKER_URL

app = Celery("flows", broker=BROKER_URL, backend="zkrq.kombu.results:ZkrqBackend", task_acks_late=True)
app.conf.update(worker_hijack_root_logger=False, task_reject_on_worker_lost=True, result_expires=600)
app.conf.update(worker_prefetch_multiplier=int(os.environ.get("CELERY_PREFETCH_MULTIPLIER", "4")))


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="slow")
def slow(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="text")
def text(size: int) -> str:
    return "x" * size


@app.task(name="fails")
def fails(how: str) -> None:
    raise ValueError(how)
