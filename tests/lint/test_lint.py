"""The code passes the linter, the formatter and the type checker, while other tests run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "check"),
        ("ruff", "format", "--check"),
        ("pyright", "--pythonpath", sys.executable),
    ],
    ids=" ".join,
)
def test_lint(command: tuple[str, ...]) -> None:
    name, *options = command
    done = subprocess.run([BIN / name, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stdout
