"""A release is made from a clone: nothing is pushed, and what is built installs on each Python that is here."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import history
from zkrq.base.version import __version__

ROOT = Path(__file__).parents[2]
SECONDS = 900.0


def run(*words: str, at: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what it said, whether it succeeded or not."""
    variables = {**os.environ, **environment}
    variables.pop("PYTHONPATH", None)  # nothing of the checkout may help
    return subprocess.run(words, cwd=at, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)


def done(*words: str, at: Path = ROOT) -> str:
    """Run a program that must succeed; return its output."""
    result = run(*words, at=at)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    notes = done(".ci/notes", __version__, "--draft")
    assert "### Wire format" in notes
    assert not notes.startswith("## ")
    assert "\n## " not in notes
    without = run(".ci/notes", "9.9.9")
    assert without.returncode != 0
    assert "has no section '## 9.9.9, DATE'" in without.stderr


def test_the_release_before_is_the_one_that_is_tagged() -> None:
    """Or the tests of rolling upgrades would roll from a release that nobody runs any more."""

    def minor(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.removeprefix("v").split(".")[:2]))

    tags = run("git", "tag", "--list", "v*.*.*", "--sort", "version:refname").stdout.split()
    if earlier := [tag for tag in tags if minor(tag) < minor(__version__)]:
        assert earlier[-1] in history.TAG, f"tests/history.py: write {earlier[-1]} there"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of what is committed, with the environment of this checkout."""
    clone, origin = tmp_path / "clone", tmp_path / "origin"  # nobody else commits to this one meanwhile
    done("git", "clone", "--quiet", "--bare", "--no-tags", str(ROOT), str(origin))
    done("git", "clone", "--quiet", str(origin), str(clone))
    (clone / ".venv").symlink_to((ROOT / ".venv").resolve())
    for name, value in {"user.name": "Tester", "user.email": "tester@example.org", "commit.gpgsign": "false"}.items():
        done("git", "config", name, value, at=clone)
    return clone


def write_date(clone: Path) -> None:
    """Make the newest section of the changelog one that is released."""
    changelog = clone / "CHANGELOG.md"
    text = re.sub(
        rf"^## {re.escape(__version__)}, .*$", f"## {__version__}, 2026-03-01", changelog.read_text(), flags=re.M
    )
    changelog.write_text(text)
    done("git", "commit", "--quiet", "--allow-empty", "--all", "--message", "Release", at=clone)


def test_what_is_not_ready_is_refused_before_anything_is_built(clone: Path) -> None:
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(f"## {__version__}, ", "## 9.9.9, "))
    dirty = run(".ci/release", "--no-tests", at=clone)
    done("git", "commit", "--quiet", "--all", "--message", "Rename", at=clone)
    unwritten = run(".ci/release", "--no-tests", at=clone)
    done("git", "tag", f"v{__version__}", "HEAD~1", at=clone)
    tagged = run(".ci/release", "--no-tests", at=clone)
    assert [result.returncode for result in (dirty, unwritten, tagged)] == [1, 1, 1]
    assert "changes that are not committed" in dirty.stderr
    assert f"no section '## {__version__}, DATE'" in unwritten.stderr
    assert "on another commit: raise the version" in tagged.stderr
    assert not (clone / "dist").exists()


@pytest.mark.chaos
def test_a_release_is_built_and_signed_and_not_pushed(clone: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    done("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    done("git", "config", "gpg.format", "ssh", at=clone)
    write_date(clone)
    before = done("git", "ls-remote", "origin", at=clone)

    unsigned = run(".ci/release", "--no-tests", at=clone)
    assert unsigned.returncode == 0, unsigned.stderr
    assert "the tag is yours to make: git tag --sign" in unsigned.stderr
    assert done("git", "tag", "--list", f"v{__version__}", at=clone) == ""
    first = (clone / "dist" / "SHA256SUMS").read_text()

    done("git", "config", "user.signingkey", str(key), at=clone)
    signed = run(".ci/release", "--no-tests", at=clone)
    assert signed.returncode == 0, signed.stderr
    assert f"next: git push origin v{__version__}" in signed.stderr
    tag = done("git", "cat-file", "tag", f"v{__version__}", at=clone)
    assert "BEGIN SSH SIGNATURE" in tag
    assert "### Wire format" in tag
    assert done("git", "ls-remote", "origin", at=clone) == before

    names = {path.name for path in (clone / "dist").iterdir()}
    whole = {f"zkrq-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json", ".notes.md")}
    assert names == {*whole, "SHA256SUMS"}
    second = (clone / "dist" / "SHA256SUMS").read_text()
    assert first == second, "the same commit gives the same bytes"
    inside: Mapping[str, Any] = json.loads((clone / "dist" / f"zkrq-{__version__}.cdx.json").read_text())
    assert {"redis", "hiredis", "aiozk", "anyio"} <= {each["name"] for each in inside["components"]}
    of = inside["metadata"]["component"]
    assert (of["name"], of["version"], of["purl"]) == ("zkrq", __version__, f"pkg:pypi/zkrq@{__version__}")


@pytest.mark.chaos
def test_wheel_and_sdist_run_on_each_python_that_is_here() -> None:
    pythons = done(".ci/pythons").split()
    assert pythons
    said = done(".ci/wheel")
    versions = {done(python, "--version").strip() for python in pythons}
    for version in versions:
        assert len(re.findall(rf"{re.escape(version)}, zkrq {re.escape(__version__)}:", said)) == 2, said
