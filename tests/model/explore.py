"""Many schedules, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tests.model.promises import Broken, Promise
from tests.model.rules import ALL_RULES, Rule
from tests.model.schedule import FAULTS, Schedule


@dataclass
class Findings:
    """Violations by promise, the first seed of each, and how often everything happened that could."""

    schedules: int = 0
    violations: Counter[Promise] = field(default_factory=Counter[Promise])
    first: dict[Promise, int] = field(default_factory=dict[Promise, int])
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def broken(self) -> int:
        return self.violations.total()


def explore(
    seeds: Iterable[int],
    *,
    off: Collection[Rule] = (),
    faults: int = FAULTS,
    only_first: bool = False,
    links: bool = False,
) -> Findings:
    """Run a schedule for every seed, without the rules that are off; ``only_first`` ends it at the first violation.
    ``links``: schedules in which one client does not always reach one server."""
    findings = Findings()
    on = ALL_RULES - frozenset(off)
    for seed in seeds:
        schedule = Schedule(seed, on, faults, links=links)
        findings.schedules += 1
        try:
            schedule.run()
        except Broken as broken:
            findings.violations[broken.promise] += 1
            findings.first.setdefault(broken.promise, seed)
            if only_first:
                break
        finally:
            findings.counts.update(schedule.counts)
    return findings
