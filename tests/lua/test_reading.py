"""``clear``, ``count``, ``read`` and ``queues``: looking at a queue and clearing it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim, wait_ms
from zkrq.protocol.records import State, Version


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


def test_what_is_due_but_not_promoted_leaves_its_index(server: OneServer) -> None:
    """Claims alone promote, so a decision may find a due item among the scheduled ones."""
    server.put(*(Put(id, delay_ms=1) for id in ("cleared", "cancelled")), Put("later", delay_ms=60_000))
    wait_ms(2)
    server.cancel("cancelled")
    assert server.contents().faults == []
    assert set(server.clear(10)) == {"cleared", "later"}
    assert server.contents().faults == []


def test_clear_takes_no_more_than_count(server: OneServer) -> None:
    server.put_numbered(5)
    server.put(*(Put(f"later{n}", delay_ms=60_000) for n in range(5)))
    assert [len(server.clear(count)) for count in (3, 4, 4)] == [3, 4, 3]
    assert server.clear(4) == {}
    assert server.contents().faults == []


def test_clear_begins_with_what_is_scheduled(server: OneServer) -> None:
    """It may become ready meanwhile; what is ready does not become scheduled again."""
    server.put("a", "b", Put("later", delay_ms=60_000))
    assert set(server.clear(2)) == {"a", "later"}
    assert server.count() == (1, 0, 0, 0)


def clear_all(server: OneServer, count: int, meanwhile: Callable[[int], object]) -> list[str]:
    """Page by page, with something between them."""
    removed: list[str] = []
    before_ms, cursor, page = 0, b"", 0
    while True:
        before_ms, cursor, decided = server.clear_page(count, before_ms=before_ms, cursor=cursor)
        removed += decided
        if not cursor:
            return removed
        page += 1
        assert page < 100, "it ends"
        meanwhile(page)


def test_clear_passes_over_what_was_pushed_since(server: OneServer) -> None:
    """At every place: before what is old and after it, of the same moment, ready and scheduled."""
    old = [f"old{n}" for n in range(20)]
    server.put(*(Put(id, delay_ms=n % 2 * 60_000, priority=n % 3) for n, id in enumerate(old)))
    later_ms = server.now_us() // 1000 + 5_000  # as if the clock had gone on

    def push(page: int) -> None:
        puts = [
            Put(f"new{page}-{delay_ms}-{priority}", delay_ms=delay_ms, priority=priority, pushed_at_ms=later_ms)
            for delay_ms in (0, 30_000, 60_000, 90_000)
            for priority in (0, 2, 9)
        ]
        server.put(*puts)

    removed = clear_all(server, 5, lambda page: push(page) if page < 6 else None)
    assert sorted(removed) == sorted(old)
    assert server.contents().faults == []


@pytest.mark.parametrize("gone", ["claimed", "moved"])
def test_clear_goes_on_where_the_one_passed_over_last_has_left(server: OneServer, gone: str) -> None:
    """The cursor names it, and its place."""
    later_ms = server.now_us() // 1000 + 5_000
    server.put(*(Put(f"new{n}", priority=9, pushed_at_ms=later_ms) for n in range(4)))
    server.put(*(Put(f"old{n}") for n in range(8)))

    def move(page: int) -> None:
        if page > 2:
            return
        claimed = server.claim(count=2)
        assert claimed.ids[0].startswith("new")
        if gone == "moved":
            server.settle(*(each.settle("nack", 0) for each in claimed.decided.values()))

    assert sorted(clear_all(server, 2, move)) == [f"old{n}" for n in range(8)]
    assert server.contents().faults == []


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
    assert {id: copy.record for id, copy in found.items()} == records
    assert {id: copy.payload for id, copy in found.items()} == {
        "gone": None,
        "dead": b"payload",
        "claimed": b"payload",
        "ready": b"R",
        "scheduled": b"S",
    }
    left = {id: copy.left_ms for id, copy in found.items()}
    assert left["ready"] <= 0
    assert 30_000 < left["scheduled"] <= 60_000
    assert 30_000 < left["claimed"] <= 60_000


def test_queues_are_named_from_their_first_item_on(server: OneServer) -> None:
    assert server.queues() == set()
    server.put("a")
    assert server.queues() == {"q"}
