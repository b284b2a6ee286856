"""Run one seed with the requested faults and variant."""

from __future__ import annotations

from typing import Any

from tests.simulation.code import load_before
from tests.simulation.faults import ALONE, AWAY, CLIENT, FAULTS, LEAP, MAPS, NETWORK, OWN, SERVER, SHARDS
from tests.simulation.scenario import run_seed
from tests.simulation.variants import broken

GROUPS = {
    "all": (*FAULTS, *ALONE, *LEAP, *AWAY),
    "none": (),
    "network": tuple(NETWORK),
    "server": tuple(SERVER),
    "client": tuple(CLIENT),
    "own": tuple(OWN),
    "shards": tuple(SHARDS),
}


def chosen(faults: str) -> set[str]:
    """The faults of a comma-separated list of names and groups."""
    names = {name for word in faults.split(",") for name in GROUPS.get(word, (word,))}
    known = (*FAULTS, *ALONE, *LEAP, *AWAY, *SHARDS, *MAPS)
    if unknown := names.difference(known):
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def run(
    seed: int,
    faults: str,
    variant: str | None,
    *,
    sharded: bool = False,
    versions: bool = False,
    keep_trace: bool = False,
) -> dict[str, Any]:
    """One seed's report as JSON."""
    before = load_before() if versions else None
    with broken(variant):
        enabled = chosen(faults) | ({*SHARDS, *MAPS} if sharded and faults == "all" else set[str]())
        return run_seed(seed, enabled, sharded=sharded, before=before, keep_trace=keep_trace).as_json()
