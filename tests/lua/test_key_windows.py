"""``push`` with a window: a key stays taken for a time after a push, whatever becomes of its item."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from tests.lua.entries import Decided, Put
from tests.lua.one_server import OneServer

LONG_MS, SHORT_MS = 60_000, 20

WINDOW = "\1window k"
"""The record of the window of the key k."""


def keyed(id: str, **fields: int) -> Put:
    return Put(id, id.encode(), key="k")._replace(**fields)


def push(server: OneServer, put: Put | str, window_ms: int = LONG_MS, **options: int) -> tuple[str, dict[str, Decided]]:
    """What became of it, and what was decided."""
    put = keyed(put) if isinstance(put, str) else put
    (outcome,), decided = server.push(put, key_window_ms=window_ms, **options)
    return outcome, decided


def settled(server: OneServer, verb: str) -> dict[str, Decided]:
    return server.settle(server.claim().only.settle(verb)).decided


def tell(server: OneServer, *decisions: dict[str, Decided], payload: bytes = b"") -> None:
    """Another server applies them."""
    server.apply(*(each.apply(payload) for decided in decisions for each in decided.values()), payloads=bool(payload))


@pytest.mark.parametrize("end", ["ack", "cancel", "clear", "delete"])
def test_a_key_stays_taken_though_its_item_has_ended(server: OneServer, end: str) -> None:
    assert push(server, "a")[0] == "+"
    assert push(server, "b")[0] == "=a"
    match end:
        case "ack":
            settled(server, "ack")
        case "cancel":
            server.cancel("a")
        case "clear":
            server.clear(10)
        case _:
            server.cancel("a")
            server.delete()
            time.sleep(0.005)
    assert push(server, "b")[0] == "Wa"
    assert push(server, "c", SHORT_MS)[0] == "Wa", "the window of the first one counts"
    assert server.contents().faults == []


def test_a_push_without_a_window_asks_for_none(server: OneServer) -> None:
    push(server, "a")
    settled(server, "ack")
    assert push(server, "b", 0)[0] == "+"
    assert push(server, "c")[0] == "=b", "it has the key while it is there"
    settled(server, "ack")
    assert push(server, "c")[0] == "Wa", "and has begun no window"


def test_a_dead_letter_is_named_as_one_that_is_there(server: OneServer) -> None:
    push(server, "a")
    settled(server, "bury")
    assert push(server, "b")[0] == "=a"


def test_a_window_ends_and_the_next_item_begins_another(server: OneServer) -> None:
    for id in ("a", "b", "c"):
        began = time.monotonic()
        assert push(server, id, SHORT_MS)[0] == "+"
        settled(server, "ack")
        told = push(server, f"{id} again", SHORT_MS)[0]
        if time.monotonic() - began < SHORT_MS / 1000:
            assert told == f"W{id}", "which does not prolong it"
        elif told == "+":  # a machine that stood still
            settled(server, "ack")
        time.sleep(SHORT_MS / 1000)


def test_the_record_of_a_window_does_not_grow(server: OneServer) -> None:
    sizes: set[int] = set()
    for number in range(10):
        id = f"={number}"
        _, decided = push(server, id, 1)
        sizes.add(len(decided[WINDOW].packed))
        settled(server, "ack")
        time.sleep(0.002)
    assert len(sizes) == 1


def test_items_of_one_call(server: OneServer) -> None:
    outcomes, _ = server.push(keyed("a"), keyed("a"), keyed("b"), key_window_ms=LONG_MS)
    assert outcomes == ["+", "K", "=a"]


@pytest.mark.parametrize("how", ["decided", "copied"])
def test_another_server_has_the_window(server: OneServer, how: str) -> None:
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        _, pushed = push(server, "a")
        acked = settled(server, "ack")
        if how == "decided":
            tell(other, pushed, acked)
        else:
            other.apply(*(copy.applied for copy in server.page()[1].found.values()))
        other.epoch = 2
        assert push(other, "b")[0] == "Wa"
        assert other.contents().faults == []


def test_a_duplicate_is_told_with_what_it_relies_on(server: OneServer) -> None:
    """The client of the first push may have died before it told the other servers of its decision."""
    push(server, "a")
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        tell(other, push(server, "b")[1], payload=b"a")
        tell(other, settled(server, "ack"))
        assert push(other, "c")[0] == "Wa"


def test_a_server_that_has_the_item_from_its_claim_begins_the_window(server: OneServer) -> None:
    """A claim overtook the push, whose primary died; the push is repeated at this server."""
    with OneServer(server.host, server.port, database=1) as other:
        other.enrol()
        push(server, "a")
        tell(other, server.claim().decided, payload=b"a")
        other.epoch = 2
        outcome, decided = push(other, "a", again=1)
        assert (outcome, WINDOW in decided) == ("K", True)
        other.cancel("a")
        assert push(other, "b")[0] == "Wa"


def test_a_repeated_push_tells_its_window(server: OneServer) -> None:
    """Only this server may have heard of the former try."""
    put = keyed("a", pushed_at_ms=server.now_ms())
    push(server, put)
    for end in ("queued", "gone"):
        if end == "gone":
            server.cancel("a")
        with OneServer(server.host, server.port, database=1) as other:
            other.enrol()
            tell(other, push(server, put)[1], payload=b"a")
            other.cancel("a")
            assert push(other, "b")[0] == "Wa"
            other.command("FLUSHDB")


def test_a_push_that_is_repeated_after_its_window_begins_none(server: OneServer) -> None:
    put = keyed("a", pushed_at_ms=server.now_ms())
    push(server, put, SHORT_MS)
    time.sleep(SHORT_MS / 1000)
    assert push(server, put)[0] == "K"
    server.cancel("a")
    assert push(server, put)[0] == "D"
    assert push(server, "b")[0] == "+"


def test_a_push_that_is_repeated_long_after_its_window_begins_none(server: OneServer) -> None:
    """Nothing is remembered of that window by then."""
    put = keyed("a", pushed_at_ms=server.now_ms())
    push(server, put, SHORT_MS)
    time.sleep(SHORT_MS / 1000)
    assert WINDOW not in trimmed(server)
    assert push(server, put, SHORT_MS, put_window_ms=1)[0] == "K"
    server.cancel("a")
    assert push(server, "b")[0] == "+"


def test_an_item_that_is_refused_by_the_next_primary_leaves_no_window(server: OneServer) -> None:
    """The primary died when only a follower had heard of its decision."""
    with OneServer(server.host, server.port, database=1) as follower:
        follower.enrol()
        tell(follower, push(server, "a")[1], payload=b"a")
        with OneServer(server.host, server.port, database=2) as third:
            third.enrol()
            third.put("other")
            for each in (follower, third):
                each.epoch = 2
                each.seal(2)
            outcome, decided = push(third, "a", again=1, max_size=1)
            assert (outcome, WINDOW in decided) == ("F", True)
            tell(follower, decided)
            assert set(trimmed(follower)) == set()
            assert push(follower, "b")[0] == "+"


def test_a_later_push_of_the_same_id_that_is_refused_ends_no_window(server: OneServer) -> None:
    """Its item is forgotten, another one without a window has the key, and two primaries decide the push."""
    push(server, "a")
    settled(server, "ack")
    assert set(trimmed(server)) == {WINDOW}
    assert push(server, "b", 0)[0] == "+"
    assert push(server, "a", again=1)[0] == "=b"
    server.cancel("b")
    assert push(server, "c")[0] == "Wa"


def trimmed(server: OneServer) -> Iterable[str]:
    """What is remembered once the put window is long over."""
    time.sleep(0.005)
    server.trim(put_window_ms=0)
    return server.contents().records


def test_a_window_outlives_what_is_remembered_of_its_item(server: OneServer) -> None:
    put = keyed("a")
    push(server, put)
    settled(server, "ack")
    assert set(trimmed(server)) == {WINDOW}
    assert push(server, "b")[0] == "Wa"
    assert push(server, put)[0] == "D"
    assert not server.forget(put_window_ms=0)


def test_a_window_is_dropped_in_time(server: OneServer) -> None:
    push(server, "a", SHORT_MS)
    settled(server, "ack")
    time.sleep(SHORT_MS / 1000)
    assert set(trimmed(server)) == set()
    server.retire("ann")
    assert server.forget(put_window_ms=0)
