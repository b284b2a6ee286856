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


@pytest.mark.parametrize(("page", "head"), [(bench.PAGE, report.GENERATED), (scale.PAGE, scale.GENERATED)])
def test_a_page_of_figures_says_what_makes_it(page: Path, head: str) -> None:
    assert page.read_text().startswith(head)
