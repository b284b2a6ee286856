"""Run ``python -m tests.simulation``: the seeds run in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def simulate(*options: str) -> list[dict[str, Any]]:
    """Run ``python -m tests.simulation``; the reports of its seeds."""
    command = [sys.executable, "-m", "tests.simulation", "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert done.returncode in (0, 1), f"{command} ended with {done.returncode}"
    return json.loads(done.stdout)["reports"]
