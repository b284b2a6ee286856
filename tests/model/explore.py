"""Many schedules, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

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
    links: bool = False,
    shards: bool = False,
    turns: bool = False,
    limited: bool = False,
    results: bool = False,
    levels: bool = False,
    ordered: bool = False,
) -> Findings:
    """Run a schedule for every seed, without the rules that are off; ``only_first`` ends it at the first violation.
    ``links``: schedules in which one client does not always reach one server; ``shards``: with a second shard;
    ``turns``: in which consumers settle and claim in one decision; ``limited``: of a queue with a limit;
    ``results``: in which they ack with a result; ``levels``: with clients of two releases; ``ordered``: of groups
    that keep the order of their pushes."""
    kind = {
        "links": links,
        "shards": shards,
        "turns": turns,
        "limited": limited,
        "results": results,
        "levels": levels,
        "ordered": ordered,
    }
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
    links: bool = False,
    shards: bool = False,
    turns: bool = False,
    limited: bool = False,
    results: bool = False,
    levels: bool = False,
    ordered: bool = False,
) -> Findings:
    """The same, by several processes."""
    kind = {
        "links": links,
        "shards": shards,
        "turns": turns,
        "limited": limited,
        "results": results,
        "levels": levels,
        "ordered": ordered,
    }
    if jobs == 1:
        return explore(seeds, off=off, faults=faults, **kind)
    findings = Findings()
    run = partial(explore, off=tuple(off), faults=faults, **kind)
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(run, [seeds[start::jobs] for start in range(jobs)]):
            findings.add(found)
    return findings
