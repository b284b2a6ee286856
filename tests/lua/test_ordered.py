"""Ordered groups on one server, and on two that hear of each other's decisions.

A test stands behind each of the rules 3 to 8 of ordered groups: without it, an item would be handed out before an
earlier one has ended, or after a later one was handed out.
"""

from __future__ import annotations

import pytest

from tests.lines import entry_of
from tests.lua.entries import Claimed, Decided, Put, Settlement
from tests.lua.grouped import ordered, push, repaired
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.calls import only_of
from zkrq.protocol.records import Own, Version, pack, token_of

LATER = 60_000
BYTES_MAX = 2**20  # of a reply


def copy(decided: dict[str, Decided], *servers: OneServer, payloads: bool = False) -> None:
    """Apply what one server has decided on others."""
    for server in servers:
        server.apply(*(each.apply(id.encode() if payloads else b"") for id, each in decided.items()), payloads=payloads)


def hasten(server: OneServer, id: str) -> None:
    """Have an item that failed be due now."""
    server.change(
        id,
        lambda bundle: bundle._replace(
            own={at: Own(own.moment_us - LATER * 1_000, own.failures) for at, own in bundle.own.items()}
        ),
    )
    server.command("ZINCRBY", server.key("scheduled"), -LATER * 1_000, entry_of(id))


def only(claimed: Claimed) -> Settlement:
    return claimed.only.settle("ack")


def token(claimed: Claimed) -> tuple[int, int]:
    return token_of(claimed.only.packed)


# -- one server ------------------------------------------------------------------------------------------------------


def test_one_item_at_a_time_in_the_order_of_pushes(server: OneServer) -> None:
    push(server, "a1", "a2", "a3")
    push(server, "b1", "b2", group="b")
    assert server.contents().faults == []
    for expected in (["a1", "b1"], ["a2", "b2"], ["a3"], []):
        claimed = server.claim(count=9)
        assert claimed.ids == expected
        assert server.contents().faults == []
        assert server.claim("bob", count=9).ids == []
        for each in claimed.ids:
            server.settle(claimed.decided[each].settle("ack"))
        assert server.contents().faults == []


def test_the_order_is_that_of_the_decisions(server: OneServer) -> None:
    """Rule 3: whatever the producers' clocks say."""
    now_ms = server.now_ms()
    for n in range(5):
        server.push(ordered(f"a{n}")._replace(pushed_at_ms=now_ms - n))
    for n in range(5):
        claimed = server.claim()
        assert claimed.ids == [f"a{n}"]
        server.settle(only(claimed))


def test_the_order_grows_past_the_greatest_that_is_known(server: OneServer, follower: OneServer) -> None:
    """Rule 3: the clock of the next primary may be behind that of the former one."""
    decided = push(server, "a1")
    ahead = {
        id: each._replace(packed=pack(each.bundle._replace(order=each.bundle.order + 3_600_000)))
        for id, each in decided.items()
    }
    copy(ahead, follower, payloads=True)
    follower.epoch = 2
    push(follower, "a2")
    first = follower.claim()
    assert first.ids == ["a1"]
    follower.settle(only(first))
    assert follower.claim().ids == ["a2"]


@pytest.mark.parametrize("verb", ["nack", "release", "snooze"])
def test_a_failing_item_holds_its_group(server: OneServer, verb: str) -> None:
    """Rule 5: the first item waits, and so do those behind it."""
    push(server, "a1", "a2")
    push(server, "b1", group="b")
    claimed = server.claim(count=2)
    server.settle(claimed.decided["a1"].settle(verb, 0 if verb == "release" else LATER, "why"))
    contents = server.contents()
    assert contents.faults == []
    if verb != "release":
        assert server.claim("bob", count=9).ids == []
        assert server.contents().faults == []
        told = server.statistics()
        assert (told.groups, told.in_line, told.blocked) == (2, 0, 1)
        assert peeked(server) == ["a2"]
        hasten(server, "a1")
    again = server.claim("bob", count=9)
    assert again.ids == ["a1"]
    assert server.contents().faults == []
    server.settle(only(again))
    assert server.claim("bob", count=9).ids == ["a2"]


def peeked(server: OneServer) -> list[str]:
    return [id.decode() for id, _ in server.ask(calls.Peek(server.queue, "ready", 9, only_of("a"))).places]


def test_an_item_that_is_put_off_holds_its_group_also_after_a_failure_that_did_not(server: OneServer) -> None:
    push(server, "a1", "a2")
    server.settle(server.claim().only.settle("pass", 0, "why"))
    again = server.claim()
    assert again.ids == ["a1"]
    server.settle(again.only.settle("snooze", LATER))
    assert server.claim("bob").ids == []
    assert server.contents().faults == []
    hasten(server, "a1")
    assert server.claim("bob").ids == ["a1"]


def test_a_policy_may_let_the_group_go_on(server: OneServer) -> None:
    push(server, "a1", "a2", "a3")
    server.settle(server.claim().only.settle("pass", LATER, "why"))
    assert server.contents().faults == []
    second = server.claim()
    assert second.ids == ["a2"]
    hasten(server, "a1")
    assert server.claim("bob").ids == []
    assert server.contents().faults == []
    server.settle(only(second))
    again = server.claim()
    assert again.ids == ["a1"]
    assert again.only.bundle.version > second.only.bundle.version
    server.settle(again.only.settle("nack", LATER, "why"))
    assert server.claim().ids == []
    assert server.contents().faults == []


@pytest.mark.parametrize("how", ["bury", "cancel", "expire", "exhaust"])
def test_the_next_one_comes_when_the_first_has_ended(server: OneServer, how: str) -> None:
    server.push(ordered("a1", ttl_ms=LATER), ordered("a2"))
    if how == "bury":
        server.settle(server.claim().only.settle("bury", 0, "why"))
    elif how == "cancel":
        server.cancel("a1")
    elif how == "expire":
        server.outlive("a1")
    else:
        server.claim()
        server.fence("ann")
    assert server.claim("bob", max_attempts=1 if how == "exhaust" else 0).ids == ["a2"]
    assert server.contents().faults == []


def test_a_redriven_letter_comes_before_all_that_are_queued(server: OneServer) -> None:
    push(server, "a1", "a2", "a3")
    server.settle(server.claim().only.settle("bury", 0, "why"))
    second = server.claim()
    assert second.ids == ["a2"]
    server.redrive("a1")
    assert server.claim("bob").ids == []
    assert server.contents().faults == []
    server.settle(only(second))
    assert server.claim().ids == ["a1"]
    assert server.contents().faults == []


def test_a_key_takes_the_place_of_the_item_that_it_replaces(server: OneServer) -> None:
    server.push(ordered("a1", key="k"), ordered("a2"))
    reply = server.ask(calls.PushDecided(server.queue, [ordered("a3", key="k").call], replacing=True))
    assert reply.outcomes == [b"+a1"]
    assert server.claim().ids == ["a3"]
    assert server.contents().faults == []


@pytest.mark.parametrize("page", [1, 100])
def test_clear_reads_what_waits(server: OneServer, page: int) -> None:
    push(server, "a1", "a2", "a3")
    server.settle(server.claim().only.settle("nack", LATER, "why"))
    removed, before_ms, cursor = 0, 0, b""
    while True:
        reply = server.ask(calls.Clear(server.queue, page, "", before_ms, cursor, ""))
        removed, before_ms, cursor = removed + reply.removed, reply.before_ms, reply.cursor
        assert server.contents().faults == []
        if not cursor:
            break
    assert removed == 3
    assert server.contents().members == set()


def test_both_kinds_in_one_group(server: OneServer) -> None:
    """What was pushed before the order was declared comes one at a time, too, by the moments of the pushes."""
    server.put(*(Put(f"p{n}", group="a") for n in range(3)))
    server.declare("ordered=1", "groups")
    push(server, "a1", "a2")
    for expected in ("p0", "p1", "p2", "a1", "a2"):
        claimed = server.claim(count=9)
        assert claimed.ids == [expected]
        assert server.contents().faults == []
        server.settle(only(claimed))


def test_an_order_that_is_no_longer_declared_ends_with_its_items(server: OneServer) -> None:
    """What is pushed without the option is claimed side by side, and what has an order still comes alone."""
    server.declare("ordered=1", "groups")
    push(server, "a1")
    first, now_ms = server.claim(), server.now_ms()
    server.declare("", "groups")
    server.put(*(Put(f"p{n}", group="a", pushed_at_ms=now_ms - 1) for n in range(2)))
    push(server, "a2")
    server.put(*(Put(f"q{n}", group="a", pushed_at_ms=now_ms + LATER) for n in range(2)))
    server.settle(only(first))
    for expected in (["p0", "p1"], ["a2"], ["q0", "q1"]):
        held = list[Claimed]()
        for id in expected:
            held.append(server.claim(count=1))
            assert held[-1].ids == [id]
            assert server.contents().faults == []
        assert server.contents().ready == {}  # a waiting request would ask again and again
        assert server.claim(count=9).ids == []
        for each in held:
            server.settle(only(each))
            assert server.contents().faults == []


def test_a_group_that_is_never_empty_forgets_an_order_that_is_no_longer_declared(server: OneServer) -> None:
    server.declare("ordered=1", "groups")
    push(server, "a1")
    server.settle(only(server.claim()))
    server.declare("", "groups")
    server.put(Put("p1", group="a"))
    first = server.claim()
    wait_ms(20)
    server.trim(put_window_ms=5)
    server.put(Put("p2", group="a"))
    server.settle(only(first))
    assert server.claim().ids == ["p2"]
    for id in ("p3", "p4"):
        server.put(Put(id, group="a"))
        assert server.claim().ids == [id], "beside the others"
        assert server.contents().faults == []
    push(server, "a2")
    assert server.claim().ids == []
    assert server.contents().faults == []


def test_tokens_grow_within_a_group(server: OneServer) -> None:
    """Rule 8: also past an item that was decided many times."""
    push(server, "a1", "a2", "a3")
    tokens = list[tuple[int, int]]()
    for _ in range(6):
        claimed = server.claim()
        tokens.append(token(claimed))
        server.settle(claimed.only.settle("nack" if len(tokens) < 4 else "ack", 0, ""))
    assert tokens == sorted(set(tokens))


def test_tokens_grow_past_what_a_version_can_count(server: OneServer) -> None:
    """A version has 32 bits, and counts the decisions about one item; these count all claims of the queue."""
    server.command("HSET", server.key("lead"), "claim_n", 2**32 - 2)
    push(server, "a1", "a2", "a3", "a4")
    for n in range(2**32 - 1, 2**32 + 3):
        claimed = server.claim()
        assert token(claimed) == (1, n)
        server.settle(only(claimed))


def test_tokens_grow_past_a_claim_that_another_server_decided(server: OneServer, follower: OneServer) -> None:
    """Simulation, seed 900910: its holder had learned of it under the new epoch."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    copy(server.claim("ann", seq=1).decided, follower)
    follower.epoch = 2
    first = follower.claim("ann", seq=1)
    follower.settle(only(first))
    second = follower.claim("ann", seq=2)
    assert second.ids == ["a2"]
    assert token(second) > token(first)


def test_tokens_grow_past_an_earlier_life_without_an_order(server: OneServer) -> None:
    server.push(ordered("a1")._replace(above_n=9))
    assert token(server.claim()) == (1, 11)


def test_the_end_of_a_claim_wakes_a_waiter(server: OneServer) -> None:
    push(server, "a1", "a2")
    claimed = server.claim()
    with server.listen("channel") as waiting:
        assert server.claim("bob", count=9, waiter="channel").ids == []
        server.settle(only(claimed))
        assert waiting.heard()


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("how", ["cancel", "clear"])
def test_a_waiter_is_woken_when_what_held_the_group_is_removed(server: OneServer, how: str, declared: bool) -> None:
    if declared:
        server.declare("ordered=1", "groups")
    push(server, "a1")
    server.settle(server.claim().only.settle("nack", LATER, "why"))
    server.push(ordered("a2")._replace(pushed_at_ms=server.now_ms() + LATER))  # after the clearing
    with server.listen("channel") as waiting:
        assert server.claim("bob", count=9, waiter="channel").ids == []
        if how == "cancel":
            server.cancel("a1")
        else:
            server.clear(100)
        assert set(server.contents().ready) == {"a2"}
        assert not waiting.told_nothing()


def test_what_ended_last_is_forgotten_with_its_tombstone(server: OneServer) -> None:
    push(server, "a1")
    push(server, "b1", "b2", group="b")
    claimed = server.claim(count=9)
    server.settle(*(each.settle("ack") for each in claimed.decided.values()))
    contents = server.contents()
    assert (contents.faults, set(contents.groups)) == ([], {"a", "b"})
    told = server.statistics()
    assert (told.groups, told.in_line, told.blocked) == (1, 1, 0)
    wait_ms(20)
    assert server.trim(put_window_ms=5) == 2
    contents = server.contents()
    assert (contents.faults, set(contents.groups)) == ([], {"b"})
    assert server.claim().ids == ["b2"]


@pytest.mark.parametrize(
    "later", [ordered("x", "b"), Put("x"), Put("x", group="a")], ids=["other group", "no group", "no order"]
)
def test_what_ended_last_is_forgotten_with_a_later_life_elsewhere(server: OneServer, later: Put) -> None:
    """Its tombstone is not dropped then, and the group would be remembered for ever."""
    window_ms = 100  # within which a push arrives on a busy machine, too
    push(server, "x", group="a")
    server.settle(only(server.claim()))
    wait_ms(2 * window_ms + 10)
    assert server.push(later, put_window_ms=window_ms)[0] == ["+"]
    assert server.contents().faults == []
    server.settle(only(server.claim()))
    wait_ms(2 * window_ms + 10)
    server.trim(put_window_ms=window_ms)
    contents = server.contents()
    assert (contents.faults, contents.groups) == ([], {})


def test_a_waiting_group_needs_no_repair(server: OneServer) -> None:
    push(server, "a1", "a2")
    push(server, "b1", group="b")
    claimed = server.claim(count=2)
    server.settle(claimed.decided["a1"].settle("nack", LATER, "why"), claimed.decided["b1"].settle("ack"))
    assert repaired(server) == 0


def test_a_group_that_lost_its_place_is_put_in_line_again(server: OneServer) -> None:
    push(server, "a1", "a2", "a3")
    server.command("ZREM", server.key("ready"), "a1")
    assert repaired(server) == 1
    assert server.claim(count=9).ids == ["a1"]
    assert server.contents().faults == []


def test_a_waiting_group_that_was_lost_still_waits(server: OneServer) -> None:
    """That it keeps the order is read from its first item."""
    push(server, "a1", "a2")
    server.settle(server.claim().only.settle("nack", LATER, "why"))
    server.command("HDEL", server.key("groups"), "a")
    assert repaired(server) == 1
    assert server.claim().ids == []
    hasten(server, "a1")
    assert server.claim().ids == ["a1"]


def test_a_waiting_item_that_lost_its_place_has_it_again_once_it_is_due(server: OneServer) -> None:
    """Release 0.2.0 has left out some that were pushed in one bundle before the order was declared."""
    push(server, "a1", "a2", "a3")
    server.settle(server.claim().only.settle("nack", LATER, "why"))
    server.command(
        "ZREM", server.key("members"), *(each for each in server.contents().members if each.endswith(b"a1\0\x01"))
    )
    assert server.contents().faults != []
    repaired(server)
    hasten(server, "a1")
    assert server.claim(count=9).ids == ["a1"]
    assert server.contents().faults == []


# -- several servers -------------------------------------------------------------------------------------------------


def test_a_push_that_is_decided_again_leaves_nothing_of_its_former_place(
    server: OneServer, follower: OneServer
) -> None:
    """Rule 4: the first decision has reached one follower only."""
    copy(push(server, "a1"), follower, payloads=True)
    server.epoch = follower.epoch = 2
    server.wipe()
    server.enrol()
    copy(push(server, "a2", "a1"), follower, payloads=True)
    contents = follower.contents()
    assert contents.faults == []
    assert follower.claim().ids == ["a2"]


def test_a_waiting_item_that_is_decided_again_leaves_its_former_place(server: OneServer, follower: OneServer) -> None:
    """Rule 4, of an item that failed meanwhile."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    claimed = server.claim()
    copy(claimed.decided, follower)
    decided = server.settle(claimed.only.settle("nack", LATER, "why")).decided
    copy(decided, follower)
    moved = {
        id: each._replace(packed=pack(each.bundle._replace(order=each.bundle.order + 1_000, version=Version(9, 9))))
        for id, each in decided.items()
    }
    copy(moved, follower)
    contents = follower.contents()
    assert contents.faults == []
    assert len(contents.members) == 1
    follower.epoch = 10
    assert follower.claim("bob").ids == ["a2"]


def test_the_end_of_the_item_before_travels_with_the_claim(server: OneServer, follower: OneServer) -> None:
    """Rule 6: the ack was decided by a primary that dies, for a client that dies."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    first = server.claim()
    copy(first.decided, follower)
    server.settle(first.only.settle("result", LATER, "value"))  # reaches nobody else
    second = server.claim("bob")
    assert second.ids == ["a2"]
    assert set(second.decided) == {"a1", "a2"}
    assert second.decided["a1"].note == "value"
    copy(second.decided, follower)
    assert follower.contents().faults == []
    follower.epoch = 2
    assert follower.claim("eve").ids == []
    follower.fence("ann")
    follower.fence("bob")
    assert follower.claim("eve").ids == ["a2"]


def test_what_ended_last_counts_by_order_if_another_server_decided(server: OneServer, follower: OneServer) -> None:
    """Rule 6: a catch-up brings tombstones in any order."""
    copy(push(server, "a1", "a2", "a3"), follower, payloads=True)
    ends = list[dict[str, Decided]]()
    for _ in range(2):
        claimed = server.claim()
        copy({id: claimed.decided[id] for id in claimed.ids}, follower)
        ends.append(server.settle(only(claimed)).decided)
    for end in reversed(ends):
        copy(end, follower)
    follower.epoch = 2
    assert set(follower.claim("bob").decided) == {"a3", "a2"}


def test_a_cancelled_item_does_not_hide_what_a_consumer_ended_last(server: OneServer) -> None:
    """Rule 6: each server may lack the ack, and every one has the cancel, which has returned."""
    push(server, "a1", "a2", "a3")
    server.settle(only(server.claim()))
    server.cancel("a3")
    assert set(server.claim("bob").decided) == {"a1", "a2"}


@pytest.mark.parametrize("knows", ["queued", "claimed"])
def test_a_repeated_request_is_not_given_an_item_behind_another(
    server: OneServer, follower: OneServer, knows: str
) -> None:
    """Rule 7: this server learned of the claim by another path, without the end of the item before."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    first = server.claim("ann")
    if knows == "claimed":
        copy(first.decided, follower)
    server.settle(only(first))
    second = server.claim("bob", seq=1)
    copy({"a2": second.decided["a2"]}, follower)
    follower.epoch = 2
    assert follower.claim("bob", seq=1).ids == []
    assert follower.contents().faults == []
    follower.fence("ann")
    assert follower.claim("bob", seq=2).ids == ["a1"]
    assert follower.contents().faults == []


@pytest.mark.parametrize("how", ["pushed", "affirmed"])
def test_a_repeated_request_is_not_given_what_was_decided_for_another_reason(
    server: OneServer, follower: OneServer, how: str
) -> None:
    """Rule 7: the next primary has sent the claim on under its own epoch before the request is repeated."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    first = server.claim("ann")
    copy(first.decided, follower)
    server.settle(only(first))
    second = server.claim("bob", seq=1)
    copy({"a2": second.decided["a2"]}, follower)
    follower.epoch = 2
    if how == "pushed":
        assert follower.push(ordered("a2"))[0] == ["K"]
    else:
        follower.affirm("a2")
    assert follower.claim("bob", seq=1).ids == []
    assert follower.contents().faults == []
    follower.fence("ann")
    follower.fence("bob")
    assert follower.claim("eve").ids == ["a1"]


def test_a_repeated_request_tells_the_end_of_the_item_before(server: OneServer, follower: OneServer) -> None:
    """Rule 6 for rule 7: the next primary has both, and a third server neither."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    first = server.claim("ann")
    copy(first.decided, follower)
    server.settle(only(first))
    copy(server.claim("bob", seq=1).decided, follower)
    follower.epoch = 2
    again = follower.claim("bob", seq=1)
    assert again.ids == ["a2"]
    assert set(again.decided) == {"a1", "a2"}
    assert again.decided["a1"].bundle.version.epoch == 2


def test_a_follower_holds_the_group_as_the_primary_does(server: OneServer, follower: OneServer) -> None:
    """An item that failed elsewhere, whose claim was missed here, takes the group out of the line."""
    copy(push(server, "a1", "a2"), follower, payloads=True)
    claimed = server.claim()
    copy(server.settle(claimed.only.settle("nack", LATER, "why")).decided, follower)
    assert follower.contents().faults == []
    assert set(follower.contents().ready) == set()
    follower.epoch = 2
    assert follower.claim("eve", count=9).ids == []


def test_a_claim_without_its_payload_holds_the_group(server: OneServer, follower: OneServer) -> None:
    """It may still arrive; what is behind it waits."""
    pushed = push(server, "a1", "a2")
    follower.apply(pushed["a2"].apply(b"a2"), payloads=True)
    follower.apply(pushed["a1"].apply())
    follower.epoch = 2
    assert follower.claim(count=9).ids == []
    assert follower.contents().members
    follower.apply(pushed["a1"].apply(b"a1"), payloads=True)
    assert follower.claim(count=9).ids == ["a1"]
    assert follower.contents().faults == []


def test_the_results_of_the_items_before_bound_a_reply(server: OneServer) -> None:
    """500 groups with a result of 32 KiB each would make a reply of 16 MB."""
    groups, size = 40, 32 * 1024
    for n in range(groups):
        push(server, f"{n}-1", f"{n}-2", group=str(n))
    first = server.claim(count=groups)
    server.settle(*(first.decided[id].settle("result", LATER, "x" * size) for id in first.ids))
    second = server.claim(count=groups)
    assert 0 < len(second.ids) <= 1 + BYTES_MAX // size
    assert second.next_ms == 0  # the others are handed out at once
    third = server.claim(count=groups)
    assert len(second.ids + third.ids) == groups
