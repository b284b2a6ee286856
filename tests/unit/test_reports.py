"""The pages of figures are made by the benchmarks, and a run of one benchmark renews its own tables only."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import report
from benchmarks.scale import __main__ as scale


def test_a_run_of_one_benchmark_keeps_the_tables_of_the_others(tmp_path: Path) -> None:
    page = tmp_path / "figures.md"
    report.publish(page, "## Latency\n\nold\n\n## Depth\n\nold\n")
    report.publish(page, "## Latency\n\nnew\n\n## Fleet\n\nnew\n")
    assert page.read_text() == report.GENERATED + "## Latency\n\nnew\n\n## Depth\n\nold\n\n## Fleet\n\nnew\n"


def test_a_run_of_one_benchmark_keeps_the_bars_of_the_others_and_their_machine(tmp_path: Path) -> None:
    page, depth = tmp_path / "figures.md", "\n## Depth\n\nold\n"
    head = "| must show | bar | measured | met |\n| --- | ---: | ---: | --- |\n"
    report.publish(
        page, f"## The machine\n\nold\n\n## Must show\n\n{head}| a | ≤ 1 | 2 | no |\n| b | ≤ 1 | 2 | no |\n{depth}"
    )
    rows = "| a | ≤ 1 | 0.5 | yes |\n| b | ≤ 1 | not measured | — |\n| c | ≤ 1 | not measured | — |\n"
    report.publish(page, f"## The machine\n\nnew\n\n## Must show\n\n{head}{rows}")
    kept = rows.replace("not measured | — |", "2 | no |", 1)
    assert page.read_text() == f"{report.GENERATED}## The machine\n\nold\n\n## Must show\n\n{head}{kept}{depth}"
    report.publish(page, f"## The machine\n\nnew\n\n## Must show\n\n{head}{rows}{depth}")
    assert page.read_text() == f"{report.GENERATED}## The machine\n\nnew\n\n## Must show\n\n{head}{rows}{depth}", "all"


@pytest.mark.parametrize(("page", "head"), [(bench.PAGE, report.GENERATED), (scale.PAGE, scale.GENERATED)])
def test_a_page_of_figures_says_what_makes_it(page: Path, head: str) -> None:
    assert page.read_text().startswith(head)
