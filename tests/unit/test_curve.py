"""The curve of latencies: parts of what a system reaches, one line for what is not installed, one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import bars, brokers, curve, environments, fleet, places, plots
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet


class Crew:
    """The programs of a system that handles no more than this many items a second."""

    def __init__(self, most: float, title: str = fleet.ZKRQ) -> None:
        self.system = next(system for system in fleet.SYSTEMS if system.title == title)
        self.settings = "none"
        self.span = 0.0
        self.paces: list[float] = []
        self._most = most

    async def round(self, items: int, pace: float) -> tuple[Sequence[float], Sequence[float], tuple[float, float]]:
        self.paces.append(pace)
        self.span = items / min(pace, self._most)
        return [0.001] * items, [0.002] * items, (0.0, 0.0)


def test_it_has_every_part() -> None:
    assert Plan().rows(curve.PARTS, (10,)) == (5, 10, 25, 50, 75, 90)


@pytest.mark.anyio
async def test_a_system_reaches_what_it_handles_when_it_falls_behind() -> None:
    crew = Crew(3_000)
    assert await curve.reach(cast("Any", crew)) == pytest.approx(3_000)
    assert crew.paces == [500, 1_000, 2_000, 4_000]


@pytest.mark.anyio
async def test_the_search_ends_with_a_system_that_does_not_fall_behind() -> None:
    crew = Crew(1e9)
    assert await curve.reach(cast("Any", crew)) == pytest.approx(curve.PACE_MOST)


@pytest.mark.anyio
async def test_what_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def prepare(folder: Path, sheet: Sheet) -> dict[str, Path]:
        return {"main": folder}

    def opened(kind: str) -> Any:
        raise brokers.BrokerFailed(f"{kind} is not installed")

    monkeypatch.setattr(environments, "prepare", prepare)
    monkeypatch.setattr(places, "opened", opened)
    sheet = Sheet()
    await curve.run(Plan(quick=True), sheet, tmp_path)
    kinds = {fleet.ZKRQ: "zkrq", fleet.SAQ: "redis", fleet.NATS: "nats"}
    assert sheet.remarks == [f"curve: {title}: not measured: {kind} is not installed" for title, kind in kinds.items()]


async def measured() -> Sheet:
    sheet = Sheet()
    for title in (fleet.ZKRQ, fleet.SAQ):
        for load, pace in (("10 %", 100.0), (curve.FIXED, 1_000.0)):
            await curve.paced(sheet, cast("Any", Crew(1e9, title)), load, pace, 0.1)
    return sheet


@pytest.mark.anyio
async def test_bars_compare_the_pace_that_is_the_same_for_all() -> None:
    found = [bar for bar in bars.bars(await measured()) if curve.FIXED in bar.what]
    assert [bar.measured for bar in found] == [(1.0,), (1.0,)]
    assert all(bar.met for bar in found)


@pytest.mark.anyio
async def test_the_picture_has_a_line_for_each_system(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = plots.draw(await measured(), "a machine", tmp_path)
    text = files["curve"].read_text()
    assert all(word in text for word in ("push", "to handler", fleet.ZKRQ, fleet.SAQ))
