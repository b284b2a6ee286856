"""Groups on one server: of each at most one entry, its first, stands in line; a claim takes a share of each."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lines import member_of
from tests.lua.contents import LIMITS
from tests.lua.entries import BUNDLE, Applied, Claimed, Put
from tests.lua.grouped import put_group, repaired
from tests.lua.one_server import OneServer
from zkrq import local
from zkrq.protocol import calls
from zkrq.protocol.calls import only_of
from zkrq.protocol.payloads import join
from zkrq.protocol.records import fresh


def test_one_entry_of_each_group_is_in_line(server: OneServer) -> None:
    put_group(server, "a", "a1", "a2", "a3")
    put_group(server, "b", "b1", "b2")
    server.put("alone")
    contents = server.contents()
    assert set(contents.ready) == {"a1", "b1", "alone"}
    assert contents.faults == []


def test_groups_take_turns(server: OneServer) -> None:
    put_group(server, "a", "a1", "a2", "a3", "a4")
    put_group(server, "b", "b1", "b2")
    put_group(server, "c", "c1")
    assert [server.claim(count=1).ids for _ in range(7)] == [
        ["a1"],
        ["b1"],
        ["c1"],
        ["a2"],
        ["b2"],
        ["a3"],
        ["a4"],
    ]
    assert server.contents().faults == []


def test_a_bundle_goes_to_the_end_of_the_line_when_a_part_is_claimed(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"1", b"2", b"3"], group="a"), Put("b1", group="b"))
    assert server.claim(count=1).ids == [f"{BUNDLE}~00"]
    assert server.claim(count=1).ids == ["b1"]
    assert server.claim(count=9).ids == [f"{BUNDLE}~01", f"{BUNDLE}~02"]
    assert server.contents().faults == []


def test_share(server: OneServer) -> None:
    put_group(server, "a", *(f"a{n}" for n in range(9)))
    put_group(server, "b", "b0", "b1")
    put_group(server, "c", "c0", "c1", "c2", "c3")
    assert sorted(server.claim(count=9).ids) == ["a0", "a1", "a2", "a3", "b0", "b1", "c0", "c1", "c2"]


def test_what_leaves_and_comes_back(server: OneServer) -> None:
    put_group(server, "a", "a1", "a2", "a3")
    put_group(server, "b", "b1")
    claimed = server.claim(count=2)
    assert claimed.ids == ["a1", "b1"]
    server.settle(*claimed.settle("release"))
    assert server.contents().faults == []
    assert server.claim(count=1).ids == ["a1"]
    server.fence("ann")
    assert server.contents().faults == []
    server.cancel("a1", "a3")
    assert server.contents().faults == []
    assert sorted(server.claim("bob", count=9).ids) == ["a2", "b1"]


def test_priority_comes_first_in_its_group(server: OneServer) -> None:
    put_group(server, "a", "a1", "a2")
    put_group(server, "b", "b1")
    server.put(Put("a9", group="a", priority=9))
    assert server.contents().faults == []
    assert [server.claim(count=1).ids for _ in range(4)] == [["a9"], ["b1"], ["a1"], ["a2"]]


# -- clear and peek --------------------------------------------------------------------------------------------------


def ten_of_each(server: OneServer) -> None:
    for group in ("a", "b"):
        put_group(server, group, *(f"{group}{n}" for n in range(10)))
    server.put("alone", Put("later", delay_ms=60_000, group="a"))


@pytest.mark.parametrize("page", [1, 3, 100])
def test_clear_reads_members_too(server: OneServer, page: int) -> None:
    ten_of_each(server)
    assert cleared(server, page) == 22
    contents = server.contents()
    assert contents.faults == []
    assert not contents.groups
    assert not contents.members


@pytest.mark.parametrize("page", [1, 3, 100])
def test_clear_of_one_group_leaves_the_others(server: OneServer, page: int) -> None:
    ten_of_each(server)
    assert cleared(server, page, only_of("a")) == 11
    assert server.contents().faults == []
    assert len(server.claim(count=99).ids) == 11


@pytest.mark.parametrize("page", [1, 3, 100])
def test_clear_leaves_what_came_later(server: OneServer, page: int) -> None:
    ten_of_each(server)
    later_ms = server.now_ms() + 9_000
    server.put(*(Put(f"a{n}+", priority=n % 3, pushed_at_ms=later_ms, group="a") for n in range(9)))
    assert cleared(server, page) == 22
    assert server.contents().faults == []
    assert len(server.claim(count=99).ids) == 9


def cleared(server: OneServer, page: int, only: str = "") -> int:
    removed, before_ms, cursor = 0, 0, b""
    while True:
        reply = server.ask(calls.Clear(server.queue, page, "", before_ms, cursor, only))
        removed, before_ms, cursor = removed + reply.removed, reply.before_ms, reply.cursor
        assert server.contents().faults == []
        if not cursor:
            return removed


def test_a_repeated_clear_counts_each_item_once(server: OneServer) -> None:
    server.put(Put(BUNDLE, [b"1", b"2", b"3"]))
    claimed = server.claim(count=2)
    server.settle(*claimed.settle("nack", 0, "why"))
    first, again = (server.ask(calls.Clear(server.queue, 9, "call", 0, b"")) for _ in range(2))
    assert (first.removed, again.removed) == (3, 3)


def test_peek_shows_members_behind_the_line(server: OneServer) -> None:
    put_group(server, "a", "a1", "a2")
    put_group(server, "b", "b1", "b2")
    assert [id for id, _ in server.peek_places("ready")] == ["a1", "b1", "a2", "b2"]
    found = server.ask(calls.Peek(server.queue, "ready", 3, only_of("b"))).places
    assert [id for id, _ in found] == [b"b1", b"b2"]


def lose_place(server: OneServer) -> None:
    server.command("ZREM", server.key("ready"), "a1")


def lose_first(server: OneServer) -> None:
    state = server.contents().groups["a"]
    server.command("HSET", server.key("groups"), "a", state[:5])
    server.command("ZREM", server.key("ready"), "a1")
    server.command("ZADD", server.key("members"), 0, member_of(server.contents().bundles["a1"], b"a1"))


def lose_flag(server: OneServer) -> None:
    state = server.contents().groups["a"]
    server.command("HSET", server.key("groups"), "a", state[:4] + b"\0" + state[5:])


def lose_group(server: OneServer) -> None:
    lose_first(server)
    server.command("HDEL", server.key("groups"), "a")


@pytest.mark.parametrize("lose", [lose_place, lose_first, lose_flag, lose_group])
def test_a_group_that_lost_its_place_is_put_in_line_again(server: OneServer, lose: Callable[[OneServer], None]) -> None:
    """Rule 10: otherwise it would wait for ever."""
    put_group(server, "a", "a1", "a2")
    put_group(server, "b", "b1", "b2")
    assert repaired(server) == 0
    lose(server)
    if lose is not lose_place:
        server.command(
            "HSET", server.key("lead"), "in_line", 1 + (lose is lose_flag), "blocked", int(lose is lose_first)
        )
    assert repaired(server) == 1
    assert server.contents().faults == []
    assert repaired(server) == 0
    assert sorted(server.claim(count=9).ids) == ["a1", "a2", "b1", "b2"]


def test_many_groups_are_looked_at_page_by_page(server: OneServer) -> None:
    server.put(*(Put(f"i{n}", group=f"g{n // 2}") for n in range(700)))
    server.command("DEL", server.key("ready"))
    assert repaired(server) == 350
    assert server.contents().faults == []
    assert repaired(server) == 0


# -- concurrency -----------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(server: OneServer) -> OneServer:
    """Two items of each group at once."""
    server.declare("concurrency=2", "groups")
    return server


def test_no_more_of_a_group_are_claimed_than_its_limit(limited: OneServer) -> None:
    put_group(limited, "a", *(f"a{n}" for n in range(5)))
    put_group(limited, "b", "b0", "b1", "b2")
    limited.put("alone")
    claimed = limited.claim(count=9)
    assert sorted(claimed.ids) == ["a0", "a1", "alone", "b0", "b1"]
    contents = limited.contents()
    assert (contents.faults, set(contents.ready)) == ([], set())
    told = limited.statistics()
    assert (told.groups, told.in_line, told.blocked) == (2, 0, 2)
    assert limited.claim("bob", count=9).ids == []


@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury"])
def test_the_end_of_a_claim_lets_the_next_one_in_and_wakes_a_waiter(limited: OneServer, verb: str) -> None:
    put_group(limited, "a", *(f"a{n}" for n in range(4)))
    claimed = limited.claim(count=9)
    with limited.listen("channel") as waiting:
        assert limited.claim("bob", count=9, waiter="channel").ids == []
        limited.settle(claimed.decided["a0"].settle(verb, 60_000, "why"))
        assert waiting.heard()
    assert limited.contents().faults == []
    assert limited.claim("bob", count=9).ids == ["a0" if verb == "release" else "a2"]


def test_a_bundle_counts_item_by_item(limited: OneServer) -> None:
    limited.put(Put(BUNDLE, [b"1", b"2", b"3", b"4", b"5"], group="a"))
    claimed = limited.claim(count=9)
    assert len(claimed.ids) == 2
    limited.settle(claimed.decided[BUNDLE].settle("ack", positions=[0]))
    assert limited.contents().faults == []
    assert len(limited.claim("bob", count=9).ids) == 1


def test_a_fenced_owner_frees_its_slots(limited: OneServer) -> None:
    put_group(limited, "a", "a0", "a1", "a2")
    limited.claim("ann", count=9)
    limited.fence("ann")
    assert limited.contents().faults == []
    assert limited.claim("bob", count=9).ids == ["a0", "a1"]


def test_a_follower_counts_what_it_is_told(limited: OneServer) -> None:
    put_group(limited, "a", *(f"a{n}" for n in range(4)))
    record = limited.affirm(LIMITS)
    claimed = limited.claim(count=9)
    with OneServer(limited.host, limited.port, database=1) as follower:
        follower.enrol()
        follower.apply(*(each.apply() for each in record.values()))
        put_group(follower, "a", *(f"a{n}" for n in range(4)))
        follower.apply(*(each.apply() for each in claimed.decided.values()))
        assert follower.contents().faults == []
        assert follower.claim("bob", count=9).ids == []


def test_a_lower_limit_takes_nothing_back_and_a_higher_one_comes_with_the_next_end(limited: OneServer) -> None:
    put_group(limited, "a", *(f"a{n}" for n in range(8)))
    claimed = limited.claim(count=1)
    limited.declare("concurrency=1", "groups")
    assert limited.claim("bob", count=9).ids == []
    assert limited.contents().faults == []
    limited.declare("concurrency=3", "groups")
    limited.settle(claimed.only.settle("ack"))
    assert limited.claim("bob", count=9).ids == ["a1", "a2", "a3"]
    limited.declare("", "groups")
    assert repaired(limited) == 1
    assert limited.claim("eve", count=9).ids == ["a4", "a5", "a6", "a7"]


@pytest.mark.parametrize("limit", ["concurrency={}", "rate={}/3600000"])
def test_a_lower_limit_is_carried_out_page_by_page(server: OneServer, limit: str) -> None:
    """All groups in line at once would be too many for one call."""
    server.limits["REMOVED_MAX"] = 3
    server.declare(limit.format(2), "groups")
    for n in range(10):
        put_group(server, f"g{n}", f"a{n}", f"b{n}", f"c{n}")
    assert len(server.claim(count=10).ids) == 10
    server.declare(limit.format(1), "groups")
    put_group(server, "free", "f")
    for left in (8, 5, 2):
        claimed = server.claim("bob", count=9)
        assert (claimed.ids, claimed.next_ms) == ([], 0), "it asks again immediately"
        assert server.statistics().in_line == left
        assert server.contents().faults == []
    assert server.claim("bob", count=9).ids == ["f"]
    assert server.contents().faults == []


def test_a_blocked_group_needs_no_repair(limited: OneServer) -> None:
    put_group(limited, "a", "a0", "a1", "a2")
    limited.claim(count=9)
    assert repaired(limited) == 0


def test_what_several_primaries_gave_a_request_is_taken_back_beyond_the_limit(limited: OneServer) -> None:
    """An evicted primary gave it a0 and a1, which only this server has heard of; the next one gave it others."""
    put_group(limited, "a", *(f"a{n}" for n in range(4)))
    first = limited.claim("ann", count=2, seq=1)
    assert first.ids == ["a0", "a1"]
    limited.declare("", "groups")
    others = limited.claim("ann", count=2, seq=2)
    for id in others.ids:
        limited.change(id, lambda bundle: bundle._replace(rows=[row._replace(seq=1) for row in bundle.rows]))
        limited.command("ZREM", limited.key("holdings"), f"ann/2\0{id}")
        limited.command("ZADD", limited.key("holdings"), 0, f"ann/1\0{id}")
    limited.command("HSET", limited.key("owners"), "ann", 1)
    limited.declare("concurrency=2", "groups")
    limited.epoch = 2
    assert len(limited.claim("ann", count=9, seq=1).ids) == 2
    assert limited.contents().faults == []


@pytest.mark.parametrize("verb", ["extend", "ack", "nack", "release"])
def test_the_end_of_a_claim_costs_no_place_in_line(server: OneServer, verb: str) -> None:
    server.put(Put(BUNDLE, [b"1", b"2", b"3", b"4"], group="a"))
    put_group(server, "b", "b1", "b2", "b3")
    first, second = server.claim(count=2), server.claim("bob", count=2)
    assert [*first.ids, *second.ids] == [f"{BUNDLE}~00", "b1", f"{BUNDLE}~01", "b2"]
    server.settle(first.decided[BUNDLE].settle(verb, 60_000, "why", positions=[0]))
    assert server.contents().faults == []
    assert server.claim(count=1).ids == [f"{BUNDLE}~{'00' if verb == 'release' else '02'}"]
    assert server.claim(count=1).ids == ["b3"]


def test_a_group_in_which_nothing_waits_is_not_blocked(server: OneServer) -> None:
    server.declare("concurrency=2", "groups")
    put_group(server, "a", "a0", "a1", "a2")
    assert server.claim(count=3).ids == ["a0", "a1"]
    assert server.statistics().blocked == 1
    server.cancel("a2")
    assert server.contents().members == set()
    assert server.statistics().blocked == 0


def test_a_group_of_which_what_waited_was_cancelled_is_not_blocked(server: OneServer) -> None:
    server.declare("concurrency=1", "groups")
    put_group(server, "a", "a1", "a2")
    server.cancel("a2")
    server.claim()
    assert server.statistics().blocked == 0


def test_a_group_of_which_what_waited_was_cancelled_does_not_rest(server: OneServer) -> None:
    server.declare("rate=1/3600000", "groups")
    put_group(server, "a", "a1", "a2")
    server.cancel("a2")
    server.settle(*server.claim().settle("ack"))
    assert (server.statistics().blocked, server.contents().counters["resting"]) == (0, 0)
    assert repaired(server) == 0


def test_a_bundle_of_which_payloads_are_missing_stays_in_an_index(server: OneServer) -> None:
    whole = join([b"1", b"2", b"3"])
    head, part = 16, (len(whole) - 16) // 3
    refused = 1 << 31
    ends = [head | refused, head + part, (head + part) | refused, (head + part) | refused]
    wire = struct.pack("<4I", *ends) + whole[head : head + part]
    packed = fresh(0, server.now_ms(), size=3, group="a")
    server.apply(Applied(BUNDLE, packed, since="0", wire=wire), payloads=True)
    assert len(server.claim(count=3).ids) == 1
    contents = server.contents()
    assert BUNDLE.encode() in contents.entries["scheduled"] or contents.members


@pytest.mark.parametrize("verb", ["extend", "ack", "bury"])
def test_a_decision_about_one_item_costs_the_turn_of_no_other_that_failed(server: OneServer, verb: str) -> None:
    server.put(Put(BUNDLE, [b"1", b"2", b"3"], group="a"))
    put_group(server, "b", "b1", "b2", "b3")
    first, second = server.claim(count=2), server.claim("bob", count=2)
    assert [*first.ids, *second.ids] == [f"{BUNDLE}~00", "b1", f"{BUNDLE}~01", "b2"]
    server.settle(first.decided[BUNDLE].settle("nack", 0, "why", positions=[0]))
    server.settle(second.decided[BUNDLE].settle(verb, 60_000, "why", positions=[1]))
    assert server.contents().faults == []
    assert [server.claim(count=1).ids for _ in range(3)] == [[f"{BUNDLE}~00"], ["b3"], [f"{BUNDLE}~02"]]


def test_a_new_primary_that_decides_about_one_item_costs_the_turn_of_no_other(server: OneServer) -> None:
    bundle = Put(BUNDLE, [b"1", b"2", b"3"], group="a")
    server.put(bundle)
    first, second = server.claim(count=1), server.claim("bob", count=1)
    failed = server.settle(*first.settle("nack", 0, "why"))
    with OneServer(server.host, server.port, database=1) as follower:
        follower.enrol()
        follower.put(bundle)
        follower.apply(failed.decided[BUNDLE].apply())
        put_group(follower, "b", "b1")
        follower.epoch = 2
        follower.settle(*second.settle("ack"))
        assert follower.contents().faults == []
        assert [follower.claim("eve", count=1).ids for _ in range(2)] == [[f"{BUNDLE}~00"], ["b1"]]


def test_a_repair_ends_where_the_last_group_is_the_empty_one(server: OneServer) -> None:
    put_group(server, "", "a1", "a2")
    cursor = calls.START
    for _ in range(5):
        cursor = server.ask(calls.RepairLines(server.queue, cursor)).cursor
        if cursor == calls.START:
            break
    assert cursor == calls.START


@pytest.mark.parametrize("page", [1, 3, 100])
def test_clear_finds_what_was_sent_back_meanwhile(server: OneServer, page: int) -> None:
    """Something newer and more urgent comes before the first of each group, once the members were looked at."""
    for group in "abc":
        put_group(server, group, f"{group}0")
        server.put(*(Put(f"{group}{n}", group=group, pushed_at_ms=server.now_ms() + 9_000) for n in range(1, 6)))
    later_ms = server.now_ms() + 9_000
    server.put(
        *(Put(f"{group}{n}+", group=group, priority=n, pushed_at_ms=later_ms) for group in "abc" for n in (5, 9))
    )
    removed, cursor, before_ms = 0, b"r", server.now_ms()
    while cursor:
        reply = server.ask(calls.Clear(server.queue, page, "", before_ms, cursor))
        removed, cursor = removed + reply.removed, reply.cursor
    assert removed == 3
    assert server.contents().faults == []
    assert len(server.claim(count=99).ids) == 21


# -- what most groups are ----------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A call; ``which`` and ``size``: of what there is."""

    kind: str
    which: int
    size: int
    ms: int


VERBS = ("ack", "nack", "release", "bury", "extend")
steps = st.builds(
    Step,
    st.sampled_from(("put", "put", "claim", "claim", "cancel", *VERBS)),
    st.integers(0, 5),
    st.integers(1, 3),
    st.sampled_from((0, 60_000)),
)


class Player:
    """Makes the same calls as others, on a server of its own, and tells what it sees."""

    def __init__(self, server: OneServer, began_ms: int) -> None:
        self.server, self.began_ms = server, began_ms
        self.pushed: list[str] = []
        self.claims: list[Claimed] = []

    def put(self, step: Step) -> None:
        """One item, a bundle of two, or two items that come together."""
        group, moment = (None, "", "a", "b", "c", "d")[step.which], self.began_ms + len(self.pushed)
        count = len(self.pushed)
        id = f"zkrq-019aa5f2c31-3f9c2a71-{count:02x}" if step.size == 2 else f"item {count}"
        put = Put(id, [b"1", b"2"] if step.size == 2 else b"1", step.ms, step.which % 2, moment, group=group)
        puts = [put, put._replace(id=f"{id}, too")] if step.size == 3 else [put]
        self.server.put(*puts)
        self.pushed += [put.id for put in puts]

    def play(self, step: Step) -> object:
        """Make a call; what groups, lines and consumers have then."""
        if step.kind == "put":
            self.put(step)
        elif step.kind == "claim":
            claimed = self.server.claim(count=step.size)
            self.claims += [claimed] if claimed.handed else []
        elif step.kind == "cancel" and self.pushed:
            self.server.cancel(self.pushed[step.which % len(self.pushed)])
        elif step.kind in VERBS and self.claims:
            self.server.settle(*self.claims[step.which % len(self.claims)].settle(step.kind, step.ms, "why"))
        contents = self.server.contents()
        assert contents.faults == []
        in_line = sorted(contents.ready, key=contents.ready.__getitem__)
        return contents.groups, contents.members, in_line, contents.counters, [claimed.ids for claimed in self.claims]


@pytest.fixture(scope="module")
def alike(private_redis: local.LocalRedis) -> Generator[tuple[OneServer, OneServer]]:
    """Two servers; one of them takes the long way for every group."""
    with (
        OneServer(private_redis.host, private_redis.port) as one,
        OneServer(private_redis.host, private_redis.port, database=1) as other,
    ):
        other.limits["is_simple"] = "false"
        yield one, other


@given(st.lists(steps, max_size=20))
def test_groups_of_one_entry_are_lined_up_as_all_are(alike: tuple[OneServer, OneServer], calls: list[Step]) -> None:
    one, other = alike
    one.reset()
    other.enrol()
    began_ms = one.now_ms()
    players = [Player(server, began_ms) for server in alike]
    for step in calls:
        first, second = (player.play(step) for player in players)
        assert first == second
