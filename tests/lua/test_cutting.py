"""Payloads go last: when every server of the view knows the removal, or with the tombstone."""

from __future__ import annotations

import struct
from collections.abc import Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from tests.lua.entries import WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.records import FIRST, State, Version, fresh


@pytest.fixture
def heir(server: OneServer) -> Generator[OneServer, None, None]:
    """The server that becomes primary."""
    with OneServer(server.host, server.port, database=2) as server:
        server.enrol()
        yield server


def test_removed_item_keeps_its_payload_until_all_know(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a", "b").decided["a"].settle("ack"))
    assert set(server.contents().left_payloads) == {"a"}
    server.cut("a", "b", "never")
    contents = server.contents()
    assert (set(contents.left_payloads), set(contents.payloads)) == (set(), {"b"}), "only of what is gone here"
    assert contents.faults == []


@every("way", ["push_plain", "apply", "apply nothing", "settle", "turn"])
def test_calls_carry_a_cut_along(server: OneServer, way: str) -> None:
    """What the call itself removes counts; what is alive here keeps its payload, whatever the list says."""
    server.reset()
    claims = put_and_claim(server, "a", "b", "alive")
    server.settle(claims.decided["a"].settle("ack"))
    ack = claims.decided["b"].settle("ack")
    ids = [b"a", b"never", b"alive", *([b"b"] if way in ("settle", "turn") else [])]
    cuts = calls.pack_gone((id, b"\0" if id == b"a" else b"") for id in ids)
    match way:
        case "push_plain":
            server.put("c", cuts=cuts)
        case "apply":
            server.apply(claims.decided["alive"].apply(), cuts=cuts)
        case "apply nothing":
            server.apply(cuts=cuts)
        case "settle":
            server.settle(ack, cuts=cuts)
        case _:
            server.turn(ack, cuts=cuts)
    contents = server.contents()
    assert contents.left_payloads == {}
    assert "alive" in contents.payloads
    assert ("b" in contents.payloads) == (way not in ("settle", "turn"))
    assert contents.faults == []


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=112)), max_size=20))
def test_a_cut_is_read_as_it_was_packed(items: list[tuple[bytes, bytes]]) -> None:
    packed, read = calls.pack_gone(items), list[tuple[bytes, bytes]]()
    while packed:
        (length,) = struct.unpack_from("<H", packed)
        id, rest = packed[2 : 2 + length], packed[2 + length :]
        read.append((id, rest[1 : 1 + rest[0]]))
        packed = rest[1 + rest[0] :]
    assert read == items


def test_500_payloads_are_dropped_in_one_call(server: OneServer) -> None:
    ids = server.put_numbered(500)
    for _ in range(2):
        server.settle(*server.claim(count=250).settle("ack"))
    server.cut(*ids)
    assert "payloads" not in server.key_names()


def test_ack_of_an_evicted_primary_takes_no_payload_along(
    server: OneServer, follower: OneServer, heir: OneServer
) -> None:
    """The push had returned, no ack has: somebody must still have the payload."""
    primary = server
    for server in (primary, follower, heir):
        server.put(Put("a", b"bytes"))
    claim = primary.claim("ann").only
    for server in (follower, heir):
        assert server.apply(claim.apply()) == ([], [])
    # The late ack is executed at the primary, which is being evicted, and reaches one follower.
    acked = primary.settle(claim.settle("ack"))
    assert follower.apply(acked.decided["a"].apply()) == ([], [])
    # The heir has not heard of it: the owner is fenced, its claim given to another consumer, its ack refused.
    heir.epoch = 2
    heir.fence("ann")
    again = heir.claim("bob")
    assert heir.settle(claim.settle("ack")).outcomes == [0]
    # The greater version comes to the follower, and the heir dies before anything else does.
    follower.epoch = 2
    assert follower.apply(again.only.apply()) == ([], []), "it lacks nothing"
    follower.epoch = 3
    follower.fence("bob")
    assert follower.claim("eve").handed == {"a": b"bytes"}
    assert follower.contents().faults == []


@pytest.mark.parametrize("given", [False, True], ids=["claim first", "push first"])
@pytest.mark.parametrize("refused", [False, True], ids=["expired", "refused"])
def test_later_life_of_an_id_has_a_payload_of_its_own(server: OneServer, given: bool, refused: bool) -> None:
    """The former one's was left lying by a client that died."""
    server.settle(put_and_claim(server, Put("a", b"former")).only.settle("ack"))
    if refused:
        server.change("a", lambda bundle: bundle._replace(states="F"))
    else:
        server.age("a", 3 * WINDOW_MS)
    assert server.contents().left_payloads == {"a": b"former"}
    now_ms = server.now_ms() + 1  # after the former one
    pushed = packed_item(Version(2, 8), State.QUEUED, pushed_at_ms=now_ms)
    claimed = packed_item(Version(2, 9), State.CLAIMED, pushed_at_ms=now_ms, token="bob/1", attempts=1)
    life = Applied("a", pushed if given else claimed, 0 if given else 60_000, b"later")
    assert server.apply(life, payloads=given) == ([], [] if given else [1])
    if not given:
        assert server.contents().payloads == {}
        assert server.apply(life, payloads=True) == ([], [])
    contents = server.contents()
    assert (contents.payloads, contents.left_payloads, contents.faults) == ({"a": b"later"}, {}, [])


def test_push_that_begins_a_new_life_brings_its_payload(server: OneServer) -> None:
    server.settle(put_and_claim(server, Put("a", b"former")).only.settle("ack"))
    server.age("a", 3 * WINDOW_MS)
    server.push(Put("a", b"later", above_n=3))
    assert server.claim().handed == {"a": b"later"}


@pytest.mark.parametrize("delayed", [False, True])
def test_completed_payload_makes_its_item_ready(server: OneServer, delayed: bool) -> None:
    """It had been put back for lack of it, for as long as its push could come."""
    pushed = packed_item(Version(1, 5), State.QUEUED, pushed_at_ms=server.now_ms(), attempts=1)
    left_ms = 60_000 if delayed else -5
    assert server.apply(Applied("a", pushed, left_ms)) == ([], [1])
    assert server.claim().ids == []
    assert server.contents().homes("a") == {"scheduled"}
    with server.listen("eve") as listener:
        server.claim("eve", waiter="eve")
        assert server.apply(Applied("a", pushed, left_ms, b"late"), payloads=True) == ([], [])
        assert delayed or listener.heard() == server.key("ready")
    contents = server.contents()
    assert contents.homes("a") == {"scheduled" if delayed else "ready"}
    assert contents.faults == []
    assert server.claim().handed == ({} if delayed else {"a": b"late"})


def test_first_version_is_completed_alike(server: OneServer) -> None:
    """A copy of an unfinished push."""
    record = fresh(0, server.now_ms())
    server.apply(Applied("a", record))
    assert server.record("a").version == FIRST
    assert server.claim().ids == []
    server.apply(Applied("a", record, 0, b"late"), payloads=True)
    assert server.claim().handed == {"a": b"late"}
