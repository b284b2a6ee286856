"""Bundles of several items: what happens to one of them leaves the others alone, on every server."""

from __future__ import annotations

import time

import pytest

from tests.lua.connection import ScriptFailed
from tests.lua.entries import BUNDLE, LEASE_MS, WINDOW_MS, Applied, Claimed, Put, Settlement, joined
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.calls import item_id
from zkrq.protocol.payloads import split
from zkrq.protocol.records import Bundle, Own, Row, State, Version, pack

LONG_MS = 60_000
OF_FORMAT_1 = bytes.fromhex(
    "01 00000000 01000000 51 04 00000000 00000000 00008056febc7842 0000000000000000 00000000 00 0000 0000"
)


def bundle(size: int, id: str = BUNDLE, pushed_at_ms: int | None = None) -> Put:
    return Put(id, payloads(size), pushed_at_ms=pushed_at_ms)


def payloads(size: int) -> list[bytes]:
    return [bytes([65 + position]) * (position + 1) for position in range(size)]


def ids(*positions: int) -> list[str]:
    return [item_id(BUNDLE, position) for position in positions]


def states(server: OneServer) -> str:
    return server.contents().bundles[BUNDLE].states


def of(claimed: Claimed, verb: str, *positions: int, ms: int = 0, text: str = "") -> Settlement:
    """The settlement of some items of the bundle."""
    return claimed.decided[BUNDLE].settle(verb, ms, text, positions)


# -- claims --------------------------------------------------------------------------------------------------------


def test_bundle_is_claimed_in_parts_by_several_owners(server: OneServer) -> None:
    """Each part is one decision about the bundle; a token stands for each request."""
    server.put(bundle(6))
    parts = [server.claim("ann", 2), server.claim("bob", 3), server.claim("ann", 5)]
    assert [part.ids for part in parts] == [ids(0, 1), ids(2, 3, 4), ids(5)]
    handed = {id: payload for part in parts for id, payload in part.handed.items()}
    assert list(handed.values()) == payloads(6)
    assert [part.decided[BUNDLE].bundle.version for part in parts] == [(1, 2), (1, 3), (1, 4)]
    contents = server.contents()
    assert {id: contents.records[id].token.split("/")[0] for id in handed} == {
        **dict.fromkeys(ids(0, 1, 5), "ann"),
        **dict.fromkeys(ids(2, 3, 4), "bob"),
    }
    assert server.count() == (0, 0, 6, 0)
    assert server.holders() == {"ann": 3, "bob": 3}
    assert contents.faults == []


def test_settling_is_known_again_after_many_later_requests(server: OneServer) -> None:
    """The row of a request stays as long as an item names it, however many requests come and go."""
    server.put(bundle(2))
    first = server.claim("ann", 1)
    acked = of(first, "ack", 0)
    assert server.settle(acked).outcomes == [1]
    for turn in range(5):
        later = server.claim(f"owner {turn}", 1)
        assert server.settle(of(later, "release", 1)).outcomes == [1]
    assert server.settle(acked).outcomes == [1]
    assert server.contents().faults == []


def test_claim_spans_bundles_and_items_alone_in_the_order_of_their_pushes(server: OneServer) -> None:
    server.put("a", bundle(3), "z")
    server.put(bundle(100, "zkrq-019aa5f2c31-3f9c2a71-1c"))
    claimed = server.claim(count=50)
    assert claimed.ids[:5] == ["a", *ids(0, 1, 2), "z"]
    assert len(claimed.ids) == 50
    assert server.count() == (55, 0, 50, 0)
    assert server.contents().faults == []


def test_repeated_request_is_given_its_part_again(server: OneServer) -> None:
    """Rule 6: and takes nothing of what others hold, or of what is left."""
    server.put(bundle(6))
    first = server.claim("ann", 2, seq=1)
    server.claim("bob", 1)
    server.settle(of(first, "ack", 0))
    before = server.contents()
    again = server.claim("ann", 2, seq=1)
    assert again.handed == {ids(1)[0]: payloads(6)[1]}
    assert server.contents() == before
    renewed = server.claim("ann", 2, seq=1, epoch=2)
    assert renewed.handed == again.handed
    assert renewed.decided[BUNDLE].bundle.version == (2, 5)
    assert server.contents().faults == []


def test_repeated_request_is_given_what_has_a_payload(server: OneServer) -> None:
    """That a sibling's is missing here keeps nobody waiting."""
    held = Bundle(Version(1, 2), "CCCX", (1, 1, 1, 0), is_alone=False, rows=[Row("ann", 1)])
    there = joined_some({0: payloads(4)[0], 2: payloads(4)[2]}, 4)
    assert server.apply(Applied(BUNDLE, pack(held), wire=there), payloads=True)[1] == [1]
    assert server.claim("ann", seq=1).handed == {ids(0)[0]: payloads(4)[0], ids(2)[0]: payloads(4)[2]}


def test_hundred_claims_of_one_item_each(server: OneServer) -> None:
    """A row for each; rows that nothing names go, so that the record stays small."""
    server.put(bundle(100))
    for round in range(3):
        claims = [server.claim(f"owner{n % 7}", 1) for n in range(100)]
        assert [claim.ids[0] for claim in claims] == ids(*range(100))
        assert len(server.contents().bundles[BUNDLE].rows) <= 101
        assert server.contents().faults == []
        verb = "release" if round < 2 else "ack"
        settled = [server.settle(*claim.settle(verb)) for claim in claims]
        assert all(each.outcomes == [1] for each in settled)
    assert server.count() == (0, 0, 0, 0)
    assert server.contents().faults == []


def test_one_row_expires(server: OneServer) -> None:
    """The claims of the same bundle that others made stay."""
    server.put(bundle(4))
    held = server.claim("bob", 2, lease_ms=LONG_MS)
    server.claim("ann", 2, lease_ms=1)
    time.sleep(0.005)
    assert server.claim("eve", 10).ids == ids(2, 3)
    assert server.settle(of(held, "ack", 0, 1)).outcomes == [1]
    assert server.contents().faults == []


def test_fencing_gives_back_what_the_owner_holds(server: OneServer) -> None:
    """Also of several requests; others keep theirs."""
    server.put(bundle(6))
    server.claim("ann", 2)
    bob = server.claim("bob", 2)
    server.claim("ann", 1)
    reply = server.ask(calls.Fence(server.queue, "ann"))
    assert (reply.requeued, states(server)) == (3, "QQCCQQ")
    assert server.settle(of(bob, "ack", 2, 3)).outcomes == [1]
    assert server.claim("eve").ids == ids(0, 1, 4, 5)
    assert server.contents().faults == []


def test_fencing_counts_no_item_that_was_queued(server: OneServer) -> None:
    """Nor does it, where rows are renumbered, move one that is due later."""
    first = put_and_claim(server, bundle(3))
    server.settle(of(first, "nack", 0, 1, ms=LONG_MS))
    server.seal(2)
    server.epoch = 2
    assert server.ask(calls.Fence(server.queue, "ann")).requeued == 1
    assert states(server) == "RRQ"
    assert server.count() == (1, 2, 0, 0)


def test_item_delivered_too_often_is_buried_alone(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(4))
    server.settle(of(claimed, "release", 0, 3), of(claimed, "nack", 1, 2))
    again = server.claim("bob", 10, max_attempts=1)
    assert (again.ids, states(server)) == (ids(0, 3), "CDDC")
    assert set(server.contents().notes) == set(ids(1, 2))
    assert server.contents().faults == []


# -- settling ------------------------------------------------------------------------------------------------------


def test_items_of_one_claim_have_mixed_fates(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(10))
    settled = server.settle(
        of(claimed, "ack", 0, 1, 5),
        of(claimed, "nack", 2, 7, ms=LONG_MS, text="later"),
        of(claimed, "release", 3),
        of(claimed, "bury", 4, text="never"),
        of(claimed, "extend", 6, ms=2 * LONG_MS),
    )
    assert settled.outcomes == [1] * 5
    assert states(server) == "XXRQDXCRCC"
    assert server.count() == (1, 2, 3, 1)
    contents = server.contents()
    assert contents.notes == {**dict.fromkeys(ids(2, 7), "later"), ids(4)[0]: "never"}
    assert {id: contents.homes(id) for id in ids(2, 3, 4, 6)} == dict(
        zip(ids(2, 3, 4, 6), ({"scheduled"}, {"ready"}, {"dead"}, {"claimed"}), strict=True)
    )
    assert contents.faults == []
    assert server.claim("bob").ids == ids(3)


def test_repeated_settlements_are_done(server: OneServer) -> None:
    """Rule 5: also together with others that are lost by now."""
    claimed = put_and_claim(server, bundle(4))
    verbs = {"ack": 0, "nack": 1, "release": 2, "bury": 3}
    first = [of(claimed, verb, position, ms=LONG_MS, text="why") for verb, position in verbs.items()]
    server.settle(*first)
    before = server.contents()
    again = server.settle(*first)
    assert again.outcomes == [1] * 4
    assert server.contents() == before
    assert calls.read_notes(again.decided[BUNDLE].notes) == {1: b"why", 3: b"why"}
    assert server.claim("bob").ids == ids(2)
    assert server.settle(of(claimed, "release", 0, 1, 2)).lost == [[0, 2]]


def test_lost_items_are_named_by_position(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(6))
    server.settle(of(claimed, "ack", 1), of(claimed, "bury", 4))
    settled = server.settle(of(claimed, "nack", 0, 1, 2, 3, 4, 5))
    assert (settled.outcomes, settled.lost) == ([0], [[1, 4]])
    assert states(server) == "RXRRDR"
    assert server.settle(of(claimed, "ack", 5)._replace(positions=(5, 6, 7))).lost == [[5, 6, 7]]
    assert server.contents().faults == []


def test_part_of_a_request_is_extended(server: OneServer) -> None:
    """It gets a row of its own; a repeated claim request still finds both."""
    server.put(bundle(4))
    claimed = server.claim("ann", 4, seq=1, lease_ms=LONG_MS)
    server.settle(of(claimed, "extend", 1, 2, ms=5 * LONG_MS))
    contents = server.contents()
    ends = [contents.records[id].deadline_us for id in ids(0, 1, 2, 3)]
    assert ends[1] == ends[2] > ends[0] + 3 * LONG_MS * 1000
    assert ends[0] == ends[3]
    assert {contents.records[id].token for id in ids(0, 1, 2, 3)} == {"ann/1"}
    assert server.claim("ann", 4, seq=1).ids == ids(0, 1, 2, 3)
    assert server.settle(of(claimed, "extend", 0, 1, 2, 3, ms=LONG_MS)).outcomes == [1]
    assert server.settle(of(claimed, "ack", 0, 1, 2, 3)).outcomes == [1]
    assert server.contents().faults == []


def test_extensions_again_and_again_keep_the_record_small(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(5))
    for n in range(50):
        assert server.settle(of(claimed, "extend", n % 5, (n + 2) % 5, ms=LONG_MS + n)).outcomes == [1]
    assert len(server.contents().bundles[BUNDLE].rows) <= 6
    assert server.contents().faults == []


def test_nacked_items_come_back_by_themselves(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(4))
    server.put("later")
    server.settle(of(claimed, "nack", 1, 3), of(claimed, "release", 0))
    assert server.claim("bob").ids == [ids(0)[0], "later", *ids(1, 3)]
    assert [server.record(id).failures for id in ids(0, 1, 3)] == [0, 1, 1]
    assert [server.record(id).attempts for id in ids(0, 1, 2, 3)] == [1, 2, 1, 2]
    assert server.contents().faults == []


def test_reason_of_an_item_that_is_buried_and_dropped_at_once_is_left_nowhere(
    server: OneServer, follower: OneServer
) -> None:
    claimed = put_and_claim(server, bundle(4))
    follower.put(bundle(4))
    follower.apply(claimed.decided[BUNDLE].apply())
    settled = server.settle(of(claimed, "bury", 0, 1, 2, text="why"), dead_max=1)
    assert (settled.dropped_letters, states(server)) == (2, "XXDC")
    follower.apply(settled.decided[BUNDLE].apply())
    for each in (server, follower):
        contents = each.contents()
        assert (contents.notes, contents.faults) == (dict.fromkeys(ids(2), "why"), [])


# -- by an operator ------------------------------------------------------------------------------------------------


def test_items_are_cancelled_by_position(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(5))
    server.settle(of(claimed, "release", 0), of(claimed, "nack", 1, ms=LONG_MS), of(claimed, "bury", 2))
    told, decided = server.cancel(*ids(0, 1, 2, 3, 7), call="aaaaaaaa")
    assert (told, list(decided)) == (["Q", "Q", "D", "C", ""], [BUNDLE])
    assert states(server) == "XXXXC"
    assert server.cancel(*ids(0, 1, 2, 3), call="aaaaaaaa")[0] == ["Q", "Q", "D", "C"], "the first try's answer"
    assert server.settle(of(claimed, "ack", 3, 4)).lost == [[3]]
    contents = server.contents()
    assert (contents.notes, contents.faults) == ({}, [])


def test_letters_are_redriven_by_position(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(4))
    server.settle(of(claimed, "bury", 0, 1, 2))
    reply = server.ask(calls.Redrive(server.queue, 0, 0, "aaaaaaaa", ids(1)))
    assert [id.decode() for id in reply.ids] == ids(1)
    assert states(server) == "DRDC"
    assert server.peek_places("dead") == [(BUNDLE, 0), (BUNDLE, 2)]
    assert server.claim("bob").ids == ids(1)
    assert server.record(ids(1)[0]).attempts == 1
    assert server.contents().faults == []


def test_peek_names_places_and_shows_each_bundle_once(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(5))
    server.settle(of(claimed, "release", 0, 3), of(claimed, "nack", 1, ms=LONG_MS))
    server.command("ZADD", server.key("ready"), 0, BUNDLE.encode() + b"\0\5")  # it has left
    assert server.peek_places("ready") == [(BUNDLE, 0), (BUNDLE, 3)]
    assert server.peek_places("scheduled") == [(BUNDLE, 1)]
    assert server.peek_places("claimed") == [(BUNDLE, 2), (BUNDLE, 4)]
    assert list(server.peek("claimed").found) == [BUNDLE]


# -- on other servers ----------------------------------------------------------------------------------------------


def test_superseded_is_said_by_position(server: OneServer, follower: OneServer) -> None:
    """A sibling's decision raises the version; it takes nobody's claim away."""
    for each in (server, follower):
        each.put(bundle(4))
    first, second = server.claim("ann", 2), server.claim("bob", 2)
    acked = server.settle(of(first, "ack", 0))
    assert follower.apply_told(acked.decided[BUNDLE].apply()) == ({}, [])
    assert follower.apply_told(first.decided[BUNDLE].apply()) == ({1: [0, 2, 3]}, [])
    assert follower.apply_told(second.decided[BUNDLE].apply()) == ({1: [0]}, []), "that claim counts"
    assert follower.contents().packed == server.contents().packed
    assert follower.contents().faults == []


def test_item_claimed_by_another_request_is_superseded(server: OneServer, follower: OneServer) -> None:
    for each in (server, follower):
        each.put(bundle(2))
    first = server.claim("ann", 2)
    server.settle(of(first, "release", 1))
    second = server.claim("bob", 2)
    follower.apply(second.decided[BUNDLE].apply())
    assert follower.apply_told(first.decided[BUNDLE].apply()) == ({1: [1]}, [])


def test_item_that_keeps_its_state_moves_with_its_moment(server: OneServer, follower: OneServer) -> None:
    """The follower misses the claim in between."""
    claimed = put_and_claim(server, bundle(2))
    first = server.settle(of(claimed, "nack", 0, ms=50 * LONG_MS), of(claimed, "bury", 1))
    follower.apply(first.decided[BUNDLE].apply(payloads(2)), payloads=True)
    due_us = follower.contents().moment_us(ids(0)[0])
    last = first.decided[BUNDLE].bundle
    own = {position: each._replace(moment_us=each.moment_us + 1e6) for position, each in last.own.items()}
    later = pack(last._replace(version=Version(1, 9), own=own))
    died_us = follower.contents().moment_us(ids(1)[0])
    follower.apply(Applied(BUNDLE, later, since=""))
    contents = follower.contents()
    assert contents.moment_us(ids(0)[0]) - due_us == pytest.approx(1e6, abs=1e6)
    assert contents.moment_us(ids(0)[0]) > due_us
    assert contents.moment_us(ids(1)[0]) > died_us
    assert contents.faults == []


def test_notes_travel_with_decisions_and_copies(server: OneServer, follower: OneServer) -> None:
    claimed = put_and_claim(server, bundle(4))
    follower.put(bundle(4))
    settled = server.settle(of(claimed, "nack", 0, text="ünï"), of(claimed, "bury", 2, text="x" * 999))
    follower.apply(settled.decided[BUNDLE].apply())
    notes = dict(zip(ids(0, 2), ("ünï", "x" * 999), strict=True))
    assert follower.contents().notes == server.contents().notes == notes
    (copy,) = server.read(BUNDLE).values()
    follower.command("FLUSHDB")
    follower.enrol()
    follower.apply(copy.applied, payloads=True)
    assert follower.contents().notes == notes
    assert calls.read_notes(server.affirm(BUNDLE)[BUNDLE].notes) == {0: "ünï".encode(), 2: b"x" * 999}


def test_copy_is_what_the_bundle_is(server: OneServer, follower: OneServer) -> None:
    claimed = put_and_claim(server, bundle(6))
    server.settle(of(claimed, "ack", 0), of(claimed, "nack", 1, ms=LONG_MS), of(claimed, "release", 2, 5))
    (copy,) = server.page()[1].found.values()
    assert follower.apply(copy.applied, payloads=True) == ([], [])
    before, after = server.contents(), follower.contents()
    assert (after.packed, after.payloads, after.holdings) == (before.packed, before.payloads, before.holdings)
    assert after.entries == before.entries
    assert after.faults == []
    _, heads = server.heads()
    assert follower.compare(heads) == ([], [])


def test_unfinished_push_of_a_bundle_is_carried_on(server: OneServer) -> None:
    record = bundle(3, pushed_at_ms=server.now_ms() - 3 * WINDOW_MS).call.record
    decided = server.forward(Applied(BUNDLE, record, 0, payloads(3)))
    assert decided[BUNDLE].bundle.version == (1, 2)
    assert server.claim().handed == dict(zip(ids(0, 1, 2), payloads(3), strict=True))
    assert server.contents().faults == []


# -- payloads ------------------------------------------------------------------------------------------------------


def cut_some(server: OneServer) -> Claimed:
    """A bundle of five, of which two are gone and have no payloads any more."""
    claimed = put_and_claim(server, bundle(5))
    server.settle(of(claimed, "ack", 1, 3))
    server.cut(BUNDLE, positions=(1, 3, 4))
    return claimed


def test_payloads_of_some_are_cut(server: OneServer) -> None:
    """Only of what is gone here."""
    claimed = cut_some(server)
    contents = server.contents()
    assert (set(contents.payloads), contents.left_payloads) == (set(ids(0, 2, 4)), {})
    server.settle(of(claimed, "release", 0, 2, 4))
    assert server.claim("bob").handed == {id: payloads(5)[at] for id, at in zip(ids(0, 2, 4), (0, 2, 4), strict=True)}
    assert server.contents().faults == []


def test_late_cut_drops_no_more_than_it_names(server: OneServer) -> None:
    """All are gone here by now; that the last one is, other servers may not know."""
    claimed = put_and_claim(server, bundle(3))
    server.settle(of(claimed, "ack", 0, 1, 2))
    server.cut(BUNDLE, positions=(0, 1))
    assert set(server.contents().left_payloads) == set(ids(2))
    server.cut(BUNDLE, positions=(2,))
    assert "payloads" not in server.key_names()


def test_cut_payloads_are_completed_where_their_items_live_again(server: OneServer) -> None:
    """Another server has what is missing here, and lacks what is here."""
    cut_some(server)
    server.epoch = 2
    alive = Bundle(Version(2, 1), "QXQQQ", pushed_at_ms=server.now_ms(), is_alone=False)
    assert server.apply(Applied(BUNDLE, pack(alive))) == ([], [1])
    assert set(server.claim("eve").ids) == set(ids(0, 2, 4)), "what is there is handed out"
    assert server.contents().homes(ids(3)[0]) == {"scheduled"}
    _, heads = server.heads()
    assert server.compare(heads) == ([], [1])
    there = joined_some({3: payloads(5)[3], 4: payloads(5)[4]}, 5)
    with server.listen("bob") as listener:
        server.claim("bob", waiter="bob")
        assert server.apply(Applied(BUNDLE, pack(alive), wire=there), payloads=True)[1] == []
        assert listener.heard() == server.key("ready")
    assert server.claim("bob").handed == {ids(3)[0]: payloads(5)[3]}
    contents = server.contents()
    assert contents.payloads == {id: payloads(5)[at] for at, id in enumerate(ids(0, 1, 2, 3, 4)) if at != 1}
    assert contents.faults == []


def joined_some(known: dict[int, bytes], size: int) -> bytes:
    """Payloads of which only some are there."""
    whole = joined([known.get(position, b"") for position in range(size)])
    table = [int.from_bytes(whole[at : at + 4], "little") for at in range(0, 4 * size + 4, 4)]
    for position in set(range(size)) - known.keys():
        table[position + 1] |= 1 << 31
    made = b"".join(end.to_bytes(4, "little") for end in table) + whole[4 * size + 4 :]
    assert list(split(made)) == [known.get(position) for position in range(size)]
    return made


def test_items_whose_push_never_came_are_dropped_alone(server: OneServer) -> None:
    cut_some(server)
    server.epoch = 2
    alive = Bundle(Version(2, 1), "QXQQD", is_alone=False, own={4: Own(0)})
    server.apply(Applied(BUNDLE, pack(alive)))
    assert server.claim("eve").ids == ids(0, 2)
    assert states(server) == "CXCXD"
    assert server.contents().faults == []


def test_claim_before_the_push_is_completed_by_it(server: OneServer) -> None:
    """Rule 4."""
    row = Row("ann", 1, LEASE_MS)
    held = Bundle(Version(1, 2), "CCQ", [1, 1, 0], [1, 1, 0], is_alone=False, rows=[row], pushed_at_ms=server.now_ms())
    assert server.apply(Applied(BUNDLE, pack(held), LEASE_MS)) == ([], [1])
    assert server.claim("bob").ids == []
    assert server.put_told(bundle(3)) == ([], {})
    assert server.claim("ann", seq=1).handed == dict(zip(ids(0, 1), payloads(2), strict=True))
    assert server.contents().faults == []


# -- pushed again, one by one --------------------------------------------------------------------------------------


def single(position: int) -> Put:
    return Put(ids(position)[0], payloads(3)[position])


def test_item_of_a_known_bundle_is_there(server: OneServer) -> None:
    server.put(bundle(3))
    server.epoch = 2
    outcomes, decided = server.push(single(1))
    assert (outcomes, decided[BUNDLE].bundle.states) == (["K"], "QQQ")
    assert server.count() == (3, 0, 0, 0)
    assert server.claim().handed == dict(zip(ids(0, 1, 2), payloads(3), strict=True))
    assert server.contents().faults == []


def test_item_of_a_known_bundle_that_is_done_is_done(server: OneServer) -> None:
    claimed = put_and_claim(server, bundle(3))
    server.settle(of(claimed, "ack", 1))
    assert server.push(single(1), single(2))[0] == ["D", "K"]
    assert states(server) == "CXC"


def test_item_of_an_unknown_bundle_is_pushed_alone(server: OneServer, follower: OneServer) -> None:
    """The others were not pushed, as far as this server knows."""
    outcomes, decided = server.push(single(2), single(0))
    assert outcomes == ["+", "+"]
    assert server.count() == (2, 0, 0, 0)
    assert follower.apply(decided[BUNDLE].apply()) == ([], [1])
    (copy,) = server.read(BUNDLE).values()
    assert follower.apply(copy.applied, payloads=True) == ([], [])
    for each in (server, follower):
        assert each.contents().faults == []
        assert set(each.claim("eve").ids) == set(ids(0, 2))


def test_late_put_meets_items_that_were_pushed_again(server: OneServer) -> None:
    """It brings nothing back; what it would have pushed is reported, and decided one by one."""
    server.push(single(1))
    assert server.put_told(bundle(3)) == ([], {(1, 0): 2, (1, 2): 2})
    before = server.contents()
    assert before.ids(State.QUEUED) == set(ids(1))
    assert before.faults == []
    assert server.push(single(0), single(2))[0] == ["+", "+"]
    assert server.claim().handed == {id: payloads(3)[at] for at, id in zip((1, 0, 2), ids(1, 0, 2), strict=True)}
    assert server.contents().faults == []


def test_push_again_of_what_reached_another_server_whole(server: OneServer, follower: OneServer) -> None:
    """The primary does not know the bundle; its decisions are greater there, and each item is there once."""
    follower.put(bundle(3))
    _, decided = server.push(single(1))
    assert follower.apply(decided[BUNDLE].apply()) == ([], [])
    assert follower.contents().ids(State.QUEUED) == set(ids(1))
    _, decided = server.push(single(0), single(2))
    assert follower.apply(decided[BUNDLE].apply()) == ([], [])
    assert set(follower.claim().ids) == set(ids(0, 1, 2))
    assert follower.contents().faults == []


@pytest.mark.parametrize("known", [False, True])
def test_refused_item_of_a_bundle_is_removed_where_another_primary_took_it(
    server: OneServer, follower: OneServer, known: bool
) -> None:
    server.put("full")
    if known:
        server.push(single(0))
    outcomes, decided = server.push(single(2), max_size=1, again=1, epoch=2)
    assert (outcomes, decided[BUNDLE].bundle.states[2]) == (["F"], "F")
    taken = Bundle(Version(1, 3), "FFR", is_alone=False, own={2: Own(0)}, pushed_at_ms=server.now_ms())
    follower.apply(Applied(BUNDLE, pack(taken), 0, payloads(3)), payloads=True)
    follower.apply(decided[BUNDLE].apply(), epoch=2)
    assert ids(2)[0] not in follower.contents().living()


# -- another format ------------------------------------------------------------------------------------------------


def test_nothing_is_made_of_a_record_of_another_format(server: OneServer) -> None:
    """One that is stored is told as damaged; one that is sent is an error."""
    server.command("HSET", server.key("records"), "old", OF_FORMAT_1)
    assert server.ask(calls.Read("q", ["old"])) == ([], [], [b"old"])
    assert not server.ask(calls.Affirm("q", [b"old"])).flat
    with pytest.raises(ScriptFailed, match="a record was sent that is damaged, or of another version"):
        server.ask(calls.Apply("q", [("a", OF_FORMAT_1, b"", "0")]))
    assert server.command("HGET", server.key("records"), "old") == OF_FORMAT_1
