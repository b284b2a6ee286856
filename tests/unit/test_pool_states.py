"""The life of a child, as its parent sees it."""

from __future__ import annotations

from tests.every import every
from zkrq.pool import states as life
from zkrq.pool.states import COUNTED, GIVEN, ChildState, Row

TABLE = """
        starting  idle      working   stopping  dead
ready   idle      -         -         stopping  -
give    -         working   working   -         -
rest    -         -         idle      stopping  -
stop    stopping  stopping  stopping  stopping  dead
die     dead      dead      dead      dead      dead
"""
"""The table as a reader expects it: a change of the code is made here, too, or it was none on purpose."""

ROWS: dict[str, Row] = {
    "ready": life.READY,
    "give": life.GIVE,
    "rest": life.REST,
    "stop": life.STOP,
    "die": life.DIE,
}


@every("name", ROWS)
def test_the_table_is_as_written(name: str) -> None:
    head, *lines = [line.split() for line in TABLE.strip().splitlines()]
    (cells,) = (line[1:] for line in lines if line[0] == name)
    assert [ROWS[name][state].value if (state := ChildState(each)) in ROWS[name] else "-" for each in head] == cells


def test_a_child_that_stops_or_is_dead_is_given_nothing() -> None:
    assert set(life.GIVE) == GIVEN
    assert GIVEN <= COUNTED
    assert not {ChildState.STOPPING, ChildState.DEAD} & COUNTED


def test_no_row_brings_a_dead_child_back() -> None:
    assert all(row.get(ChildState.DEAD, ChildState.DEAD) is ChildState.DEAD for row in ROWS.values())
