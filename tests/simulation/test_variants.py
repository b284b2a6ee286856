"""Deliberately broken variants of zkrq are found out: the checkers are not blind."""

from __future__ import annotations

from tests.simulation.command import printed
from tests.simulation.variants import VARIANTS

SEEDS = 150
"""Within so many seeds, from the variant's first one on, it is found out."""


def test_broken_variants_are_found_out() -> None:
    found = printed("--variants", f"--seeds={SEEDS}")
    assert found.keys() == VARIANTS.keys()
    blind = [name for name, seed in found.items() if seed is None]
    assert not blind, f"nothing found in {SEEDS} seeds: the checker is blind for {', '.join(blind)}"
