"""The scripts of flows: what is left of one on a server, how it ends, and what is held for its end."""

from __future__ import annotations

import pytest

from tests.lua.entries import BUNDLE, Applied, Decided, read_decided
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.calls import item_id
from zkrq.protocol.flows import CANCELLED, DONE, Stage
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, fresh, with_fields
from zkrq.protocol.replies import Status

FLOW = "import-7"
OTHER = "import-70"

RECORD = "\1flow import-7"
"""The id of the record of the flow."""

KEEP_MS = 60_000


def steer(
    server: OneServer, verb: str, *, flow: str = FLOW, stamp: int = 0, keep_ms: int = KEEP_MS, epoch: int | None = None
) -> calls.SteerReply:
    return server.ask(calls.Steer(server.queue, flow, verb, stamp, keep_ms), epoch=epoch)


def stage(server: OneServer, verb: str, *, flow: str = FLOW, stamp: int = 0) -> Stage:
    return Stage(steer(server, verb, flow=flow, stamp=stamp).now.decode())


def left(server: OneServer, flow: str = FLOW) -> tuple[str, set[str]]:
    """Kinds of what is left, and bundles that hold the flow up."""
    reply = server.ask(calls.FlowMembers(server.queue, flow))
    return reply.kinds.decode(), {id.decode() for id in reply.bundles}


def member(server: OneServer, id: str, size: int = 0, *, flow: str = FLOW) -> calls.Put:
    record = with_fields(fresh(0, server.now_ms(), size=size or None), {MEMBER: flow.encode()})
    return calls.Put(id, record, join([b"payload"] * (size or 1)))


def following(server: OneServer, id: str, flow: str = FLOW) -> calls.Put:
    return calls.Put(id, with_fields(fresh(0, server.now_ms()), {HELD: flow.encode()}), join([b"then"]))


def push_plain(server: OneServer, *puts: calls.Put) -> None:
    reply = server.ask(calls.PushPlain(server.queue, puts))
    assert (list(reply.late), reply.known) == ([], {})


def push_decided(server: OneServer, *puts: calls.Put) -> list[str]:
    reply = server.ask(calls.PushDecided(server.queue, puts, in_order=True))
    return [outcome.decode() for outcome in reply.outcomes]


def is_refused(server: OneServer, put: calls.Put) -> bool:
    """Whether a plain push has to be decided."""
    return server.answer(calls.PushPlain(server.queue, [put]), server.epoch).status is Status.DECIDE


def open_held(server: OneServer, flow: str = FLOW) -> tuple[int, dict[str, Decided]]:
    reply = server.ask(calls.OpenHeld(server.queue, flow))
    return reply.opened, read_decided(reply.records.flat)


def ack_all(server: OneServer) -> list[str]:
    """Claim and ack what is ready."""
    claimed = server.claim(count=100)
    if claimed.handed:
        server.settle(*claimed.settle("ack"))
    return claimed.ids


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
