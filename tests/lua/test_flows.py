"""The scripts of flows: what is left of one on a server, how it ends, and what is held for its end."""

from __future__ import annotations

import pytest

from tests.lua.entries import BUNDLE, Applied, read_decided
from tests.lua.flowing import (
    FLOW,
    LIFE,
    OTHER,
    RECORD,
    ack_all,
    following,
    is_refused,
    left,
    member,
    open_held,
    push_decided,
    push_plain,
    stage,
    steer,
)
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.calls import item_id
from zkrq.protocol.flows import CANCELLED, DONE, FAILED, Stage


@pytest.fixture
def begun(server: OneServer) -> OneServer:
    assert stage(server, "begin") is Stage.OPEN
    return server


def test_a_flow_begins_once(server: OneServer) -> None:
    first, again = steer(server, "begin"), steer(server, "begin")
    assert (first.before, first.now, again.before, again.now) == (b"U", b"O", b"O", b"O")
    assert server.contents().faults == []


def test_a_flow_of_nothing_ends_once_it_is_sealed(begun: OneServer) -> None:
    assert stage(begun, "end") is Stage.OPEN
    assert stage(begun, "seal") is Stage.SEALED
    ended = steer(begun, "end")
    assert (ended.now, ended.outcome) == (b"E", DONE)
    for verb in ("begin", "seal", "look", "end", "cancel", "finish"):
        again = steer(begun, verb)
        assert (again.before, again.now, again.outcome) == (b"E", b"E", DONE)
    assert begun.contents().faults == []


def test_a_flow_that_is_not_known_stays_so(server: OneServer) -> None:
    for verb in ("seal", "look", "end", "cancel", "finish"):
        assert stage(server, verb) is Stage.UNKNOWN
    assert server.contents().bundles == {}


def test_members_are_counted_from_their_records(begun: OneServer) -> None:
    push_plain(begun, member(begun, BUNDLE, 3), member(begun, "alone"))
    assert left(begun) == ("L", {BUNDLE, "alone"})
    steer(begun, "seal")
    assert stage(begun, "end") is Stage.SEALED
    claimed = begun.claim(count=4)
    assert left(begun) == ("L", {BUNDLE, "alone"})
    begun.settle(*claimed.settle("ack"))
    assert left(begun) == ("", set())
    assert begun.contents().faults == []
    assert stage(begun, "end") is Stage.ENDED


def test_a_flow_whose_name_begins_another_one_has_its_own_members(begun: OneServer) -> None:
    steer(begun, "begin", flow=OTHER)
    push_plain(begun, member(begun, "a", flow=OTHER))
    assert left(begun) == ("", set())
    assert left(begun, OTHER) == ("L", {"a"})
    assert begun.contents().faults == []


def test_a_dead_letter_holds_the_flow_up_until_it_is_redriven_and_acked(begun: OneServer) -> None:
    push_plain(begun, member(begun, BUNDLE, 2))
    steer(begun, "seal")
    claimed = begun.claim(count=2)
    begun.settle(claimed.decided[BUNDLE].settle("ack", positions=[0]))
    begun.settle(claimed.decided[BUNDLE].settle("bury", 0, "why", [1]))
    assert left(begun) == ("D", {BUNDLE})
    assert stage(begun, "end") is Stage.SEALED
    begun.redrive(item_id(BUNDLE, 1))
    assert left(begun) == ("L", {BUNDLE})
    ack_all(begun)
    assert stage(begun, "end") is Stage.SEALED, "a member has come to life since"
    seen = steer(begun, "look")
    assert stage(begun, "end", stamp=seen.stamp) is Stage.ENDED
    assert begun.contents().faults == []


def test_a_member_that_is_removed_otherwise_holds_the_flow_up(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"), member(begun, "b"))
    steer(begun, "seal")
    begun.cancel("a")
    ack_all(begun)
    assert left(begun) == ("M", {"a"})
    assert stage(begun, "end") is Stage.SEALED
    finished = steer(begun, "finish")
    assert (finished.now, finished.outcome) == (b"E", DONE)
    assert begun.contents().faults == []


def test_the_tombstone_of_such_a_member_stays_while_the_flow_runs(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"), member(begun, "b"))
    steer(begun, "seal")
    begun.cancel("a")
    ack_all(begun)
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert begun.contents().bundles.keys() >= {"a"}
    assert "b" not in begun.contents().bundles
    assert left(begun) == ("M", {"a"})
    steer(begun, "finish")
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert "a" not in begun.contents().bundles
    assert begun.contents().faults == []


NAMED = "7.page-1"
"""The id of a member with a name, of the flow 7."""


@pytest.mark.parametrize("end", ["ack", "cancel"])
def test_a_name_begins_no_new_life_while_the_flow_runs(server: OneServer, end: str) -> None:
    flow = "rows/7"
    steer(server, "begin", flow=flow)
    push_plain(server, member(server, NAMED, flow=flow), member(server, "other", flow=flow))
    if end == "cancel":
        server.cancel(NAMED)
    ack_all(server)
    wait_ms(5)
    server.trim(put_window_ms=1)
    assert server.contents().bundles.keys() == {"\1flow rows/7", NAMED}
    again = member(server, NAMED, flow=flow)
    told = server.ask(calls.PushPlain(server.queue, [again]))
    assert told.known.keys() == {0}
    decided = server.ask(calls.PushDecided(server.queue, [again]), put_window_ms=1)
    assert decided.outcomes == [b"D"]
    steer(server, "finish", flow=flow)
    wait_ms(5)
    server.trim(put_window_ms=1)
    assert NAMED not in server.contents().bundles
    assert server.contents().faults == []


def test_names_are_forgotten_when_tombstones_take_too_much(server: OneServer) -> None:
    server.limits = {"TOMBSTONES_BYTES": 0, "LEAST_AGE_MS": 1}
    flow = "rows/7"
    steer(server, "begin", flow=flow)
    push_plain(server, member(server, NAMED, flow=flow))
    ack_all(server)
    wait_ms(5)
    server.trim(put_window_ms=1)
    assert NAMED not in server.contents().bundles


def test_a_plain_push_is_taken_only_while_the_flow_is_open(server: OneServer) -> None:
    assert is_refused(server, member(server, "a"))
    steer(server, "begin")
    push_plain(server, member(server, "a"))
    steer(server, "seal")
    assert is_refused(server, member(server, "b"))
    assert server.contents().bundles.keys() == {RECORD, "a"}


def test_a_push_into_a_sealed_flow_raises_its_stamp(begun: OneServer) -> None:
    steer(begun, "seal")
    seen = steer(begun, "look")
    assert push_decided(begun, member(begun, "a"), member(begun, "b")) == ["+", "+"]
    ack_all(begun)
    assert stage(begun, "end", stamp=seen.stamp) is Stage.SEALED
    assert steer(begun, "look").stamp == seen.stamp + 2
    assert stage(begun, "end", stamp=seen.stamp + 2) is Stage.ENDED
    assert begun.contents().faults == []


def test_a_push_into_a_flow_that_has_ended_is_refused(begun: OneServer) -> None:
    steer(begun, "seal")
    steer(begun, "end")
    assert push_decided(begun, member(begun, "a"), following(begun, "b")) == ["E", "E"]
    assert push_decided(begun, member(begun, "c", flow=OTHER)) == ["E"]
    assert begun.contents().ready == {}


def test_what_follows_is_held_until_the_flow_is_done(begun: OneServer) -> None:
    assert push_decided(begun, following(begun, "then")) == ["+"]
    push_plain(begun, member(begun, "a"))
    assert left(begun) == ("LW", {"a"})
    steer(begun, "seal")
    assert open_held(begun) == (0, {})
    assert ack_all(begun) == ["a"]
    assert begun.claim().handed == {}
    assert begun.contents().faults == []
    steer(begun, "end")
    assert begun.claim().handed == {}
    count, decided = open_held(begun)
    assert (count, decided.keys()) == (1, {"then", RECORD})
    assert open_held(begun)[0] == 0
    assert ack_all(begun) == ["then"]
    assert begun.contents().faults == []


def test_what_is_held_is_not_advanced(begun: OneServer) -> None:
    push_decided(begun, following(begun, "then"))
    assert begun.advance("then") == {}
    assert begun.claim().handed == {}
    assert begun.contents().faults == []


def test_what_follows_is_dropped_when_the_flow_is_cancelled(begun: OneServer) -> None:
    push_decided(begun, following(begun, "then"))
    steer(begun, "seal")
    cancelled = steer(begun, "cancel")
    assert cancelled.outcome == CANCELLED
    assert open_held(begun)[0] == 1
    assert begun.contents().records["then"].state.value == "X"
    assert begun.claim().handed == {}
    assert begun.contents().faults == []


def test_what_is_held_is_not_taken_for_what_another_shard_has_sent(begun: OneServer) -> None:
    push_decided(begun, following(begun, "then"))
    assert begun.ask(calls.Movable(begun.queue, 10)).adopted == []


def told(server: OneServer) -> Applied:
    """The record of the flow, as the others are given it."""
    return read_decided(steer(server, "look").records.flat)[RECORD].apply()


def test_a_follower_knows_the_same(begun: OneServer, follower: OneServer) -> None:
    push_plain(begun, member(begun, "a"))
    follower.apply(told(begun))
    push_plain(follower, member(follower, "a"))
    assert left(follower) == ("L", {"a"})
    steer(begun, "seal")
    follower.apply(told(begun))
    assert is_refused(follower, member(follower, "b"))
    claim = begun.claim().only
    follower.apply(claim.apply())
    follower.apply(begun.settle(claim.settle("ack")).decided["a"].apply())
    assert left(follower) == ("", set())
    steer(begun, "end")
    follower.apply(told(begun))
    assert stage(follower, "look") is Stage.ENDED
    assert follower.contents().faults == []


def test_a_copy_of_the_server_knows_the_same(begun: OneServer, follower: OneServer) -> None:
    push_plain(begun, member(begun, "a"))
    push_decided(begun, following(begun, "then"))
    follower.apply(*(copy.applied for copy in begun.page()[1].found.values()), payloads=True)
    assert left(follower) == ("LW", {"a"})
    assert follower.contents().faults == []


def test_a_member_whose_index_names_what_has_left_holds_nothing_up(begun: OneServer) -> None:
    """A script that failed half-way leaves such an entry; none is ever missing."""
    begun.command("ZADD", begun.key("members"), 0, b"\xfeLimport-7\0gone")
    assert left(begun) == ("", set())
    steer(begun, "seal")
    assert stage(begun, "end") is Stage.ENDED


def test_a_flow_is_listed_while_it_runs_or_holds_something(begun: OneServer) -> None:
    steer(begun, "begin", flow=OTHER)
    push_decided(begun, following(begun, "then"))
    page = begun.ask(calls.FlowPage(begun.queue, count=2))
    assert [row.name.decode() for row in page.rows] == [FLOW, OTHER]
    rest = begun.ask(calls.FlowPage(begun.queue, page.cursor))
    assert [(row.name.decode(), row.stage, row.kinds) for row in rest.rows] == [(FLOW, b"O", b"W")]
    assert rest.cursor == calls.START
    steer(begun, "seal")
    steer(begun, "end")
    steer(begun, "cancel", flow=OTHER)
    assert [row.name.decode() for row in begun.ask(calls.FlowPage(begun.queue)).rows] == [FLOW]
    open_held(begun)
    assert begun.ask(calls.FlowPage(begun.queue)).rows == []


def test_groups_are_not_taken_for_flows(begun: OneServer) -> None:
    """Whatever looks through the members of groups ends before what it has of flows."""
    push_plain(begun, member(begun, "a"))
    assert begun.peek("ready").found.keys() == {"a"}
    begun.ask(calls.RepairLines(begun.queue))
    begun.clear(10)
    assert left(begun) == ("M", {"a"})
    assert begun.contents().faults == []


# -- several queues --------------------------------------------------------------------------------------------------


def legs(reply: calls.SteerReply) -> list[str]:
    return [leg.decode() for leg in reply.legs]


def test_home_names_its_legs_each_once_and_their_joining_raises_the_stamp(begun: OneServer) -> None:
    assert legs(steer(begun, "join", leg="reports")) == ["reports"]
    steer(begun, "seal")
    joined = steer(begun, "join", leg="prices")
    assert (legs(joined), joined.stamp) == (["reports", "prices"], 2)
    again = steer(begun, "join", leg="reports")
    assert (legs(again), again.stamp) == (["reports", "prices"], 2)
    assert stage(begun, "end", stamp=1) is Stage.SEALED
    assert begun.contents().faults == []


def test_a_flow_has_no_more_legs_than_that(begun: OneServer) -> None:
    for number in range(33):
        steer(begun, "join", leg=f"q{number}")
    assert legs(steer(begun, "look")) == [f"q{number}" for number in range(32)]


def test_what_came_to_life_in_a_leg_raises_the_stamp(begun: OneServer) -> None:
    steer(begun, "seal")
    assert steer(begun, "live").stamp == 1
    assert stage(begun, "end") is Stage.SEALED
    assert stage(begun, "end", stamp=1) is Stage.ENDED
    assert steer(begun, "live").now == b"E"
    assert steer(begun, "join", leg="late").now == b"E"


def test_what_is_left_in_a_leg_holds_the_flow_up(begun: OneServer) -> None:
    steer(begun, "join", leg="reports")
    steer(begun, "seal")
    for left_there in ("L", "D", "M"):
        assert stage(begun, "end", stamp=1, remaining=left_there) is Stage.SEALED
    ended = steer(begun, "end", stamp=1, remaining="DV,40,1,0")
    assert (ended.now, ended.outcome) == (b"E", FAILED)


def test_a_flow_with_legs_stays_due_until_all_have_opened(begun: OneServer) -> None:
    steer(begun, "join", leg="reports")
    steer(begun, "seal")
    ended = steer(begun, "end", stamp=1, remaining=",40,0,2")
    assert (ended.outcome, ended.is_closed, legs(ended)) == (DONE, False, ["reports"])
    (row,) = begun.ask(calls.FlowPage(begun.queue)).rows
    assert (row.name.decode(), row.stage, row.is_due) == (FLOW, b"E", 1)
    assert open_held(begun)[0] == 0
    assert legs(steer(begun, "look")) == ["reports"]
    closed = steer(begun, "close")
    assert (closed.outcome, closed.is_closed, legs(closed)) == (DONE, True, [])
    assert begun.ask(calls.FlowPage(begun.queue)).rows == []
    told = begun.ask(calls.FlowMembers(begun.queue, FLOW))
    assert (told.stage, told.outcome, told.done, told.died, told.missed) == (b"E", DONE, 40, 0, 2)
    assert begun.contents().faults == []


def test_a_flow_is_not_closed_while_something_is_held(begun: OneServer) -> None:
    push_decided(begun, following(begun, "then"))
    steer(begun, "finish")
    assert not steer(begun, "close").is_closed
    open_held(begun)
    assert steer(begun, "look").is_closed


def test_a_leg_ends_as_home_says_and_opens_what_it_holds(server: OneServer) -> None:
    steer(server, "begin", policy="l", life=LIFE)
    push_decided(server, following(server, "then"))
    assert stage(server, "end") is Stage.OPEN
    opened = server.ask(calls.OpenHeld(server.queue, FLOW, "done", LIFE))
    assert opened.opened == 1
    told = steer(server, "look")
    assert (told.now, told.outcome, told.is_closed) == (b"E", DONE, True)
    assert ack_all(server) == ["then"]
    assert server.ask(calls.OpenHeld(server.queue, FLOW, "cancelled", LIFE)).opened == 0
    assert steer(server, "look").outcome == DONE
    assert steer(server, "begin", policy="l", life=LIFE).now == b"E"
    assert server.contents().faults == []


def test_a_leg_of_an_earlier_flow_is_told_from_one_of_the_next(server: OneServer) -> None:
    """A client may have been told long ago how the earlier one has ended, or that it is unknown."""
    steer(server, "begin", policy="l", life=LIFE)
    assert steer(server, "begin", policy="l", life=LIFE + 1).life == LIFE
    server.ask(calls.OpenHeld(server.queue, FLOW, "cancelled", LIFE))
    begun = steer(server, "begin", policy="l", life=LIFE + 1)
    assert (begun.now, begun.life) == (b"O", LIFE + 1)
    push_decided(server, following(server, "then"))
    assert server.ask(calls.OpenHeld(server.queue, FLOW, "cancelled", LIFE)).opened == 0
    assert left(server)[0] == "W"
    assert server.contents().faults == []


def test_home_names_legs_of_this_flow_alone(begun: OneServer) -> None:
    life = steer(begun, "look").life
    assert legs(steer(begun, "join", leg="late", life=life - 1)) == []
    assert legs(steer(begun, "join", leg="reports", life=life)) == ["reports"]


def test_a_leg_is_due_when_nothing_lives_there(server: OneServer) -> None:
    steer(server, "begin", policy="l", life=LIFE)
    push_plain(server, member(server, "a"))
    (row,) = server.ask(calls.FlowPage(server.queue)).rows
    assert (row.kinds, row.is_due) == (b"L", 0)
    assert server.settle(*server.claim().settle("ack")).due == [FLOW]
