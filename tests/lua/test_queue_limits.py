"""The limits of a queue: a record of its own, decided like an item's."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.lua.one_server import LIMITS, PAUSE, WINDOW_MS, Applied, Decided, OneServer, packed_item, put_and_claim
from zkrq.protocol.records import Bundle, State, Version, pack, unpack


@pytest.fixture
def follower(server: OneServer) -> Generator[OneServer, None, None]:
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        yield other


def text_of(decided: dict[str, Decided]) -> str:
    return unpack(decided[LIMITS].packed).text


# -- the record ------------------------------------------------------------------------------------------------------


def test_declaring_is_a_decision(server: OneServer) -> None:
    server.epoch = 3
    before, decided = server.declare("concurrency=5")
    record = decided[LIMITS].record
    assert (before, text_of(decided)) == ("", "limits:concurrency=5")
    assert (record.version.epoch, record.state) == (3, State.PAUSED)
    contents = server.contents()
    assert contents.records == {LIMITS: record}
    assert (contents.payloads, contents.tombstones, contents.faults) == ({}, [], [])
    assert server.statistics().limits == b"limits:concurrency=5"


def test_the_last_declaration_of_a_section_holds_and_says_what_was_before(server: OneServer) -> None:
    server.declare("concurrency=5,rate=50/1000")
    before, decided = server.declare("concurrency=6")
    assert (before, text_of(decided)) == ("concurrency=5,rate=50/1000", "limits:concurrency=6")
    assert server.statistics().limits == b"limits:concurrency=6"


def test_sections_are_declared_each_by_itself(server: OneServer) -> None:
    """A version of zkrq may declare a section that another one does not know."""
    server.declare("concurrency=5")
    before, decided = server.declare("concurrency=2,ordered=1", "groups")
    assert (before, text_of(decided)) == ("", "groups:concurrency=2,ordered=1 limits:concurrency=5")
    before, decided = server.declare("", "limits")
    assert (before, text_of(decided)) == ("concurrency=5", "groups:concurrency=2,ordered=1")
    before, decided = server.declare("", "groups")
    assert decided[LIMITS].record.state is State.GONE
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_what_was_never_declared_is_taken_away(server: OneServer) -> None:
    assert server.declare("") == ("", {})
    assert server.contents().records == {}


@pytest.mark.parametrize("settings", ["concurrency=5", ""])
def test_declared_again_is_the_same_and_under_a_newer_epoch_decided_again(server: OneServer, settings: str) -> None:
    server.declare("concurrency=4")
    first = server.declare(settings)[1][LIMITS]
    before = server.contents()
    known, decided = server.declare(settings)
    assert (known, decided[LIMITS].packed) == (settings, first.packed)
    assert server.contents() == before
    again = server.declare(settings, epoch=4)[1][LIMITS].record
    assert (again.version, again.state) == (Version(4, first.record.version.n + 1), first.record.state)


def test_a_call_that_comes_late_does_not_undo_what_was_declared_since(server: OneServer) -> None:
    """Its answer was lost, it was repeated, and then others declared: the first try is executed last."""
    server.declare("concurrency=4", call="mine")
    server.declare("concurrency=5", call="theirs")
    before, decided = server.declare("concurrency=4", call="mine")
    assert (before, text_of(decided)) == ("concurrency=5", "limits:concurrency=5")


def test_a_follower_has_what_it_was_told_last(server: OneServer) -> None:
    for version, text in ((Version(1, 2), "limits:concurrency=2"), (Version(1, 1), "limits:concurrency=1")):
        server.apply(Applied(LIMITS, pack(Bundle(version, "P", text=text))))
    assert server.statistics().limits == b"limits:concurrency=2"
    server.apply(Applied(LIMITS, packed_item(Version(2, 1), State.GONE)))
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_it_is_compared_and_copied_like_an_item(server: OneServer, follower: OneServer) -> None:
    server.declare("concurrency=2")
    assert LIMITS in server.heads()[1]
    found = server.page()[1].found[LIMITS]
    follower.apply(found.applied)
    assert follower.statistics().limits == b"limits:concurrency=2"
    server.declare("")
    server.age(LIMITS, 3 * WINDOW_MS)
    assert LIMITS in server.heads()[1], "never dropped, or its versions would start again"


def test_no_call_takes_it_for_an_item(server: OneServer) -> None:
    server.declare("concurrency=2")
    before = server.contents()
    assert server.cancel(LIMITS)[1] == {}
    assert server.redrive(LIMITS) == {}
    assert server.clear(10) == {}
    assert server.contents() == before


# -- with the queue --------------------------------------------------------------------------------------------------


def test_a_queue_with_limits_is_not_forgotten(server: OneServer) -> None:
    server.declare("concurrency=2")
    assert not server.forget()
    server.declare("")
    assert not server.forget(), "a server that missed the end would bring it back"
    server.age(LIMITS, 3 * WINDOW_MS)
    assert server.forget()
    assert server.contents().records == {}


def test_a_deleted_queue_has_no_limits(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.declare("concurrency=2")
    server.pause()
    decided = server.delete()
    assert decided[LIMITS].record.state is State.GONE
    assert PAUSE not in decided
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_limits_make_a_deleted_queue_again(server: OneServer) -> None:
    server.put("a")
    server.cancel("a")
    server.delete()
    assert server.statistics().deleted
    server.declare("concurrency=2")
    assert not server.statistics().deleted
