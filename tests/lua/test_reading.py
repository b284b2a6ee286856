"""``clear``, ``count``, ``read`` and ``queues``: seeing and steering."""

from __future__ import annotations

from tests.lua.one_server import OneServer, Put, put_and_claim
from zkrq.replication.records import State, Version


def one_of_each(server: OneServer) -> None:
    """Items called by their state."""
    server.settle(put_and_claim(server, "gone").only.settle("ack"))
    server.settle(put_and_claim(server, "dead").only.settle("bury", 0, "why"))
    put_and_claim(server, "claimed")
    server.put(Put("ready", b"R"), Put("scheduled", b"S", delay_ms=60_000))


def test_clear_removes_what_is_ready_or_scheduled(server: OneServer) -> None:
    """Rule 8: with tombstones; claimed items stay with their holders."""
    one_of_each(server)
    removed = server.clear(10)
    assert set(removed) == {"ready", "scheduled"}
    assert {each.record.version for each in removed.values()} == {Version(1, 2)}
    contents = server.contents()
    assert contents.ids(State.GONE) == {"gone", "ready", "scheduled"}
    assert server.count() == (0, 0, 1, 1)
    assert contents.faults == []


def test_clear_takes_no_more_than_count(server: OneServer) -> None:
    server.put_numbered(5)
    server.put(*(Put(f"later{n}", delay_ms=60_000) for n in range(5)))
    assert [len(server.clear(count)) for count in (3, 4, 4)] == [3, 4, 3]
    assert server.clear(4) == {}
    assert server.contents().faults == []


def test_clear_stops_where_the_ready_ones_are_enough(server: OneServer) -> None:
    server.put("a", "b", Put("later", delay_ms=60_000))
    assert set(server.clear(2)) == {"a", "b"}
    assert server.count() == (0, 1, 0, 0)


def test_cleared_item_does_not_come_back_with_a_late_push(server: OneServer) -> None:
    """Rule 8."""
    server.put("a")
    server.clear(1)
    server.put("a")
    assert server.claim().ids == []


def test_clear_mends_indexes(server: OneServer) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    put_and_claim(server, "claimed")
    server.command("ZADD", server.key("ready"), 0, "claimed", 0, "unknown")
    assert server.clear(10) == {}
    assert server.contents().faults == []


def test_count_is_by_state(server: OneServer) -> None:
    one_of_each(server)
    assert server.count() == (1, 1, 1, 1)


def test_read_returns_record_payload_and_time_left(server: OneServer) -> None:
    """Catch-up reads what ``apply`` takes."""
    one_of_each(server)
    found = server.read("gone", "dead", "claimed", "ready", "scheduled", "never")
    assert set(found) == {"gone", "dead", "claimed", "ready", "scheduled"}
    records = server.contents().records
    assert {id: decided.record for id, (decided, _) in found.items()} == records
    assert {id: payload for id, (_, payload) in found.items()} == {
        "gone": None,
        "dead": b"payload",
        "claimed": b"payload",
        "ready": b"R",
        "scheduled": b"S",
    }
    left = {id: decided.left_ms for id, (decided, _) in found.items()}
    assert left["ready"] <= 0
    assert 30_000 < left["scheduled"] <= 60_000
    assert 30_000 < left["claimed"] <= 60_000


def test_queues_are_named_from_their_first_item_on(server: OneServer) -> None:
    assert server.queues() == set()
    server.put("a")
    assert server.queues() == {"q"}
