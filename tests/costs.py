"""A plugin of pytest: the processor time of each test and of each file, child processes that were waited for included.

``pytest -p tests.costs -n 4`` prints the dearest ones and writes all into ``build/costs.tsv``.  Unlike the time by the
clock, it hardly depends on what else the machine does, so it decides which suite a test is in (``tests.suites``).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

ALL = Path(__file__).parents[1] / "build" / "costs.tsv"
"""Seconds and id of each test, the dearest first."""

DEAREST = 40
"""Files, and tests, that are printed."""

SHARED = "(collection, and the servers of a whole process)"
"""What no test costs alone: a process's imports, and what it stops after its last test."""


class Costs:
    """Seconds of processor time.  A process of xdist adds them to its reports, and the main process collects them."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self._used = 0.0
        self._last = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        self._last = nextitem is None
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what was used since the report before: the time between two tests is the second one's."""
        report = yield
        used = sum(os.times()[:4])
        # The first report of a process has the time of its collection, the last one that of the servers it stops.
        shared = not self._used or (self._last and report.when == "teardown")
        vars(report).update(seconds=used - self._used, shared=shared)  # xdist passes further attributes on
        self._used = used
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[SHARED if report.shared else report.nodeid] += report.seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        ALL.parent.mkdir(exist_ok=True)
        ALL.write_text("".join(f"{seconds:.3f}\t{test}\n" for test, seconds in self.tests.most_common()))
        terminalreporter.section(f"processor time: {self.tests.total():.0f} s in all")
        for dearest in files, self.tests:
            for name, seconds in dearest.most_common(DEAREST):
                terminalreporter.write_line(f"{seconds:8.2f} s  {name}")
            terminalreporter.write_line("")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(), "zkrq costs")
