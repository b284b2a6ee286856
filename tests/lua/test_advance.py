"""``advance``: items that wait are ready immediately."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.entries import BUNDLE, Put
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.pushing import LONG_MS
from zkrq.protocol import calls
from zkrq.protocol.records import State


def waiting(server: OneServer, id: str = "a", **fields: Any) -> None:
    server.put(Put(id, id.encode(), delay_ms=LONG_MS)._replace(**fields))


def failed(server: OneServer, id: str = "a", **fields: Any) -> None:
    """It waits for its next attempt."""
    server.settle(put_and_claim(server, Put(id, id.encode())._replace(**fields)).only.settle("nack", LONG_MS, "why"))


@pytest.mark.parametrize("make", [waiting, failed])
def test_what_waits_is_ready(server: OneServer, make: Any) -> None:
    make(server, "a")
    make(server, "b")
    assert server.claim("bob").ids == []
    before = server.contents().records["a"]
    decided = server.advance("a", call="aaaaaaaa")
    record = decided["a"].record
    assert (record.state, record.attempts, record.failures) == (State.QUEUED, before.attempts, before.failures)
    assert server.contents().homes("a") == {"ready"}
    assert server.contents().faults == []
    assert server.claim("bob").ids == ["a"]


def test_what_is_advanced_is_ready_on_a_follower(server: OneServer) -> None:
    waiting(server, "a")
    decided = server.advance("a")["a"]
    server.reset()
    server.apply(decided.apply(b"A"), payloads=True)
    assert server.contents().homes("a") == {"ready"}
    assert server.claim().ids == ["a"]


def test_nothing_else_changes(server: OneServer) -> None:
    put_and_claim(server, "claimed")
    server.settle(put_and_claim(server, Put("dead", priority=9)).decided["dead"].settle("bury", 0, "why"))
    server.settle(put_and_claim(server, Put("gone", priority=9)).decided["gone"].settle("ack"))
    server.put("ready")
    before = server.contents()
    assert server.advance("claimed", "dead", "gone", "ready", "never", f"{BUNDLE}~00") == {}
    assert server.contents() == before


def test_what_has_outlived_its_time_waits_for_its_end(server: OneServer) -> None:
    waiting(server, "a", ttl_ms=LONG_MS)
    server.change("a", lambda bundle: bundle._replace(expires_us=bundle.clock_us - bundle.ttl_us))
    assert server.advance("a") == {}


def test_of_a_bundle_only_what_failed_and_is_named(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"x", b"y", b"z"]))
    claim = server.claim(count=2)
    server.settle(claim.decided[BUNDLE].settle("nack", LONG_MS, "why", [0, 1]))
    assert server.advance(f"{BUNDLE}~00", f"{BUNDLE}~02").keys() == {BUNDLE}
    assert server.contents().faults == []
    assert sorted(server.claim("bob").ids) == [f"{BUNDLE}~00", f"{BUNDLE}~02"]


def test_a_group_that_keeps_its_order_keeps_it(server: OneServer) -> None:
    """What stands behind an item that waits does not overtake it; and what has failed goes on in its place."""
    for id in ("a1", "a2", "a3"):
        server.push(Put(id, group="a", ordered=True))
    server.settle(server.claim().only.settle("nack", LONG_MS, "why"))
    assert server.advance("a2", "a3") == {}
    assert server.claim("bob").ids == []
    server.advance("a1")
    assert server.contents().faults == []
    for id in ("a1", "a2", "a3"):
        claim = server.claim("bob")
        assert claim.ids == [id]
        server.settle(claim.only.settle("ack"))


def test_a_group_that_an_item_was_passed_over_in_gets_it_at_its_place(server: OneServer) -> None:
    for id in ("a1", "a2", "a3"):
        server.push(Put(id, group="a", ordered=True))
    server.settle(server.claim().only.settle("pass", LONG_MS, "why"))
    server.advance("a1")
    assert server.contents().faults == []
    assert server.claim("bob").ids == ["a1"], "it comes before those that might have gone on"


def test_what_is_advanced_wakes_who_waits(server: OneServer) -> None:
    waiting(server, "a")
    with server.listen("ann") as ann:
        server.claim("ann", waiter="ann")
        server.advance("a")
        assert ann.heard() == server.key("ready")


def test_a_repetition_tells_the_same_again(server: OneServer) -> None:
    waiting(server, "a")
    first = server.advance("a", call="aaaaaaaa")
    assert server.advance("a", call="aaaaaaaa").keys() == first.keys() == {"a"}
    (again,) = server.advance("a", call="aaaaaaaa", epoch=4).values()
    assert (again.record.version.epoch, again.record.state) == (4, State.QUEUED)
    assert server.advance("a", call="bbbbbbbb", epoch=4) == {}
    assert server.contents().faults == []


def test_what_another_shard_has_not_let_go_waits_on(server: OneServer) -> None:
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        waiting(other, "a")
        movable = other.ask(calls.Movable(other.queue, 10))
        (copied,) = movable.copies.items
        row: Any = (copied.id, copied.record, copied.payload, b"")
        assert server.ask(calls.Adopt(server.queue, server.now_ms(), [row])).outcomes == [b"+"]
    assert server.advance("a") == {}
    assert server.contents().faults == []
