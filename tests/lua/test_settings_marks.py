"""What programs have declared of a queue is marked, so that a declaration counts once, and an operator's word stays."""

from __future__ import annotations

from tests.lua.contents import LIMITS
from tests.lua.entries import Applied, Decided
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import unpack

KEPT = 8
"""Marks of a section."""


def text_of(decided: dict[str, Decided]) -> str:
    return unpack(decided[LIMITS].packed).text


def held(server: OneServer) -> str:
    """What the lead says, which every script reads."""
    return server.ask(calls.Metadata(server.queue)).limits.decode()


def test_a_declaration_is_marked_and_the_lead_has_no_marks(server: OneServer) -> None:
    before, decided = server.declare("concurrency=5", mark="aaaaaaaa")
    assert (before, text_of(decided)) == ("", "limits:concurrency=5 marks:limits=aaaaaaaa")
    assert held(server) == "limits:concurrency=5"
    assert server.statistics().limits == b"limits:concurrency=5 marks:limits=aaaaaaaa"


def test_what_was_declared_before_changes_nothing(server: OneServer) -> None:
    server.declare("concurrency=5", mark="aaaaaaaa")
    server.declare("concurrency=6", mark="bbbbbbbb")
    before, decided = server.declare("concurrency=5", mark="aaaaaaaa")
    assert (before, text_of(decided)) == ("concurrency=6", "limits:concurrency=6 marks:limits=aaaaaaaa.bbbbbbbb")


def test_an_operators_change_stays_until_the_program_declares_something_else(server: OneServer) -> None:
    server.declare("concurrency=5", mark="aaaaaaaa")
    server.declare("concurrency=2")
    server.declare("concurrency=5", mark="aaaaaaaa")
    assert held(server) == "limits:concurrency=2"
    server.declare("", "limits")
    server.declare("concurrency=5", mark="aaaaaaaa")
    assert held(server) == ""
    server.declare("concurrency=7", mark="bbbbbbbb")
    assert held(server) == "limits:concurrency=7"


def test_each_section_has_marks_of_its_own(server: OneServer) -> None:
    server.declare("concurrency=5", mark="aaaaaaaa")
    server.declare("ordered=1", "groups", mark="bbbbbbbb")
    _, decided = server.declare("keep=5", "history", mark="aaaaaaaa")
    text = text_of(decided)
    assert text.endswith("limits:concurrency=5 marks:groups=bbbbbbbb,history=aaaaaaaa,limits=aaaaaaaa")


def test_of_each_section_the_last_marks_are_kept(server: OneServer) -> None:
    for number in range(KEPT + 1):
        server.declare(f"concurrency={number + 1}", mark=f"{number:08x}")
    server.declare("concurrency=2", mark=f"{1:08x}")
    assert held(server) == f"limits:concurrency={KEPT + 1}"
    server.declare("concurrency=1", mark=f"{0:08x}")
    assert held(server) == "limits:concurrency=1"


def test_a_shard_that_follows_takes_what_it_is_told(server: OneServer) -> None:
    """Whatever was declared there before."""
    server.declare("concurrency=5", mark="aaaaaaaa")
    server.declare("concurrency=6", mark="bbbbbbbb")
    _, decided = server.declare("concurrency=5", mark="aaaaaaaa", forced=True)
    assert text_of(decided) == "limits:concurrency=5 marks:limits=bbbbbbbb.aaaaaaaa"


def test_marks_are_copied_like_a_section(server: OneServer, follower: OneServer) -> None:
    server.declare("concurrency=5", mark="aaaaaaaa")
    follower.declare("concurrency=5", forced=True)
    _, decided = follower.declare("limits=aaaaaaaa", "marks", forced=True)
    assert text_of(decided).encode() == server.statistics().limits


def test_a_follower_knows_the_marks(server: OneServer, follower: OneServer) -> None:
    _, decided = server.declare("concurrency=5", mark="aaaaaaaa")
    follower.apply(*(each.apply() for each in decided.values()))
    follower.epoch = 2
    follower.declare("concurrency=9")
    follower.declare("concurrency=5", mark="aaaaaaaa")
    assert held(follower) == "limits:concurrency=9"
    assert follower.contents().faults == []


def test_what_others_have_changed_since_it_was_read_stays(server: OneServer) -> None:
    server.declare("concurrency=2", replaced="=")
    before, decided = server.declare("concurrency=3", replaced="=concurrency=5")
    assert (before, text_of(decided)) == ("concurrency=2", "limits:concurrency=2")
    server.declare("concurrency=4", replaced="=")
    assert held(server) == "limits:concurrency=2"
    server.declare("concurrency=3", replaced="=concurrency=2")
    assert held(server) == "limits:concurrency=3"
    server.declare("keep=5", "history", replaced="=")
    assert held(server) == "history:keep=5 limits:concurrency=3"


def test_a_change_that_is_repeated_at_the_next_primary_finds_itself(server: OneServer, follower: OneServer) -> None:
    """Where the record has arrived the settings are as they are wanted, though not as they were read."""
    _, decided = server.declare("concurrency=2", call="one", replaced="=")
    follower.apply(Applied(LIMITS, decided[LIMITS].packed))
    before, again = follower.declare("concurrency=2", call="one", replaced="=", epoch=2)
    assert (before, text_of(again)) == ("concurrency=2", "limits:concurrency=2")
