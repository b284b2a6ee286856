"""Groups that keep the order of their pushes: with all rules they do, and without one they soon do not."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.model.explore import explore, explore_together
from tests.model.promises import Promise
from tests.model.rules import Rule

SCHEDULES = 60

JOBS = 2
"""Processes in the chaos run."""

SOON = 80
"""Schedules within which a rule is missed."""


@pytest.mark.parametrize("turns", [False, True], ids=["claims", "turns"])
def test_ordered_groups_keep_their_order(turns: bool) -> None:
    findings = explore(range(SCHEDULES), ordered=True, turns=turns)
    assert not findings.broken, findings.first
    assert findings.counts["holds in order"] > SCHEDULES


@pytest.mark.chaos
@pytest.mark.parametrize("turns", [False, True], ids=["claims", "turns"])
def test_ordered_groups_keep_their_order_in_many_schedules(turns: bool) -> None:
    findings = explore_together(range(10_000), jobs=JOBS, ordered=True, turns=turns)
    assert not findings.broken, findings.first


@pytest.mark.parametrize(
    ("rule", "promises"),
    [
        (Rule.ORDER_IS_DECIDED, {Promise.OUT_OF_ORDER}),
        (Rule.ORDERED_ONE_BY_ONE, {Promise.OUT_OF_ORDER, Promise.TOKEN_WENT_BACK}),
        (Rule.TOKENS_GROW_IN_A_GROUP, {Promise.TOKEN_WENT_BACK}),
    ],
    ids=["order", "one by one", "tokens"],
)
def test_without_a_rule_of_order_a_group_is_out_of_order(rule: Rule, promises: Collection[Promise]) -> None:
    """What a repeated request may keep needs two primaries that die within one request: ``lua/test_ordered.py`` shows
    it."""
    findings = explore(range(SOON), off=[rule], ordered=True, only_first=True)
    assert findings.violations.keys() <= set(promises)
    assert findings.broken


def test_without_the_end_of_the_item_before_an_item_comes_back_after_the_next_one() -> None:
    rule = Rule.END_TRAVELS_WITH_THE_NEXT
    assert explore([174], off=[rule], ordered=True).violations.keys() == {Promise.OUT_OF_ORDER}
    assert not explore([174], ordered=True).broken


@pytest.mark.parametrize("turns", [False, True], ids=["claims", "turns"])
def test_an_order_that_is_declared_meanwhile_is_kept_by_producers_that_do_not_know_it(turns: bool) -> None:
    findings = explore(range(2 * SCHEDULES), settings=True, turns=turns)
    assert not findings.broken, findings.first
    assert findings.counts["holds in order"] > SCHEDULES // 2
    assert findings.counts["refused for the order"] > SCHEDULES // 2


@pytest.mark.chaos
def test_an_order_that_is_declared_meanwhile_is_kept_in_many_schedules() -> None:
    findings = explore_together(range(10_000), jobs=JOBS, settings=True)
    assert not findings.broken, findings.first


@pytest.mark.parametrize(
    ("rule", "near", "promise"),
    [
        (Rule.PLAIN_IS_REFUSED_IN_ORDER, 2, Promise.OUT_OF_ORDER),
        (Rule.ORDER_BY_SETTINGS, 18, Promise.OUT_OF_ORDER),
        (Rule.TOKENS_BY_SETTINGS, 17, Promise.TOKEN_WENT_BACK),
    ],
    ids=["plain", "order", "tokens"],
)
def test_without_a_rule_of_settings_a_producer_that_does_not_know_the_order_breaks_it(
    rule: Rule, near: int, promise: Promise
) -> None:
    seeds = range(max(0, near - 20), near + SOON)
    assert explore(seeds, off=[rule], settings=True, only_first=True).violations.keys() == {promise}
