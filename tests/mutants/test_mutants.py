"""The quick mutants are found, and every mutant still names a line; ``make mutants`` runs all of them."""

from __future__ import annotations

import pytest

from tests.every import every
from tests.mutants.table import MUTANTS
from tests.mutants.trial import ROOT, Mutant, Outcome, Suite, copy_of_tree, trial

SECONDS = 120.0
"""For one killer, on a machine that does much else."""

_names = [mutant.name for mutant in MUTANTS]


@every("mutant", MUTANTS)
def test_a_mutant_names_one_line(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}"
    assert mutant.new != mutant.old
    if isinstance(mutant.killer, Suite):
        files = [word.partition("::")[0] for word in mutant.killer.selection if word.startswith("tests/")]
        assert files
        assert all((ROOT / file).exists() for file in files)


@every("mutant", MUTANTS)
def test_a_killer_is_in_a_suite_that_everybody_runs(mutant: Mutant) -> None:
    """What ``make check`` alone notices is noticed too late."""
    assert mutant.killer.runs, f"nothing of {mutant.killer} is in quick or test: see tests/suites.py"


def test_names_are_unique() -> None:
    assert len(set(_names)) == len(_names)


def test_a_line_that_is_gone_is_an_error() -> None:
    mutant = Mutant("none", "zkrq/base/errors.py", "no such line", "", "", Suite("tests/unit"))
    with copy_of_tree() as root, pytest.raises(LookupError, match="stands 0 times"):
        mutant.write(root)


@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.quick], ids=lambda mutant: mutant.name)
def test_a_quick_mutant_is_killed(mutant: Mutant) -> None:
    verdict = trial(mutant, SECONDS)
    assert verdict.outcome is Outcome.KILLED, verdict.output
