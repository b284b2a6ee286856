"""Tasks for ``celery -A tests.frameworks.celery_tasks worker``; each writes down its start and its end."""

from __future__ import annotations

import time

from celery import Celery

from tests.frameworks.diary import note
from zkrq.kombu import BROKER_URL

app = Celery("tests", broker=BROKER_URL, task_acks_late=True, worker_hijack_root_logger=False)  # from the environment


@app.task(name="sleep")
def sleep(number: int, seconds: float) -> None:
    """Take some time."""
    note("start", number)
    time.sleep(seconds)
    note("end", number)
