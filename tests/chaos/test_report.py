"""Reports of runs made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.checker import check
from tests.chaos.record import Entry, Kind
from tests.chaos.report import COLUMNS, CannotDraw, complaints, draw, table
from tests.chaos.run import Run

ENTRIES = [
    Entry(0.0, "a", Kind.PUSHING, "x"),
    Entry(0.1, "a", Kind.PUSHED, "x"),
    Entry(0.2, "controller", Kind.FAULT_BEGUN, detail="redis-flushed redis-1"),
    Entry(0.3, "controller", Kind.FAULT_ENDED, detail="redis-flushed redis-1"),
    Entry(1.1, "a", Kind.PUSHING, "y"),
    Entry(1.6, "a", Kind.PUSHED, "y"),
]


def made(troubles: tuple[str, ...] = (), fault: str = "redis-flushed", entries: list[Entry] = ENTRIES) -> Run:
    return Run(fault, 2, "7", 1, check(entries, {"y": "claimed"}, notice=1), troubles, entries)


def test_runs_of_one_kind_share_a_line() -> None:
    head, _, both, other = table([made(), made(), made(fault="mixed")]).splitlines()
    assert head == f"| {' | '.join(COLUMNS)} |"
    assert both == "| redis-flushed | 2 | 2 | 2 | 4 | 0 | 2 | 0 | 0 | 0 | 0 | 0 | 2 | 0 | 0 | 0 | 1.50 s, 1.60 s |"
    assert other.startswith("| mixed | 2 | 1 | 1 | 2 |")


def test_what_went_wrong_is_said_with_the_seed() -> None:
    said = complaints(made(("client-1 ended with code 1",)))
    begin = "redis-flushed, min_replicas=2, seed 7: "
    assert said == [begin + "client-1 ended with code 1", begin + "lost: x", begin + "stranded: y: claimed"]


def test_nothing_is_said_of_a_run_in_which_nothing_went_wrong() -> None:
    assert complaints(Run("mixed", 1, "7", 1, check([], {}, notice=1), (), [])) == []


def test_without_the_library_that_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(CannotDraw, match="pip install matplotlib"):
        draw([made()], tmp_path / "chaos.png")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([made(), made(fault="mixed"), made(entries=[])], tmp_path / "chaos.png")
    assert (tmp_path / "chaos.png").read_bytes().startswith(b"\x89PNG")
