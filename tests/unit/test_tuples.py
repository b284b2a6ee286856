"""Named tuples that are made of their values are those of the constructor, of all fields."""

from __future__ import annotations

from typing import NamedTuple

from tests.every import every
from zkrq.protocol.replies import Answer
from zkrq.protocol.tuples import from_values
from zkrq.replication.command import ScriptCall
from zkrq.replication.wire import Packed


class Pair(NamedTuple):
    first: int
    second: str = ""


def test_it_is_one_of_the_constructor() -> None:
    made = from_values(Pair)((1, "b"))
    assert (made, type(made), made.second) == (Pair(1, "b"), Pair, "b")


@every(
    ("kind", "fields"),
    [
        (Answer, ("status", "body", "reason", "repeated")),
        (Packed, ("words", "body")),
        (ScriptCall, ("opening", "arguments", "weight")),
    ],
)
def test_the_fields_are_those_that_the_hot_path_gives(kind: type[NamedTuple], fields: tuple[str, ...]) -> None:
    """Nothing else would notice one that is added."""
    assert kind._fields == fields
