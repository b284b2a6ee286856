"""The limits of a queue: a record of its own, decided like an item's."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from tests.lua.contents import LIMITS, PAUSE
from tests.lua.entries import BUNDLE, LEASE_MS, WINDOW_MS, Applied, Decided, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.records import Bundle, State, Version, pack, unpack


def text_of(decided: dict[str, Decided]) -> str:
    return unpack(decided[LIMITS].packed).text


# -- the record ------------------------------------------------------------------------------------------------------


def test_declaring_is_a_decision(server: OneServer) -> None:
    server.epoch = 3
    before, decided = server.declare("concurrency=5")
    record = decided[LIMITS].record
    assert (before, text_of(decided)) == ("", "limits:concurrency=5")
    assert (record.version.epoch, record.state) == (3, State.PAUSED)
    contents = server.contents()
    assert contents.records == {LIMITS: record}
    assert (contents.payloads, contents.tombstones, contents.faults) == ({}, [], [])
    assert server.statistics().limits == b"limits:concurrency=5"


def test_the_last_declaration_of_a_section_holds_and_says_what_was_before(server: OneServer) -> None:
    server.declare("concurrency=5,rate=50/1000")
    before, decided = server.declare("concurrency=6")
    assert (before, text_of(decided)) == ("concurrency=5,rate=50/1000", "limits:concurrency=6")
    assert server.statistics().limits == b"limits:concurrency=6"


def test_sections_are_declared_each_by_itself(server: OneServer) -> None:
    """A version of zkrq may declare a section that another one does not know."""
    server.declare("concurrency=5")
    before, decided = server.declare("concurrency=2,ordered=1", "groups")
    assert (before, text_of(decided)) == ("", "groups:concurrency=2,ordered=1 limits:concurrency=5")
    before, decided = server.declare("", "limits")
    assert (before, text_of(decided)) == ("concurrency=5", "groups:concurrency=2,ordered=1")
    before, decided = server.declare("", "groups")
    assert decided[LIMITS].record.state is State.GONE
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_what_was_never_declared_is_taken_away(server: OneServer) -> None:
    assert server.declare("") == ("", {})
    assert server.contents().records == {}


@pytest.mark.parametrize("settings", ["concurrency=5", ""])
def test_declared_again_is_the_same_and_under_a_newer_epoch_decided_again(server: OneServer, settings: str) -> None:
    server.declare("concurrency=4")
    first = server.declare(settings)[1][LIMITS]
    before = server.contents()
    known, decided = server.declare(settings)
    assert (known, decided[LIMITS].packed) == (settings, first.packed)
    assert server.contents() == before
    again = server.declare(settings, epoch=4)[1][LIMITS].record
    assert (again.version, again.state) == (Version(4, first.record.version.n + 1), first.record.state)


def test_a_call_that_comes_late_does_not_undo_what_was_declared_since(server: OneServer) -> None:
    """Its answer was lost, it was repeated, and then others declared: the first try is executed last."""
    server.declare("concurrency=4", call="mine")
    server.declare("concurrency=5", call="theirs")
    before, decided = server.declare("concurrency=4", call="mine")
    assert (before, text_of(decided)) == ("concurrency=5", "limits:concurrency=5")


def test_a_follower_has_what_it_was_told_last(server: OneServer) -> None:
    for version, text in ((Version(1, 2), "limits:concurrency=2"), (Version(1, 1), "limits:concurrency=1")):
        server.apply(Applied(LIMITS, pack(Bundle(version, "P", text=text))))
    assert server.statistics().limits == b"limits:concurrency=2"
    server.apply(Applied(LIMITS, packed_item(Version(2, 1), State.GONE)))
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_it_is_compared_and_copied_like_an_item(server: OneServer, follower: OneServer) -> None:
    server.declare("concurrency=2")
    assert LIMITS in server.heads()[1]
    found = server.page()[1].found[LIMITS]
    follower.apply(found.applied)
    assert follower.statistics().limits == b"limits:concurrency=2"
    server.declare("")
    server.age(LIMITS, 3 * WINDOW_MS)
    assert LIMITS in server.heads()[1], "never dropped, or its versions would start again"


def test_no_call_takes_it_for_an_item(server: OneServer) -> None:
    server.declare("concurrency=2")
    before = server.contents()
    assert server.cancel(LIMITS)[1] == {}
    assert server.redrive(LIMITS) == {}
    assert server.clear(10) == {}
    assert server.contents() == before


# -- with the queue --------------------------------------------------------------------------------------------------


def test_a_queue_with_limits_is_not_forgotten(server: OneServer) -> None:
    server.declare("concurrency=2")
    assert not server.forget()
    server.declare("")
    assert not server.forget(), "a server that missed the end would bring it back"
    server.age(LIMITS, 3 * WINDOW_MS)
    assert server.forget()
    assert server.contents().records == {}


def test_a_deleted_queue_has_no_limits(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"))
    server.declare("concurrency=2")
    server.pause()
    decided = server.delete()
    assert decided[LIMITS].record.state is State.GONE
    assert PAUSE not in decided
    assert server.statistics().limits == b""
    assert server.contents().faults == []


def test_limits_make_a_deleted_queue_again(server: OneServer) -> None:
    server.put("a")
    server.cancel("a")
    server.delete()
    assert server.statistics().deleted
    server.declare("concurrency=2")
    assert not server.statistics().deleted


# -- at once ---------------------------------------------------------------------------------------------------------


def test_no_more_are_claimed_than_the_limit_leaves(server: OneServer) -> None:
    server.put(*"abcde")
    server.declare("concurrency=3")
    before_ms = server.now_ms()
    first = server.claim("ann", 2)
    second = server.claim("bob", 10)
    assert (first.ids, second.ids) == (["a", "b"], ["c"])
    third = server.claim("cid", 1)
    assert third.ids == []
    passed_ms = server.now_ms() - before_ms + 1
    assert LEASE_MS - passed_ms <= third.next_ms <= LEASE_MS, "then the first claim ends, at the latest"
    assert server.contents().faults == []


def test_the_request_is_told_that_there_are_limits(server: OneServer) -> None:
    call = calls.Claim("q", "ann", 1, 1, LEASE_MS, "", 0, "X", 0, 0)
    assert not server.ask(call).limited
    server.declare("concurrency=3")
    assert server.ask(replace(call, seq=2)).limited
    server.declare("ordered=1", "groups")
    assert server.ask(replace(call, seq=3)).limited


End = Callable[[OneServer, Decided], object]


def fence(server: OneServer, _: Decided) -> object:
    return server.fence("ann")


def cancel(server: OneServer, held: Decided) -> object:
    return server.cancel(held.id)


def apply(server: OneServer, held: Decided) -> object:
    return server.apply(Applied(held.id, packed_item(Version(9, 1), State.GONE)))


def settling(verb: str, ms: int = 0) -> End:
    return lambda server, held: server.settle(held.settle(verb, ms))


ENDS: dict[str, End] = {
    "ack": settling("ack"),
    "nack": settling("nack", LEASE_MS),
    "release": settling("release"),
    "bury": settling("bury"),
    "cancel": cancel,
    "fence": fence,
    "apply": apply,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_a_claim_wakes_one_that_waits_for_a_slot(server: OneServer, end: End) -> None:
    server.put("a", "b", "c")
    server.declare("concurrency=1")
    held = server.claim("ann").only
    with server.listen("bobs") as bobs, server.listen("cids") as cids:
        for owner, channel in (("bob", "bobs"), ("cid", "cids")):
            assert server.claim(owner, 1, waiter=channel).ids == []
        end(server, held)
        bobs.heard()
        assert cids.told_nothing(), "one slot is for one consumer"
        assert len(server.claim("bob").ids) == 1
    assert server.contents().faults == []


def test_a_push_wakes_nobody_while_no_slot_is_free(server: OneServer) -> None:
    server.put("a", "b")
    server.declare("concurrency=1")
    server.claim("ann")
    with server.listen("bobs") as bobs:
        server.claim("bob", 1, waiter="bobs")
        server.put("c")
        assert bobs.told_nothing()


@pytest.mark.parametrize("how", ["pushed", "failed"])
@pytest.mark.parametrize("section", ["limits", "groups"])
@pytest.mark.parametrize("group", [None, "a"])
def test_a_waiter_learns_when_something_is_due(server: OneServer, how: str, section: str, group: str | None) -> None:
    """Nothing is ready yet, so nobody would ask in time."""
    server.declare("concurrency=2", section)
    server.put(Put("now", group=group))
    held = server.claim("ann", 1)
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").next_ms > 20_000
        if how == "pushed":
            server.put(Put("later", delay_ms=20_000, group=group))
        else:
            server.settle(held.only.settle("nack", 20_000))
        bobs.heard()
        assert 0 < server.claim("bob", 1).next_ms <= 20_000


def test_a_turn_hands_out_the_slot_that_it_frees(server: OneServer) -> None:
    server.put(*"abcd")
    server.declare("concurrency=2")
    held = server.claim("ann", 2)
    turned = server.turn(*held.settle("ack"), count=10)
    assert turned.claimed.ids == ["c", "d"]
    again = server.turn(turned.claimed.decided["c"].settle("extend", LEASE_MS), count=10)
    assert again.claimed.ids == [], "an extended claim keeps its slot"


def test_a_turn_wakes_others_for_slots_that_it_leaves(server: OneServer) -> None:
    server.put(*"abcd")
    server.declare("concurrency=2")
    held = server.claim("ann", 2)
    with server.listen("bobs") as bobs, server.listen("cids") as cids:
        for owner, channel in (("bob", "bobs"), ("cid", "cids")):
            server.claim(owner, 1, waiter=channel)
        assert server.turn(*held.settle("ack"), count=1).claimed.ids == ["c"]
        bobs.heard()
        assert cids.told_nothing()


def test_expired_claims_are_free_for_the_request_that_finds_them(server: OneServer) -> None:
    server.put("a", "b")
    server.declare("concurrency=1")
    server.claim("ann", lease_ms=1)
    time.sleep(0.005)
    assert server.claim("bob").ids == ["a"]


def test_items_of_a_bundle_count_one_by_one(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"1", b"2", b"3", b"4"]))
    server.declare("concurrency=3")
    assert len(server.claim("ann", 10).ids) == 3
    assert server.contents().faults == []


def test_a_lower_limit_takes_nothing_from_anybody_and_a_higher_one_wakes(server: OneServer) -> None:
    server.put(*"abcd")
    held = server.claim("ann", 3)
    server.declare("concurrency=1")
    assert server.turn(held.decided["a"].settle("ack"), count=1).claimed.ids == []
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").ids == []
        server.declare("concurrency=3")
        bobs.heard()
    assert server.claim("bob", 5).ids == ["d"]
    server.put("e")
    server.declare("")
    assert server.claim("cid", 5).ids == ["e"]


def test_a_repeated_request_gets_no_more_than_the_limit_of_what_several_primaries_gave_it(server: OneServer) -> None:
    """T decided about a and b, told this server alone, and was evicted.  The next primary decided about c and d, told
    this server, and was evicted, too.  Nobody has heard an answer yet."""
    server.put(*"abcd")
    server.declare("concurrency=2")
    server.claim("ann", 2, seq=1)
    for id in "cd":
        server.apply(Applied(id, packed_item(Version(2, 2), State.CLAIMED, lease_ms=LEASE_MS, token="ann/1"), LEASE_MS))
    again = server.claim("ann", 2, seq=1, epoch=3)
    assert len(again.ids) == 2
    contents = server.contents()
    assert (len(contents.ids(State.CLAIMED)), contents.faults) == (2, [])
    late = server.claim("ann", 2, seq=1, epoch=3)
    assert late.ids == again.ids


def test_what_this_epoch_has_handed_out_is_not_taken_back(server: OneServer) -> None:
    """A first try that comes late, after its repetition was answered and the limit was lowered."""
    server.put(*"ab")
    server.declare("concurrency=2")
    held = server.claim("ann", 2, seq=1)
    server.declare("concurrency=1")
    assert server.claim("ann", 2, seq=1).ids == held.ids


# -- in a time -------------------------------------------------------------------------------------------------------


BEGUN = struct.Struct("<dd11I")


def begun(server: OneServer) -> tuple[float, float, list[int]]:
    """Microseconds in a tenth, number of the newest one, counts."""
    width, newest, *counts = BEGUN.unpack(cast("bytes", server.command("HGET", server.key("lead"), "begun")))
    return width, newest, counts


def let_pass(server: OneServer, tenths: int) -> None:
    """Have so much time pass since the claims began; negative: the clock is set back."""
    width, newest, counts = begun(server)
    server.command("HSET", server.key("lead"), "begun", BEGUN.pack(width, newest - tenths, *counts))


HOUR = 3_600_000


def test_no_more_claims_begin_than_the_rate_allows(server: OneServer) -> None:
    server.put(*"abcdef")
    server.declare(f"rate=3/{HOUR}")
    first, second = server.claim("ann", 2), server.claim("bob", 5)
    assert (first.ids, second.ids) == (["a", "b"], ["c"])
    server.settle(*first.settle("ack"))
    stopped = server.claim("ann", 5)
    assert stopped.ids == []
    assert HOUR < stopped.next_ms <= 1.1 * HOUR
    assert server.contents().faults == []


def test_they_begin_again_when_the_time_has_passed(server: OneServer) -> None:
    server.put(*"abcdef")
    server.declare(f"rate=3/{HOUR}")
    server.claim("ann", 2)
    let_pass(server, 5)
    assert server.claim("bob", 5).ids == ["c"]
    let_pass(server, 5)
    stopped = server.claim("bob", 5)
    assert (stopped.ids, stopped.next_ms <= 0.1 * HOUR) == ([], True), "a window touches eleven tenths"
    let_pass(server, 1)
    assert server.claim("bob", 5).ids == ["d", "e"]


def test_one_that_the_rate_stops_is_not_woken_for_each_push(server: OneServer) -> None:
    server.put("a", "b")
    server.declare(f"rate=1/{HOUR}")
    server.claim("ann", 1)
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").next_ms > 0
        server.put("c")
        assert bobs.told_nothing()


def test_one_that_waits_for_a_slot_learns_that_the_rate_stops_it(server: OneServer) -> None:
    """Otherwise it would be woken by nobody when the rate allows a claim again."""
    server.put(*"abc")
    server.declare(f"concurrency=1,rate=2/{HOUR}")
    held = server.claim("ann", 1).only
    with server.listen("bobs") as bobs:
        server.claim("bob", 1, waiter="bobs")
        turned = server.turn(held.settle("ack"), count=1).claimed
        server.settle(turned.only.settle("ack"))
        bobs.heard()
        assert server.claim("bob", 1, waiter="bobs").next_ms > HOUR / 2


@pytest.mark.parametrize("settings", ["concurrency=9,rate=3/600000", "rate=3/600000"])
def test_what_begins_is_counted_once(server: OneServer, settings: str) -> None:
    server.put(*"abcdef")
    server.declare(settings)
    held = server.claim("ann", 2, seq=1)
    server.claim("ann", 2, seq=1, epoch=2)
    server.settle(held.decided["a"].settle("extend", LEASE_MS), epoch=2)
    assert sum(begun(server)[2]) == 2
    server.settle(held.decided["b"].settle("release"), epoch=2)
    server.claim("ann", 1, seq=2, epoch=2)
    assert sum(begun(server)[2]) == 3, "one that was given back and is claimed again has begun again"


def test_a_follower_counts_what_it_is_told(server: OneServer, follower: OneServer) -> None:
    for one in (server, follower):
        one.put(*"abc")
    for decided in server.declare("rate=2/60000")[1].values():
        follower.apply(decided.apply())
    for decided in server.claim("ann", 2).decided.values():
        follower.apply(decided.apply())
    assert follower.claim("bob", 2).ids == []


def test_a_server_that_joins_is_given_the_counters(server: OneServer, follower: OneServer) -> None:
    for one in (server, follower):
        one.put(*"abcdef")
    server.declare(f"rate=3/{HOUR}")
    server.settle(*server.claim("ann", 2).settle("ack"))
    let_pass(server, 4)
    told = server.ask(calls.Metadata("q")).begun
    for _ in range(2):
        follower.ask(calls.Install("q", 0, calls.Rows(), told))
    follower.apply(server.page()[1].found[LIMITS].applied)
    assert sum(begun(follower)[2]) == 2
    assert len(follower.claim("bob", 5).ids) == 1
    let_pass(follower, 8)
    assert len(follower.claim("bob", 5).ids) == 2


def test_a_clock_that_is_set_back_forgets_nothing(server: OneServer) -> None:
    server.put(*"abc")
    server.declare(f"rate=2/{HOUR}")
    server.claim("ann", 2)
    let_pass(server, -50)
    assert server.claim("bob", 2).ids == []
    let_pass(server, 10)
    assert server.claim("bob", 2).ids == []
    let_pass(server, 1)
    assert server.claim("bob", 2).ids == ["c"]


def test_another_time_begins_with_what_was_counted(server: OneServer) -> None:
    server.put(*"abcd")
    server.declare("rate=5/600000")
    server.claim("ann", 2)
    let_pass(server, 3)
    server.declare(f"rate=3/{HOUR}")
    assert server.claim("bob", 5).ids == ["c"]
    let_pass(server, 10)
    assert server.claim("bob", 5).ids == []
    server.declare("concurrency=9")
    assert server.claim("bob", 5).ids == ["d"]
    assert server.command("HGET", server.key("lead"), "begun") == b""


def test_one_that_the_rate_stops_in_a_paused_queue_is_woken_when_it_goes_on(server: OneServer) -> None:
    server.put("a", "b")
    server.declare(f"rate=1/{HOUR}")
    server.claim("ann", 1)
    server.pause()
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").next_ms == -1
        server.declare("")
        bobs.heard()
