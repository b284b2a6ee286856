"""A limit of the size of a queue holds for the pushes of every program."""

from __future__ import annotations

import pytest

from tests.lua.one_server import OneServer, Put, Refused


@pytest.fixture
def small(server: OneServer) -> OneServer:
    """A server that knows that the queue may have two items."""
    server.declare("max=2", "size")
    return server


def test_a_plain_push_is_refused_and_writes_nothing(small: OneServer) -> None:
    before = small.contents()
    with pytest.raises(Refused, match="DECIDE"):
        small.put(Put("a"))
    assert small.contents() == before


def test_the_primary_refuses_what_there_is_no_room_for(small: OneServer) -> None:
    outcomes, decided = small.push(*(Put(f"i{number}") for number in range(3)))
    assert outcomes == ["+", "+", "F"]
    assert decided.keys() == {"i0", "i1"}
    small.settle(*small.claim(count=1).settle("ack"))
    assert small.push(Put("i2"))[0] == ["+"]
    assert small.contents().faults == []


def test_what_is_refused_after_another_server_has_taken_it_is_removed_there(
    small: OneServer, follower: OneServer
) -> None:
    """Another server had not heard of the limit yet."""
    small.push(Put("a"), Put("b"))
    follower.put(Put("c"))
    outcomes, decided = small.push(Put("c"), again=True)
    assert outcomes == ["F"]
    follower.apply(*(each.apply() for each in decided.values()))
    assert follower.claim().ids == []
    assert follower.contents().faults == []


def test_a_limit_that_is_taken_away_refuses_nothing(small: OneServer) -> None:
    small.declare("", "size")
    small.put("a", "b", "c")
    assert small.claim().ids == ["a", "b", "c"]


def test_claims_have_no_limit_of_it(small: OneServer) -> None:
    """A queue with a size only is claimed from ahead, as one without settings."""
    small.push(Put("a"), Put("b"))
    assert small.claim(count=9).ids == ["a", "b"]
    assert small.contents().faults == []
