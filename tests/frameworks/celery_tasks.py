"""Tasks for ``celery -A tests.frameworks.celery_tasks worker``; each writes down its start and its end."""

from __future__ import annotations

import os
import time

from celery import Celery

from tests.frameworks.diary import note
from zkrq.kombu import BROKER_URL

app = Celery("tests", broker=BROKER_URL, task_acks_late=True, worker_hijack_root_logger=False)  # from the environment
app.conf.broker_connection_retry_on_startup = os.environ.get("CELERY_RETRY_ON_STARTUP") != "0"
app.conf.broker_transport_options = {os.environ["CELERY_LEFT_OVER"]: 1} if "CELERY_LEFT_OVER" in os.environ else {}


@app.task(name="sleep")
def sleep(number: int, seconds: float) -> None:
    """Take some time."""
    note("start", number)
    time.sleep(seconds)
    note("end", number)
