"""A plugin of pytest: the processor time of each test and of each file, that of its child processes included.

``pytest -p tests.costs -n 4`` prints the dearest ones and writes all into ``build/costs.tsv``.  Unlike the time by the
clock, it hardly depends on what else the machine does, so it decides which suite a test is in (``tests.suites``).
Servers that a whole run shares count where they work; that of processes which still run is known on Linux alone.
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

SHARED = "(collection, and the end of a process)"
"""What no test costs alone: a process's imports, and what it does after its last test."""

TICKS = os.sysconf("SC_CLK_TCK")
"""In a second of ``/proc``."""


def used_by(process: str) -> float:
    """Return the processor time of a process, and of all below it, waited for or not."""
    try:
        # Behind the name, which may hold anything: user and system time, and those of children that were waited for.
        ticks = sum(map(int, Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:15]))
        children = [child for task in Path(f"/proc/{process}/task").iterdir() for child in _children(task)]
    except OSError:  # it ended meanwhile, or there is no /proc
        return 0.0
    return ticks / TICKS + sum(map(used_by, children))


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # the thread ended meanwhile
        return []


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
        used = max(self._used, used_by("self") or sum(os.times()[:4]))
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
