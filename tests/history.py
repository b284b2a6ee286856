"""The release before this one, as git has it, for tests in which clients of both meet."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path

from zkrq.protocol.levels import SPOKEN

ROOT = Path(__file__).parents[1]
TAG = "v0.2.0"
"""Its tag."""

BUILT = ROOT / "build" / "previous" / TAG
"""What is made of it stays here."""

NO_HISTORY = (
    "there is no release before this one whose stored form is another"
    if SPOKEN.lowest == SPOKEN.highest
    else f"git has no tag {TAG} here, so there is no release before this one to run: this is a shallow clone "
    "(`git fetch --unshallow --tags` gets the rest) or the archive of a release"
)


def has_history() -> bool:
    """Tell whether there is one, and can be had."""
    if SPOKEN.lowest == SPOKEN.highest:
        return False
    try:
        known = subprocess.run(
            ["git", "-C", ROOT, "cat-file", "-e", f"{TAG}^{{commit}}"], check=False, capture_output=True
        )
    except FileNotFoundError:
        return False
    return known.returncode == 0


def extract(folder: Path, *paths: str) -> None:
    """Put what it has under these paths, all of it by default, into a folder."""
    with tempfile.TemporaryDirectory() as beside:
        archive = Path(beside) / "source.tar"
        subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, TAG, *paths], check=True)
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):  # Debian 12 has a Python from before it
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(folder)
