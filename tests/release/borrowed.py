"""Checkers of packages that are no dependency of the tests: too large, or only for this folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120


def borrow(package: str, version: str) -> Path:
    """Return the folder of a package, installed under ``build`` once, apart from every environment.

    Skips the test where there is no wheel of it for this machine, or no index.
    """
    folder = ROOT / "build" / "borrowed" / f"{package}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            whole = Path(beside) / "whole"  # what was interrupted is not taken for it
            words = ["install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(whole)]
            done = subprocess.run(
                [sys.executable, "-m", "pip", *words, f"{package}=={version}"],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"cannot be installed: {package} {version}")
            whole.rename(folder)
    return folder
