"""The findings of a run: violations, and counts of operations."""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from tests.simulation.loop import Loop
from tests.simulation.trace import Trace
from zkrq import Claim


class Findings:
    """One for a run, shared by the ledgers of its queues."""

    def __init__(self, loop: Loop, trace: Trace) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.calm = True
        """Nothing has gone wrong so far: then reading is exact as well."""
        self.leapt = 0.0
        """Seconds by which clocks of servers were wrong by far, all together."""
        self.away = False
        """Whether everything was away for minutes: longer than results are kept."""
        self.clocks_set = False
        """Whether the clock of some server was set."""
        self.unnoticed = 0.0
        """Seconds by which clocks of servers were set forward in steps that are too small to be noticed."""
        self.told_at: WeakKeyDictionary[Claim[Any], float] = WeakKeyDictionary()
        """When Redis last told a client that a claim holds."""
        self._loop = loop
        self._trace = trace

    def violation(self, text: str) -> None:
        self.violations.append(f"at {self._loop.now:.3f} s: {text}")
        self._trace.note(f"VIOLATION {text}")
