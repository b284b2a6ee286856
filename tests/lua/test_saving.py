"""Saved states: what a returned save holds, or a delivery was given, every later delivery is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from tests.lua.copying import copy
from tests.lua.entries import BUNDLE, Applied, Claimed, Decided, Put
from tests.lua.one_server import OneServer, held, put_and_claim, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.records import FIELDS_FORMAT, FORMAT

KIB = 1024


def save(
    server: OneServer,
    claim: Decided,
    state: str,
    number: int = 1,
    *,
    positions: Sequence[int] = (0,),
    ms: int = 0,
    anew: int = 0,
) -> Decided:
    """Save a state by a claim; what was decided."""
    settled = server.settle(claim.settle("save", ms, f"{number} {anew} {state}", positions))
    assert settled.outcomes == [1]
    return settled.decided[claim.id]


def given(claimed: Claimed | Mapping[str, Decided]) -> dict[str, str]:
    """The states that come with claims, by item."""
    decided = claimed.decided if isinstance(claimed, Claimed) else claimed
    return {
        id if each.bundle.is_alone else calls.item_id(id, at): state.decode()
        for id, each in decided.items()
        for at, state in calls.read_saved(each.notes).items()
    }


def stored(server: OneServer) -> dict[str, str]:
    """The states that a server has, by item, without their versions."""
    return {id: text[8:].decode() for id, text in server.contents().saved.items()}


def apply(server: OneServer, decided: Decided) -> None:
    server.apply(decided.apply(b"payload"), payloads=True)


# -- what keeps a state, and what does not ---------------------------------------------------------------------------


def bury_and_redrive(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("bury", text="why"))
    server.redrive("a")


def expire(server: OneServer, claim: Decided) -> None:
    server.settle(claim.settle("extend", 1))
    wait_ms(2)


def affirm(server: OneServer, claim: Decided) -> None:
    server.epoch += 1
    server.affirm("a")
    server.settle(claim.settle("release"))


PUT_BACK: Mapping[str, Callable[[OneServer, Decided], object]] = {
    "nack": lambda server, claim: server.settle(claim.settle("nack", text="why")),
    "pass": lambda server, claim: server.settle(claim.settle("pass", text="why")),
    "release": lambda server, claim: server.settle(claim.settle("release")),
    "death of the holder": lambda server, claim: server.fence("ann"),
    "expiry": expire,
    "bury and redrive": bury_and_redrive,
    "affirm": affirm,
}


@pytest.mark.parametrize("how", PUT_BACK)
def test_the_next_delivery_is_given_what_was_saved(server: OneServer, how: str) -> None:
    claim = held(server)
    save(server, claim, "first")
    save(server, claim, "second\n\0 1 state", 2)
    PUT_BACK[how](server, claim)
    again = server.claim("bob")
    assert again.ids == ["a"]
    assert given(again) == {"a": "second\n\0 1 state"}
    assert server.contents().faults == []


GONE: Mapping[str, Callable[[OneServer, Decided], object]] = {
    "ack": lambda server, claim: server.settle(claim.settle("ack")),
    "ack with a result": lambda server, claim: server.settle(claim.settle("result", 60_000, "done")),
    "cancel": lambda server, claim: server.cancel("a"),
    "clear": lambda server, claim: (server.settle(claim.settle("release")), server.clear(9)),
}


@pytest.mark.parametrize("how", GONE)
def test_a_state_goes_with_its_item(server: OneServer, other: OneServer, how: str) -> None:
    claim = held(server)
    apply(other, save(server, claim, "state"))
    assert stored(other) == {"a": "state"}
    GONE[how](server, claim)
    copy(server, other)
    for each in (server, other):
        assert stored(each) == {"a": "state"}, "until every server knows of the end"
        each.cut("a")
        assert each.contents().saved == {}
        assert each.contents().faults == []


def test_a_state_goes_with_its_tombstone_if_nothing_else_drops_it(server: OneServer) -> None:
    claim = held(server)
    save(server, claim, "state")
    server.settle(claim.settle("ack"))
    assert server.trim(put_window_ms=0) == 1
    assert server.contents().saved == {}
    assert server.contents().bundles == {}


def test_a_state_is_kept_for_the_next_primary_that_has_not_heard_of_the_removal(
    server: OneServer, other: OneServer
) -> None:
    """Model, seed 3274: the ack reached this server alone, whose next primary fenced its holder."""
    claim = put_and_claim(server, Put(BUNDLE, [b"one", b"two"])).decided[BUNDLE]
    decided = save(server, claim, "state", positions=[1])
    other.apply(decided.apply([b"one", b"two"]), payloads=True)
    server.settle(claim.settle("ack", positions=[1]))
    server.epoch = other.epoch = 2
    (fenced,) = other.fence("ann").values()
    server.apply(fenced.apply())
    assert given(server.claim("bob")) == {calls.item_id(BUNDLE, 1): "state"}


def test_states_of_items_that_are_gone_are_cut_one_by_one(server: OneServer) -> None:
    claim = put_and_claim(server, Put(BUNDLE, [b"one", b"two", b"three"])).decided[BUNDLE]
    save(server, claim, "all", positions=[0, 1, 2])
    server.settle(claim.settle("ack", positions=[0, 1]))
    server.cut(BUNDLE, positions=[1, 2])
    assert stored(server).keys() == {calls.item_id(BUNDLE, position) for position in (0, 2)}
    server.settle(claim.settle("ack", positions=[2]))
    server.cut(BUNDLE)
    assert stored(server) == {}


def test_a_new_life_of_an_id_begins_without(server: OneServer, other: OneServer) -> None:
    """Also on a server that has not heard of the end of the former one."""
    claim = held(server)
    apply(other, late := save(server, claim, "state"))
    server.cancel("a")
    server.age("a", 2 * 300_000 + 1)
    (outcome,), decided = server.push(Put("a", b"new"))
    assert outcome == "+"
    apply(other, decided["a"])
    assert other.contents().saved == {}
    apply(other, late)
    assert other.contents().saved == {}
    assert given(other.claim("bob")) == given(server.claim("bob")) == {}


def test_an_item_without_a_state_costs_nothing(server: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    assert claim.packed[0] == FORMAT
    assert claim.notes == b""
    assert server.contents().saved == {}


def test_each_item_of_a_bundle_has_its_own(server: OneServer, other: OneServer) -> None:
    claimed = put_and_claim(server, Put(BUNDLE, [b"one", b"two", b"three"]))
    claim = claimed.decided[BUNDLE]
    save(server, claim, "of two", positions=[1])
    decided = save(server, claim, "of three", positions=[2])
    assert decided.packed[0] == FIELDS_FORMAT
    server.settle(claim.settle("ack", positions=[1]), claim.settle("nack", positions=[0, 2]))
    server.cut(BUNDLE, positions=[1])
    again = server.claim("bob")
    assert given(again) == {calls.item_id(BUNDLE, 2): "of three"}
    assert copy(server, other) == 2
    assert stored(other) == stored(server) == {calls.item_id(BUNDLE, 2): "of three"}
    assert server.contents().faults == other.contents().faults == []


def test_items_of_a_bundle_may_save_the_same(server: OneServer) -> None:
    claim = put_and_claim(server, Put(BUNDLE, [b"one", b"two"])).decided[BUNDLE]
    save(server, claim, "both", positions=[0, 1])
    assert sorted(stored(server).values()) == ["both", "both"]


# -- leases, attempts ------------------------------------------------------------------------------------------------


def test_a_save_extends_the_lease_if_asked_to(server: OneServer) -> None:
    claim = held(server)
    before = server.record("a").deadline_us
    save(server, claim, "state")
    assert server.record("a").deadline_us == before
    save(server, claim, "state", 2, ms=3_600_000)
    assert server.record("a").deadline_us > before + 3_000_000_000
    assert server.contents().faults == []


def test_a_save_may_count_attempts_anew(server: OneServer) -> None:
    server.put("a")
    for _ in range(3):
        server.settle(server.claim().only.settle("nack", text="why"))
    claim = server.claim().only
    assert (claim.record.attempts, claim.record.failures) == (4, 3)
    save(server, claim, "state")
    assert (server.record("a").attempts, server.record("a").failures) == (4, 3)
    save(server, claim, "state", 2, anew=1)
    assert (server.record("a").attempts, server.record("a").failures) == (1, 0)
    server.settle(claim.settle("nack", text="why"))
    again = server.claim().only
    assert (again.record.attempts, again.record.failures) == (2, 1)


# -- rule a: a save needs the claim ----------------------------------------------------------------------------------


def test_a_save_needs_the_claim(server: OneServer) -> None:
    """A zombie must not overwrite what the next holder has done."""
    claim = held(server)
    server.settle(claim.settle("release"))
    zombie = claim.settle("save", 0, "1 0 old")
    assert server.settle(zombie).outcomes == [0]
    next_one = server.claim("bob").only
    save(server, next_one, "new")
    assert server.settle(zombie).outcomes == [0]
    assert stored(server) == {"a": "new"}


@pytest.mark.parametrize("id", ["a", "unknown"])
def test_a_save_of_what_is_gone_is_lost(server: OneServer, id: str) -> None:
    claim = held(server)
    server.settle(claim.settle("ack"))
    late = claim.settle("save", 0, "1 0 late")._replace(id=id)
    assert server.settle(late).outcomes == [0]
    assert server.contents().saved == {}


# -- rule b: only a greater version of the text takes its place ------------------------------------------------------


def test_a_late_apply_does_not_bring_back_an_older_state(server: OneServer, other: OneServer) -> None:
    claim = held(server)
    first = save(server, claim, "first")
    second = save(server, claim, "second", 2)
    for decided in (first, second, first):
        apply(other, decided)
    assert stored(other) == {"a": "second"}


def test_a_state_arrives_though_a_decision_about_a_sibling_has_overtaken_it(
    server: OneServer, other: OneServer
) -> None:
    claim = put_and_claim(server, Put(BUNDLE, [b"one", b"two"])).decided[BUNDLE]
    before = save(server, claim, "before", positions=[0])
    decided = save(server, claim, "state", 2, positions=[0])
    sibling = server.settle(claim.settle("nack", positions=[1])).decided[BUNDLE]
    for each in (before, sibling, decided, before):
        other.apply(each.apply([b"one", b"two"]), payloads=True)
    assert stored(other) == {calls.item_id(BUNDLE, 0): "state"}
    assert other.contents().faults == []


# -- rule c: every server has what a claim gives ---------------------------------------------------------------------


def test_what_a_claim_gives_is_the_latest_on_every_server(server: OneServer, other: OneServer) -> None:
    """Another primary has decided meanwhile what only it has seen; the claim is decided after it, without that."""
    claim = held(server)
    apply(other, save(server, claim, "everywhere"))
    save(other, claim, "of one server", 2)
    server.epoch = other.epoch = 2
    server.settle(claim.settle("release"))
    again = server.claim("bob")
    assert given(again) == {"a": "everywhere"}
    apply(other, again.only)
    assert stored(other) == {"a": "everywhere"}
    other.epoch = 3
    other.settle(again.only.settle("release"))
    assert given(other.claim("eve")) == {"a": "everywhere"}


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_repeated_request_is_given_the_state_again(server: OneServer, other: OneServer, epoch: int) -> None:
    save(server, held(server), "state")
    server.fence("ann")
    claimed = server.claim("bob", seq=7)
    server.epoch = other.epoch = epoch
    again = server.claim("bob", seq=7)
    assert given(claimed) == given(again) == {"a": "state"}
    apply(other, again.only)
    assert stored(other) == {"a": "state"}


# -- rule d: saves are numbered --------------------------------------------------------------------------------------


def test_a_save_that_is_executed_late_changes_nothing(server: OneServer) -> None:
    claim = held(server)
    first = claim.settle("save", 0, "1 0 first")
    assert server.settle(first).outcomes == [1]
    save(server, claim, "second", 2)
    assert server.settle(first).outcomes == [1]
    assert stored(server) == {"a": "second"}


def test_a_save_is_repeated_at_a_server_that_knows_its_record_alone(server: OneServer, other: OneServer) -> None:
    """A decision about a sibling has brought the number, without the text."""
    claim = put_and_claim(server, Put(BUNDLE, [b"one", b"two"])).decided[BUNDLE]
    save(server, claim, "state", positions=[0])
    sibling = server.settle(claim.settle("nack", positions=[1])).decided[BUNDLE]
    other.apply(sibling.apply([b"one", b"two"]), payloads=True)
    assert stored(other) == {}
    other.epoch = 2
    assert given({BUNDLE: save(other, claim, "state", positions=[0])}) == {calls.item_id(BUNDLE, 0): "state"}
    assert stored(other) == {calls.item_id(BUNDLE, 0): "state"}


def test_each_claim_numbers_its_saves_anew(server: OneServer) -> None:
    claim = held(server)
    for number in range(1, 4):
        save(server, claim, f"state {number}", number)
    server.settle(claim.settle("release"))
    save(server, server.claim("bob").only, "of bob")
    assert stored(server) == {"a": "of bob"}


# -- how states travel -----------------------------------------------------------------------------------------------


def test_states_count_in_the_mebibyte_of_a_claim(server: OneServer) -> None:
    claimed = put_and_claim(server, Put(BUNDLE, [b"x"] * 60))
    large = "s" * 32 * KIB
    save(server, claimed.decided[BUNDLE], large, positions=range(60))
    server.fence("ann")
    first = server.claim("bob", 60)
    assert len(first.ids) == 31
    assert set(given(first).values()) == {large}
    rest = server.claim("bob", 60)
    assert len(rest.ids) == 29
    assert given(first).keys() | given(rest).keys() == {*first.ids, *rest.ids}


def test_a_copy_brings_states(server: OneServer, other: OneServer) -> None:
    save(server, held(server), "state")
    copy(server, other)
    assert other.contents().saved == server.contents().saved
    assert copy(server, other) == 1
    assert other.contents().saved == server.contents().saved


def test_a_push_that_is_finished_for_its_client_brings_its_state(server: OneServer, other: OneServer) -> None:
    save(server, held(server), "state")
    found = server.read("a")["a"]
    other.forward(Applied("a", found.packed, 0, b"payload", found.notes, found.since))
    assert stored(other) == {"a": "state"}


@pytest.mark.parametrize("put", [Put("a"), Put(BUNDLE, [b"one", b"two"])], ids=["alone", "of a bundle"])
def test_what_moves_to_another_shard_takes_its_state_along(server: OneServer, other: OneServer, put: Put) -> None:
    claimed = put_and_claim(server, put)
    (id, positions) = next(iter(claimed.positions.items()))
    save(server, claimed.decided[id], "state", positions=positions[-1:])
    server.settle(*claimed.settle("nack", text="why"))
    found = server.ask(calls.Movable(server.queue, 10))
    bundles = {copied.id: copied for copied in found.copies.items}
    items = [calls.Adopted.of(bundles[bundle], position) for bundle, position in found.places]
    there = [item for item in items if item]
    for _ in range(2):
        other.ask(calls.Adopt(other.queue, server.now_ms(), there))
    moved = claimed.ids[-1]
    assert stored(other) == {moved: "state"}
    assert other.contents().notes == dict.fromkeys(claimed.ids, "why")
    other.ask(calls.Admit(other.queue, [(item.id, 1) for item in there]))
    assert given(other.claim("bob")) == {moved: "state"}
    assert other.contents().faults == []
    server.ask(calls.Cancel(server.queue, "M", 0, "c0ffee", claimed.ids))
    server.cut(id)
    assert server.contents().saved == {}


def test_what_is_set_aside_as_damaged_takes_its_state_along(server: OneServer) -> None:
    save(server, held(server), "state")
    server.command("HSET", server.key("records"), "a", b"damaged")
    server.ask(calls.SetAside(server.queue, 0, "", [calls.Kept(b"a", b"")]))
    assert server.contents().saved == {}
    kept = server.command("HGET", server.key("aside"), "a")
    assert isinstance(kept, bytes)
    assert b"state" in kept


# -- what others wrote -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1 0 " + "s" * (32 * KIB + 1), "1 0", "x 0 state", "1 2 state", ""], ids=range(5))
def test_a_save_that_no_client_sends_is_refused(server: OneServer, text: str) -> None:
    claim = held(server)
    save(server, claim, "s" * 32 * KIB)
    assert server.settle(claim.settle("save", 60_000, text)).outcomes == [0]
    assert stored(server) == {"a": "s" * 32 * KIB}
    assert server.settle(claim.settle("ack")).outcomes == [1]


@pytest.mark.parametrize("length", [0, 7, 32 * KIB + 9, 65_536, 1 << 20])
def test_a_text_that_no_client_has_saved_is_given_to_nobody(server: OneServer, other: OneServer, length: int) -> None:
    """It would not fit into the length that stands before it, and replies could not be read."""
    claim = held(server)
    decided = save(server, claim, "state")
    server.settle(claim.settle("release"))
    (entry,) = cast("list[bytes]", server.command("HKEYS", server.key("notes")))
    server.command("HSET", server.key("notes"), entry, b"\xff" * length)
    assert calls.read_saved(server.read("a")["a"].notes).get(0, b"") == b""
    assert copy(server, other) == 1
    claimed = server.claim("bob")
    assert claimed.ids == ["a"]
    assert set(given(claimed).values()) <= {""}
    again = save(server, claimed.only, "from the beginning")
    apply(other, again)
    assert stored(server) == stored(other) == {"a": "from the beginning"}
    apply(other, decided)
    assert stored(other) == {"a": "from the beginning"}
