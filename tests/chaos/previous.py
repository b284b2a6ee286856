"""The release before this one: a wheel of its commit, in a virtual environment of its own, with its own tests beside.

Its clients are started as this release's are (``stage.Release``): the client process is a program of the tests, so that
of then runs with the library of then.  What it depends on it shares with the environment of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.chaos.stage import Release
from tests.history import BUILT, NO_HISTORY, extract, has_history

ROLLED = BUILT / "rolled"


def previous() -> Release:
    """Return the previous release, built at the first call; skips the test where there is no history to build it of."""
    if not ROLLED.exists():
        if not has_history():
            pytest.skip(NO_HISTORY)
        _build()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return Release(str(ROLLED / "venv" / "bin" / "python"), ROLLED, environment)


def _build() -> None:
    """Build it beside, and put it in its place as a whole: another test process may do the same."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as folder:
        made, source = Path(folder) / "made", Path(folder) / "source"
        extract(source)
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
            made.rename(ROLLED)
        except OSError:
            if not ROLLED.exists():
                raise


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
