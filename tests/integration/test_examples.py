"""The examples run, end as they say, and are all listed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import anyio
import pytest

from zkrq import local

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUN_TIMEOUT = 60.0  # seconds for one example

OUTCOMES = {
    "poller.py": [r"60 requests were answered: \{202: 60\}", r"60 requests, 30 jobs done, 0 twice, 0 left"],
    "delayed_emails.py": [
        r"first: your new password",
        r"6 e-mails, ([3-9]|\d\d) digests sent, 0 twice, 0 too early",
    ],
    "batch_consumer.py": [
        r"  committed, but the consumer dies before the acks: .*",
        r"1000 pushed, 980 inserted, 0 twice, 20 dead letters, 0 lost",
    ],
    "pipeline.py": [
        r"50 pushes, 40 parcels",
        r"its write is refused, the row is still of: worker",
        r"its ack is refused: .*",
        r"40 orders, 40 shipped, 0 twice, 0 left, late write refused",
    ],
    "fastapi_tasks.py": [
        r"20 requests were answered: 202",
        r"20 e-mails sent, 0 twice, 3 tries failed and were repeated, 0 left",
    ],
    "celery_countdown.py": [
        r"6 reminders sent",
        r"6 run, 0 twice, 0 too early",
    ],
    "django_view.py": [
        r"10 orders were answered: 202",
        r"1 orders were answered: 404",
        r"10 orders in the queue, 0 left",
    ],
    "computing.py": [
        r"too long: TimeoutError: the handler was stopped at its time limit of 2 s",
        r"dead: the handler's process was killed by SIGKILL",
        r"12 numbers counted, in more than one process",
    ],
    "order_steps.py": [
        r"10 orders charged, 0 twice, 10 mailed",
    ],
    "import_report.py": [
        r"import 7: 1000 rows, 999000 in all",
        r"done, 0 left",
    ],
    "diamond.py": [
        *(rf"order {n}: {10 * n} from shelf {n}" for n in range(1, 6)),
        r"5 orders shipped, 0 too early, 0 steps twice",
    ],
    "trip.py": [
        r"8 trips booked, 2 refunded",
        r"8 confirmations, 24 bookings are left",
    ],
    "crawl.py": [
        r"the site: 300 pages visited, 0 twice",
        r"done: 300, missed: 0",
    ],
    "replies.py": [
        r"20 of 20 replies are right",
        r"20 of 20 results are here",
        r"-1 is dead: no negative numbers here",
    ],
    "signup.py": [
        r"25 requests were answered: 202 again",
        r"25 requests were answered: 202 welcome",
        r"25 e-mails sent, 0 twice, 0 left",
    ],
}
"""Lines that each prints, in this order; the last one is its last."""


@pytest.mark.anyio
@pytest.mark.skipif("redis" not in local.available(), reason="redis-server is not installed")
@pytest.mark.parametrize("name", OUTCOMES)
async def test_it_ends_as_it_says(name: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with anyio.fail_after(RUN_TIMEOUT):
        result = await anyio.run_process(command, cwd=ROOT, env=environment, check=False)
    output = result.stdout.decode()
    assert (result.returncode, result.stderr.decode()) == (0, ""), output
    printed = iter(output.splitlines())
    for expected in OUTCOMES[name]:
        assert any(re.fullmatch(expected, line) for line in printed), f"no line {expected!r} in its place:\n{output}"
    assert next(printed, None) is None, output


def test_all_are_listed_and_run_here() -> None:
    there = {path.name for path in EXAMPLES.glob("*.py")}
    listed = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert all(text == target for text, target in listed)
    assert {target for _, target in listed} == there == set(OUTCOMES)
    assert len(listed) == len(there)


@pytest.mark.parametrize("name", OUTCOMES)
def test_it_tells_how_to_run_it(name: str) -> None:
    docstring = (EXAMPLES / name).read_text().split('"""')[1]
    assert f"python examples/{name}" in docstring
    assert 'redis=["redis://10.0.0.1", ...]' in docstring
