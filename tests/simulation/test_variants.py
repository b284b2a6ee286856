"""Deliberately broken variants of zkrq are found out: the checkers are not blind."""

from __future__ import annotations

import pytest

from tests.simulation.command import simulate
from tests.simulation.variants import VARIANTS

SEEDS = 150
"""Within so many seeds, from the variant's first one on, it is found out."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_variant_is_found_out(variant: str) -> None:
    _, faults, first = VARIANTS[variant]
    options = ("--jobs=1", "--stop", f"--variant={variant}", f"--faults={faults}", f"--first={first}")
    reports = simulate(f"--seeds={SEEDS}", *options)
    assert reports[-1]["violations"], f"nothing found in {SEEDS} seeds: the checker is blind for this"
