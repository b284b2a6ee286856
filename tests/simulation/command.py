"""Run ``python -m tests.simulation``: the seeds run in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def simulate(*options: str) -> list[dict[str, Any]]:
    """Return the reports of the seeds."""
    return printed("--json", *options)["reports"]


def printed(*options: str) -> dict[str, Any]:
    """Return the JSON document that it prints."""
    command = [sys.executable, "-m", "tests.simulation", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}"
    return json.loads(done.stdout)
