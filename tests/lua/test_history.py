"""``history``: which items have ended last, and the beginnings of claims, from which their durations follow."""

from __future__ import annotations

import struct
from typing import cast

from tests.lines import entry_of
from tests.lua.entries import BUNDLE, LEASE_MS, Decided, Put
from tests.lua.one_server import OneServer, held, put_and_claim, wait_ms
from tests.stored import SHIFT_BYTES
from zkrq.protocol import calls
from zkrq.protocol.calls import EndedRow, item_id
from zkrq.protocol.records import BUNDLE_MAX, pack, unpack

KEPT = 5


def declare(server: OneServer, kept: int = KEPT) -> dict[str, Decided]:
    return server.declare(f"keep={kept}" if kept else "", "history")[1]


def ended(server: OneServer, passed: int = 0, count: int = 500) -> list[EndedRow]:
    return list(server.ask(calls.History(server.queue, passed, count)).items)


def told(server: OneServer) -> list[tuple[str, str]]:
    """Id and end of each item, the latest first."""
    return [(row.id.decode(), row.state.decode()) for row in ended(server)]


def named(server: OneServer) -> int:
    return int(str(server.command("ZCARD", server.key("recent"))))


def test_nothing_is_kept_where_nothing_is_declared(server: OneServer) -> None:
    decided = server.settle(held(server).settle("ack")).decided["a"]
    assert (ended(server), named(server), decided.bundle.own) == ([], 0, {})
    assert server.ask(calls.History("q", 0, 10)).kept == 0


def test_what_is_told_of_each_end(server: OneServer) -> None:
    declare(server)
    assert server.ask(calls.History("q", 0, 10)).kept == KEPT
    server.settle(held(server, "done").settle("ack"))
    server.settle(held(server, "dead").settle("bury", 0, "why"))
    server.put("cancelled", "waits")
    server.ask(calls.Cancel("q", "", 0, "call", ["cancelled", "never pushed"]))
    server.push(Put("expired", ttl_ms=1))
    wait_ms(3)
    server.claim("bob", count=0)
    assert told(server) == [("expired", "E"), ("cancelled", "X"), ("dead", "D"), ("done", "A")]
    of = {row.id: row for row in ended(server)}
    assert (of[b"dead"].text, of[b"dead"].owner) == (b"why", b"ann")
    assert (of[b"done"].owner, of[b"expired"].owner) == (b"ann", b"")
    assert (of[b"done"].attempts, of[b"cancelled"].took_us, of[b"expired"].took_us) == (1, b"-1", b"-1")
    assert server.contents().faults == []


def test_how_long_the_last_claim_took_counts_from_its_beginning(server: OneServer) -> None:
    """Extended, for longer and for less."""
    declare(server)
    before_us = server.now_us()
    claim = held(server)
    after_us = server.now_us()
    for ms in (120_000, 1_000, LEASE_MS):
        wait_ms(5)
        claim = server.settle(claim.settle("extend", ms)).decided["a"]
        assert before_us <= (claim.bundle.claimed_us(0) or 0) <= after_us
    extended_us = server.now_us()
    server.settle(claim.settle("ack"))
    (row,) = ended(server)
    now_us = server.now_us()
    assert extended_us - after_us <= int(row.took_us) <= now_us - before_us
    assert 0 <= int(row.age_us) <= now_us - extended_us


def test_a_claim_that_is_handed_out_again_after_an_eviction_keeps_its_beginning(server: OneServer) -> None:
    """Its request was in flight: the item has been taken from its queue all the time."""
    declare(server)
    before_us = server.now_us()
    put_and_claim(server, Put("a"), Put("b"))
    after_us = server.now_us()
    wait_ms(5)
    again = server.claim(seq=1, epoch=2)
    assert sorted(again.ids) == ["a", "b"]
    assert before_us <= (again.decided["a"].bundle.claimed_us(0) or 0) <= after_us
    again_us = server.now_us()
    server.settle(again.decided["a"].settle("ack"), epoch=2)
    (row,) = server.ask(calls.History(server.queue, 0, 10), epoch=2).items
    assert int(row.took_us) >= again_us - after_us


def test_a_clock_that_was_set_back_gives_no_negative_time(server: OneServer) -> None:
    declare(server)
    claim = held(server)
    stored = cast("bytes", server.command("HGET", server.key("records"), "a"))
    bundle = unpack(stored[SHIFT_BYTES:])
    later = [row._replace(deadline_us=row.deadline_us + 10_000_000) for row in bundle.rows]
    server.command("HSET", server.key("records"), "a", stored[:SHIFT_BYTES] + pack(bundle._replace(rows=later)))
    server.settle(claim.settle("ack"))
    assert [(row.state, row.took_us) for row in ended(server)] == [(b"A", b"0")]


def test_a_clock_that_was_set_back_keeps_nothing_out(server: OneServer) -> None:
    """What ended before seems to end later than what ends now."""
    declare(server, 3)
    for id in "abc":
        server.settle(held(server, id).settle("ack"))
        server.command("ZINCRBY", server.key("recent"), 10_000_000, entry_of(id))
    server.settle(held(server, "d").settle("ack"))
    assert told(server) == [("d", "A"), ("c", "A"), ("b", "A")]
    server.settle(held(server, "e").settle("ack"))
    assert told(server) == [("e", "A"), ("d", "A"), ("c", "A")]


def test_a_claim_that_is_not_extended_costs_no_row(server: OneServer) -> None:
    before_us = server.now_us()
    claim = held(server)
    assert len(claim.bundle.rows) == 1
    assert before_us <= (claim.bundle.claimed_us(0) or 0) <= server.now_us()
    for _ in range(3):
        claim = server.settle(claim.settle("extend", LEASE_MS)).decided["a"]
    assert len(claim.bundle.rows) == 2


def test_every_item_of_a_bundle_may_be_claimed_and_extended_by_itself(server: OneServer) -> None:
    """As many rows as can be named, and as many beginnings beside them."""
    server.put(Put(BUNDLE, [b"x"] * BUNDLE_MAX))
    for again in range(3):
        bundle = None
        for number in range(BUNDLE_MAX):
            claim = server.claim(f"owner-{number}-{again}", count=1)
            (settlement,) = claim.settle("extend", LEASE_MS)
            bundle = server.settle(settlement).decided[BUNDLE].bundle
        assert bundle
        assert bundle.states == "C" * BUNDLE_MAX
        moments = [bundle.claimed_us(position) or 0 for position in range(BUNDLE_MAX)]
        assert moments == sorted(moments)
        assert {row.token for row in bundle.rows if not row.lease_ms} == {
            row.token for row in bundle.rows if row.lease_ms
        }
        for number in range(BUNDLE_MAX):
            server.fence(f"owner-{number}-{again}")
    assert server.contents().faults == []


def test_never_more_than_the_bound_the_oldest_go_first(server: OneServer) -> None:
    declare(server)
    server.put(Put(BUNDLE, [b"x"] * 20))
    for position in range(20):
        claim = server.claim(count=1)
        server.settle(*claim.settle("ack"))
        assert named(server) == min(position + 1, KEPT)
    assert told(server) == [(item_id(BUNDLE, position), "A") for position in range(19, 14, -1)]
    assert [row.id for row in ended(server, 1, 2)] == [row.id for row in ended(server)[1:3]]
    declare(server, 2)
    assert len(told(server)) == named(server) == 2
    declare(server, 0)
    assert named(server) == 0


def test_a_redriven_letter_has_not_ended(server: OneServer) -> None:
    declare(server)
    server.settle(held(server).settle("bury", 0, "why"))
    server.redrive("a")
    assert (told(server), named(server)) == ([], 0)
    server.settle(server.claim().only.settle("ack"))
    assert told(server) == [("a", "A")]


def test_a_new_life_of_an_id_has_not_ended(server: OneServer) -> None:
    declare(server)
    server.settle(held(server).settle("ack"))
    server.age("a", 700_000)
    server.push(Put("a"))
    assert (told(server), named(server)) == ([], 0)


def test_the_end_of_a_pause_or_of_limits_is_no_end_of_an_item(server: OneServer) -> None:
    declare(server)
    server.declare("concurrency=1")
    server.pause()
    server.resume()
    assert (told(server), named(server)) == ([], 0)
    server.declare("")
    declare(server, 0)
    assert {own for bundle in server.contents().bundles.values() for own in bundle.own} == set()


def test_a_result_and_the_history_go_together(server: OneServer) -> None:
    """A result that is no longer kept leaves its item in the history; one that belongs to no item is not in it."""
    declare(server)
    server.settle(held(server).settle("result", 1, "42"))
    server.settle(held(server, "b").settle("result", 60_000, "43"))
    server.settle(held(server, "c").settle("ack"))
    wait_ms(3)
    assert server.results("a", "b", "c")[0] == [("N", ""), ("A", "43"), ("N", "")]
    server.ask(calls.Store("q", [calls.StoredRow("task", "call", "set 60000 2", b"42")]))
    assert told(server) == [("c", "A"), ("b", "A"), ("a", "A")]


def test_limits_are_declared_beside_it_and_it_limits_nothing(server: OneServer) -> None:
    def limited(seq: int) -> int:
        return server.ask(calls.Claim("q", "ann", seq, 1, LEASE_MS, "", 0, "X", 0, 0)).limited

    declare(server)
    server.put("a", "b")
    assert limited(1) == 0
    server.declare("concurrency=1")
    assert server.ask(calls.Statistics("q")).limits == b"history:keep=5 limits:concurrency=1"
    assert limited(2) == 1
    server.declare("")
    assert limited(3) == 0
    assert server.ask(calls.History("q", 0, 1)).kept == KEPT


def test_a_follower_has_the_same_and_so_has_a_copy(server: OneServer, follower: OneServer) -> None:
    for decided in declare(server).values():
        follower.apply(decided.apply())
    for id in ("a", "b"):
        claim = held(server, id)
        follower.apply(claim.apply(b"payload"), payloads=True)
        follower.apply(server.settle(claim.settle("ack")).decided[id].apply())
    assert told(follower) == told(server) == [("b", "A"), ("a", "A")]
    assert follower.contents().faults == []


def test_a_copy_has_the_same_whatever_comes_first(server: OneServer, follower: OneServer) -> None:
    """The limits are told with the clock (metadata), before any page of the copy."""
    declare(server)
    for id in "abc":
        server.settle(held(server, id).settle("ack"))
    reply = server.ask(calls.Metadata("q"))
    follower.ask(calls.Install("q", 0, reply.owners, reply.begun, reply.limits))
    for copy in sorted(server.page()[1].found.values(), key=lambda copy: copy.applied.id, reverse=True):
        follower.apply(copy.applied)
    assert sorted(told(follower)) == sorted(told(server)) == [("a", "A"), ("b", "A"), ("c", "A")]


def test_a_learner_has_also_what_it_got_before_it_knew_of_the_history(server: OneServer, follower: OneServer) -> None:
    """It gets every write from the beginning, and the limits of the queue only when that is copied."""
    limits = declare(server)
    claim = held(server)
    follower.apply(server.settle(claim.settle("ack")).decided["a"].apply())
    assert told(follower) == []
    for decided in limits.values():
        follower.apply(decided.apply())
    follower.apply(server.page()[1].found["a"].applied)
    assert told(follower) == told(server) == [("a", "A")]


def test_what_a_greater_record_says_replaces_it(server: OneServer, follower: OneServer) -> None:
    """The ack reached one server only, and the next primary has given the item to somebody else."""
    for decided in declare(server).values():
        follower.apply(decided.apply())
    claim = held(server)
    follower.apply(claim.apply(b"payload"), payloads=True)
    server.settle(claim.settle("ack"))
    assert told(server) == [("a", "A")]
    extended = follower.settle(claim.settle("extend", LEASE_MS), epoch=9).decided["a"]
    server.apply(extended.apply(b"payload"), payloads=True, epoch=9)
    server.epoch = 9
    assert (told(server), named(server)) == ([], 0)


def test_tombstones_of_items_that_are_kept_stay(server: OneServer) -> None:
    """Beyond their time; the others are dropped, and one whose item is pushed out of the history is, too."""
    declare(server, 2)
    for id in "abc":
        server.settle(held(server, id).settle("ack"))
    wait_ms(3)
    server.trim(put_window_ms=0)
    assert sorted(server.contents().bundles) == ["\1limits", "b", "c"]
    assert told(server) == [("c", "A"), ("b", "A")]
    server.settle(held(server, "d").settle("ack"))
    wait_ms(3)
    server.trim(put_window_ms=0)
    assert sorted(server.contents().bundles) == ["\1limits", "c", "d"]


def test_results_go_in_time_though_their_items_are_kept(server: OneServer) -> None:
    declare(server, 2)
    numbered = server.put_numbered(2)
    first, second = (server.claim(count=1).only for _ in numbered)
    server.settle(first.settle("result", 1, "x" * 1_000), second.settle("result", 60_000, "y" * 1_000))

    def counted() -> int:
        return int(str(cast("bytes", server.command("HGET", server.key("lead"), "tombstone_bytes")), "ascii"))

    before = counted()
    for _ in range(2):
        wait_ms(3)
        server.trim(put_window_ms=0)
        assert server.contents().notes == {second.id: "y" * 1_000}
        assert counted() == before - 1_000
    assert server.results(*numbered)[0] == [("N", ""), ("A", "y" * 1_000)]
    assert told(server) == [(second.id, "A"), (first.id, "A")]
    declare(server, 0)
    wait_ms(3)
    server.trim(put_window_ms=0)
    entries = server.contents().tombstones
    assert [entry[28:].decode() for entry in entries] == [second.id]
    assert counted() == struct.unpack_from("<I", entries[0], 24)[0]
