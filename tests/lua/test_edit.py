"""``edit``: another content of a dead letter, which stands before what is saved of the item."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.copying import copy
from tests.lua.entries import BUNDLE, Copy, Decided, Put, read_decided
from tests.lua.one_server import OneServer
from zkrq.base import saved
from zkrq.base.saved import EDIT_BYTES, Edit, Saved
from zkrq.protocol import calls

EDIT = Edit(1_750_000_000_000, "ann", b"other")
LATER = Edit(1_750_000_000_500, "bob", b"yet another")


def text_of(decided: Decided | Copy, position: int = 0) -> bytes | None:
    return calls.read_saved(decided.notes).get(position)


def edited(server: OneServer, edit: Edit, id: str = "a") -> Decided:
    """Edit a letter; what was decided."""
    reply = server.ask(calls.Edit(server.queue, edit.encode(), [id]))
    assert reply.states == [b"E"]
    (decided,) = read_decided(reply.records.flat).values()
    return decided


def kept(server: OneServer, id: str = "a", position: int = 0) -> bytes | None:
    return text_of(server.read(id)[id], position)


def given(server: OneServer, owner: str = "ann") -> Edit | None:
    """The content that comes with a claim."""
    (claimed,) = server.claim(owner).decided.values()
    text = text_of(claimed)
    server.settle(claimed.settle("bury", text="again"))
    return None if text is None else saved.edit_in(text)


def bury(server: OneServer, text: bytes | None = None) -> None:
    server.put(Put("a"))
    (claimed,) = server.claim().decided.values()
    if text is not None:
        assert server.settle(claimed.settle("save", 0, b"1 0 " + text)).outcomes == [1]
    server.settle(claimed.settle("bury", text="why"))


def test_every_delivery_after_it_is_given_the_content(server: OneServer) -> None:
    bury(server)
    edited(server, EDIT)
    assert server.contents().faults == []
    assert server.claim().ids == [], "it is dead until it is redriven"
    for _ in range(2):
        server.redrive("a")
        assert given(server) == EDIT
    edited(server, LATER)
    server.redrive("a")
    assert given(server) == LATER


@pytest.mark.parametrize("known", [Saved(b"state"), Saved(b"", {"charge": b"paid"}), Saved(None, {"x": b""})])
def test_what_is_saved_stays_behind_it(server: OneServer, known: Saved) -> None:
    bury(server, known.encode())
    for edit in (EDIT, LATER):
        edited(server, edit)
        text = kept(server)
        assert text is not None
        assert saved.decode(text) == known._replace(edit=edit)
        assert saved.decode(text).encode() == text


def test_of_what_was_saved_before_the_push_servers_know_nothing(server: OneServer) -> None:
    bury(server)
    begun = Saved(b"of before", {"charge": b"paid"})
    for edit in (EDIT, LATER):
        edited(server, edit)
        text = saved.joined(kept(server), begun.encode())
        assert text is not None
        assert saved.decode(text) == begun._replace(edit=edit)


def test_each_server_has_it_before_the_letter_is_redriven(server: OneServer, follower: OneServer) -> None:
    bury(server)
    follower.apply(server.read("a")["a"].applied, payloads=True)
    decided = edited(server, EDIT)
    follower.apply(decided.apply(b"payload"), payloads=True)
    assert kept(follower) == kept(server)
    follower.epoch += 1
    follower.redrive("a")
    assert given(follower, "bob") == EDIT
    follower.command("FLUSHDB")
    follower.enrol()
    copy(server, follower)
    assert kept(follower) == kept(server)


NOT_DEAD: dict[str, Callable[[OneServer], object]] = {
    "unknown": lambda server: None,
    "queued": lambda server: server.put(Put("a")),
    "claimed": lambda server: (server.put(Put("a")), server.claim()),
    "gone": lambda server: (server.put(Put("a")), server.settle(server.claim().decided["a"].settle("ack"))),
}


@pytest.mark.parametrize("state", NOT_DEAD)
def test_only_dead_letters_are_edited(server: OneServer, state: str) -> None:
    NOT_DEAD[state](server)
    before = server.contents()
    assert server.ask(calls.Edit(server.queue, EDIT.encode(), ["a"])).states == [b""]
    assert server.contents() == before


def test_a_repeated_call_changes_nothing_more(server: OneServer) -> None:
    bury(server, Saved(b"state").encode())
    edited(server, EDIT)
    before = kept(server)
    server.epoch += 1
    edited(server, EDIT)
    assert kept(server) == before


def test_one_item_of_a_bundle_is_edited(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"0", b"1", b"2"]))
    (claimed,) = server.claim(count=3).decided.values()
    server.settle(claimed.settle("bury", text="why", positions=(0, 1, 2)))
    edited(server, EDIT, calls.item_id(BUNDLE, 1))
    assert [kept(server, BUNDLE, position) is None for position in range(3)] == [True, False, True]
    assert server.contents().faults == []


def test_what_does_not_fit_changes_nothing(server: OneServer) -> None:
    bury(server, Saved(b"s" * 32_000).encode())
    before = kept(server)
    ask = calls.Edit(server.queue, EDIT._replace(content=b"x" * EDIT_BYTES).encode(), ["a"])
    assert server.ask(ask).states == [b"L"]
    assert server.ask(calls.Edit(server.queue, bytes(70_000), ["a"])).states == [b"L"]
    assert kept(server) == before


@pytest.mark.parametrize(
    "text", [b"", b"\2", b"\3\xff", b"\2\xff\xff", b"\3\0\3abc", b"\x99damaged", b"\2\0\0" + b"x" * 9]
)
def test_what_is_stored_is_read_safely(server: OneServer, text: bytes) -> None:
    bury(server, text)
    saved.edit_in(text)
    assert server.ask(calls.Edit(server.queue, EDIT.encode(), ["a"])).states == [b"E"]
    found = kept(server)
    assert found is not None
    assert saved.edit_in(found) == EDIT
