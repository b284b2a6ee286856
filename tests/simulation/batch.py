"""Run one seed with the requested faults and variant."""

from __future__ import annotations

from typing import Any

from tests.simulation.faults import CLIENT, FAULTS, NETWORK, OWN, SERVER
from tests.simulation.scenario import run_seed
from tests.simulation.variants import broken

GROUPS = {
    "all": tuple(FAULTS),
    "none": (),
    "network": tuple(NETWORK),
    "server": tuple(SERVER),
    "client": tuple(CLIENT),
    "own": tuple(OWN),
}


def chosen(faults: str) -> set[str]:
    """The faults of a comma-separated list of names and groups."""
    names = {name for word in faults.split(",") for name in GROUPS.get(word, (word,))}
    if unknown := names - FAULTS.keys():
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    return names


def run(seed: int, faults: str, variant: str | None, *, keep_trace: bool = False) -> dict[str, Any]:
    """One seed's report as JSON."""
    with broken(variant):
        return run_seed(seed, chosen(faults), keep_trace=keep_trace).as_json()
