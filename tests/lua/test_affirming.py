"""``affirm``: a record that is decided anew, as it is, under the present epoch."""

from __future__ import annotations

import time

import pytest

from tests.lua.copying import STATES, all_heads, one_of_each
from tests.lua.entries import Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.player import VERBS
from zkrq.protocol.records import ItemRecord, State, Version


def affirmed(record: ItemRecord, epoch: int) -> ItemRecord:
    return record._replace(version=Version(epoch, record.version.n + 1))


def test_affirmed_items_are_what_they_were_under_this_epoch(server: OneServer) -> None:
    """Scrub: whatever other servers may know of it, this is greater."""
    one_of_each(server)
    before = server.contents()
    server.epoch = 4
    decided = server.affirm(*STATES)
    after = server.contents()
    assert set(decided) == set(STATES)
    for id in STATES:
        expected = affirmed(before.records[id], 4)
        if expected.state is State.QUEUED:
            expected = expected._replace(due_us=before.moment_us(id))
        assert after.records[id] == decided[id].record == expected
    assert after.faults == []
    indexes = ("ready", "scheduled", "claimed", "dead", "payloads")
    assert {name: getattr(after, name) for name in indexes} == {name: getattr(before, name) for name in indexes}


def test_affirmed_items_come_to_another_server_as_they_are(server: OneServer, other: OneServer) -> None:
    """What it does not know, knows otherwise, or knows as something newer of an earlier epoch."""
    one_of_each(server)
    later = packed_item(Version(1, 99), State.DEAD)
    other.apply(Applied("ready", later), Applied("gone", later, 0, b"p"), Applied("claimed", later))
    server.epoch = other.epoch = 2
    began_us = server.now_us()
    decided = server.affirm(*STATES)
    payloads = server.contents().payloads
    for id, each in decided.items():
        other.apply(each.apply(payloads.get(id, b"")), payloads=True)
    took_us = other.now_us() - began_us
    source, target = server.contents(), other.contents()
    assert (target.packed, target.payloads) == (source.packed, source.payloads)
    assert target.faults == []
    for id in STATES[1:]:
        assert -1_000 <= target.moment_us(id) - source.moment_us(id) <= took_us
    assert other.compare(all_heads(server)) == ([], [])


@pytest.mark.parametrize("verb", VERBS)
def test_affirmed_claim_is_its_holders(server: OneServer, verb: str) -> None:
    """Rule 6: a claim is known by its token, and by a version no older than the one named."""
    claim = put_and_claim(server, "a").only
    server.epoch = 3
    server.affirm("a")
    server.affirm("a")
    assert server.claim("bob").ids == []
    assert server.settle(claim.settle(verb, 60_000)).outcomes == [1]


def test_affirmed_claim_is_not_another_ones(server: OneServer) -> None:
    claim = put_and_claim(server, "a").only
    server.affirm("a")
    call = claim.settle("ack")._replace(token="bob/1")
    assert server.settle(call).outcomes == [0]


def test_affirmed_claim_keeps_its_deadline(server: OneServer) -> None:
    put_and_claim(server, "a", lease_ms=50_000)
    before = server.contents().claimed
    time.sleep(0.01)
    decided = server.affirm("a")["a"]
    assert server.contents().claimed == before
    assert decided.bundle.rows[0].lease_ms == 50_000
    assert 30_000 < decided.left_ms <= 49_990


def test_affirmed_item_that_has_become_due_is_ready(server: OneServer) -> None:
    server.put(Put("a", delay_ms=1))
    time.sleep(0.005)
    assert server.affirm("a")["a"].left_ms < 0
    assert server.contents().homes("a") == {"ready"}
    assert server.contents().faults == []
    assert server.claim().ids == ["a"]


def test_affirmed_items_keep_their_order(server: OneServer) -> None:
    ids = server.put_numbered(200)
    server.affirm(*reversed(ids))
    assert server.claim(count=200).ids == ids


def test_affirmed_tombstone_stays(server: OneServer) -> None:
    """Rule 8: under its new version; the entry of the old one does not take it along."""
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.epoch = 2
    assert server.affirm("a")["a"].record.state is State.GONE
    assert server.contents().faults == []
    server.put("a")
    assert server.claim().ids == []


def test_affirmed_tombstone_is_dropped_in_the_end(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.affirm("a")
    for id in ("b", "c"):
        time.sleep(0.002)  # it is pushed after what was dropped
        server.settle(put_and_claim(server, id).only.settle("ack"), put_window_ms=0)
    assert server.contents().records == {}
    assert server.contents().tombstones == []


def test_unknown_items_are_not_affirmed(server: OneServer) -> None:
    server.put("a")
    assert set(server.affirm("unknown", "a", "never")) == {"a"}
    assert set(server.contents().records) == {"a"}
    assert server.affirm("unknown") == server.affirm() == {}


def test_item_named_twice_is_affirmed_once(server: OneServer) -> None:
    server.put("a", "b")
    decided = server.affirm("a", "b", "a", "a")
    assert {id: each.record.version for id, each in decided.items()} == {"a": Version(1, 2), "b": Version(1, 2)}
    assert server.contents().records["a"].version == Version(1, 2)


def test_affirming_mends_indexes(server: OneServer) -> None:
    """Every prefix of a script's writes is safe; a key that was lost by hand is none."""
    one_of_each(server)
    server.pipeline(*(("DEL", server.key(name)) for name in ("ready", "scheduled", "claimed", "dead")))
    server.affirm(*STATES)
    assert server.contents().faults == []


def test_item_without_payload_is_affirmed(server: OneServer) -> None:
    """Its holder may still be at it."""
    server.apply(Applied("a", packed_item(Version(1, 2), State.CLAIMED, token="ann/1", lease_ms=9), 60_000))
    record = server.affirm("a")["a"].record
    assert (record.version, record.state, record.token) == (Version(1, 3), State.CLAIMED, "ann/1")


def test_1000_items_are_affirmed_at_once(server: OneServer) -> None:
    ids = server.put_numbered(1_000)
    assert set(server.affirm(*ids)) == set(ids)
    assert server.contents().faults == []
