"""``results``, and the acks that leave a result: the note of an item that is gone."""

from __future__ import annotations

from typing import cast

import pytest

from tests.lua.entries import BUNDLE, Decided, Put, Settlement
from tests.lua.one_server import OneServer, held, put_and_claim, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.calls import item_id

TTL_MS = 3_600_000
TEXT = '{"sum":42}'


def lead(server: OneServer) -> dict[str, str]:
    """All fields of the lead."""
    flat = iter(cast("list[bytes]", server.command("HGETALL", server.key("lead"))))
    return {name.decode(): value.decode() for name, value in zip(flat, flat, strict=True)}


def tombstone_bytes(server: OneServer) -> int:
    return int(lead(server).get("tombstone_bytes", "0"))


def test_result_of_an_ack_is_told(server: OneServer) -> None:
    server.settle(held(server).settle("result", TTL_MS, TEXT))
    told, decided = server.results("a")
    assert told == [("A", TEXT)]
    assert decided["a"].note == TEXT
    assert server.contents().faults == []


def test_result_of_any_bytes_is_kept(server: OneServer) -> None:
    text = "\0 \n %d ü " * 10
    server.settle(held(server).settle("result", TTL_MS, text))
    assert server.results("a")[0] == [("A", text)]


def test_repeated_ack_keeps_the_result(server: OneServer) -> None:
    ack = held(server).settle("result", TTL_MS, TEXT)
    server.settle(ack)
    repeated = server.settle(ack)
    assert repeated.outcomes == [1]
    assert repeated.decided["a"].note == TEXT
    assert server.results("a")[0] == [("A", TEXT)]


def test_ack_in_a_turn_keeps_the_result(server: OneServer) -> None:
    claim = held(server)
    turned = server.turn(claim.settle("result", TTL_MS, TEXT))
    assert turned.lost == [[]]
    assert turned.claimed.decided["a"].note == TEXT
    assert server.results("a")[0] == [("A", TEXT)]


def test_ack_without_a_result_is_done_without_one(server: OneServer) -> None:
    server.settle(held(server).settle("ack"))
    assert server.results("a")[0] == [("N", "")]


def test_what_is_told_of_each_end(server: OneServer) -> None:
    """The row tells who has ended the item: a claim, a call, or nobody."""
    server.settle(held(server, "dead").settle("bury", 0, "why"))
    held(server, "held")
    server.put("queued", "cancelled", Put("late", ttl_ms=1))
    server.ask(calls.Cancel(server.queue, "", 0, "call", ["cancelled"]))
    wait_ms(5)
    server.claim(count=0)
    told, decided = server.results("queued", "held", "dead", "cancelled", "late", "unknown")
    assert told == [("Q", ""), ("C", "ann"), ("D", "why"), ("X", ""), ("E", ""), ("U", "")]
    assert decided.keys() == {"dead", "cancelled", "late"}


def test_follower_has_the_result(server: OneServer, follower: OneServer) -> None:
    claim = held(server)
    follower.apply(claim.apply(b"payload"), payloads=True)
    decided = server.settle(claim.settle("result", TTL_MS, TEXT)).decided["a"]
    follower.apply(decided.apply())
    assert follower.results("a")[0] == [("A", TEXT)]
    assert follower.contents().faults == []


def test_copy_has_the_result(server: OneServer, follower: OneServer) -> None:
    server.settle(held(server).settle("result", TTL_MS, TEXT))
    follower.apply(server.page()[1].found["a"].applied)
    assert follower.results("a")[0] == [("A", TEXT)]


def test_a_page_reads_few_results_that_do_not_fit(server: OneServer) -> None:
    """Or it would hold the server for seconds: those of many bundles may be hundreds of mebibytes."""
    server.limits = {"BYTES_MAX": 100}
    server.looks = False
    for number in range(20):
        server.settle(held(server, f"i{number}").settle("result", TTL_MS, "x" * 60))
    server.command("CONFIG", "RESETSTAT")
    _, copies = server.page()
    stats = cast("bytes", server.command("INFO", "commandstats")).decode()
    assert (len(copies.found), len(copies.left_out)) == (1, 19)
    assert "cmdstat_hget:calls=2," in stats


def test_affirmed_record_has_the_result(server: OneServer, follower: OneServer) -> None:
    server.settle(held(server).settle("result", TTL_MS, TEXT))
    follower.apply(server.affirm("a", epoch=2)["a"].apply())
    assert follower.results("a", epoch=2)[0] == [("A", TEXT)]


def test_result_under_a_new_epoch_is_decided_again_with_its_text(server: OneServer, follower: OneServer) -> None:
    server.settle(held(server).settle("result", TTL_MS, TEXT))
    told, decided = server.results("a", epoch=2)
    assert told == [("A", TEXT)]
    assert decided["a"].record.version > (2, 0)
    follower.apply(decided["a"].apply())
    assert follower.results("a", epoch=2)[0] == [("A", TEXT)]


def bundle_of_two(server: OneServer) -> Decided:
    return put_and_claim(server, Put(BUNDLE, [b"one", b"two"])).decided[BUNDLE]


def test_result_that_a_later_decision_overtakes_completes_its_record(server: OneServer, follower: OneServer) -> None:
    """The second ack's record says that the first item is done, and arrives first, without the result of that."""
    claim = bundle_of_two(server)
    follower.apply(claim.apply([b"one", b"two"]), payloads=True)
    first = server.settle(claim.settle("result", TTL_MS, "1", [0])).decided[BUNDLE]
    second = server.settle(claim.settle("result", TTL_MS, "2", [1])).decided[BUNDLE]
    ids = [item_id(BUNDLE, 0), item_id(BUNDLE, 1)]
    follower.apply(second.apply())
    assert follower.results(*ids)[0] == [("L", ""), ("A", "2")]
    assert follower.apply_told(first.apply())[0] == {1: [1]}
    assert follower.results(*ids)[0] == [("A", "1"), ("A", "2")]
    assert follower.contents().faults == []


def test_repeated_ack_completes_the_record_of_the_next_primary(server: OneServer, follower: OneServer) -> None:
    """The primary dies after a later decision has reached the next one: the ack is taken again there, with its text."""
    claim = bundle_of_two(server)
    follower.apply(claim.apply([b"one", b"two"]), payloads=True)
    ack = claim.settle("result", TTL_MS, "1", [0])
    server.settle(ack)
    follower.apply(server.settle(claim.settle("result", TTL_MS, "2", [1])).decided[BUNDLE].apply())
    again = follower.settle(ack, epoch=2)
    assert again.outcomes == [1]
    assert follower.results(item_id(BUNDLE, 0), epoch=2)[0] == [("A", "1")]


def test_result_of_another_request_does_not_complete_a_record(server: OneServer, follower: OneServer) -> None:
    """Two servers that decided separately may each have a result: the greater record's is the one that counts."""
    claim = held(server)
    follower.apply(claim.apply(b"payload"), payloads=True)
    lost = server.settle(claim.settle("result", TTL_MS, "first")).decided["a"]
    follower.settle(claim.settle("release"), epoch=2)
    again = follower.claim(owner="bob", epoch=2).only
    follower.settle(again.settle("result", TTL_MS, "second"), epoch=2)
    follower.apply(lost.apply(), epoch=2)
    assert follower.results("a", epoch=2)[0] == [("A", "second")]


def test_result_of_a_decision_that_is_replaced_is_forgotten(server: OneServer, follower: OneServer) -> None:
    """The greater record says that another request is done with the item, and comes without that one's result."""
    claim = bundle_of_two(server)
    follower.apply(claim.apply([b"one", b"two"]), payloads=True)
    follower.settle(claim.settle("result", TTL_MS, "first", [0]))
    server.settle(claim.settle("release", positions=[0]), epoch=2)
    again = server.claim(owner="bob", epoch=2).decided[BUNDLE]
    server.settle(again.settle("result", TTL_MS, "second", [0]), epoch=2)
    overtaking = server.settle(claim.settle("result", TTL_MS, "2", [1]), epoch=2).decided[BUNDLE]
    follower.apply(overtaking.apply(), epoch=2)
    assert follower.results(item_id(BUNDLE, 0), epoch=2)[0] == [("L", "")]


@pytest.mark.parametrize("verb", ["nack", "bury"])
def test_a_result_is_not_told_as_the_reason_of_a_failure(server: OneServer, follower: OneServer, verb: str) -> None:
    """The ack reached one server alone, and the next primary, which has not heard of it, decided otherwise."""
    claim = held(server)
    follower.put("a")
    follower.apply(claim.apply())
    acked = server.settle(claim.settle("result", TTL_MS, TEXT)).decided["a"]
    server.epoch = follower.epoch = 2
    failed = follower.settle(claim.settle(verb)).decided["a"]
    server.apply(failed.apply())
    assert acked.note == TEXT
    assert server.contents().notes == {}
    assert server.contents().faults == []


def test_reason_of_a_failure_is_not_told_as_a_result_that_has_not_come(server: OneServer, follower: OneServer) -> None:
    """Simulation, seed 900911: the item had failed before, and its record arrives without the result."""
    claim = bundle_of_two(server)
    follower.apply(claim.apply([b"one", b"two"]), payloads=True)
    failed = server.settle(claim.settle("nack", 0, "refused", [0])).decided[BUNDLE]
    follower.apply(failed.apply())
    again = server.claim(owner="bob").decided[BUNDLE]
    follower.apply(again.apply())
    acked = server.settle(again.settle("result", TTL_MS, "1", [0])).decided[BUNDLE]
    overtaking = server.settle(claim.settle("result", TTL_MS, "2", [1])).decided[BUNDLE]
    ids = [item_id(BUNDLE, 0), item_id(BUNDLE, 1)]
    follower.apply(overtaking.apply())
    assert follower.results(*ids)[0] == [("L", ""), ("A", "2")]
    follower.apply_told(acked.apply())
    assert follower.results(*ids)[0] == [("A", "1"), ("A", "2")]


# -- how long ------------------------------------------------------------------------------------------------------


def test_tombstone_stays_until_the_time_of_its_result_is_over(server: OneServer) -> None:
    claims = put_and_claim(server, Put("kept"), Put("plain"))
    server.settle(claims.decided["kept"].settle("result", TTL_MS, TEXT), claims.decided["plain"].settle("ack"))
    wait_ms(20)
    assert server.trim(put_window_ms=5) == 2
    assert server.results("kept", "plain", put_window_ms=5)[0] == [("A", TEXT), ("U", "")]
    assert server.contents().bundles.keys() == {"kept"}
    assert server.contents().faults == []


def test_result_goes_with_its_tombstone(server: OneServer) -> None:
    before = tombstone_bytes(server)
    server.settle(held(server).settle("result", 20, TEXT))
    assert tombstone_bytes(server) > before + len(TEXT)
    wait_ms(30)
    server.trim(put_window_ms=5)
    contents = server.contents()
    assert (contents.bundles, contents.notes, contents.tombstones) == ({}, {}, [])
    assert tombstone_bytes(server) == before


def test_result_is_not_told_after_its_time(server: OneServer) -> None:
    server.settle(held(server).settle("result", 5, TEXT))
    wait_ms(10)
    assert server.results("a")[0] == [("N", "")]


def test_id_is_done_as_long_as_its_result_is_kept(server: OneServer) -> None:
    server.settle(held(server).settle("result", TTL_MS, TEXT))
    wait_ms(20)
    assert server.push(Put("a"), put_window_ms=5_000)[0] == ["D"]
    server.settle(held(server, "b").settle("result", 5, TEXT))
    window_ms = 100  # within which a push arrives on a busy machine, too
    wait_ms(2 * window_ms + 10)
    assert server.push(Put("b"), put_window_ms=window_ms)[0] == ["+"]
    assert server.contents().notes == {"a": TEXT}


def test_results_count_in_the_bytes_of_tombstones(server: OneServer) -> None:
    """Beyond the bytes the oldest results go early."""
    server.limits = {"TOMBSTONES_BYTES": 3_000, "LEAST_AGE_MS": 1}
    for id in "abcd":
        server.settle(held(server, id).settle("result", TTL_MS, id * 1_000))
        wait_ms(5)
    server.trim()
    told = [letter for letter, _ in server.results(*"abcd")[0]]
    assert told[0] == "U"
    assert told[-1] == "A"
    assert tombstone_bytes(server) <= 3_000
    assert server.contents().faults == []


@pytest.mark.parametrize("lost", ["bury", "nack"])
def test_a_reason_that_comes_behind_a_later_decision_is_kept(server: OneServer, follower: OneServer, lost: str) -> None:
    """About another item of the bundle; as on a server that catches up while consumers settle."""
    payloads = [b"a", b"b", b"c"]
    claim = put_and_claim(server, Put(BUNDLE, payloads)).decided[BUNDLE]
    follower.apply(claim.apply(payloads), payloads=True)
    settle = Settlement(BUNDLE, *claim.bundle.version, claim.bundle.rows[0].token, lost, 0, "why")
    failed = server.settle(settle).decided[BUNDLE]
    acked = server.settle(settle._replace(verb="ack", positions=[1])).decided[BUNDLE]
    follower.apply(acked.apply())
    assert follower.contents().notes == {}
    follower.apply(failed.apply())
    assert follower.contents().notes == server.contents().notes == {item_id(BUNDLE, 0): "why"}
    assert follower.contents().faults == []


def test_results_go_in_time_though_another_item_of_the_bundle_lives(server: OneServer, follower: OneServer) -> None:
    """As a dead letter, for months."""
    payloads = [b"a", b"b", b"c", b"d"]
    claim = put_and_claim(server, Put(BUNDLE, payloads)).decided[BUNDLE]
    follower.apply(claim.apply(payloads), payloads=True)
    settle = Settlement(BUNDLE, *claim.bundle.version, claim.bundle.rows[0].token, "result", 1, "x" * 1_000, [1, 2])
    for each in (
        settle,
        settle._replace(ms=60_000, positions=[3]),
        settle._replace(verb="bury", text="why", positions=[0]),
    ):
        follower.apply(server.settle(each).decided[BUNDLE].apply())
    for each in (server, follower):
        assert tombstone_bytes(each) > 3_000
        for _ in range(2):
            wait_ms(3)
            each.trim(put_window_ms=0)
        assert each.contents().notes == {item_id(BUNDLE, 0): "why", item_id(BUNDLE, 3): "x" * 1_000}
        assert 1_000 < tombstone_bytes(each) < 1_300
        assert each.results(item_id(BUNDLE, 1), item_id(BUNDLE, 3))[0] == [("N", ""), ("A", "x" * 1_000)]
        assert each.contents().faults == []


def test_what_is_remembered_of_such_results_goes_with_the_last_and_refuses_no_push(server: OneServer) -> None:
    claim = put_and_claim(server, Put(BUNDLE, [b"a", b"b", b"c"])).decided[BUNDLE]
    settle = Settlement(BUNDLE, *claim.bundle.version, claim.bundle.rows[0].token, "result", 1, TEXT)
    for position in (1, 2):
        server.settle(settle._replace(positions=[position]))
    wait_ms(3)
    server.trim(put_window_ms=0)
    assert (server.contents().tombstones, server.contents().notes, tombstone_bytes(server)) == ([], {}, 0)
    assert lead(server)["floor_ms"] == "1"


# -- waiting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["result", "bury"])
def test_waiting_caller_is_told_of_the_end(server: OneServer, verb: str) -> None:
    claim = held(server)
    with server.listen("c1") as caller:
        assert server.results("a", waiter="c1")[0] == [("C", "ann")]
        server.settle(claim.settle("nack"))
        assert caller.told_nothing()
        claim = server.claim().only
        server.settle(claim.settle(verb, TTL_MS, TEXT))
        assert caller.heard() == f"{server.key('lead')} a"
    assert lead(server)["awaited"] == "0"


def test_each_channel_is_told_once(server: OneServer) -> None:
    server.put("a", "b")
    with server.listen("c1") as one, server.listen("c2") as two:
        for _ in range(2):
            server.results("a", "b", waiter="c1")
            server.results("a", waiter="c2")
        server.cancel("a")
        assert one.heard() == two.heard() == f"{server.key('lead')} a"
        assert one.told_nothing()
        assert two.told_nothing()
    assert lead(server)["awaited"] == "1"


def test_items_that_callers_wait_for_are_bounded(server: OneServer) -> None:
    server.limits = {"AWAITED_MAX": 2}
    server.put("a", "b", "c")
    server.results("a", "b", "c", waiter="c1")
    assert [name for name in lead(server) if name.startswith("awaited ")] == ["awaited a\0\1", "awaited b\0\1"]
    server.limits["AWAITED_MEMORY_MS"] = 0
    wait_ms(2)
    server.results("c", waiter="c1")
    assert [name for name in lead(server) if name.startswith("awaited ")] == ["awaited c\0\1"]
    assert lead(server)["awaited"] == "1"


def test_the_settings_of_the_queue_say_for_how_long(server: OneServer) -> None:
    """Before what the program says; without them, as it says."""
    for id, settings, expected in (("a", "ttl=5000", 5000), ("b", "", TTL_MS), ("c", f"ttl={10**300}", 2**32 - 1)):
        server.declare(settings, "results")
        settled = server.settle(held(server, id).settle("result", TTL_MS, TEXT))
        assert settled.decided[id].bundle.own[0].failures == expected


def test_an_ack_without_a_result_keeps_none_whatever_the_settings_say(server: OneServer) -> None:
    server.declare("ttl=5000", "results")
    server.settle(held(server).settle("ack"))
    assert server.results("a")[0] == [("N", "")]
