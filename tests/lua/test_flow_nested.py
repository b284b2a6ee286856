"""The scripts of flows that are members of others."""

from __future__ import annotations

import pytest

from tests.lua.entries import read_decided
from tests.lua.flowing import FLOW, ack_all, left, member, open_held, push_decided, push_plain, stage, steer
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.flows import Kind, Stage
from zkrq.protocol.payloads import join
from zkrq.protocol.records import HELD, MEMBER, Opens, fresh, held_for, with_fields

INNER = "q/page-7"

NESTED = f"{FLOW}.page-7"
"""The id of the item that stands for the inner flow."""


@pytest.fixture
def begun(server: OneServer) -> OneServer:
    """Both flows have begun, in one queue."""
    assert stage(server, "begin") is Stage.OPEN
    steer(server, "begin", flow=INNER, outer=FLOW)
    return server


def nested(server: OneServer, id: str = NESTED, *, inner: str = INNER) -> calls.Put:
    fields = {MEMBER: FLOW.encode(), HELD: held_for(inner.encode(), Opens.NESTED)}
    return calls.Put(id, with_fields(fresh(0, server.now_ms()), fields), join([b"\0\0"]))


@pytest.fixture
def stands(begun: OneServer) -> OneServer:
    """The item stands for the inner flow."""
    assert push_decided(begun, nested(begun)) == ["+"]
    return begun


def waiting(server: OneServer, flow: str = FLOW) -> dict[str, str]:
    """Inner flows that have not ended, by what stands for them."""
    call, found = calls.WaitingPage(server.queue, flow, Kind.NESTED), dict[str, str]()
    while True:
        page = server.ask(call)
        found |= {row.id.decode(): row.names.decode() for row in page.rows}
        if page.cursor == calls.START:
            return found
        call = call.at(page.cursor)


def end(server: OneServer, flow: str = INNER, **terms: str) -> Stage:
    return stage(server, "end", flow=flow, stamp=steer(server, "look", flow=flow).stamp, **terms)


def test_it_is_a_member_of_the_outer_flow_and_held_for_the_inner_one(stands: OneServer) -> None:
    assert left(stands) == ("L", {NESTED})
    assert left(stands, INNER)[0] == "W"
    assert waiting(stands) == {NESTED: INNER}
    assert ack_all(stands) == []
    assert stands.contents().faults == []


def test_it_is_told_apart_from_items(stands: OneServer) -> None:
    push_plain(stands, member(stands, "a"))
    told = stands.ask(calls.FlowMembers(stands.queue, FLOW))
    assert {(item.id, item.inner) for item in told.items} == {(b"a", b""), (NESTED.encode(), INNER.encode())}
    assert stands.ask(calls.FlowMembers(stands.queue, INNER)).outer == FLOW.encode()


def test_the_inner_flow_says_of_what_it_is_a_member_also_when_it_has_ended(stands: OneServer) -> None:
    assert steer(stands, "begin", flow=INNER, outer="other").outer == FLOW.encode()
    steer(stands, "seal", flow=INNER)
    end(stands)
    open_held(stands, INNER)
    told = steer(stands, "look", flow=INNER)
    assert (told.now, told.is_closed, told.outer) == (b"E", True, FLOW.encode())


def test_one_that_begins_anew_has_the_outer_flow_of_its_own(server: OneServer) -> None:
    steer(server, "begin", policy="l", life=1, outer=INNER)
    server.ask(calls.OpenHeld(server.queue, FLOW, "done", 1))
    assert steer(server, "begin", policy="l", life=2).outer == b""


def test_its_push_raises_the_stamp_of_the_outer_flow(begun: OneServer) -> None:
    steer(begun, "seal")
    before = steer(begun, "look").stamp
    push_decided(begun, nested(begun))
    assert steer(begun, "look").stamp == before + 1


@pytest.mark.parametrize("over", [FLOW, INNER])
def test_it_is_refused_unless_both_flows_run(begun: OneServer, over: str) -> None:
    steer(begun, "cancel", flow=over)
    assert push_decided(begun, nested(begun)) == ["E"]


def test_a_second_push_changes_nothing(stands: OneServer) -> None:
    assert push_decided(stands, nested(stands)) == ["K"]


def test_it_is_acked_when_the_inner_flow_is_done(stands: OneServer) -> None:
    steer(stands, "seal", flow=INNER)
    assert end(stands) is Stage.ENDED
    assert left(stands) == ("L", {NESTED})
    assert open_held(stands, INNER)[0] == 1
    assert left(stands) == ("", set())
    assert stands.ask(calls.FlowMembers(stands.queue, FLOW)).done == 1
    assert b"".join(stands.ask(calls.NamedStates(stands.queue, [NESTED]))) == b"A"
    assert stands.contents().faults == []


def test_it_is_a_dead_letter_when_the_inner_flow_has_failed(stands: OneServer) -> None:
    steer(stands, "fail", flow=INNER)
    assert end(stands) is Stage.ENDED
    assert open_held(stands, INNER)[0] == 1
    assert left(stands) == ("D", {NESTED})
    told = stands.ask(calls.FlowMembers(stands.queue, FLOW))
    assert [(item.kind, item.inner) for item in told.items] == [(b"D", INNER.encode())]
    assert stands.contents().faults == []
    assert stands.contents().dead.keys() == {NESTED}


def test_its_reason_names_the_inner_flow(stands: OneServer) -> None:
    steer(stands, "fail", flow=INNER)
    end(stands)
    open_held(stands, INNER)
    (copied,) = stands.ask(calls.DeadPage(stands.queue, calls.START, 10)).copies.items
    assert calls.read_notes(copied.notes) == {0: b"flow 'page-7' of queue 'q' has failed"}


def test_a_redrive_leaves_it_dead(stands: OneServer) -> None:
    steer(stands, "fail", flow=INNER)
    end(stands)
    open_held(stands, INNER)
    for ids in ([NESTED], []):
        reply = stands.ask(calls.Redrive(stands.queue, 0, 10, "call", ids))
        assert reply.ids == []
    assert left(stands) == ("D", {NESTED})


def test_it_is_removed_when_the_inner_flow_is_cancelled(stands: OneServer) -> None:
    steer(stands, "cancel", flow=INNER)
    assert open_held(stands, INNER)[0] == 1
    assert left(stands) == ("M", {NESTED})
    assert b"".join(stands.ask(calls.NamedStates(stands.queue, [NESTED]))) == b"M"


@pytest.mark.parametrize("verb", ["fail", "cancel"])
def test_a_flow_that_ends_otherwise_leaves_it_to_the_inner_flow(stands: OneServer, verb: str) -> None:
    push_plain(stands, member(stands, "a"))
    steer(stands, verb)
    reply = stands.ask(calls.OpenHeld(stands.queue, FLOW))
    assert (reply.opened, reply.nested) == (1, True)
    assert left(stands)[1] == {NESTED, "a"}
    assert waiting(stands) == {NESTED: INNER}


def test_a_cancelled_flow_is_closed_after_its_inner_flows(stands: OneServer) -> None:
    steer(stands, "cancel")
    open_held(stands)
    assert not steer(stands, "close").is_closed
    steer(stands, "cancel", flow=INNER)
    open_held(stands, INNER)
    assert not stands.ask(calls.OpenHeld(stands.queue, FLOW)).nested
    assert steer(stands, "look").is_closed


def test_a_finished_flow_is_closed_before_its_inner_flows(stands: OneServer) -> None:
    assert steer(stands, "finish").is_closed
    assert waiting(stands) == {NESTED: INNER}


def test_what_stands_for_flows_is_listed_page_by_page(begun: OneServer) -> None:
    for start in range(0, 150, 50):
        push_decided(begun, *(nested(begun, f"{FLOW}.n{n:03}") for n in range(start, start + 50)))
    assert waiting(begun) == {f"{FLOW}.n{n:03}": INNER for n in range(150)}


def test_a_flow_that_stands_for_itself_stops_only_itself(begun: OneServer) -> None:
    push_decided(begun, nested(begun, inner=FLOW))
    assert left(begun)[0] == "LW"
    steer(begun, "cancel")
    opened, records = open_held(begun)
    assert (opened, records[NESTED].bundle.states) == (1, "X")
    assert begun.contents().faults == []


def test_followers_have_the_same(stands: OneServer) -> None:
    steer(stands, "fail", flow=INNER)
    end(stands)
    reply = stands.ask(calls.OpenHeld(stands.queue, INNER))
    assert read_decided(reply.records.flat)[NESTED].bundle.states == "D"
