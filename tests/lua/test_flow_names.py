"""The scripts of members that wait for others of their flow, by name."""

from __future__ import annotations

import pytest

from tests.lua.flowing import FLOW, ack_all, left, member, open_held, push_decided, push_plain, stage, steer
from tests.lua.one_server import OneServer, wait_ms
from zkrq.protocol import calls
from zkrq.protocol.flow_names import named
from zkrq.protocol.flows import Kind, Stage
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, fresh, waiting_for, with_fields


@pytest.fixture
def begun(server: OneServer) -> OneServer:
    assert stage(server, "begin") is Stage.OPEN
    return server


def waiting(server: OneServer, id: str, *names: str) -> calls.Put:
    fields = {MEMBER: FLOW.encode(), HELD: waiting_for([named(server.queue, name) for name in names])}
    return calls.Put(id, with_fields(fresh(0, server.now_ms()), fields), join([b"waits"]))


def release(server: OneServer, *ids: str) -> int:
    return server.ask(calls.Release(server.queue, FLOW, ids)).opened


def states(server: OneServer, *ids: str) -> str:
    return b"".join(server.ask(calls.NamedStates(server.queue, ids))).decode()


@pytest.fixture
def waits(begun: OneServer) -> OneServer:
    """A member waits for another one."""
    steer(begun, "wait")
    push_plain(begun, member(begun, f"{FLOW}.a"))
    assert push_decided(begun, waiting(begun, f"{FLOW}.b", f"{FLOW}.a"))
    return begun


def test_a_member_that_waits_is_not_handed_out_and_holds_the_flow_up(waits: OneServer) -> None:
    steer(waits, "seal")
    assert left(waits)[0] == "LN"
    assert ack_all(waits) == [f"{FLOW}.a"]
    assert left(waits)[0] == "N"
    assert waits.contents().faults == []
    stamp = steer(waits, "look").stamp
    assert stage(waits, "end", stamp=stamp) is Stage.SEALED
    assert stage(waits, "end", stamp=stamp, remaining="DV") is Stage.SEALED
    assert ack_all(waits) == []


def test_a_member_that_is_let_go_raises_the_stamp_and_holds_the_flow_up_as_others(waits: OneServer) -> None:
    steer(waits, "seal")
    ack_all(waits)
    before = steer(waits, "look").stamp
    assert release(waits, f"{FLOW}.b") == 1
    assert steer(waits, "look").stamp == before + 1
    assert left(waits)[0] == "L"
    assert release(waits, f"{FLOW}.b") == 0
    assert stage(waits, "end", stamp=before) is Stage.SEALED
    assert ack_all(waits) == [f"{FLOW}.b"]
    assert stage(waits, "end", stamp=before + 1) is Stage.ENDED
    assert waits.contents().faults == []


def test_a_push_of_a_member_that_waits_raises_the_stamp(begun: OneServer) -> None:
    push_plain(begun, member(begun, f"{FLOW}.a"))
    steer(begun, "seal")
    before = steer(begun, "look").stamp
    push_decided(begun, waiting(begun, f"{FLOW}.b", f"{FLOW}.a"))
    assert steer(begun, "look").stamp == before + 1


def test_what_others_wait_for_is_listed_page_by_page(waits: OneServer) -> None:
    for n in range(150):
        push_decided(waits, waiting(waits, f"{FLOW}.w{n:03}", f"{FLOW}.a", f"{FLOW}.b"))
    first = waits.ask(calls.WaitingPage(waits.queue, FLOW, Kind.WAITING))
    second = waits.ask(calls.WaitingPage(waits.queue, FLOW, Kind.WAITING).at(first.cursor))
    ids = [row.id.decode() for row in (*first.rows, *second.rows)]
    assert ids == [f"{FLOW}.b", *(f"{FLOW}.w{n:03}" for n in range(150))]
    assert (len(first.rows), second.cursor) == (100, calls.START)
    assert {row.names.decode() for row in second.rows} == {f"{waits.queue}/{FLOW}.a {waits.queue}/{FLOW}.b"}


def test_what_has_become_of_a_member_is_told_by_its_name(begun: OneServer) -> None:
    push_plain(begun, *(member(begun, f"{FLOW}.{name}") for name in "abcd"), member(begun, f"{FLOW}.e", 2))
    claimed = begun.claim(count=3)
    begun.settle(claimed.decided[f"{FLOW}.a"].settle("ack"))
    begun.settle(claimed.decided[f"{FLOW}.b"].settle("bury", 0, "why"))
    begun.cancel(f"{FLOW}.d")
    assert states(begun, *(f"{FLOW}.{name}" for name in "abcdef")) == "ADLMLU"
    assert len(ack_all(begun)) == 2
    assert states(begun, f"{FLOW}.e") == "A"


@pytest.mark.parametrize("verb", ["fail", "cancel", "finish"])
def test_a_member_that_waits_is_removed_when_the_flow_fails_or_ends(waits: OneServer, verb: str) -> None:
    steer(waits, verb)
    assert release(waits, f"{FLOW}.b") == 0
    open_held(waits)
    assert "N" not in left(waits)[0]
    assert states(waits, f"{FLOW}.b") == "M"
    assert waits.contents().faults == []


def test_an_ack_says_that_the_flow_is_due_if_others_wait_for_that_member(waits: OneServer) -> None:
    push_plain(waits, member(waits, "other"), member(waits, f"{FLOW}.c"))
    claims = waits.claim(count=3)
    assert waits.settle(claims.decided["other"].settle("ack")).due == []
    assert waits.settle(claims.decided[f"{FLOW}.a"].settle("ack")).due == [FLOW]


def test_the_name_of_a_member_stays_known_while_its_flow_runs(waits: OneServer) -> None:
    ack_all(waits)
    wait_ms(5)
    waits.trim(put_window_ms=1)
    assert states(waits, f"{FLOW}.a") == "A"
    steer(waits, "cancel")
    open_held(waits)
    wait_ms(5)
    waits.trim(put_window_ms=1)
    assert states(waits, f"{FLOW}.a", f"{FLOW}.b") == "UU"
    assert waits.contents().faults == []


def test_many_members_of_one_name_begin_no_new_life_while_the_flow_runs(server: OneServer) -> None:
    flow, name = "rows/7", "zkrq-7.page-1.0"
    steer(server, "begin", flow=flow)
    push_plain(server, member(server, name, 3, flow=flow), member(server, "zkrq-70.page-1.0", 2, flow=flow))
    assert server.claim(count=1).ids == [f"{name}~00"]
    again = member(server, name, 3, flow=flow)
    assert server.ask(calls.PushPlain(server.queue, [again])).known == {0: (2, b"")}
    ack_all(server)
    assert server.ask(calls.PushPlain(server.queue, [again])).known == {0: (4, b"\1\2")}
    singles = [again.single(position) for position in range(3)]
    assert push_decided(server, *singles) == ["K", "D", "D"]
    assert push_decided(server, calls.Put(f"{name}~03", singles[0].record, singles[0].payload)) == ["+"]
    assert server.contents().faults == []


def test_a_bundle_of_many_that_have_a_name_stays_known(server: OneServer) -> None:
    flow, name = "rows/7", "zkrq-7.page-1.0"
    steer(server, "begin", flow=flow)
    push_plain(server, member(server, name, 3, flow=flow), member(server, "zkrq-70.page-1.0", 2, flow=flow))
    ack_all(server)
    wait_ms(5)
    server.trim(put_window_ms=1)
    assert server.contents().bundles.keys() == {"\1flow rows/7", name}
    again = member(server, name, 3, flow=flow)
    decided = server.ask(calls.PushDecided(server.queue, [again.single(1)]), put_window_ms=1)
    assert decided.outcomes == [b"D"]
    steer(server, "finish", flow=flow)
    wait_ms(5)
    server.trim(put_window_ms=1)
    assert name not in server.contents().bundles
