"""The life of a supply: its table, and random walks through it."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.every import every
from zkrq.consuming.core import supply as life
from zkrq.consuming.core.supply import (
    IN_FLIGHT,
    IS_DUE,
    JOINED,
    LIFE,
    PASS_ON_LEAST,
    WAITING,
    Action,
    Cell,
    Order,
    Supply,
    SupplyState,
    asked_of,
    is_spared,
)

TABLE = """
              resting      idle          listening     due          joined       joined, came joined, due  asking       asking, came asking, due  backing off  closed
look          due, start   due, ring     due, ring     due          joined, due  joined, due  joined, due  asking, due  asking, due  asking, due  backing off  closed
came          due, start   due, ring     listening     due          joined, came joined, came joined, due  asking, came asking, came asking, due  backing off  closed
wake          resting      due, ring     due, ring     due          joined, due  joined, due  joined, due  asking, due  asking, due  asking, due  backing off  closed
time          -            due           due           due          joined       joined, came joined, due  -            -            -            -            -
pause         -            -             -             idle         -            -            -            -            -            -            -            -
ask           -            -             -             asking       -            -            -            -            -            -            -            -
join          -            joined, ring  joined, ring  joined       -            -            -            -            -            -            -            -
decline       -            idle          idle          due          -            -            -            -            -            -            -            -
take over     -            -             -             -            asking       asking, came asking, due  -            -            -            -            -
answer        -            -             -             -            -            -            -            idle         due          due          -            -
answer, heard -            -             -             -            -            -            -            listening    listening    due          -            -
fail          -            -             -             -            -            -            -            backing off  backing off  backing off  -            -
retry         -            -             -             -            -            -            -            -            -            -            due          -
begin         -            idle          listening     due          joined       joined, came joined, due  due          due          due          due          -
rest          -            resting, stop resting, stop -            -            -            -            -            -            -            -            -
close         closed, stop closed, stop  closed, stop  closed, stop closed, stop closed, stop closed, stop closed, stop closed, stop closed, stop closed, stop closed, stop
"""  # noqa: E501
"""The table as a reader expects it: a change of the code is made here, too, or it was none on purpose."""


def said(cell: Cell | None) -> str:
    return "-" if cell is None else ", ".join(each for each in cell if each)


def test_the_table_is_the_one_that_is_drawn() -> None:
    lines = [
        [*SupplyState],
        *([event, *(said(row.get(state)) for state in SupplyState)] for event, row in LIFE.items()),
    ]
    words = [" ".join(line).split() for line in lines]
    assert words == [line.split() for line in TABLE.strip("\n").splitlines()]


def test_every_state_is_reached() -> None:
    reached, begun = set[SupplyState](), {SupplyState.RESTING}
    while begun:
        reached |= begun
        begun = {row[state][0] for row in LIFE.values() for state in begun if state in row} - reached
    assert reached == {*SupplyState}


def test_sets_of_states_are_about_what_they_say() -> None:
    assert {state for state in SupplyState if life.TIME.get(state) == (SupplyState.DUE, None)} - IS_DUE == WAITING
    assert {*life.TAKE_OVER} == JOINED
    assert {*life.TAKE_OVER, *life.ANSWER} == IN_FLIGHT
    assert {*life.ANSWER} == {*life.FAIL} == {*life.ANSWER_HEARD} == IN_FLIGHT - JOINED


@every("row", [life.LOOK, life.WAKE])
def test_what_happens_during_a_request_leads_to_another_one(row: life.Row) -> None:
    for state in IN_FLIGHT:
        assert row[state][0] in IS_DUE


@every("heard", [False, True])
def test_a_consumer_that_came_during_a_request_waits_for_the_channel_that_it_leaves(heard: bool) -> None:
    supply = asking(Supply())
    supply.tell(life.CAME)
    assert supply.state not in IS_DUE
    supply.answer(2.0, -1, heard=heard)
    assert supply.state is (SupplyState.LISTENING if heard else SupplyState.DUE)


@every("row", [life.LOOK, life.WAKE])
@every("first", [True, False])
def test_a_wake_up_during_a_request_counts_whether_a_consumer_came_before_or_after(row: life.Row, first: bool) -> None:
    supply = asking(Supply())
    for each in (row, life.CAME) if first else (life.CAME, row):
        supply.tell(each)
    supply.answer(2.0, -1, heard=True)
    assert supply.state is SupplyState.DUE


ASKS = Order(True, 1)


def asking(supply: Supply, order: Order = ASKS, now: float = 1.0) -> Supply:
    supply.tell(life.LOOK)
    supply.ask(order, now)
    return supply


def test_a_probe_is_made_once() -> None:
    supply = Supply()
    assert supply.probe(7) is Action.START
    supply.ask(ASKS, 1.0)
    assert supply.probed == 0
    supply.probe(8)
    supply.answer(2.0, -1, heard=False)
    assert supply.probed == 8
    supply.pause(Order(False), 2.0)
    assert supply.probed == 0


def test_an_order_that_pauses_ends_when_something_is_owed() -> None:
    supply = asking(Supply())
    supply.tell(life.LOOK)
    supply.answer(10.0, 3000, heard=False)
    supply.pause(Order(False, pause=5.0), 10.0)
    assert (supply.state, supply.due_at) == (SupplyState.IDLE, 13.0)
    assert not supply.owes(12.9)
    assert supply.owes(13.0)


def test_what_is_due_soon_is_passed_on_a_while_after_a_request() -> None:
    supply = asking(Supply())
    supply.answer(10.0, 1, heard=False)
    assert supply.owed_at == 10.0 + PASS_ON_LEAST


@every("next_ms", [0, -1])
def test_where_nothing_becomes_ready_by_itself_nothing_is_owed(next_ms: int) -> None:
    supply = asking(Supply())
    supply.answer(10.0, next_ms, heard=False)
    assert supply.owed_at == math.inf


def test_what_was_owed_is_owed_again_after_a_failure() -> None:
    supply = Supply()
    assert supply.wake(alone=True) is Action.START
    assert supply.owes(1.0)
    supply.ask(Order(True), 1.0)
    assert not supply.owes(1.0)
    assert supply.fail() == Order(True)
    assert supply.owes(1.0)


def test_a_wake_up_that_others_got_too_leaves_a_supply_at_rest() -> None:
    supply = Supply()
    assert supply.wake(alone=False) is None
    assert supply.state is SupplyState.RESTING
    assert not supply.owes(1.0)
    assert supply.is_dry


def test_a_request_that_has_joined_is_of_its_order() -> None:
    supply = asking(Supply())
    supply.answer(1.0, -1, heard=True)
    order = Order(True, 3, expected=3)
    assert supply.ask(order, 2.0, life.JOIN) is Action.RING
    assert (supply.asking, supply.asked_at) == (3, 2.0)
    supply.tell(life.TAKE_OVER)
    supply.late()
    assert supply.answer(3.0, 0, heard=False) is order
    assert (supply.asking, supply.is_late) == (0, False)


def test_a_loop_that_was_ended_by_a_mistake_begins_anew() -> None:
    supply = asking(Supply())
    supply.late()
    supply.begin()
    assert (supply.state, supply.order, supply.is_late) == (SupplyState.DUE, None, False)
    supply.check_invariants()


@every(("target", "elsewhere", "low"), [(10, 0, 5), (9, 0, 5), (0, 0, 0), (10, 2, 3)])
def test_the_next_request_leaves_when_half_is_left(target: int, elsewhere: int, low: int) -> None:
    supply = Supply()
    supply.set_low(target, elsewhere)
    assert supply.low == low


def test_whether_it_is_dry_still_is_told() -> None:
    supply = Supply()
    assert supply.found(is_dry=True)
    assert not supply.found(is_dry=False)
    assert not supply.found(is_dry=True)
    assert supply.is_dry


class Walk(RuleBasedStateMachine):
    """A supply, and what its shell knows: whether its loop runs, and what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.supply = Supply()
        self.now = 1.0
        self.has_loop = False
        self.is_wanted = False
        """A consumer looked after the last order."""
        self.has_come = False
        """One came that a wake-up serves as well."""
        self.is_owed = self.is_carried = False
        """A wake-up is to be passed on: by the next request, by the one in flight."""
        self.causes = self.requests = 0

    def act(self, action: Action | None) -> None:
        self.has_loop = {Action.START: True, Action.STOP: False, Action.RING: True, None: self.has_loop}[action]

    def is_in(self, row: life.Row) -> bool:
        return self.supply.state in row

    @rule()
    def look(self) -> None:
        self.act(self.supply.tell(life.LOOK))
        self.is_wanted, self.causes = True, self.causes + 1

    @rule()
    def come(self) -> None:
        """A consumer that a wake-up serves as well came."""
        self.act(self.supply.tell(life.CAME))
        if self.supply.state in {*IS_DUE, *life.ANSWER, *life.TAKE_OVER}:
            self.has_come = True
        self.causes += 1

    @rule(alone=st.booleans())
    def wake(self, alone: bool) -> None:
        is_resting = self.supply.state is SupplyState.RESTING
        self.act(self.supply.wake(alone=alone))
        self.is_owed |= alone
        self.is_wanted |= alone or not is_resting
        self.causes += 1

    @rule(seconds=st.floats(0.1, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.supply.state in WAITING and self.supply.due_at <= self.now:
            self.supply.tell(life.TIME)
            self.causes += 1

    def request(self, row: life.Row, wanted: int) -> None:
        self.act(self.supply.ask(Order(True, wanted), self.now, row))
        self.is_carried, self.is_owed, self.is_wanted, self.has_come = self.is_owed, False, False, False
        self.requests += 1

    @precondition(lambda self: self.is_in(life.ASK))
    @rule(wanted=st.integers(0, 3), pause=st.floats(0.1, 5))
    def follow_an_order(self, wanted: int, pause: float) -> None:
        if wanted or self.supply.owes(self.now):
            self.request(life.ASK, wanted)
        else:
            self.supply.pause(Order(False, pause=pause), self.now)
            self.is_wanted = self.has_come = False

    @precondition(lambda self: self.is_in(life.JOIN))
    @rule(declines=st.booleans())
    def join(self, declines: bool) -> None:
        self.causes += 1
        if declines:
            self.supply.tell(life.DECLINE)
        else:
            self.request(life.JOIN, 1)

    @precondition(lambda self: self.is_in(life.TAKE_OVER))
    @rule()
    def take_over(self) -> None:
        self.supply.tell(life.TAKE_OVER)

    @precondition(lambda self: self.is_in(life.ANSWER))
    @rule(next_ms=st.sampled_from([-1, 0, 5, 5000]), heard=st.booleans())
    def answer(self, next_ms: int, heard: bool) -> None:
        self.supply.answer(self.now, next_ms, heard=heard)
        self.is_carried = False
        self.is_wanted, self.has_come = self.is_wanted or (self.has_come and not heard), False

    @precondition(lambda self: self.is_in(life.FAIL))
    @rule()
    def fail(self) -> None:
        self.supply.fail()
        self.is_owed, self.is_carried = self.is_owed or self.is_carried, False

    @precondition(lambda self: self.is_in(life.RETRY))
    @rule()
    def retry(self) -> None:
        self.supply.tell(life.RETRY)
        self.causes += 1

    @precondition(lambda self: self.is_in(life.REST))
    @rule()
    def rest(self) -> None:
        self.act(self.supply.tell(life.REST))

    @precondition(lambda self: self.requests > 5)
    @rule()
    def close(self) -> None:
        self.act(self.supply.tell(life.CLOSE))

    @property
    def is_closed(self) -> bool:
        return self.supply.state is SupplyState.CLOSED

    @invariant()
    def is_consistent(self) -> None:
        self.supply.check_invariants()

    @invariant()
    def a_loop_runs_unless_there_is_nothing_to_do(self) -> None:
        assert self.has_loop is (self.supply.state not in (SupplyState.RESTING, SupplyState.CLOSED))

    @invariant()
    def what_was_wanted_is_asked_for(self) -> None:
        assert not self.is_wanted or self.is_closed or self.supply.state in {*IS_DUE, SupplyState.BACKING_OFF}

    @invariant()
    def what_is_owed_is_not_forgotten(self) -> None:
        assert not self.is_owed or self.supply.owes(self.now)

    @invariant()
    def requests_are_bounded(self) -> None:
        assert self.requests <= self.causes


Walk.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestWalk = Walk.TestCase


# -- several shards ----------------------------------------------------------------------------------------------------


def shard(*, is_dry: bool = True, asking: int = 0, is_late: bool = False) -> Supply:
    """What is known of one."""
    supply = Supply()
    supply.is_dry, supply.is_late = is_dry, is_late
    supply.order = Order(True, asking) if asking else None
    return supply


DRY = shard()
IDLE = shard(is_dry=False)
ASKED = shard(is_dry=False, asking=3)
TRIED = shard(asking=3)
LATE = shard(is_dry=False, asking=3, is_late=True)


def test_a_single_shard_is_asked_for_everything() -> None:
    assert asked_of(10, DRY, [], []) == asked_of(10, IDLE, [], []) == 10


def test_shards_with_items_are_asked_one_after_the_other() -> None:
    assert asked_of(10, IDLE, [], [IDLE, IDLE]) == 10
    assert asked_of(10, IDLE, [IDLE], [IDLE]) == 0
    assert asked_of(10, IDLE, [], [IDLE, ASKED]) == 0


def test_shards_without_items_are_asked_together_if_no_other_has_some() -> None:
    assert asked_of(10, DRY, [DRY], [DRY]) == 4
    assert asked_of(10, DRY, [DRY], [IDLE]) == asked_of(10, DRY, [ASKED], []) == 0
    assert asked_of(10, IDLE, [DRY], [DRY]) == 10


def test_what_another_one_may_still_bring_is_not_asked_for_twice() -> None:
    assert asked_of(10, IDLE, [TRIED], [DRY]) == 7
    assert asked_of(2, IDLE, [TRIED], []) == 0


def test_one_that_does_not_answer_keeps_no_other_waiting() -> None:
    assert asked_of(10, IDLE, [LATE], [DRY]) == 10
    assert asked_of(10, DRY, [LATE], []) == 5


def test_only_one_that_may_be_empty_is_spared() -> None:
    assert is_spared(DRY, [DRY, IDLE])
    assert is_spared(DRY, [ASKED])
    assert not is_spared(DRY, [DRY, LATE])
    assert not is_spared(IDLE, [IDLE])
