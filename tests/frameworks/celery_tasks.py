"""Tasks for ``celery -A tests.frameworks.celery_tasks worker``; each writes down its start and its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Reject  # pyright: ignore[reportMissingTypeStubs]

from tests import odd
from tests.frameworks.diary import Diary, note
from zkrq.kombu import BROKER_URL

app = Celery("tests", broker=BROKER_URL, task_acks_late=True, worker_hijack_root_logger=False)  # from the environment
app.conf.broker_connection_retry_on_startup = os.environ.get("CELERY_RETRY_ON_STARTUP") != "0"
app.conf.broker_transport_options = {os.environ["CELERY_LEFT_OVER"]: 1} if "CELERY_LEFT_OVER" in os.environ else {}


@app.task(name="change")
def change(number: int, fails: int) -> None:
    """Fail in the first deliveries."""
    note("start", number)
    time.sleep(0.01)
    if Diary(Path(os.environ["DIARY"])).counts_of("start")[number] <= fails:
        raise Reject("not yet", requeue=True)
    note("end", number)


@app.task(name="sleep")
def sleep(number: int, seconds: float) -> None:
    """Take some time."""
    note("start", number)
    time.sleep(seconds)
    note("end", number)


@app.task(name="raise")
def fail(number: int) -> None:
    """Raise what `tests.odd` has under this number; with any other, nothing.  Celery ends its worker for a
    ``MemoryError``."""
    note("start", number)
    errors = odd.numbered()
    if number < len(errors) and not isinstance(errors[number], MemoryError):
        raise errors[number]
    note("end", number)
