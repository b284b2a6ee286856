"""Explore schedules, or replay one.

python -m tests.model --schedules 10000                            every rule in force
python -m tests.model --schedules 10000 --off tombstone-stays      one rule off
python -m tests.model --ablate --schedules 2000                    each rule off in turn
python -m tests.model --schedules 10000 --links                    one client does not always reach one server
python -m tests.model --schedules 10000 --clocks                   the clock of one server is wrong now and then
python -m tests.model --schedules 10000 --shards                   a second shard comes and goes
python -m tests.model --schedules 10000 --turns                    consumers settle and claim in one decision
python -m tests.model --schedules 10000 --levels                   clients of two releases, and the level is raised
python -m tests.model --schedules 10000 --results                  consumers ack with a result, for which callers ask
python -m tests.model --schedules 10000 --saves                    consumers save what they have done
python -m tests.model --schedules 10000 --limits                   the queue has a limit of items claimed at once
python -m tests.model --schedules 10000 --homing                   items of two shards come home for a limit or an order
python -m tests.model --schedules 10000 --flows                    some items are members of a flow
python -m tests.model --schedules 10000 --legs                     the same, in two queues
python -m tests.model --schedules 10000 --nested                   some are members of a flow that is a member of it
python -m tests.model --schedules 10000 --names                    some of them wait for others
python -m tests.model --trace 31 --off decided-again               what happened in one schedule
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Collection, Mapping

from tests.model.explore import Findings, explore_together
from tests.model.kinds import (
    CLOCK_RULES,
    FLOW_RULES,
    HOMING_RULES,
    LEG_RULES,
    LEVEL_RULES,
    LIMIT_RULES,
    NAME_RULES,
    NESTED_RULES,
    ORDER_RULES,
    RESULT_RULES,
    SAVE_RULES,
    SETTINGS_RULES,
    SHARD_RULES,
    TURN_RULES,
)
from tests.model.promises import Broken, Promise
from tests.model.rules import ALL_RULES, Rule
from tests.model.schedule import FAULTS, Schedule
from tests.model.trace import narrate

RULES = {rule.label: rule for rule in Rule}


def rules(text: str) -> list[Rule]:
    unknown = [label for label in text.split(",") if label not in RULES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such rule: {', '.join(unknown)}; there are {', '.join(RULES)}")
    return [RULES[label] for label in text.split(",")]


def main() -> int:
    logging.getLogger("zkrq").addHandler(logging.NullHandler())
    parser = argparse.ArgumentParser(
        prog="python -m tests.model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=1000, metavar="N", help="how many seeds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first of them (default: 0)")
    parser.add_argument("--off", type=rules, default=[], metavar="RULE,RULE", help="rules to do without")
    parser.add_argument("--ablate", action="store_true", help="do without each rule in turn")
    parser.add_argument(
        "--faults",
        type=int,
        default=FAULTS,
        metavar="K",
        help=f"faults of servers and clients in a schedule (default: {FAULTS})",
    )
    parser.add_argument("--links", action="store_true", help="one client does not always reach one server")
    parser.add_argument("--clocks", action="store_true", help="the clock of one server is wrong now and then")
    parser.add_argument("--shards", action="store_true", help="a second shard comes and goes")
    parser.add_argument("--turns", action="store_true", help="consumers settle and claim in one decision")
    parser.add_argument("--levels", action="store_true", help="clients are of two releases, and the level is raised")
    parser.add_argument("--results", action="store_true", help="consumers ack with a result, for which callers ask")
    parser.add_argument("--saves", action="store_true", help="consumers save what they have done")
    parser.add_argument("--limits", action="store_true", help="the queue has a limit of items claimed at once")
    parser.add_argument("--ordered", action="store_true", help="groups keep the order of their pushes")
    parser.add_argument("--settings", action="store_true", help="they do once it is declared; producers do not know it")
    parser.add_argument("--homing", action="store_true", help="items of two shards come home for a limit or an order")
    parser.add_argument("--flows", action="store_true", help="some items are members of a flow, which another follows")
    parser.add_argument("--legs", action="store_true", help="the same, in two queues on servers of their own")
    parser.add_argument("--nested", action="store_true", help="a flow is a member of another one")
    parser.add_argument("--names", action="store_true", help="some members wait for others")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help=f"processes (default: {cores})")
    parser.add_argument("--trace", type=int, metavar="SEED", help="replay this schedule and tell what happened")
    given = parser.parse_args()
    kind = {"links": given.links, "clocks": given.clocks, "shards": given.shards, "turns": given.turns}
    kind |= {"limited": given.limits, "results": given.results, "levels": given.levels}
    kind |= {"saves": given.saves, "ordered": given.ordered, "settings": given.settings, "homing": given.homing}
    kind |= {"flows": given.flows, "legs": given.legs, "nested": given.nested, "names": given.names}
    if given.trace is not None:
        return replay(given.trace, given.off, given.faults, kind)
    seeds = range(given.first, given.first + given.schedules)
    if given.ablate:
        return ablate(seeds, given.off, given.faults, given.jobs, kind)
    began = time.perf_counter()
    findings = explore_together(seeds, jobs=given.jobs, off=given.off, faults=given.faults, **kind)
    took = time.perf_counter() - began
    without = ", ".join(rule.label for rule in given.off)
    print(f"{findings.schedules:,} schedules, {'without ' + without if without else 'all rules'}, {took:.0f} s")
    print_violations(findings)
    print_counts(findings)
    return 1 if findings.broken else 0


def replay(seed: int, off: Collection[Rule], faults: int, kind: Mapping[str, bool]) -> int:
    schedule = Schedule(seed, ALL_RULES - frozenset(off), faults, **kind)
    try:
        schedule.run()
    except Broken as broken:
        verdict = f"broken promise: {broken}"
    else:
        verdict = "no promise was broken"
    for event in schedule.trace:
        print(narrate(event))
    print(verdict)
    return 0


def ablate(seeds: range, off: Collection[Rule], faults: int, jobs: int, kind: Mapping[str, bool]) -> int:
    print(f"{'without':36}{'':4}" + "".join(f"{promise.value:>31}" for promise in Promise) + f"{'orphans':>10}")
    special = {"turns": TURN_RULES, "limited": LIMIT_RULES, "results": RESULT_RULES, "levels": LEVEL_RULES}
    special |= {
        "saves": SAVE_RULES,
        "ordered": ORDER_RULES,
        "clocks": CLOCK_RULES,
        "settings": SETTINGS_RULES,
        "homing": HOMING_RULES,
        "flows": FLOW_RULES,
        "legs": LEG_RULES,
        "nested": NESTED_RULES,
        "names": NAME_RULES,
    }
    left_out = {*SHARD_RULES, *(rule for name, rules in special.items() if not kind[name] for rule in rules)}
    own = {
        "shards": SHARD_RULES,
        "homing": HOMING_RULES,
        "flows": FLOW_RULES,
        "legs": LEG_RULES,
        "nested": NESTED_RULES,
        "names": NAME_RULES,
    }
    only = [rule for name, rules in own.items() if kind[name] for rule in rules]
    for rule in only or [rule for rule in Rule if rule not in left_out]:
        findings = explore_together(seeds, jobs=jobs, off=[*off, rule], faults=faults, **kind)
        by_promise = "".join(f"{findings.violations[promise]:>31,}" for promise in Promise)
        print(f"{rule.label:36}{rule.number or '':4}{by_promise}{findings.counts['orphans']:>10,}", flush=True)
    return 0


def print_violations(findings: Findings) -> None:
    print(f"\n{'promise':32}{'broken':>10}{'first seed':>12}")
    for promise in Promise:
        print(f"{promise.value:32}{findings.violations[promise]:>10,}{findings.first.get(promise, ''):>12}")


def print_counts(findings: Findings) -> None:
    print(f"\n{'what happened':48}{'times':>12}")
    for what, times in sorted(findings.counts.items()):
        print(f"{what:48}{times:>12,}")


if __name__ == "__main__":
    sys.exit(main())
