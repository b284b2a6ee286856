"""How flows end on one server: their outcomes, what people are told, and what is kept of results."""

from __future__ import annotations

from typing import cast

import pytest

from tests.lua.entries import BUNDLE
from tests.lua.flowing import (
    FLOW,
    LIFE,
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
from zkrq.protocol.records import Opens


@pytest.fixture
def begun(server: OneServer) -> OneServer:
    assert stage(server, "begin") is Stage.OPEN
    return server


# -- outcomes --------------------------------------------------------------------------------------------------------


def test_a_settlement_tells_which_flows_are_due(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"), member(begun, "b"), member(begun, "c"))
    assert begun.settle(*begun.claim(count=1).settle("ack")).due == []
    steer(begun, "seal")
    assert begun.settle(*begun.claim(count=1).settle("ack")).due == []
    assert begun.settle(*begun.claim(count=1).settle("nack")).due == []
    assert begun.settle(*begun.claim(count=1).settle("bury", 0, "why")).due == [FLOW]


def test_a_turn_tells_which_flows_are_due(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"))
    steer(begun, "seal")
    (claim,) = begun.claim().settle("ack")
    turn = calls.Turn(begun.queue, "ann", 9, 1, 1000, "", 0, "X", 0, 0, items=[claim.call])
    assert begun.ask(turn).due == [FLOW.encode()]


def test_a_queue_without_flows_gets_no_word_more(server: OneServer) -> None:
    asked: list[calls.Settle] = []
    for queue in ("one", "two"):
        server.queue = queue
        server.put("a")
        asked.append(calls.Settle(queue, 0, 0, [each.call for each in server.claim().settle("ack")]))
    one, two = cast("list[list[bytes]]", server.answers(*asked))
    assert (len(one), len(two)) == (4, 4)


@pytest.mark.parametrize(
    ("outcome", "opened"), [("done", {"then", "always"}), ("failed", {"failure", "always"}), ("cancelled", set[str]())]
)
def test_what_was_held_is_opened_as_the_flow_has_ended(server: OneServer, outcome: str, opened: set[str]) -> None:
    steer(server, "begin", policy="l", life=LIFE)
    puts = [following(server, each.name.lower(), opens=each) for each in Opens if each is not Opens.NESTED]
    push_decided(server, *puts)
    assert left(server)[0] == "WV"
    assert server.ask(calls.OpenHeld(server.queue, FLOW, outcome, LIFE)).opened == 3
    assert set(ack_all(server)) == opened
    assert server.contents().faults == []


def test_a_dead_letter_fails_the_flow_if_something_is_held_for_that(begun: OneServer) -> None:
    push_decided(begun, following(begun, "undo", opens=Opens.FAILURE), following(begun, "then"))
    push_plain(begun, member(begun, "a"))
    steer(begun, "seal")
    begun.settle(*begun.claim().settle("bury", 0, "why"))
    ended = steer(begun, "end")
    assert (ended.now, ended.outcome) == (b"E", FAILED)
    assert open_held(begun)[0] == 2
    assert ack_all(begun) == ["undo"]
    assert begun.contents().faults == []


def test_what_was_missed_may_be_as_good_as_acked(server: OneServer) -> None:
    steer(server, "begin", policy="m")
    push_plain(server, member(server, "a"))
    steer(server, "seal")
    server.cancel("a")
    ended = steer(server, "end")
    assert (ended.now, ended.outcome) == (b"E", DONE)


def test_a_failing_flow_removes_queued_members_and_awaits_claimed_ones(begun: OneServer) -> None:
    push_decided(begun, following(begun, "undo", opens=Opens.FAILURE))
    push_plain(begun, member(begun, BUNDLE, 3), member(begun, "b"))
    claimed = begun.claim(count=1)
    assert stage(begun, "fail") is Stage.FAILING
    assert is_refused(begun, member(begun, "late"))
    assert push_decided(begun, member(begun, "late")) == ["E"]
    assert open_held(begun)[0] == 3
    assert left(begun)[0] == "LMV"
    assert stage(begun, "end") is Stage.FAILING
    assert begun.settle(*claimed.settle("ack")).due == [FLOW]
    ended = steer(begun, "end")
    assert (ended.now, ended.outcome) == (b"E", FAILED)
    assert open_held(begun)[0] == 1
    assert ack_all(begun) == ["undo"]
    assert begun.contents().faults == []


def test_a_flow_that_fails_fast_is_due_at_its_first_dead_letter(server: OneServer) -> None:
    steer(server, "begin", policy="f")
    push_plain(server, member(server, "a"), member(server, "b"))
    assert server.settle(*server.claim().settle("bury", 0, "why")).due == [FLOW]


def test_a_cancelled_flow_removes_its_queued_members_and_claimed_ones_if_that_is_asked_for(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"), member(begun, "b"))
    claimed = begun.claim(count=1)
    cancelled = steer(begun, "cancel")
    assert (cancelled.outcome, cancelled.is_closed) == (CANCELLED, False)
    assert open_held(begun)[0] == 1
    assert left(begun) == ("LM", {"a", "b"})
    assert steer(begun, "look").is_closed
    assert begun.settle(*claimed.settle("extend", 1000)).outcomes == [1]
    assert begun.contents().faults == []


def test_a_cancel_that_stops_removes_claimed_members_too(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"))
    claimed = begun.claim(count=1)
    steer(begun, "cancel")
    assert begun.ask(calls.OpenHeld(begun.queue, FLOW, stop=True)).opened == 1
    assert begun.settle(*claimed.settle("ack")).outcomes == [0]
    assert left(begun)[0] == "M"


def test_a_flow_fails_once_its_deadline_has_passed(server: OneServer) -> None:
    steer(server, "begin", deadline_ms=1)
    wait_ms(5)
    (row,) = server.ask(calls.FlowPage(server.queue)).rows
    assert row.is_due == 1
    assert stage(server, "look") is Stage.FAILING
    assert stage(server, "end") is Stage.ENDED
    assert steer(server, "look").outcome == FAILED


def kept_open_until(server: OneServer, flow: str = FLOW) -> float | None:
    """Until when a flow stays open, by the server's clock."""
    own = server.contents().bundles[f"\1flow {flow}"].own
    return own[0].moment_us if own else None


def test_a_flow_fails_that_its_maker_does_not_keep_open(server: OneServer) -> None:
    server.limits = {"OPEN_MS": 1}
    steer(server, "begin")
    wait_ms(5)
    server.limits = {}
    assert stage(server, "open") is Stage.FAILING
    assert server.contents().faults == []


def test_a_maker_keeps_its_flow_open_until_it_is_sealed(begun: OneServer) -> None:
    first = kept_open_until(begun)
    assert first
    wait_ms(2)
    assert stage(begun, "open") is Stage.OPEN
    assert (kept_open_until(begun) or 0) > first
    steer(begun, "seal")
    assert kept_open_until(begun) is None
    assert stage(begun, "open") is Stage.SEALED


def test_people_are_told_what_has_become_of_members(begun: OneServer) -> None:
    push_plain(begun, member(begun, BUNDLE, 4), member(begun, "b"))
    claimed = begun.claim(count=2)
    begun.settle(claimed.decided[BUNDLE].settle("ack", positions=[0]))
    begun.settle(claimed.decided[BUNDLE].settle("bury", 0, "why", [1]))
    begun.cancel(item_id(BUNDLE, 2))
    told = begun.ask(calls.FlowMembers(begun.queue, FLOW))
    assert (told.done, told.living, told.died, told.missed) == (1, 2, 1, 1)
    expected = {("L", item_id(BUNDLE, 3)), ("L", "b"), ("D", item_id(BUNDLE, 1)), ("M", item_id(BUNDLE, 2))}
    assert {(item.kind.decode(), item.id.decode()) for item in told.items} == expected


def test_many_members_are_estimated(begun: OneServer) -> None:
    begun.limits = {"LOOKED_MAX": 10}
    push_plain(begun, *(member(begun, f"m{number:02}") for number in range(40)))
    told = begun.ask(calls.FlowMembers(begun.queue, FLOW))
    assert told.living == 40


# -- results of members ----------------------------------------------------------------------------------------------


def ack_with_results(server: OneServer, ttl_ms: int = 1) -> None:
    """Claim and ack what is ready, with a result for each bundle."""
    claimed = server.claim(count=500)
    for bundle, positions in claimed.positions.items():
        server.settle(claimed.decided[bundle].settle("result", ttl_ms, f"of {bundle}", positions))


def read_results(server: OneServer, flow: str = FLOW, cursor: bytes = calls.START) -> calls.FlowResultsReply:
    return server.ask(calls.FlowResults(server.queue, flow, cursor))


def rows_of(server: OneServer) -> dict[str, str]:
    return {row.id.decode(): row.text.decode() for row in read_results(server).rows}


def test_results_of_members_are_kept_while_the_flow_runs_and_as_long_as_its_outcome(begun: OneServer) -> None:
    push_plain(begun, member(begun, BUNDLE, 2), member(begun, "a"))
    ack_with_results(begun)
    expected = {item_id(BUNDLE, 0): f"of {BUNDLE}", item_id(BUNDLE, 1): f"of {BUNDLE}", "a": "of a"}
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert rows_of(begun) == expected
    told = begun.ask(calls.Results(begun.queue, "", ["a"]), put_window_ms=1)
    assert [(each.letter, each.text) for each in told.told] == [(b"A", b"of a")]
    steer(begun, "finish")
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert rows_of(begun) == expected
    assert begun.contents().faults == []


def test_nothing_stays_of_results_when_the_outcome_is_not_kept_any_more(server: OneServer) -> None:
    steer(server, "begin", keep_ms=1)
    push_plain(server, member(server, BUNDLE, 2), member(server, "a"))
    ack_with_results(server)
    steer(server, "finish")
    wait_ms(5)
    for _ in range(2):
        server.trim(put_window_ms=1)
        wait_ms(5)
    contents = server.contents()
    assert (contents.bundles, contents.notes, contents.flows, contents.faults) == ({}, {}, set(), [])
    assert read_results(server) == (calls.START, b"U", [], [])


def test_results_are_forgotten_when_tombstones_take_too_much(begun: OneServer) -> None:
    begun.limits = {"TOMBSTONES_BYTES": 0, "LEAST_AGE_MS": 1}
    push_plain(begun, member(begun, "a"))
    ack_with_results(begun, 60_000)
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert rows_of(begun) == {}
    assert begun.contents().faults == []


def test_results_come_in_pages_that_end_with_a_bundle(begun: OneServer) -> None:
    begun.limits = {"RESULTS_MAX": 3}
    push_plain(begun, *(member(begun, f"m{number}") for number in range(7)))
    ack_with_results(begun, 60_000)
    found, cursor = list[str](), calls.START
    while True:
        page = read_results(begun, cursor=cursor)
        assert len(page.rows) <= 3
        found += [row.id.decode() for row in page.rows]
        if page.cursor == calls.START:
            break
        cursor = page.cursor
    assert found == [f"m{number}" for number in range(7)]


def test_results_of_one_that_lives_beside_them_are_kept(begun: OneServer) -> None:
    push_plain(begun, member(begun, BUNDLE, 2))
    claimed = begun.claim(count=2)
    begun.settle(claimed.decided[BUNDLE].settle("result", 1, "first", positions=[0]))
    wait_ms(5)
    begun.trim(put_window_ms=1)
    assert rows_of(begun) == {item_id(BUNDLE, 0): "first"}
    assert begun.contents().faults == []


def test_a_closed_flow_names_its_legs_to_readers_of_results(begun: OneServer) -> None:
    steer(begun, "join", leg="reports")
    steer(begun, "join", leg="prices")
    steer(begun, "finish")
    assert steer(begun, "close").is_closed
    assert [leg.decode() for leg in read_results(begun).legs] == ["reports", "prices"]
    assert begun.contents().faults == []
