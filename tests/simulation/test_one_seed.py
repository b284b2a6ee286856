"""One seed of ``test_simulation.py``, for a run that has no time for more."""

from __future__ import annotations

from tests.simulation.command import simulate

SEED = 10


def test_a_seed_keeps_every_promise() -> None:
    (report,) = simulate(f"--only={SEED}", "--jobs=1")
    assert report["violations"] == []
    assert report["faults"]
