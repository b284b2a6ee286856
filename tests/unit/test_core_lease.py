"""The life of a lease: its table, and a lease that goes through it."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import zkrq
from tests.every import every
from tests.unit.issuers import SlowIssuer, claimed
from zkrq.base.errors import ClaimLost
from zkrq.consuming.claims import Claim, lease_of
from zkrq.consuming.core import lease as life
from zkrq.consuming.core.lease import EXTENDED, HOLDING, LIFE, LOSSES, NAMING_A_VERB, LeaseState, Row
from zkrq.consuming.lease import Lease, Verb

pytestmark = pytest.mark.anyio

TABLE = """
                granted    delivered  left            settling        settling, left  settled  lost    struck
deliver         delivered  delivered  left            settling        settling, left  settled  lost    struck
take back       granted    granted    left            settling        settling, left  settled  lost    struck
leave           left       left       left            settling, left  settling, left  settled  lost    struck
settle          settling   settling   settling, left  -               -               -        -       -
hand back       settled    settled    settled         -               -               -        -       -
answer          -          -          -               settled         settled         -        -       -
refuse          -          -          -               lost            lost            -        -       -
fail            -          -          -               left            left            -        -       -
fail, followed  -          -          -               delivered       left            -        -       -
lose            lost       lost       lost            settling        settling, left  settled  lost    struck
strike          -          -          -               -               -               -        struck  -
"""
"""The table as a reader expects it: a change of the code is made here, too, or it was none on purpose."""


def drawn(table: Mapping[str, Row]) -> list[list[str]]:
    rows = [
        ["", *LeaseState],
        *([event, *(row.get(state, "-") for state in LeaseState)] for event, row in table.items()),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def test_the_table_is_the_one_that_is_drawn() -> None:
    assert ["  ".join(row).rstrip() for row in drawn(LIFE)] == TABLE.strip("\n").splitlines()


def test_every_state_is_reached() -> None:
    reached, begun = set[LeaseState](), {LeaseState.GRANTED}
    while begun:
        reached |= begun
        begun = {row[state] for row in LIFE.values() for state in begun if state in row} - reached
    assert reached == {*LeaseState}


def test_what_has_ended_stays_as_it_is() -> None:
    ended = {*LeaseState} - HOLDING - {LeaseState.SETTLING, LeaseState.SETTLING_LEFT}
    for event, row in LIFE.items():
        assert {row[state] for state in ended if state in row and state is not row[state]} <= LOSSES, event
    assert LeaseState.SETTLED not in {row[state] for row in LIFE.values() for state in row if state in LOSSES}


def test_a_settlement_is_sent_only_of_what_holds_and_answered_once() -> None:
    in_flight = NAMING_A_VERB - {LeaseState.SETTLED}
    assert life.SETTLE.keys() == life.HAND_BACK.keys() == HOLDING
    for row in (life.ANSWER, life.REFUSE, life.FAIL, life.FAIL_FOLLOWED):
        assert row.keys() == in_flight
        assert in_flight.isdisjoint(row.values())


def test_sets_of_states_divide_the_life() -> None:
    assert {*LeaseState} == HOLDING | NAMING_A_VERB | LOSSES
    assert not HOLDING & NAMING_A_VERB
    assert not HOLDING & LOSSES
    assert not NAMING_A_VERB & LOSSES
    assert {LeaseState.GRANTED, LeaseState.DELIVERED, LeaseState.SETTLING} == EXTENDED


def test_the_state_is_assigned_from_a_row_alone() -> None:
    """An assignment of anything else would be a transition that no table shows."""
    strange = list[str]()
    for path in (Path(zkrq.__file__).parent / "consuming").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            for target, value in _assignments(node):
                if isinstance(target, ast.Attribute) and target.attr == "state":
                    said = ast.unparse(value)
                    row, _, rest = said.partition("[")
                    is_row = row.rpartition(".")[2] in {"row", *_names_of_rows()} and rest.endswith(".state]")
                    if not (is_row or (path.name, said) == ("lease.py", "LeaseState.GRANTED")):
                        strange.append(f"{path.name}: {ast.unparse(node)}")
    assert strange == []


def _names_of_rows() -> set[str]:
    return {name for name, value in vars(life).items() if value in LIFE.values()}


def _assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Assign):
        return []
    pairs = list[tuple[ast.expr, ast.expr]]()
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs += zip(target.elts, node.value.elts, strict=True)
        else:
            pairs.append((target, node.value))
    return pairs


# -- a lease that goes through it --------------------------------------------------------------------------------------


async def in_state(state: LeaseState) -> tuple[Claim[str], Lease]:
    """A claim, and its lease after what leads to this state."""
    claim = claimed(SlowIssuer(), 30)
    lease = lease_of(claim)
    if state is not LeaseState.GRANTED:
        lease.deliver()
    match state:
        case LeaseState.LEFT:
            lease.stop_extending()
        case LeaseState.SETTLING | LeaseState.SETTLING_LEFT | LeaseState.SETTLED:
            if state is LeaseState.SETTLING_LEFT:
                lease.stop_extending()
            lease.state, lease.settled = life.SETTLE[lease.state], Verb.ACK
            if state is LeaseState.SETTLED:
                lease.state = life.ANSWER[lease.state]
        case LeaseState.LOST:
            lease.lose("for a test")
        case LeaseState.STRUCK:
            lease.task = asyncio.create_task(asyncio.sleep(60))
            lease.lose("for a test")
        case _:
            pass
    assert lease.state is state
    return claim, lease


EVENTS: Mapping[str, Callable[[Lease], object]] = {
    "deliver": Lease.deliver,
    "take back": Lease.take_back,
    "leave": Lease.stop_extending,
    "lose": lambda lease: lease.lose("for another test"),
    "refuse": Lease.refuse,
    "fail": Lease.have_failed,
    "hand back": Lease.send_back,
}


@every("state", LeaseState)
@every("event", EVENTS)
async def test_each_event_in_each_state(event: str, state: LeaseState) -> None:
    _, lease = await in_state(state)
    lease.check_invariants()
    if state not in LIFE[event]:
        with pytest.raises(KeyError):
            EVENTS[event](lease)
        return
    EVENTS[event](lease)
    assert lease.state is LIFE[event][state]
    lease.check_invariants()


@every("state", EXTENDED)
@every("event", ["leave", "lose", "take back"])
async def test_what_stops_the_extension_stops_its_timer(event: str, state: LeaseState) -> None:
    _, lease = await in_state(state)
    lease.timer = timer = asyncio.get_running_loop().call_later(60, print)
    EVENTS[event](lease)
    assert timer.cancelled() is not lease.extending
    lease.check_invariants()
    lease.stop_extending()


@every("state", [LeaseState.SETTLING, LeaseState.SETTLED, LeaseState.LOST, LeaseState.STRUCK])
async def test_what_holds_no_more_is_not_settled(state: LeaseState) -> None:
    claim, lease = await in_state(state)
    with pytest.raises(ClaimLost):
        await claim.ack()
    assert lease.state is state


@every("is_followed", [False, True])
async def test_one_that_is_followed_is_extended_after_a_failure(is_followed: bool) -> None:
    claim, lease = await in_state(LeaseState.SETTLING)
    if is_followed:
        claim.on_lost(print)
    lease.have_failed()
    assert lease.state is (LeaseState.DELIVERED if is_followed else LeaseState.LEFT)
    assert claim.settled is None
    assert claim.holds


async def test_a_loss_strikes_its_handler_once() -> None:
    claim, lease = await in_state(LeaseState.DELIVERED)
    lease.task = handler = asyncio.create_task(asyncio.sleep(60))
    lease.lose("the first reason")
    lease.lose("another one")
    assert (lease.state, handler.cancelling()) == (LeaseState.STRUCK, 1)
    assert claim.lost.reason == "the first reason"
