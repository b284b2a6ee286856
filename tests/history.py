"""The release before this one, as git has it, for tests in which clients of both meet."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMIT = "0bcd309fd0fa65184e3dbc9de920f5c2a18b7b23"
"""The last one of level 1; once a release is tagged, its tag stands here: ``v0.2.0``, when this one is 0.3."""

BUILT = ROOT / "build" / "previous" / COMMIT[:12]
"""What is made of it stays here."""

NO_HISTORY = (
    f"git has no commit {COMMIT[:12]} here, so there is no release before this one to run: this is a shallow clone "
    "(`git fetch --unshallow` gets the rest) or the archive of a release"
)


def has_history() -> bool:
    """Tell whether the release before can be had."""
    try:
        known = subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", f"{COMMIT}^{{commit}}"], check=False, capture_output=True
        )
    except FileNotFoundError:
        return False
    return known.returncode == 0


def extract(folder: Path, *paths: str) -> None:
    """Put what it has under these paths, all of it by default, into a folder."""
    with tempfile.TemporaryDirectory() as beside:
        archive = Path(beside) / "source.tar"
        subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, COMMIT, *paths], check=True)
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):  # Debian 12 has a Python from before it
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(folder)
