"""Every next step that the product names is carried out by a test, or `steps.txt` has the reason why not."""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

from tests.advice import scan, table
from tests.advice.registry import LED_OUT
from tests.snippets import ROOT
from zkrq.cli.command import CONNECTION
from zkrq.cli.running import COMMANDS

HERE = Path(__file__).parent

for path in sorted(HERE.glob("test_*.py")):
    if path != Path(__file__):
        import_module(f"tests.advice.{path.stem}")

ROWS = {**LED_OUT, **table.ELSEWHERE, **table.NOT_HERE, **table.NO_STEP}

EXTRA = re.compile(r"zkrq\[(\w+|\{\})\]")
"""A package to install, which is the whole step."""


@functools.cache
def found() -> list[scan.Step]:
    """Scan the product, once; not where this module is imported, which every worker of a test run does."""
    return [*scan.steps_of_source(), *scan.steps_of_pages()]


def steps() -> list[scan.Step]:
    """Return what is found, without packages to install."""
    return [step for step in found() if not EXTRA.search(step.text)]


def row_of(step: scan.Step) -> table.Row | None:
    fitting = (row for row in ROWS if row[0] == step.file and row[1] in step.text)
    return max(fitting, key=lambda row: len(row[1]), default=None)


def test_every_step_has_a_row() -> None:
    without = [f"{step.file}:{step.line}: {step.text}" for step in steps() if row_of(step) is None]
    assert not without, "a new next step: carry it out in tests/advice, or say in its steps.txt where or why not"


def test_every_row_is_about_one_step() -> None:
    rows = [row for step in steps() if (row := row_of(step))]
    assert sorted(rows) == sorted(ROWS), "a row without a step, or one for several"
    kinds = (LED_OUT, table.ELSEWHERE, table.NOT_HERE, table.NO_STEP)
    assert sum(map(len, kinds)) == len(ROWS), "a step in two tables"


def test_the_tests_exist_that_are_referred_to() -> None:
    for place in {*table.ELSEWHERE.values()}:
        file, _, name = place.partition("::")
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), place


def test_what_is_to_be_installed_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for step in found() for extra in EXTRA.findall(step.text)} - {"{}"}
    assert named <= extras.keys()
    assert len(named) > 5


def parsed(line: str) -> bool:
    """Whether a line is one that `zkrq` takes, or the beginning of one: a name of commands, or one without its rest."""
    words = shlex.split(line.replace("...", "").replace("[", "").replace("]", ""), comments=True)[1:]
    words = words[: next((at for at, word in enumerate(words) if word in ("|", "&") or word[0] in "<>"), len(words))]
    for command in sorted(COMMANDS, key=lambda each: -len(each.name)):
        name = command.name.split()
        if words[: len(name)] == name or name[: len(words)] == words:
            break
    else:
        return False
    flags = {f"--{flag.name}" for flag in (*command.flags, *CONNECTION)} | {"--json", "--help"}
    return {word.partition("=")[0] for word in words if word.startswith("--")} <= flags


def test_every_command_that_is_named_is_one() -> None:
    """Also on pages that advise nothing."""
    wrong = [f"{step.file}:{step.line}: {step.text}" for step in scan.commands() if not parsed(step.text)]
    assert not wrong
