"""The model's server against the real scripts: the same calls get the same replies and leave the same records."""

from __future__ import annotations

import pytest

from tests.model.content import Clock
from tests.model.rules import ALL_RULES, Rule
from tests.model.server import Server
from tests.model.twins import TOLD, Load, Twins, make_calls
from zkrq.protocol.scripts import SCRIPTS
from zkrq.protocol.view import ServerId

_DRAWN = (
    *(
        "push_plain",
        "push_plain",
        "push_decided",
        "claim",
        "claim",
        "settle",
        "settle",
        "turn",
        "apply",
        "apply",
        "read",
        "read",
    ),
    *("fence", "claims", "retire", "results", "redrive", "cut", "install", "affirm", "forward", "enrol"),
)


_DRAWN_OF_MOVES = (*_DRAWN, *3 * ("movable", "adopt", "admit", "cancel"))


OF_A_SERVER = (
    Rule.GREATER_VERSION_WINS,
    Rule.SUPERSEDED_IS_TOLD,
    Rule.SUPERSEDED_BY_ITEM,
    Rule.OLD_EPOCH_IS_STALE,
    Rule.GENERATION_IS_COMPARED,
    Rule.MISSING_IS_NOT_CREATED,
    Rule.STAMPED_ANEW,
    Rule.REPEATED_CLAIM_GETS_THE_SAME,
    Rule.FENCED_TOKEN_IS_REFUSED,
    Rule.SETTLING_CHECKS_THE_TOKEN,
    Rule.TURN_FINDS_ITS_OWN,
    Rule.EACH_PART_HAS_A_VERDICT,
    Rule.ROWS_STAY,
    Rule.REFUSAL_IS_SPREAD,
    Rule.TOMBSTONE_STAYS,
    Rule.TOMBSTONE_OF_THE_UNKNOWN,
    Rule.SOURCE_ADOPTS_BEFORE_READING,
    Rule.WIPING_IS_COMPARE_AND_SET,
    Rule.BYTES_GO_LAST,
    Rule.PAYLOADS_BY_POSITION,
    Rule.CLAIMS_HAVE_A_DEADLINE,
    Rule.SCRUB_DECIDES,
    Rule.RESULT_IS_COMPLETED,
)
"""The rules that are kept by the scripts, but for the run_id, which a connection checks."""


def compare(seed: int, *off: Rule, moves: bool = False) -> None:
    """Make random calls, and raise ``AssertionError`` where model and scripts differ.  ``moves``: items come home."""
    twins = Twins(ALL_RULES.difference(off))
    load = Load(seed, twins.model, _DRAWN_OF_MOVES if moves else _DRAWN)
    make_calls(seed, twins, load)


@pytest.mark.parametrize("seed", range(40))
def test_model_and_scripts_reply_alike(seed: int) -> None:
    compare(seed)


@pytest.mark.parametrize("seed", range(20))
def test_model_and_scripts_bring_items_home_alike(seed: int) -> None:
    compare(seed, moves=True)


@pytest.mark.parametrize("rule", OF_A_SERVER, ids=lambda rule: rule.label)
def test_model_and_scripts_differ_without_a_rule(rule: Rule) -> None:
    """Otherwise the calls above would not show that the scripts keep it."""
    with pytest.raises(AssertionError):
        for seed in range(100):
            compare(seed, rule)


def test_every_call_of_the_model_is_made() -> None:
    """But for the reservation, which is a matter of time only, and the declaration of an order, after which both sides
    would have to compare clocks (``lua/test_queue_order.py``)."""
    assert {kind.script for kind in TOLD} | {"reserve", "declare"} == {
        name
        for name in SCRIPTS
        if callable(getattr(Server(ServerId(""), ALL_RULES, Clock(), "", "").scripts, name, None))
    } | {"enrol"}
