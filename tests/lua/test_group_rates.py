"""Rates of groups on one server: no more claims of each begin within a time; a group that has to wait rests."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.lines import BEGUN, RESTING, STATE_BYTES, line_of
from tests.lua.contents import LIMITS
from tests.lua.entries import BUNDLE, Applied, Put, packed_item
from tests.lua.grouped import push, put_group, repaired
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.records import State, Version, pack, unpack

HOUR = 3_600_000
TENTH_US = 100 * HOUR


@pytest.fixture
def rated(server: OneServer) -> OneServer:
    """Two claims of each group begin in an hour."""
    server.declare(f"rate=2/{HOUR}", "groups")
    return server


def let_pass(server: OneServer, tenths: int) -> None:
    """Have so much time pass since claims of groups began; negative: the clock is set back."""
    for group, state in server.contents().groups.items():
        line = line_of(state)
        if not line.begun:
            continue
        at = len(state) - len(line.first) - BEGUN.size
        width, newest, *counts = BEGUN.unpack_from(state, at)
        rests_us = line.rests_us and line.rests_us - tenths * width
        changed = struct.pack("<d", rests_us) + BEGUN.pack(width, newest - tenths, *counts)
        server.command("HSET", server.key("groups"), group, state[: at - 8] + changed + line.first)
        if line.rests_us:
            for moment in (line.rests_us, rests_us):
                verb = ("ZREM",) if moment == line.rests_us else ("ZADD",)
                score = (0,) if verb == ("ZADD",) else ()
                server.command(*verb, server.key("members"), *score, resting(moment, group))


def resting(moment_us: float, group: str) -> bytes:
    return RESTING + struct.pack(">d", moment_us) + group.encode()


def begun(server: OneServer, group: str) -> int:
    return sum(line_of(server.contents().groups[group]).begun)


def rests(server: OneServer) -> set[str]:
    return {group for group, state in server.contents().groups.items() if line_of(state).rests_us}


def exhaust(server: OneServer, groups: int) -> None:
    """Have groups rest, of each of which one item is left."""
    for n in range(groups):
        put_group(server, f"g{n}", *(f"g{n}-{at}" for at in range(3)))
    while claimed := server.claim(count=500).settle("ack"):
        server.settle(*claimed)
    assert len(rests(server)) == groups


def test_no_more_claims_of_a_group_begin_than_its_rate_allows(rated: OneServer) -> None:
    put_group(rated, "a", "a1", "a2", "a3")
    put_group(rated, "b", "b1")
    rated.put("alone")
    claimed = rated.claim(count=9)
    assert sorted(claimed.ids) == ["a1", "a2", "alone", "b1"]
    rated.settle(*claimed.settle("ack"))
    contents = rated.contents()
    assert (contents.faults, set(contents.ready), rests(rated)) == ([], set(), {"a"})
    stopped = rated.claim(count=9)
    assert stopped.ids == []
    assert HOUR < stopped.next_ms <= 1.1 * HOUR, "nobody asks before the group may have one more"
    told = rated.statistics()
    assert (told.groups, told.in_line, told.blocked) == (1, 0, 1)


def test_it_goes_on_when_the_time_has_passed(rated: OneServer) -> None:
    put_group(rated, "a", *(f"a{n}" for n in range(5)))
    rated.settle(*rated.claim(count=1).settle("ack"))
    let_pass(rated, 5)
    assert rated.claim(count=9).ids == ["a1"]
    let_pass(rated, 5)
    assert rated.claim(count=9).ids == [], "a window touches eleven tenths"
    let_pass(rated, 1)
    assert rated.claim(count=9).ids == ["a2"]
    assert rated.contents().faults == []


def test_a_group_that_rests_stops_no_other_and_costs_its_requests_nothing(rated: OneServer) -> None:
    exhaust(rated, 200)
    put_group(rated, "b", "b1")
    before = rated.statistics()
    assert rated.claim(count=1).ids == ["b1"]
    assert (before.in_line, before.blocked) == (1, 200)
    assert rated.contents().faults == []


def test_many_groups_come_back_page_by_page(rated: OneServer) -> None:
    exhaust(rated, 250)
    let_pass(rated, 11)
    assert sum(len(rated.claim(count=500).ids) for _ in range(4)) == 250
    assert rated.contents().faults == []


def test_what_came_while_a_group_rested_is_in_its_order(rated: OneServer) -> None:
    put_group(rated, "a", "a1", "a2", "a3")
    rated.settle(*rated.claim(count=9).settle("ack"))
    rated.put(Put("a9", group="a", priority=9))
    assert rated.contents().faults == []
    let_pass(rated, 11)
    assert rated.claim(count=9).ids == ["a9", "a3"]


def test_a_rest_is_real_time(server: OneServer) -> None:
    server.declare("rate=1/100", "groups")
    put_group(server, "a", "a1", "a2")
    server.claim(count=9)
    stopped = server.claim(count=9)
    assert 0 < stopped.next_ms <= 111
    wait_ms(stopped.next_ms)
    assert server.claim(count=9).ids == ["a2"]


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_each_delivery_counts(rated: OneServer, verb: str) -> None:
    put_group(rated, "a", "a1", "a2")
    for _ in range(2):
        rated.settle(*rated.claim(count=1).settle(verb, 0, "why"))
    assert rated.claim(count=9).ids == []
    assert begun(rated, "a") == 2
    assert rated.contents().faults == []


def test_a_bundle_counts_item_by_item(rated: OneServer) -> None:
    rated.put(Put(BUNDLE, [b"1", b"2", b"3", b"4"], group="a"))
    claimed = rated.claim(count=9)
    assert len(claimed.ids) == 2
    rated.settle(claimed.decided[BUNDLE].settle("extend", 60_000, positions=[0]))
    rated.claim("ann", count=9, seq=1, epoch=2)
    assert begun(rated, "a") == 2, "counted once"
    assert rated.contents().faults == []


def test_a_group_that_is_empty_still_counts_until_the_scrub_drops_it(rated: OneServer) -> None:
    put_group(rated, "a", "a1", "a2")
    rated.settle(*rated.claim(count=9).settle("ack"))
    assert rated.statistics().groups == 0
    put_group(rated, "a", "a3")
    assert rated.claim(count=9).ids == []
    rated.cancel("a3")
    assert rated.contents().members == set()
    assert (repaired(rated), rated.contents().groups.keys()) == (0, {"a"})
    let_pass(rated, 11)
    assert (repaired(rated), rated.contents().groups) == (0, {})
    assert rated.contents().faults == []


def test_with_concurrency(server: OneServer) -> None:
    server.declare(f"concurrency=1,rate=2/{HOUR}", "groups")
    put_group(server, "a", "a1", "a2", "a3")
    first = server.claim(count=9)
    assert (first.ids, rests(server)) == (["a1"], set())
    server.settle(*first.settle("ack"))
    second = server.claim(count=9)
    assert (second.ids, rests(server)) == (["a2"], set()), "first its claim has to end"
    server.settle(*second.settle("ack"))
    assert (server.claim(count=9).ids, rests(server)) == ([], {"a"})
    let_pass(server, 11)
    assert server.claim(count=9).ids == ["a3"]
    assert server.contents().faults == []


def test_with_an_order(server: OneServer) -> None:
    server.declare(f"ordered=1,rate=2/{HOUR}", "groups")
    push(server, "a1", "a2", "a3", "a4")
    for n in (1, 2):
        claimed = server.claim(count=9)
        assert claimed.ids == [f"a{n}"]
        server.settle(*claimed.settle("ack"))
    assert (server.claim(count=9).ids, rests(server)) == ([], {"a"})
    assert server.contents().faults == []
    assert repaired(server) == 0
    let_pass(server, 11)
    claimed = server.claim(count=9)
    assert claimed.ids == ["a3"]
    server.settle(*claimed.settle("nack", 60_000, "why"))
    assert (server.claim(count=9).ids, rests(server)) == ([], set()), "its first item waits, not the rate"
    assert server.contents().faults == []


def test_what_began_is_still_known_when_what_ended_last_is_forgotten(server: OneServer) -> None:
    server.declare(f"ordered=1,rate=2/{HOUR}", "groups")
    push(server, "a1")
    push(server, "b1", "b2", group="b")
    server.settle(*server.claim(count=9).settle("ack"))
    wait_ms(20)
    assert server.trim(put_window_ms=5) == 2
    assert server.contents().faults == []
    assert (begun(server, "a"), begun(server, "b")) == (1, 1)
    push(server, "a2", "a3")
    server.settle(*server.claim(count=9).settle("ack"))
    assert server.claim(count=9).ids == []
    assert rests(server) == {"a"}
    assert server.contents().faults == []


# -- several servers ---------------------------------------------------------------------------------------------------


def test_a_follower_counts_what_it_is_told(rated: OneServer, follower: OneServer) -> None:
    record = rated.affirm(LIMITS)
    for one in (rated, follower):
        put_group(one, "a", "a1", "a2", "a3")
    follower.apply(*(each.apply() for each in record.values()))
    claimed = rated.claim(count=9)
    follower.apply(*(each.apply() for each in claimed.decided.values()))
    follower.apply(*(each.apply() for each in rated.settle(*claimed.settle("ack")).decided.values()))
    assert follower.contents().faults == []
    assert follower.claim("bob", count=9).ids == []
    let_pass(follower, 11)
    assert follower.claim("bob", count=9).ids == ["a3"]


def test_a_claim_that_arrives_before_its_push_counts(rated: OneServer, follower: OneServer) -> None:
    follower.apply(*(each.apply() for each in rated.affirm(LIMITS).values()))
    put_group(rated, "a", "a1", "a2")
    claimed = rated.claim(count=9)
    follower.apply(*(each.apply() for each in claimed.decided.values()))
    assert begun(follower, "a") == 2
    put_group(follower, "a", "a1", "a2", "a3")
    assert follower.contents().faults == []
    follower.fence("ann")
    assert follower.claim("bob", count=9).ids == []


def test_a_server_that_joins_is_given_the_counters(rated: OneServer, follower: OneServer) -> None:
    groups = ["", "a", "z" * 200]
    for group in groups:
        put_group(rated, group, f"1{group}", f"2{group}")
    rated.settle(*rated.claim(count=9).settle("ack"))
    let_pass(rated, 4)
    cursor, told = calls.START, list[bytes]()
    while not told or cursor != calls.START:
        page = rated.ask(calls.Metadata("q", cursor))
        cursor = page.cursor
        told.append(page.begun)
    for begun_there in [*told, *told]:
        follower.ask(calls.Install("q", 0, calls.Rows(), begun_there))
    assert follower.contents().faults == []
    follower.apply(rated.page()[1].found[LIMITS].applied)
    for group in groups:
        assert begun(follower, group) == 2
        put_group(follower, group, f"3{group}")
    assert follower.claim("bob", 9).ids == []
    let_pass(follower, 8)
    assert len(follower.claim("bob", 9).ids) == 3
    assert follower.contents().faults == []


def test_what_several_primaries_gave_a_request_is_taken_back_beyond_the_rate(rated: OneServer) -> None:
    """T decided about a1 and a2, told this server alone, and was evicted.  The next primary decided about a3 and a4,
    told this server, and was evicted, too.  Nobody has heard an answer yet."""
    put_group(rated, "a", *(f"a{n}" for n in range(1, 5)))
    rated.claim("ann", 2, seq=1)
    for id in ("a3", "a4"):
        claimed = unpack(packed_item(Version(2, 2), State.CLAIMED, lease_ms=60_000, token="ann/1"))
        rated.apply(Applied(id, pack(claimed._replace(group="a")), 60_000))
    assert rated.contents().faults == []
    again = rated.claim("ann", 2, seq=1, epoch=3)
    assert len(again.ids) == 2
    contents = rated.contents()
    assert (len(contents.ids(State.CLAIMED)), contents.faults) == (2, [])


# -- waiters -----------------------------------------------------------------------------------------------------------


def test_a_waiter_learns_that_a_group_rests_when_the_claimer_has_enough(server: OneServer) -> None:
    """Otherwise nobody would ask when the rest ends, if the claimer is busy until later."""
    server.declare("rate=1/20000", "groups")
    with server.listen("bobs") as bobs, server.listen("cids") as cids:
        for owner, channel in (("bob", "bobs"), ("cid", "cids")):
            assert server.claim(owner, 1, waiter=channel).next_ms == -1
        put_group(server, "a", "a1", "a2")
        bobs.heard()
        assert server.claim("bob", 1).ids == ["a1"]
        cids.heard()
        assert 20_000 < server.claim("cid", 1, waiter="cids").next_ms <= 22_000


def test_a_waiter_learns_of_a_push_into_a_group_that_has_to_rest(server: OneServer) -> None:
    server.declare(f"rate=1/{HOUR}", "groups")
    put_group(server, "a", "a1")
    server.settle(*server.claim(count=1).settle("ack"))
    with server.listen("bobs") as bobs:
        assert server.claim("bob", 1, waiter="bobs").next_ms == -1
        put_group(server, "a", "a2")
        bobs.heard()
        assert server.claim("bob", 1, waiter="bobs").next_ms > HOUR
        put_group(server, "a", "a3")
        assert bobs.told_nothing(), "it rests as long as before"


def test_a_claimer_that_wants_more_is_told_and_nobody_is_woken(server: OneServer) -> None:
    server.declare("rate=2/20000", "groups")
    with server.listen("bobs") as bobs:
        put_group(server, "a", "a1", "a2", "a3")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bobs")
        assert 20_000 < server.claim("ann", 9, waiter="anns").next_ms <= 22_000
        assert bobs.told_nothing()


# -- changes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", ["", "concurrency=9"])
def test_without_a_rate_groups_go_on(rated: OneServer, settings: str) -> None:
    put_group(rated, "a", "a1", "a2", "a3")
    with rated.listen("bobs") as bobs:
        rated.settle(*rated.claim(count=9).settle("ack"))
        assert rated.claim("bob", 1, waiter="bobs").ids == []
        rated.declare(settings, "groups")
        bobs.heard()
    assert rated.claim("bob", 9).ids == ["a3"]
    assert rated.contents().faults == []
    assert rated.claim("bob", 9).next_ms > 0
    assert rated.contents().counters["resting"] == 0


def test_another_time_begins_with_what_was_counted(rated: OneServer) -> None:
    put_group(rated, "a", *(f"a{n}" for n in range(1, 5)))
    rated.settle(*rated.claim(count=9).settle("ack"))
    let_pass(rated, 3)
    rated.declare("rate=3/600000", "groups")
    assert rated.claim("bob", 9).ids == ["a3"]
    stopped = rated.claim("bob", 9)
    assert (stopped.ids, rests(rated)) == ([], {"a"})
    let_pass(rated, 11)
    assert rated.claim("bob", 9).ids == ["a4"]
    assert rated.contents().faults == []


def test_a_clock_that_is_set_back_forgets_nothing_and_delays_no_longer_than_the_time(rated: OneServer) -> None:
    put_group(rated, "a", "a1", "a2", "a3")
    rated.settle(*rated.claim(count=9).settle("ack"))
    let_pass(rated, -50)
    stopped = rated.claim("bob", 9)
    assert stopped.ids == []
    assert HOUR < stopped.next_ms <= 1.1 * HOUR
    assert rated.contents().faults == []
    let_pass(rated, 11)
    assert rated.claim("bob", 9).ids == ["a3"]


def test_clear_and_peek_read_what_rests(rated: OneServer) -> None:
    put_group(rated, "a", "a1", "a2", "a3", "a4")
    rated.settle(*rated.claim(count=9).settle("ack"))
    assert [id for id, _ in rated.peek_places("ready")] == ["a3", "a4"]
    rated.clear(10)
    contents = rated.contents()
    assert (contents.members, contents.faults) == (set(), [])


# -- repair ------------------------------------------------------------------------------------------------------------


def lose_moment(server: OneServer) -> None:
    (member,) = (member for member in server.contents().members if member.startswith(RESTING))
    server.command("ZREM", server.key("members"), member)


def lose_flag(server: OneServer) -> None:
    server.command("HDEL", server.key("lead"), "resting")


def lose_rest(server: OneServer) -> None:
    lose_moment(server)
    state = server.contents().groups["a"]
    server.command("HSET", server.key("groups"), "a", state[:STATE_BYTES] + bytes(8) + state[STATE_BYTES + 8 :])


@pytest.mark.parametrize("lose", [lose_moment, lose_flag, lose_rest])
def test_a_group_whose_rest_was_lost_still_comes_back(rated: OneServer, lose: Callable[[OneServer], None]) -> None:
    put_group(rated, "a", "a1", "a2", "a3")
    rated.settle(*rated.claim(count=9).settle("ack"))
    assert repaired(rated) == 0
    lose(rated)
    assert rated.contents().faults != []
    assert repaired(rated) == (lose is not lose_flag)
    assert rated.contents().faults == []
    assert repaired(rated) == 0
    let_pass(rated, 11)
    assert rated.claim(count=9).ids == ["a3"]


@pytest.mark.parametrize("tenths", [11, 30])
def test_a_rest_whose_moment_has_passed_needs_no_repair(rated: OneServer, tenths: int) -> None:
    """On a follower no claim request ends it."""
    put_group(rated, "a", "a1", "a2", "a3")
    rated.settle(*rated.claim(count=9).settle("ack"))
    let_pass(rated, tenths)
    assert repaired(rated) == 0
    assert rated.contents().faults == []
    assert rated.claim(count=9).ids == ["a3"]


def test_a_moment_that_stands_for_no_group_goes_in_time(rated: OneServer) -> None:
    rated.command("ZADD", rated.key("members"), 0, resting(rated.now_us() - 1.0, "gone"))
    rated.command("HSET", rated.key("lead"), "resting", 1)
    put_group(rated, "a", "a1")
    assert rated.claim(count=9).ids == ["a1"]
    assert rated.contents().faults == []
