"""Many schedules, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Unpack

from tests.model.promises import Broken, Promise
from tests.model.rules import ALL_RULES, Rule
from tests.model.schedule import FAULTS, Kind, Schedule


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

    def add(self, others: Findings) -> None:
        """Take those of other schedules in."""
        self.schedules += others.schedules
        self.violations.update(others.violations)
        self.counts.update(others.counts)
        for promise, seed in others.first.items():
            self.first[promise] = min(seed, self.first.get(promise, seed))


def explore(
    seeds: Iterable[int],
    *,
    off: Collection[Rule] = (),
    faults: int = FAULTS,
    only_first: bool = False,
    **kind: Unpack[Kind],
) -> Findings:
    """Run a schedule for every seed, without the rules that are off; ``only_first`` ends it at the first violation.
    ``kind``: as of ``Schedule``."""
    findings = Findings()
    on = ALL_RULES - frozenset(off)
    for seed in seeds:
        schedule = Schedule(seed, on, faults, **kind)
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


def explore_together(
    seeds: range,
    *,
    jobs: int,
    off: Collection[Rule] = (),
    faults: int = FAULTS,
    **kind: Unpack[Kind],
) -> Findings:
    """The same, by several processes."""
    if jobs == 1:
        return explore(seeds, off=off, faults=faults, **kind)
    findings = Findings()
    run = partial(explore, off=tuple(off), faults=faults, **kind)
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(run, [seeds[start::jobs] for start in range(jobs)]):
            findings.add(found)
    return findings
