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

LAST_COMMIT = "d74bda4fadbe1147ff46609938debb42aeca72d3"
"""Its code as long as that has no tag: the last commit before the next level was opened."""

BUILT = ROOT / "build" / "previous" / TAG
"""What is made of it stays here."""

NO_HISTORY = (
    "there is no release before this one whose stored form is another"
    if SPOKEN.lowest == SPOKEN.highest
    else f"git has no tag {TAG} here, nor its last commit, so there is no release before this one to run: this is a "
    "shallow clone (`git fetch --unshallow --tags` gets the rest) or the archive of a release"
)


def revision() -> str | None:
    """Return what git calls it: its tag, else its last commit; None if git has neither."""
    for name in (TAG, LAST_COMMIT):
        asked = ["git", "-C", ROOT, "cat-file", "-e", f"{name}^{{commit}}"]
        try:
            if subprocess.run(asked, check=False, capture_output=True).returncode == 0:
                return name
        except FileNotFoundError:
            return None
    return None


def has_history() -> bool:
    """Tell whether there is one, and can be had."""
    return SPOKEN.lowest != SPOKEN.highest and revision() is not None


def extract(folder: Path, *paths: str) -> None:
    """Put what it has under these paths, all of it by default, into a folder."""
    found = revision()
    assert found, NO_HISTORY
    with tempfile.TemporaryDirectory() as beside:
        archive = Path(beside) / "source.tar"
        subprocess.run(["git", "-C", ROOT, "archive", "-o", archive, found, *paths], check=True)
        with tarfile.open(archive) as packed:
            if hasattr(tarfile, "data_filter"):  # Debian 12 has a Python from before it
                packed.extraction_filter = tarfile.data_filter
            packed.extractall(folder)
