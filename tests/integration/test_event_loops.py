"""What users rely on, on other event loops: whose tasks run as soon as they are made, and uvloop's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEHAVIOUR = Path("tests", "behaviour")
MOST = ("test_queue.py", "test_worker.py", "test_results.py", "test_wake_ups.py", "test_batches.py", "test_topics.py")
"""Files whose cases push, claim, settle, wait and listen."""

USUAL_ONLY = (
    "test_a_loop_that_waits_while_its_claims_are_acked_elsewhere_is_not_asked_for",  # counts on the order of turns
    "test_it_stands_still_while_it_is_moved",  # its own task begins before the clock is moved
)
SECONDS = 1_200
"""Seconds after which a run is taken for a hang: the longest takes three minutes."""


def run(loop: str, servers: str, *files: str) -> None:
    """Run cases on this loop, in a process of their own, as the loop is that of a whole run."""
    left_out = " and ".join(f"not {name}" for name in USUAL_ONLY)
    chosen = [str(BEHAVIOUR / name) for name in files] or [str(BEHAVIOUR)]
    options = ["-q", "-p", "no:cacheprovider", "-m", "chaos or not chaos", "-k", f"{servers} and {left_out}"]
    command = [sys.executable, "-m", "pytest", "--loop", loop, *options, *chosen]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_tasks_that_run_as_soon_as_they_are_made() -> None:
    """``asyncio.eager_task_factory``, or its double where Python has none."""
    run("eager", "testing", *MOST)


def test_uvloop() -> None:
    """On real Redis servers: it does not let the clock of servers inside the process be moved."""
    run("uvloop", "embedded", "test_queue.py", "test_worker.py", "test_topics.py")


@pytest.mark.chaos
@pytest.mark.parametrize(("loop", "servers"), [("eager", "testing"), ("eager", "embedded"), ("uvloop", "embedded")])
def test_all_of_it(loop: str, servers: str) -> None:
    run(loop, servers)
