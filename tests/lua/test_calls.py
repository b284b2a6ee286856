"""Calls that name no items are executed once: after its repetition a first try of one takes nothing that is new."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.one_server import Argument, OneServer, Put, read_decided
from tests.lua.test_dead_letters import bury
from zkrq.protocol.records import State

REMEMBERED = 30  # calls at least, of eight characters each

Call = Callable[[OneServer, str], object]


def clear(server: OneServer, call: str) -> object:
    executed_before, *_ = server.run("clear", count=10, call=call)
    return executed_before


def redrive(server: OneServer, call: str) -> object:
    executed_before, _ = server.run("redrive", count=10, call=call)
    return executed_before


def discard(server: OneServer, call: str) -> object:
    letters = server.contents().dead
    server.run("cancel", wanted="D", count=10, call=call)
    return int(server.contents().dead == letters)


def prepare(server: OneServer, call: Call, *ids: str) -> None:
    """Items that the call would concern."""
    if call is clear:
        server.put(*ids)
    else:
        bury(server, *ids)


def left(server: OneServer, call: Call) -> set[str]:
    state = State.QUEUED if call is clear else State.DEAD
    return {id for id, record in server.contents().records.items() if record.state is state}


each_call = pytest.mark.parametrize("call", [clear, redrive, discard])


@each_call
def test_late_first_try_does_nothing(server: OneServer, call: Call) -> None:
    prepare(server, call, "old", "older")
    assert call(server, "aaaaaaaa") == 0
    assert left(server, call) == set()
    if call is redrive:
        server.run("clear", count=10)
    prepare(server, call, "new")
    assert call(server, "aaaaaaaa") == 1
    assert left(server, call) == {"new"}
    assert call(server, "bbbbbbbb") == 0
    assert left(server, call) == set()
    assert server.contents().faults == []


@each_call
def test_repetition_tells_of_what_the_first_try_did(server: OneServer, call: Call) -> None:
    """Its reply may have been lost; no further item is concerned."""
    name = "clear" if call is clear else "redrive" if call is redrive else "cancel"
    wanted: dict[str, Argument] = {"wanted": "D"} if call is discard else {}
    prepare(server, call, "a", "b")
    *_, first = server.run(name, count=10, call="aaaaaaaa", **wanted)
    if call is not redrive:  # burying would take what it has queued again
        prepare(server, call, "new")
    for epoch in (server.epoch, server.epoch + 1):
        *_, again = server.run(name, count=10, call="aaaaaaaa", epoch=epoch, **wanted)
        assert read_decided(again).keys() == read_decided(first).keys() == {"a", "b"}
    server.epoch += 1
    assert left(server, call) == ({"new"} if call is not redrive else set())
    assert server.contents().faults == []


def test_repetition_of_a_redrive_leaves_dead_letters_alone(server: OneServer) -> None:
    """One has died again since, the key of another is in use.  Both keep their place: peek shows them, the next redrive
    finds them, and the caps of the queue count them."""
    bury(server, "again", Put("keyed", key="k"))
    server.push(Put("new", key="k"))
    assert redrive(server, "aaaaaaaa") == 0
    server.settle(*server.claim().settle("bury", 0, "why"))
    letters = {"again", "keyed", "new"}
    assert server.contents().dead.keys() == letters
    assert redrive(server, "aaaaaaaa") == 1
    assert server.contents().faults == []
    assert server.contents().dead.keys() == letters
    redrive(server, "bbbbbbbb")
    assert left(server, redrive) == {"new"}


@each_call
def test_calls_are_remembered_for_a_while(server: OneServer, call: Call) -> None:
    for number in range(REMEMBERED):
        assert call(server, f"{number:08}") == (0 if call is not discard else 1)
    prepare(server, call, "new")
    for number in range(REMEMBERED):
        assert call(server, f"{number:08}") == 1
    assert left(server, call) == {"new"}


def test_what_is_remembered_stays_small(server: OneServer) -> None:
    for number in range(10 * REMEMBERED):
        clear(server, f"{number:08}")
    assert server.command("HSTRLEN", server.key("lead"), "calls") == 300


@each_call
def test_calls_of_other_queues_are_others(server: OneServer, call: Call) -> None:
    call(server, "aaaaaaaa")
    server.queue = "other"
    prepare(server, call, "new")
    call(server, "aaaaaaaa")
    assert left(server, call) == set()


def test_named_letters_are_dealt_with_again_and_again(server: OneServer) -> None:
    """They need no such care, and no name for the call."""
    bury(server, "a")
    for _ in range(2):
        assert set(server.redrive("a")) == {"a"}
        server.settle(server.claim().only.settle("bury", 0, "again"))
    assert server.command("HEXISTS", server.key("lead"), "calls") == 0


def test_late_resume_does_not_undo_a_pause(server: OneServer) -> None:
    server.pause(call="aaaaaaaa")
    server.resume(call="bbbbbbbb")
    server.pause(call="cccccccc")
    server.resume(call="bbbbbbbb")
    assert server.contents().paused
    server.resume(call="dddddddd")
    server.pause(call="cccccccc")
    assert not server.contents().paused
