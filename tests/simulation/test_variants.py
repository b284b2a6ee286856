"""Deliberately broken variants of zkrq are found out: the checkers are not blind."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.history import has_history
from tests.simulation.command import printed
from tests.simulation.variants import VARIANTS, broken
from zkrq.protocol.levels import SPOKEN, Feature

SEEDS = 150
"""Within so many seeds, from the variant's first one on, it is found out."""

QUICK = (
    "settling_asks_for_no_token",
    "generation_is_not_compared",
    "view_is_written_without_comparing",
    "a_push_is_done_on_one_server",
    "a_limit_is_not_asked_for",
    "what_has_expired_is_handed_out",
    "settling_takes_neighbours_along",
    "a_level_keeps_the_epoch",
    "a_contradiction_fails_calls",
    "who_lets_nobody_in_stays",
    "who_has_no_room_stays",
    "who_has_no_room_is_evicted",
    "who_is_turned_away_is_a_witness",
    "turns_of_connecting_are_silence",
)
"""Found out within about a second each."""


def test_every_variant_breaks_what_is_there() -> None:
    """Finding most of them out takes minutes and is left to long runs; a line that was rewritten is told at once."""
    for name in VARIANTS:
        with broken(name):
            pass


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(
            [name for name in VARIANTS if name not in QUICK and not VARIANTS[name].by_model],
            id="others",
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_broken_variants_are_found_out(names: Collection[str]) -> None:
    # What a level gates shows only where something needs the latest one.
    are_two = has_history() and any(feature.level == SPOKEN.highest for feature in Feature)
    names = [name for name in names if are_two or not VARIANTS[name].versions]
    found = printed("--variants", ",".join(names), f"--seeds={SEEDS}")
    assert found.keys() == set(names)
    blind = [name for name, seed in found.items() if seed is None]
    assert not blind, f"nothing found in {SEEDS} seeds: the checker is blind for {', '.join(blind)}"
