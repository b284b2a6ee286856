"""Items that come home from another shard, while a limit or an order is declared and everything may fail."""

from __future__ import annotations

import pytest

from tests.model.explore import Findings, explore, explore_together
from tests.model.promises import Promise
from tests.model.rules import Rule

SCHEDULES = 60
"""In every run of the check suite; 10,000 in the chaos run."""

JOBS = 2


@pytest.fixture(scope="module")
def homing() -> Findings:
    return explore(range(SCHEDULES), homing=True)


def test_no_promise_is_broken_while_items_come_home(homing: Findings) -> None:
    assert not homing.broken, homing.first


@pytest.mark.parametrize(
    ("what", "in_each_schedule"),
    [
        ("acked", 2),
        ("came home", 0.3),
        ("ended before they came home", 0.05),
        ("mover died", 0.3),
        ("cancelled", 0.2),
        ("holds at home", 1),
        ("came to an end", 0.9),
    ],
)
def test_items_came_home(what: str, in_each_schedule: float, homing: Findings) -> None:
    assert homing.counts[what] > in_each_schedule * SCHEDULES


@pytest.mark.chaos
def test_no_promise_is_broken_while_items_come_home_in_many_schedules() -> None:
    findings = explore_together(range(10_000), jobs=JOBS, homing=True)
    assert not findings.broken, findings.first


@pytest.mark.parametrize(
    ("rule", "seed", "promise"),
    [
        (Rule.HELD_ELSEWHERE, 16, Promise.BESIDE_HOME),
        (Rule.HOME_FIRST, 4, Promise.LOST),
        (Rule.ADOPTED_EVERYWHERE, 162, Promise.LOST),
        (Rule.NOT_DUE, 12, Promise.REDELIVERED),
    ],
    ids=lambda given: getattr(given, "label", None),
)
def test_without_a_rule_an_item_does_not_come_home_once(rule: Rule, seed: int, promise: Promise) -> None:
    assert explore([seed], off=[rule], homing=True).violations.keys() == {promise}
    assert not explore([seed], homing=True).broken
