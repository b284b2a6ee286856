"""The release before this one: a wheel of its commit, in a virtual environment of its own, with its own tests beside.

Its clients are started as this release's are (``stage.Release``): the client process is a program of the tests, so that
of then runs with the library of then.  What it depends on it shares with the environment of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.chaos.stage import Release

ROOT = Path(__file__).parents[2]
COMMIT = "0bcd309fd0fa65184e3dbc9de920f5c2a18b7b23"
"""The last one of level 1; once a release is tagged, its tag stands here."""

BUILT = ROOT / "build" / "previous" / COMMIT[:12]


def previous() -> Release:
    """Return the previous release, built at the first call; skips the test where there is no history to build it of."""
    if not BUILT.exists():
        if not _has_history():
            pytest.skip(f"no git history with commit {COMMIT[:12]} here, so there is no previous release to build")
        _build()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Release(str(BUILT / "venv" / "bin" / "python"), BUILT, environment)


def _has_history() -> bool:
    try:
        known = subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"], check=False, capture_output=True
        )
    except FileNotFoundError:
        return False
    return known.returncode == 0


def _build() -> None:
    """Build it beside, and put it in its place as a whole: another test process may do the same."""
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT.parent) as folder:
        made, source = Path(folder) / "made", Path(folder) / "source"
        source.mkdir()
        archive = Path(folder) / "source.tar"
        _run("git", "-C", ROOT, "archive", "-o", archive, COMMIT)
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="data")
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "wheel", "--no-deps", "--wheel-dir", folder, source)
        (wheel,) = Path(folder).glob("zkrq-*.whl")
        _run(sys.executable, "-m", "venv", "--without-pip", made / "venv")
        (packages,) = (made / "venv").glob("lib/python*/site-packages")
        _run(*pip, "install", "--no-deps", "--target", packages, wheel)
        # A line of a .pth file adds a folder, and not what the .pth files in there add: this checkout, for one.
        (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (source / "tests").rename(made / "tests")
        try:
            made.rename(BUILT)
        except OSError:
            if not BUILT.exists():
                raise


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
