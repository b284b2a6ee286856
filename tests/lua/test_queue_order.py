"""A queue keeps its order for every producer, also for those that do not know of it.

Where the settings of the queue say so, no server takes a plain push, and the primary gives each item its place.
"""

from __future__ import annotations

import pytest

from tests.lua.one_server import Claimed, Decided, OneServer, Put, Refused
from zkrq.protocol.records import token_of

BUNDLE = "zkrq-1a-2b-3c"
LATER = 60_000


@pytest.fixture
def ordered(server: OneServer) -> OneServer:
    """A server that knows that the queue keeps an order."""
    server.declare("ordered=1", "groups")
    return server


def copy(decided: dict[str, Decided], server: OneServer) -> None:
    """Apply what one server has decided on another."""
    server.apply(*(each.apply() for each in decided.values()))


def take_all(server: OneServer) -> list[tuple[str | None, bytes, tuple[int, int]]]:
    """Claim and ack all that is ready, one at a time; return groups, payloads and tokens."""
    found = list[tuple[str | None, bytes, tuple[int, int]]]()
    while (claimed := server.claim(count=9)).ids:
        assert server.contents().faults == []
        for id, payload in claimed.handed.items():
            decided = claimed.decided[claimed.places[id][0]]
            found.append((decided.bundle.group, payload, token_of(decided.packed)))
        server.settle(*claimed.settle("ack"))
    assert server.contents().faults == []
    return found


def test_a_plain_push_is_refused_and_writes_nothing(ordered: OneServer) -> None:
    before = ordered.contents()
    for put in (Put("a1"), Put("a1", group="a"), Put(BUNDLE, [b"1", b"2"])):
        with pytest.raises(Refused, match="DECIDE"):
            ordered.put(put)
    assert ordered.contents() == before


@pytest.mark.parametrize("settings", ["concurrency=2", "rate=5/1000", ""])
def test_other_settings_of_groups_refuse_nothing(server: OneServer, settings: str) -> None:
    server.declare("concurrency=2", "limits")
    server.declare(settings, "groups")
    server.put(Put("a1", group="a"))
    assert server.record("a1").group == "a"


def test_an_order_that_is_taken_away_refuses_nothing(ordered: OneServer) -> None:
    ordered.declare("", "groups")
    ordered.put("a1")
    assert ordered.claim().ids == ["a1"]


def test_the_primary_gives_each_item_a_place(ordered: OneServer) -> None:
    """By its decisions, not by the clocks of the producers.  Items without a group are a group of their own."""
    now_ms = ordered.now_ms()
    outcomes, decided = ordered.push(*(Put(f"a{n}", b"%d" % n, pushed_at_ms=now_ms - n, group="a") for n in range(3)))
    ordered.push(*(Put(f"p{n}", b"%d" % n, pushed_at_ms=now_ms - n) for n in range(3)))
    assert outcomes == ["+"] * 3
    assert all(each.bundle.claim_n is not None for each in decided.values())
    taken = take_all(ordered)
    for group in ("a", ""):
        assert [payload for each, payload, _ in taken if each == group] == [b"0", b"1", b"2"]
        tokens = [token for each, _, token in taken if each == group]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("delay_ms", "priority"), [(5_000, 0), (0, 3)], ids=["delay", "priority"])
def test_what_contradicts_the_order_is_refused(ordered: OneServer, delay_ms: int, priority: int) -> None:
    outcomes, decided = ordered.push(Put("a1", delay_ms=delay_ms, priority=priority), Put("a2"))
    assert outcomes == ["O", "+"]
    assert decided.keys() == {"a2"}
    assert "a1" not in ordered.contents().records
    assert ordered.contents().faults == []


def test_what_is_refused_after_another_server_has_taken_it_is_removed_there(
    ordered: OneServer, follower: OneServer
) -> None:
    """Another server had not heard of the order yet."""
    put = Put("a1", priority=3)
    follower.put(put)
    outcomes, decided = ordered.push(put, again=True)
    assert outcomes == ["O"]
    copy(decided, follower)
    for server in (ordered, follower):
        assert server.claim().ids == []
        assert server.contents().faults == []


def test_what_another_server_has_taken_gets_its_place_there_too(ordered: OneServer, follower: OneServer) -> None:
    follower.put(Put("a1", group="a"), Put("p1"), Put(BUNDLE, [b"0", b"1"]))
    singles = [Put(f"{BUNDLE}~{position:02x}", b"%d" % position) for position in range(2)]
    outcomes, decided = ordered.push(Put("a1", group="a"), Put("p1"), *singles, again=True)
    assert outcomes == ["+"] * 4
    copy(decided, follower)
    assert follower.contents().faults == []
    for id in ("a1", "p1", f"{BUNDLE}~00", f"{BUNDLE}~01"):
        assert follower.record(id)._replace(due_us=0) == ordered.record(id)._replace(due_us=0)
    follower.declare("ordered=1", "groups")
    follower.epoch = 2
    for server in (ordered, follower):
        assert [payload for group, payload, _ in take_all(server) if group == ""] == [b"payload", b"0", b"1"]


def test_what_the_primary_has_taken_before_it_heard_of_the_order_stays_as_it_is(server: OneServer) -> None:
    """Its push was in flight while the order was declared."""
    server.put(Put("p1"), Put(BUNDLE, [b"0", b"1"]))
    server.declare("ordered=1", "groups")
    outcomes, decided = server.push(Put("p1"), Put(f"{BUNDLE}~01", b"1"), again=True)
    assert outcomes == ["K", "K"]
    assert decided.keys() == {"p1", BUNDLE}
    assert sorted(payload for _, payload, _ in take_all(server)) == [b"0", b"1", b"payload"]


def test_the_items_of_a_bundle_keep_their_order_one_at_a_time(ordered: OneServer) -> None:
    """Those of a push that another server may have taken keep their ids, in one record."""

    def claim() -> Claimed:
        claimed = ordered.claim(count=9)
        assert ordered.contents().faults == []
        return claimed

    ordered.push(*(Put(f"{BUNDLE}~{position:02x}", b"%d" % position) for position in range(3)), again=True)
    ordered.push(Put("behind", b"behind"))
    first = claim()
    assert [*first.handed.values()] == [b"0"]
    assert claim().ids == []
    ordered.settle(first.decided[BUNDLE].settle("nack", 60_000))
    assert claim().ids == [], "a failed item holds its group"
    ordered.cancel(f"{BUNDLE}~00")
    second = claim()
    assert [*second.handed.values()] == [b"1"]
    assert token_of(second.decided[BUNDLE].packed) > token_of(first.decided[BUNDLE].packed)
    ordered.settle(second.decided[BUNDLE].settle("ack", positions=(1,)))
    assert [payload for _, payload, _ in take_all(ordered)] == [b"2", b"behind"]


def test_what_was_pushed_before_the_order_is_claimed_in_order_with_growing_tokens(
    server: OneServer, follower: OneServer
) -> None:
    """One at a time, by the producer's clock, whether it was pushed alone, in a bundle, or without a group; and a
    consumer that was given an item before the order was declared has a smaller token than all that follow."""
    now_ms = server.now_ms()
    puts = [
        Put("a2", b"a2", pushed_at_ms=now_ms - 50, group="a"),
        Put(BUNDLE, [b"b0", b"b1"], pushed_at_ms=now_ms - 60, group="a"),
        Put("a0", b"a0", pushed_at_ms=now_ms - 90, group="a"),
        Put("p1", b"p1", pushed_at_ms=now_ms - 40),
        Put("p0", b"p0", pushed_at_ms=now_ms - 45),
    ]
    before = list[tuple[int, int]]()
    server.put(puts[0])
    for _ in range(5):
        held = server.claim()
        before.append(token_of(held.only.packed))
        server.settle(*held.settle("release"))
    server.put(*puts[1:])
    follower.put(*puts)
    server.declare("ordered=1", "groups")
    for id, pushed in server.push(Put("a3", b"a3", group="a"), Put("p2", b"p2"))[1].items():
        follower.apply(pushed.apply(id.encode()), payloads=True)
    taken = dict[str | None, list[bytes]](), dict[str | None, list[tuple[int, int]]]()
    while (claimed := server.claim(count=9)).ids:
        copy(claimed.decided, follower)
        for id, payload in claimed.handed.items():
            decided = claimed.decided[claimed.places[id][0]]
            taken[0].setdefault(decided.bundle.group, []).append(payload)
            taken[1].setdefault(decided.bundle.group, []).append(token_of(decided.packed))
        copy(server.settle(*claimed.settle("ack")).decided, follower)
        assert server.contents().faults == follower.contents().faults == []
    assert taken[0] == {"a": [b"a0", b"b0", b"b1", b"a2", b"a3"], "": [b"p0", b"p1", b"p2"]}
    for tokens in taken[1].values():
        assert tokens == sorted(set(tokens))
        assert tokens[0] > max(before)


def test_many_that_were_pushed_before_without_a_group_join_it_in_parts(server: OneServer) -> None:
    """A call takes as many as it may remove; whoever asks learns that it should ask again at once."""
    server.put(*(Put(f"p{n:03}", b"%d" % n, pushed_at_ms=server.now_ms() - 1000 + n) for n in range(250)))
    server.declare("ordered=1", "groups")
    first = server.claim(count=9)
    assert (first.ids, first.next_ms) == ([], 0)
    assert [payload for _, payload, _ in take_all(server)] == [b"%d" % n for n in range(250)]


def test_what_is_due_later_and_was_pushed_before_the_order_holds_nothing_until_it_has_failed(server: OneServer) -> None:
    server.put(Put("a1", b"a1", delay_ms=60_000, group="a"), Put("a2", b"a2", group="a"))
    server.declare("ordered=1", "groups")
    server.push(Put("a3", b"a3", group="a"))
    claimed = server.claim(count=9)
    assert claimed.ids == ["a2"]
    server.settle(*claimed.settle("nack", 60_000))
    assert server.claim(count=9).ids == []
    assert server.contents().faults == []


def test_what_waits_holds_its_group_on_every_server_once_something_of_its_bundle_has_failed(
    server: OneServer, follower: OneServer
) -> None:
    """Simulation, seed 2470039.  A bundle has one order, of which the sign says whether its items hold the group."""

    def both(decided: dict[str, Decided]) -> None:
        copy(decided, follower)
        assert server.contents().faults == follower.contents().faults == []

    for each in (server, follower):
        each.put(Put(BUNDLE, [b"0", b"1", b"2"]))
    held = server.claim(count=2).decided[BUNDLE]
    both({BUNDLE: held})
    both(server.settle(held.settle("nack", LATER, "why", positions=(1,))).decided)
    server.declare("ordered=1", "groups")
    both(server.claim("bob").decided)  # which has the items take their places
    both(server.settle(held.settle("nack", 0, "why")).decided)
    again = server.claim("bob")
    assert again.handed == {f"{BUNDLE}~00": b"0"}
    both(again.decided)
    both(server.settle(*again.settle("ack")).decided)
    assert server.claim("bob").ids == []
    follower.epoch = 2
    assert follower.claim("carl").ids == [], "2 would overtake 1"


def test_what_waits_holds_no_group_once_something_of_its_bundle_lets_it_go_on(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"0", b"1", b"2"]))
    held = server.claim(count=2).decided[BUNDLE]
    server.declare("ordered=1", "groups")
    assert server.claim("bob").ids == []
    server.settle(held.settle("nack", LATER, "why"))
    assert server.contents().faults == []
    server.settle(held.settle("pass", LATER, "why", positions=(1,)))
    assert server.contents().faults == []
    assert server.claim("bob").ids == [f"{BUNDLE}~02"]
