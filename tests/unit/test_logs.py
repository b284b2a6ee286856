"""Log records say what they are about, also as JSON."""

from __future__ import annotations

import json
import logging
import sys

import pytest

import zkrq
import zkrq.testing
from zkrq.base.log import Log
from zkrq.logs import JsonFormatter


def test_a_line_of_json_has_what_was_given_and_the_traceback() -> None:
    try:
        raise ValueError("bad\naddress")
    except ValueError:
        record = logging.LogRecord("zkrq", logging.ERROR, __file__, 1, "item %s", ("x",), sys.exc_info())
    record.__dict__.update(item="x", queue=None, odd={1, 2}, process=7)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("time").endswith("+00:00")
    assert "ValueError: bad" in line.pop("exception")
    assert line == {
        "level": "error",
        "logger": "zkrq",
        "process": 7,
        "message": "item x",
        "item": "x",
        "odd": "{1, 2}",
    }


def test_a_record_adds_to_what_its_log_is_about(caplog: pytest.LogCaptureFixture) -> None:
    Log(logging.getLogger("zkrq"), {"queue": "jobs"}).warning("text", extra={"item": "x"})
    (record,) = caplog.records
    assert (record.__dict__["queue"], record.__dict__["item"]) == ("jobs", "x")


@pytest.mark.anyio
async def test_a_failed_delivery_names_cluster_queue_and_item(caplog: pytest.LogCaptureFixture) -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("jobs", retry=zkrq.Retry(max_attempts=1))
        receipt = await queue.push("x")

        async def fail(item: str) -> None:
            raise ValueError(item)

        await zkrq.Worker().add(queue, fail).run(burst=True)
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    line = json.loads(JsonFormatter().format(record))
    assert (line["cluster"], line["queue"], line["item"]) == ("zkrq", "jobs", receipt.id)


@pytest.mark.anyio
async def test_a_failed_delivery_says_where_how_often_and_when_again(caplog: pytest.LogCaptureFixture) -> None:
    async with zkrq.testing.cluster() as cluster:
        queue = cluster.queue("emails", retry=zkrq.Retry(backoff=zkrq.constant(4)))
        receipt = await queue.push("x")

        async def send_email(item: str) -> None:
            raise ValueError(item)

        with caplog.at_level(logging.INFO, "zkrq.working"):
            await zkrq.Worker(concurrency=7).add(queue, send_email).run(burst=True)
    name = "test_a_failed_delivery_says_where_how_often_and_when_again.send_email"
    begin, failed = (record.getMessage() for record in caplog.records if record.name == "zkrq.working.worker")
    assert begin == (
        f"the worker begins a burst: queues: emails ({name}); concurrency 7; "
        "servers in sync: redis-1, redis-2, redis-3 (3 of 3)"
    )
    assert failed == (
        f"item {receipt.id} of queue emails failed in {name} at attempt 1, it will be delivered again in 4.0 s"
    )
