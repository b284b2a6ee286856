"""`.ci/setup`, with a Python that notes what it is asked to install instead of installing it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
case "$*" in
  --version) echo Python ;;
  *"venv --clear"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *install*) echo begin >>log; sleep 0.2; echo end >>log ;;
esac
"""


@pytest.mark.skipif(shutil.which("flock") is None, reason="not installed: flock")
def test_two_at_once_install_once(tmp_path: Path) -> None:
    """Each would make the environment anew, and delete what the other installs."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/setup", tmp_path / ".ci/setup")
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"ZKRQ_PYTHON": str(python)}
    setups = [subprocess.Popen([tmp_path / ".ci/setup"], env=environment) for _ in range(2)]
    assert [setup.wait() for setup in setups] == [0, 0]
    assert (tmp_path / "log").read_text().split() == ["begin", "end"] * 2  # pip itself, and then the packages
