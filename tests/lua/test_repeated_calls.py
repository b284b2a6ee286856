"""Calls that name no items are executed once: a first try that arrives after its repetition takes no new items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.lua.entries import Put, read_decided
from tests.lua.letters import bury
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import State

REMEMBERED = 30  # calls at least, of eight characters each

Call = Callable[[OneServer, str], bool]
"""Makes a call of this name; whether it was executed before."""


def clearing(server: OneServer, call: str) -> calls.Clear:
    return calls.Clear(server.queue, 10, call, 0, b"")


def redriving(server: OneServer, call: str) -> calls.Redrive:
    return calls.Redrive(server.queue, 0, 10, call)


def discarding(server: OneServer, call: str) -> calls.Cancel:
    return calls.Cancel(server.queue, "D", 10, call)


def clear(server: OneServer, call: str) -> bool:
    return server.ask(clearing(server, call)).executed_before


def redrive(server: OneServer, call: str) -> bool:
    return server.ask(redriving(server, call)).executed_before


def discard(server: OneServer, call: str) -> bool:
    letters = server.contents().dead
    server.ask(discarding(server, call))
    return server.contents().dead == letters


def prepare(server: OneServer, call: Call, *ids: str) -> None:
    """Items that the call would concern."""
    if call is clear:
        server.put(*ids)
    else:
        bury(server, *ids)


def left(server: OneServer, call: Call) -> set[str]:
    state = State.QUEUED if call is clear else State.DEAD
    return {id for id, record in server.contents().records.items() if record.state is state}


MAKING: dict[Call, Callable[[OneServer, str], calls.Call[Any]]] = {
    clear: clearing,
    redrive: redriving,
    discard: discarding,
}

each_call = pytest.mark.parametrize("call", MAKING)


@each_call
def test_late_first_try_does_nothing(server: OneServer, call: Call) -> None:
    prepare(server, call, "old", "older")
    assert not call(server, "aaaaaaaa")
    assert left(server, call) == set()
    if call is redrive:
        server.clear(10)
    prepare(server, call, "new")
    assert call(server, "aaaaaaaa")
    assert left(server, call) == {"new"}
    assert not call(server, "bbbbbbbb")
    assert left(server, call) == set()
    assert server.contents().faults == []


@each_call
def test_repetition_tells_of_what_the_first_try_did(server: OneServer, call: Call) -> None:
    """Its reply may have been lost; no further item is concerned."""
    prepare(server, call, "a", "b")
    made = MAKING[call](server, "aaaaaaaa")
    first = server.ask(made).records
    if call is not redrive:  # burying would take what it has queued again
        prepare(server, call, "new")
    for epoch in (server.epoch, server.epoch + 1):
        again = server.ask(made, epoch=epoch).records
        assert read_decided(again.flat).keys() == read_decided(first.flat).keys() == {"a", "b"}
    server.epoch += 1
    assert left(server, call) == ({"new"} if call is not redrive else set())
    assert server.contents().faults == []


def test_repetition_of_a_redrive_leaves_dead_letters_alone(server: OneServer) -> None:
    """One has died again since, the key of another is in use.  Both keep their place: peek shows them, the next redrive
    finds them, and the caps of the queue count them."""
    bury(server, "again", Put("keyed", key="k"))
    server.push(Put("new", key="k"))
    assert not redrive(server, "aaaaaaaa")
    server.settle(*server.claim().settle("bury", 0, "why"))
    letters = {"again", "keyed", "new"}
    assert server.contents().dead.keys() == letters
    assert redrive(server, "aaaaaaaa")
    assert server.contents().faults == []
    assert server.contents().dead.keys() == letters
    redrive(server, "bbbbbbbb")
    assert left(server, redrive) == {"new"}


@each_call
def test_calls_are_remembered_for_a_while(server: OneServer, call: Call) -> None:
    for number in range(REMEMBERED):
        assert call(server, f"{number:08}") is (call is discard)
    prepare(server, call, "new")
    for number in range(REMEMBERED):
        assert call(server, f"{number:08}")
    assert left(server, call) == {"new"}


def test_what_is_remembered_stays_small(server: OneServer) -> None:
    for number in range(10 * REMEMBERED):
        clear(server, f"{number:08}")
    assert server.command("HSTRLEN", server.key("lead"), "calls") == 300


def test_items_of_a_call_are_forgotten_though_no_later_call_has_any(server: OneServer) -> None:
    for number in range(2):
        server.put(f"item-{number}")
        clear(server, f"{number:08x}")
        for other in range(REMEMBERED + 10):
            clear(server, f"{number:06}{other:02}")
    fields = cast("list[bytes]", server.command("HKEYS", server.key("lead")))
    assert not [name for name in fields if name.startswith(b"items ")]


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
