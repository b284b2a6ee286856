"""Flows: with all rules no promise about them is broken, and without a rule one soon is."""

from __future__ import annotations

import pytest

from tests.model.explore import Findings, explore, explore_together
from tests.model.kinds import FLOW_RULES, LEG_RULES, NAME_RULES, NESTED_RULES
from tests.model.promises import Promise
from tests.model.rules import Rule

SCHEDULES = range(1, 121, 2)
"""Those in which no more servers lose something than a flow has to stand."""

JOBS = 2

KNOWN = {
    Rule.FLOW_ASKS_ALL: (35, Promise.FLOW_EARLY),
    Rule.FLOW_WAITS_FOR_OTHERS: (255, Promise.FLOW_EARLY),
    Rule.STAMP_IS_READ_FIRST: (1_147, Promise.FLOW_EARLY),
    Rule.LIFE_RAISES_THE_STAMP: (679, Promise.FLOW_EARLY),
    Rule.PUSH_LOOKS_AT_ITS_FLOW: (3, Promise.FLOW_AFTER),
    Rule.MISSED_IS_NOT_DONE: (9, Promise.FLOW_TOLD_OTHERWISE),
    Rule.END_IS_DECIDED_ONCE: (349, Promise.FLOW_TOLD_OTHERWISE),
    Rule.OPENING_MOVES_THE_STATE: (25, Promise.FLOW_TWICE),
    Rule.LOOKS_END_WHAT_IS_DUE: (1, Promise.NOTHING_FOLLOWS),
}
"""A seed in which each rule is missed, and the promise that is broken then."""


KNOWN_OF_LEGS = {
    Rule.FAILING_WAITS: (31, Promise.FLOW_EARLY),
    Rule.ENDED_STAYS_DUE: (1, Promise.NOTHING_FOLLOWS),
    Rule.HOME_NAMES_ITS_LEGS: (17, Promise.FLOW_EARLY),
    Rule.LEG_RAISES_HOMES_STAMP: (245, Promise.FLOW_EARLY),
    Rule.SEAL_IS_EVERYWHERE: (125, Promise.FLOW_EARLY),
    Rule.LEGS_ARE_SEALED: (85, Promise.FLOW_EARLY),
}
"""The same where the flow has members in two queues."""


KNOWN_OF_NESTED = {
    Rule.NESTED_IS_FIRST: (71, Promise.FLOW_TOLD_OTHERWISE),
}
"""The same where the flow is a member of another one."""


@pytest.fixture(scope="module")
def flows() -> Findings:
    return explore(SCHEDULES, flows=True)


def test_no_promise_is_broken_with_flows(flows: Findings) -> None:
    assert not flows.broken, flows.first


@pytest.mark.parametrize("what", ["sealed", "ended", "opened", "follows", "flows checked", "members decided"])
def test_flows_are_made_and_end(what: str, flows: Findings) -> None:
    assert flows.counts[what] >= len(SCHEDULES) // 10


@pytest.mark.parametrize("rule", FLOW_RULES, ids=lambda rule: rule.label)
def test_without_a_rule_of_flows_a_promise_is_broken(rule: Rule) -> None:
    seed, promise = KNOWN[rule]
    assert explore([seed], off=[rule], flows=True).violations.keys() == {promise}
    assert not explore([seed], flows=True).broken


@pytest.fixture(scope="module")
def legs() -> Findings:
    return explore(SCHEDULES[:40], legs=True)


def test_no_promise_is_broken_with_flows_of_two_queues(legs: Findings) -> None:
    assert not legs.broken, legs.first


@pytest.mark.parametrize("what", ["sealed", "ended", "opened", "flows checked", "members decided"])
def test_flows_of_two_queues_are_made_and_end(what: str, legs: Findings) -> None:
    assert legs.counts[what] >= len(SCHEDULES[:40]) // 10


@pytest.mark.parametrize("rule", LEG_RULES, ids=lambda rule: rule.label)
def test_without_a_rule_of_legs_a_promise_is_broken(rule: Rule) -> None:
    seed, promise = KNOWN_OF_LEGS[rule]
    assert explore([seed], off=[rule], legs=True).violations.keys() == {promise}
    assert not explore([seed], legs=True).broken


@pytest.fixture(scope="module")
def nested() -> Findings:
    return explore(SCHEDULES[:40], nested=True)


def test_no_promise_is_broken_with_flows_in_flows(nested: Findings) -> None:
    assert not nested.broken, nested.first


@pytest.mark.parametrize("what", ["sealed", "sealed inner flow", "ended", "opened", "flows checked"])
def test_flows_in_flows_are_made_and_end(what: str, nested: Findings) -> None:
    assert nested.counts[what] >= len(SCHEDULES[:40]) // 10


@pytest.mark.parametrize("rule", NESTED_RULES, ids=lambda rule: rule.label)
def test_without_a_rule_of_flows_in_flows_a_promise_is_broken(rule: Rule) -> None:
    seed, promise = KNOWN_OF_NESTED[rule]
    assert explore([seed], off=[rule], nested=True).violations.keys() == {promise}
    assert not explore([seed], nested=True).broken


@pytest.fixture(scope="module")
def names() -> Findings:
    return explore(SCHEDULES[:30], names=True)


def test_no_promise_is_broken_with_members_that_wait(names: Findings) -> None:
    assert not names.broken, names.first


@pytest.mark.parametrize("what", ["waits", "let go", "flows checked"])
def test_members_wait_and_are_let_go(what: str, names: Findings) -> None:
    assert names.counts[what] >= len(SCHEDULES[:30]) // 10


@pytest.mark.parametrize("rule", NAME_RULES, ids=lambda rule: rule.label)
def test_without_a_rule_of_names_a_promise_is_broken(rule: Rule) -> None:
    assert explore(SCHEDULES[:30], off=[rule], only_first=True, names=True).violations.keys() == {Promise.FLOW_EARLY}


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["flows", "legs", "nested", "names"])
def test_no_promise_is_broken_in_many_schedules_with_flows(kind: str) -> None:
    legs, nested, names = (kind == each for each in ("legs", "nested", "names"))
    findings = explore_together(range(20_000), jobs=JOBS, flows=True, legs=legs, nested=nested, names=names)
    assert not findings.broken, findings.first
