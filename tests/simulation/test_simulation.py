"""Seeded schedules of the real code: whatever fails, every promise is kept.

The seeds run in processes of their own, since an exact replay needs hashes that are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.history import NO_HISTORY, has_history
from tests.simulation.command import simulate

SEEDS = (10, 21, 31, 35, 51, 58, 61, 192, 193, 211, 219, 228, 229, 283, 286, 296)
"""Cheap ones that do each of ``FIRED`` and ``DONE``; ``make simulate`` runs thousands."""

MORE_SEEDS = (12, 28, 30, 111, 116, 148, 161, 183, 185, 210, 214, 233)
"""They do most of it once more."""

FIRED = {
    "add server",
    "break, executed later",
    "break, reply lost",
    "break, request lost",
    "cancel",
    "client's clock set",
    "cut",
    "cut for good",
    "cut from the ensemble",
    "deaf to the ensemble",
    "drop",
    "ensemble slow",
    "executed after a stop",
    "flush",
    "full",
    "nameless",
    "pause",
    "recover",
    "remove server",
    "reopen",
    "replica",
    "reply of the hub lost",
    "reply to a compare-and-set lost",
    "request held back",
    "request late after a cut",
    "restart empty",
    "restart of all",
    "restart with its data",
    "restart with old data",
    "right taken away",
    "server's clock set",
    "session expired",
    "silent",
    "slow",
    "stale registry",
    "stale view",
    "stop",
    "wrong password",
}
"""What has to have happened in the course of all seeds."""

DONE = {
    "ack_many done",
    "cancel: not found",
    "cancel: removed",
    "cancel: signalled",
    "claim requests while paused",
    "clear done",
    "days",
    "delete done",
    "consumers done",
    "continuations",
    "dead letters in the end",
    "discard done",
    "duplicate keys",
    "flows told done",
    "holders told of a cancel at once",
    "ids used again",
    "inner flows",
    "items of several pushed again",
    "members pushed again",
    "members that waited",
    "members that were added by members",
    "orders compared",
    "pauses in force",
    "queue full",
    "recurring items",
    "redrive done",
    "results of flows read",
    "statistics done",
    "steps of members",
    "store done",
    "get stored done",
}
"""What clients have to have done or seen."""


def complain(reports: list[dict[str, Any]], *options: str) -> str:
    """The failing seeds, as they are to be run again."""
    return "\n".join(
        f"{' '.join(('python -m tests.simulation', *options))} --trace {report['seed']}: {report['violations'][:3]}"
        for report in reports
        if report["violations"]
    )


def corpus() -> dict[str, list[str]]:
    """Seeds that have found something once, by the faults that they are run with."""
    seeds: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "corpus.txt").read_text().splitlines():
        if not line.startswith("#"):
            seed, faults, _ = line.split(maxsplit=2)
            seeds.setdefault(faults, []).append(seed)
    return seeds


@pytest.fixture(scope="module")
def reports() -> list[dict[str, Any]]:
    return simulate(_only(SEEDS), "--jobs=1")


def _only(seeds: Sequence[object]) -> str:
    return f"--only={','.join(map(str, seeds))}"


def test_what_was_promised_is_kept(reports: list[dict[str, Any]]) -> None:
    assert len(reports) == len(SEEDS)
    assert not (found := complain(reports)), found
    fired = {kind for report in reports for kind in report["faults"]}
    assert fired >= FIRED, f"never happened: {FIRED - fired}"
    done = {kind for report in reports for kind in report["counts"]}
    assert done >= DONE, f"never done: {DONE - done}"


def test_what_was_promised_is_kept_in_more_seeds() -> None:
    reports = simulate(_only(MORE_SEEDS), "--jobs=1")
    assert len(reports) == len(MORE_SEEDS)
    assert not (found := complain(reports)), found


@pytest.mark.chaos
@pytest.mark.parametrize(("faults", "seeds"), corpus().items())
def test_what_was_found_once(faults: str, seeds: list[str]) -> None:
    kinds, _, more = faults.partition("+")
    if more == "versions" and not has_history():
        pytest.skip(NO_HISTORY)
    reports = simulate(_only(seeds), "--jobs=1", f"--faults={kinds}", *([f"--{more}"] if more else []))
    assert len(reports) == len(seeds)
    assert not (found := complain(reports)), found


def test_a_seed_is_repeated_exactly(reports: list[dict[str, Any]]) -> None:
    """Also when other seeds have run before it in the same process."""
    assert simulate(_only(SEEDS[-1:]), "--jobs=1") == reports[-1:]


SHARDED = (22, 36)
"""In these a shard is added, is away, is drained and is removed."""


def test_a_shard_comes_and_goes_and_is_away() -> None:
    reports = simulate(_only(SHARDED), "--jobs=1", "--shards", "--faults=shards")
    assert len(reports) == len(SHARDED)
    assert not (found := complain(reports)), found
    assert {kind for report in reports for kind in report["faults"]} >= {"primary restarted", "shard away"}
    done = {kind for report in reports for kind, count in report["counts"].items() if count}
    assert done >= {"add shard done", "drain shard done", "remove shard done"}


MAPS = (2, 5, 16)
"""In these nothing but the map of the shards changes.  In 16 it does while a push is on its way that the primary has
decided and the others have not."""


def test_only_the_map_of_the_shards_changes_and_no_push_fails() -> None:
    reports = simulate(_only(MAPS), "--jobs=1", "--shards", "--faults=remap")
    assert len(reports) == len(MAPS)
    assert not (found := complain(reports)), found
    done = {kind for report in reports for kind, count in report["counts"].items() if count}
    assert done >= {"set limits done", "add shard done", "drain shard done"}


VERSIONS = (9, 18, 21)
"""In these clients of the release before and of this one take turns; the level is raised, or never is."""

MORE_VERSIONS = (3, 8, 12)


@pytest.mark.skipif(not has_history(), reason=NO_HISTORY)
def test_two_releases_share_a_namespace() -> None:
    """The release before runs as it was: nothing that either writes is lost or revived for the other."""
    reports = simulate(_only(VERSIONS), "--jobs=1", "--versions")
    assert len(reports) == len(VERSIONS)
    assert not (found := complain(reports, "--versions")), found
    done = {kind for report in reports for kind, count in report["counts"].items() if count}
    assert done >= {"pushed by the release before", "pushed into a group", "refused for the level: push_many"}
    upgrades = [report["counts"].get("upgrade done", 0) for report in reports]
    assert {0, 1} <= set(upgrades)
    assert all(report["faults"]["roll"] for report in reports)


@pytest.mark.skipif(not has_history(), reason=NO_HISTORY)
def test_two_releases_share_a_namespace_in_more_seeds() -> None:
    reports = simulate(_only(MORE_VERSIONS), "--jobs=1", "--versions")
    assert len(reports) == len(MORE_VERSIONS)
    assert not (found := complain(reports, "--versions")), found
    assert all(report["faults"]["roll"] for report in reports)


@pytest.mark.chaos
@pytest.mark.skipif(not has_history(), reason=NO_HISTORY)
def test_two_releases_share_a_namespace_over_many_seeds() -> None:
    reports = simulate("--seeds=100", "--jobs=1", "--versions")
    assert not (found := complain(reports, "--versions")), found


ALONE = {"hang": (2,), "closed": (2,), "drag": (1,), "leap": (1,), "away": (3,)}
"""Seeds with one kind of fault, of which it is known exactly what may come."""

MORE_ALONE = {"hang": (12,), "closed": (6,), "leap": (2, 3)}


@pytest.mark.parametrize(("fault", "seeds"), ALONE.items())
def test_what_is_nobodys_end(fault: str, seeds: Sequence[int]) -> None:
    """A server that hangs fails no call, nor does one whose clock is wrong; one that lets nobody in halts nobody; a
    slow event loop evicts no server; no moment is lost in silence while everything is away."""
    expect_nothing_of(fault, seeds)


@pytest.mark.parametrize(("fault", "seeds"), MORE_ALONE.items())
def test_what_is_nobodys_end_in_more_seeds(fault: str, seeds: Sequence[int]) -> None:
    expect_nothing_of(fault, seeds)


def expect_nothing_of(fault: str, seeds: Sequence[int]) -> None:
    """Every promise is kept, though the fault came in each seed."""
    reports = simulate(_only(seeds), "--jobs=1", f"--faults={fault}")
    assert len(reports) == len(seeds)
    assert not (found := complain(reports)), found
    assert all(report["faults"].get(fault) for report in reports)
