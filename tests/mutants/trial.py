"""A mutant, and whether its killer notices: always in a copy of the tree, never in the tree itself."""

from __future__ import annotations

import enum
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests import suites

ROOT = Path(__file__).resolve().parents[2]

LUA = "zkrq/protocol/lua/"
"""Where the scripts are."""

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
"""What no killer needs.  Hidden entries include the virtual environment: the interpreter is this one."""

PYTEST_FAILED, PYTEST_FOUND_NO_TEST = 1, 5
"""How pytest ends when a test has failed, and when none is selected."""

SEEDS = "seeds"
"""What kills a mutant that no suite is asked about: seeds of the simulation."""

OUTPUT_LINES = 30
"""Last lines of a killer's output that are shown when it could not run."""


class Outcome(enum.Enum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    NO_VERDICT = "NO VERDICT"  # the killer could not run, or ran out of time


@dataclass(frozen=True, slots=True)
class Suite:
    """Killed when one of these tests fails, of ``quick`` or else of ``test``; arguments for pytest."""

    selection: tuple[str, ...]

    def __init__(self, *selection: str) -> None:
        object.__setattr__(self, "selection", selection)

    def __str__(self) -> str:
        return " ".join(self.selection).replace("tests/", "")

    @property
    def runs(self) -> tuple[str, ...]:
        """The suites that have tests among the selected files, the cheapest first."""
        files = [word.partition("::")[0] for word in self.selection if word.startswith("tests/")]
        found = frozenset[str]().union(*map(suites.suites, files))
        return tuple(name for name in (suites.QUICK, suites.TEST) if name in found)

    def command(self, run: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--suite", run, *self.selection]


@dataclass(frozen=True, slots=True)
class Seeds:
    """Killed when one of the simulation's seeds from 1 to ``count`` complains."""

    count: int
    faults: str = "all"

    def __str__(self) -> str:
        return f"{self.count} seeds" + (f" with {self.faults}" if self.faults != "all" else "")

    @property
    def runs(self) -> tuple[str, ...]:
        return (SEEDS,)

    def command(self, run: str) -> list[str]:
        return [sys.executable, "-m", "tests.simulation", "--jobs=1", "--stop", f"--seeds={self.count}",
                f"--faults={self.faults}"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """``old`` stands once in ``file`` and is replaced by ``new``; ``why`` says what the line is for.

    ``quick``: its killer needs a few seconds, and ``make test`` runs it.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    killer: Suite | Seeds
    quick: bool = False

    def write(self, root: Path) -> None:
        """Put the mistake into the tree at ``root``.  Raises ``LookupError`` where the line is no longer there."""
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name}: {self.old!r} stands {text.count(self.old)} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Verdict:
    """``by``: the suite whose test has killed the mutant, or ``SEEDS``; the last one that was asked if none has."""

    outcome: Outcome
    by: str
    output: str


@contextmanager
def copy_of_tree() -> Generator[Path]:
    """A copy of the working tree that may be broken."""
    with TemporaryDirectory(prefix="zkrq-mutant-") as directory:
        root = Path(directory) / "tree"
        shutil.copytree(ROOT, root, ignore=LEFT_OUT)
        yield root


def run(killer: Suite | Seeds, root: Path, seconds: float, *, only_last: bool = False) -> Verdict:
    """Whether the killer complains about the tree at ``root``: one suite after the other, or only the last one.

    A suite that has none of the killer's tests says nothing, but some suite must have one.
    """
    verdict = Verdict(Outcome.NO_VERDICT, "", f"none of its tests is in {suites.QUICK} or {suites.TEST}")
    for name in killer.runs[-1:] if only_last else killer.runs:
        code, output = _run(killer.command(name), root, seconds)
        if code == PYTEST_FOUND_NO_TEST:
            continue
        outcomes = {0: Outcome.SURVIVED, PYTEST_FAILED: Outcome.KILLED}
        outcome = Outcome.NO_VERDICT if code is None else outcomes.get(code, Outcome.NO_VERDICT)
        verdict = Verdict(outcome, name, output)
        if outcome is not Outcome.SURVIVED:
            break
    return verdict


def _run(command: list[str], root: Path, seconds: float) -> tuple[int | None, str]:
    """Return how the command has ended, None if it has not in time, and the last lines of its output."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no end within {seconds:g} s"
    return done.returncode, "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])


def trial(mutant: Mutant, seconds: float) -> Verdict:
    """Break a copy of the tree and run the mutant's killer there."""
    with copy_of_tree() as root:
        mutant.write(root)
        return run(mutant.killer, root, seconds)
