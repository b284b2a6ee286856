"""Log records say what they are about, also as JSON."""

from __future__ import annotations

import json
import logging
import sys

import pytest

import zkrq
import zkrq.testing
from zkrq.logs import JsonFormatter, Log


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
    (record,) = (record for record in caplog.records if record.name == "zkrq.working.worker")
    line = json.loads(JsonFormatter().format(record))
    assert (line["cluster"], line["queue"], line["item"]) == ("zkrq", "jobs", receipt.id)
