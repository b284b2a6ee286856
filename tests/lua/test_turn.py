"""``turn``: settlements, then a claim request, in one decision."""

from __future__ import annotations

import pytest

from tests.every import every
from tests.lua.entries import BUNDLE, Put
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import State


def three(server: OneServer) -> None:
    server.put("a", "b", "c")


def test_turn_settles_what_was_done_and_claims_the_next(server: OneServer) -> None:
    """One decision: the reply has the records of both parts, as they are held here."""
    three(server)
    first = server.claim(count=1).only
    turned = server.turn(first.settle("ack"))
    assert (turned.verdict, turned.lost, turned.claimed.ids) == ("OK", [[]], ["b"])
    assert set(turned.claimed.decided) == {"a", "b"}
    contents = server.contents()
    assert contents.homes("a") == set()
    assert contents.homes("b") == {"claimed"}
    assert {id: each.packed for id, each in turned.claimed.decided.items()} == {id: contents.packed[id] for id in "ab"}
    assert contents.faults == []
    assert server.count() == (1, 0, 1, 0)


def test_items_of_one_bundle_are_settled_and_claimed_in_one_version(server: OneServer) -> None:
    """The record is written twice, and each item ends in the state that the last part gave it."""
    server.put(Put(BUNDLE, [b"0", b"1", b"2"]))
    claim = server.claim(count=1).decided[BUNDLE]
    turned = server.turn(claim.settle("ack"))
    assert turned.claimed.ids == [f"{BUNDLE}~01"]
    bundle = turned.claimed.decided[BUNDLE].bundle
    assert bundle.version.n == claim.bundle.version.n + 1
    assert [bundle.item(at).state for at in range(3)] == [State.GONE, State.CLAIMED, State.QUEUED]
    assert server.contents().faults == []


@every("verb", ["ack", "nack", "release", "bury", "extend"])
def test_repeated_turn_is_answered_as_done_and_given_the_same_items(server: OneServer, verb: str) -> None:
    """Its answer was lost: the settlement is found done, and the request known by its number."""
    server.reset()
    three(server)
    first = server.claim(count=1).only
    turned = server.turn(first.settle(verb, 60_000), seq=70)
    again = server.turn(first.settle(verb, 60_000), seq=70)
    assert (again.verdict, again.lost) == (turned.verdict, turned.lost)
    assert again.claimed.handed == turned.claimed.handed
    assert {id: each.packed for id, each in again.claimed.decided.items()} == {
        id: server.contents().packed[id] for id in again.claimed.decided
    }


def test_repeated_turn_is_decided_again_under_a_new_epoch(server: OneServer) -> None:
    """Another primary's decision would beat records of the old epoch that it does not know."""
    three(server)
    first = server.claim(count=1).only
    turned = server.turn(first.settle("ack"), seq=70)
    again = server.turn(first.settle("ack"), seq=70, epoch=2)
    assert (again.lost, again.claimed.ids) == ([[]], turned.claimed.ids)
    assert {each.bundle.version.epoch for each in again.claimed.decided.values()} == {2}


def test_released_item_is_handed_out_again_by_the_same_turn(server: OneServer) -> None:
    """Settlements come first."""
    claim = put_and_claim(server, "a").only
    turned = server.turn(claim.settle("release"))
    assert (turned.lost, turned.claimed.ids) == ([[]], ["a"])
    assert turned.claimed.decided["a"].record.attempts == 1


def test_request_of_a_fenced_owner_is_refused_and_the_settlement_of_another_counts(server: OneServer) -> None:
    """A process that was given a new owner id may still settle under a former one that was not fenced."""
    three(server)
    bobs = server.claim("bob", 1).only
    server.fence("ann")
    turned = server.turn(bobs.settle("ack"), owner="ann")
    assert (turned.verdict, turned.lost, turned.claimed.ids) == ("FENCED", [[]], [])
    assert server.contents().homes("a") == set()


def test_settlement_of_a_fenced_owner_is_lost_and_the_request_of_another_counts(server: OneServer) -> None:
    three(server)
    anns = server.claim("ann", 1).only
    server.fence("ann")
    turned = server.turn(anns.settle("ack"), owner="bob")
    assert (turned.verdict, turned.lost) == ("OK", [[0]])
    assert turned.claimed.ids == ["a"]


def test_outdated_request_gets_nothing_and_its_settlements_count(server: OneServer) -> None:
    three(server)
    first = server.claim(count=1, seq=9).only
    turned = server.turn(first.settle("ack"), seq=8)
    assert (turned.verdict, turned.lost, turned.claimed.ids) == ("OUTDATED", [[]], [])


def test_turn_that_finds_nothing_leaves_its_channel(server: OneServer) -> None:
    """So an idle consumer costs one call for its ack and its next request."""
    claim = put_and_claim(server, "a").only
    with server.listen("ann") as ann:
        turned = server.turn(claim.settle("ack"), waiter="ann")
        assert (turned.claimed.ids, turned.claimed.next_ms) == ([], -1)
        server.put("b")
        assert ann.heard() == server.key("ready")


@pytest.mark.parametrize("count", [0, 1])
def test_items_that_became_ready_and_are_not_handed_out_wake_others(server: OneServer, count: int) -> None:
    claims = put_and_claim(server, "a", "b")
    with server.listen("bob") as bob:
        server.claim("bob", waiter="bob")
        server.turn(*claims.settle("release"), count=count)
        assert bob.heard() == server.key("ready")


def test_item_that_became_ready_and_is_handed_out_wakes_nobody(server: OneServer) -> None:
    claims = put_and_claim(server, "a")
    with server.listen("bob") as bob:
        server.claim("bob", waiter="bob")
        server.turn(*claims.settle("release"), count=1)
        assert bob.told_nothing()


def test_item_that_fails_and_is_due_later_wakes_one_that_learns_when(server: OneServer) -> None:
    """The owner of the turn has what it wants, and may be busy for long."""
    held = put_and_claim(server, "a")
    with server.listen("bobs") as bobs:
        server.put("b")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bobs")
        assert server.turn(*held.settle("nack", 20_000)).claimed.ids == ["b"]
        bobs.heard()
    assert 0 < server.claim("bob").next_ms <= 20_000


def test_paused_queue_takes_settlements_and_hands_out_nothing(server: OneServer) -> None:
    three(server)
    first = server.claim(count=1).only
    server.pause()
    turned = server.turn(first.settle("ack"))
    assert (turned.lost, turned.claimed.ids, turned.claimed.next_ms) == ([[]], [], -1)
