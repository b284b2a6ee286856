"""Counts of the children of a pool, and what they use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zkrq.pool import counts
from zkrq.pool.counts import PoolStatistics, Shown, Tally, Used, used_by
from zkrq.pool.states import ChildState

on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this system")


@on_linux
def test_a_process_uses_time_and_memory() -> None:
    mine = used_by(os.getpid())
    assert 0 < mine.seconds <= sum(os.times()[:4]) + 0.1
    assert mine.memory > 1_000_000
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert used_by(ended.pid) == Used(0.0, 0)


def test_processor_time_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child is gone before its end has been reported."""
    used = {7: Used(2.0, 100), 8: Used(1.0, 50)}
    monkeypatch.setattr(counts, "used_by", lambda process: used.get(process, Used(0.0, 0)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    tally, children = Tally(), [(ChildState.WORKING, 7), (ChildState.IDLE, 8), (ChildState.STARTING, 0)]
    first = tally.statistics(children)
    assert (first.working, first.idle, first.starting, first.stopping) == (1, 1, 1, 0)
    assert (first.cpu_seconds, first.memory) == (3.0, 150)
    del used[7]
    assert (tally.statistics(children).cpu_seconds, tally.statistics(children).memory) == (3.0, 50)
    tally.spend(2.5)
    tally.die("SIGSEGV")
    after = tally.statistics(children[1:])
    assert (after.cpu_seconds, after.died, after.died_by) == (3.5, 1, {"SIGKILL": 0, "SIGSEGV": 1})


def test_pools_of_one_cluster_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        PoolStatistics(idle=1, died=1, died_by={"SIGKILL": 1}, memory=5),
        PoolStatistics(idle=2, started=3, died=2, died_by={"SIGKILL": 0, "exit code 1": 2}),
    ]
    shown = [Shown(frozenset({"a", each}), lambda n=n: told[n]) for n, each in enumerate(("b", "c"))]
    monkeypatch.setattr(counts, "running", shown)
    assert counts.of_cluster("c") == told[1]
    assert counts.of_cluster("none") is None
    both = counts.of_cluster("a")
    assert both == PoolStatistics(idle=3, started=3, died=3, died_by={"SIGKILL": 1, "exit code 1": 2}, memory=5)
