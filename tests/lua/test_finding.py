"""``keyed`` and ``dead_page``: what finds items by an index."""

from __future__ import annotations

import pytest

from tests.lua.entries import Put
from tests.lua.letters import bury, letters
from tests.lua.one_server import OneServer, entry_of, put_and_claim
from zkrq.protocol import calls
from zkrq.protocol.records import State


def with_key(server: OneServer, key: str) -> dict[str, State]:
    found, left_out = server.ask(calls.Keyed(server.queue, key))
    assert not left_out
    return {copied.id.decode(): server.contents().records[copied.id.decode()].state for copied in found}


def page(server: OneServer, cursor: bytes = calls.START, count: int = 10) -> tuple[bytes, list[str]]:
    reply = server.ask(calls.DeadPage(server.queue, cursor, count))
    read = {copied.id for copied in reply.copies.items} | set(reply.copies.beyond)
    assert {bundle for bundle, _ in reply.places} <= read
    return reply.cursor, [bundle.decode() for bundle, _ in reply.places]


def test_a_key_names_its_item_while_it_is_queued_or_claimed(server: OneServer) -> None:
    server.put(Put("ready", key="a"), Put("later", key="b", delay_ms=60_000), "plain")
    assert with_key(server, "a") == {"ready": State.QUEUED}
    assert with_key(server, "b") == {"later": State.QUEUED}
    assert with_key(server, "") == with_key(server, "none") == {}
    claimed = server.claim(count=1)
    assert with_key(server, "a") == {"ready": State.CLAIMED}
    server.settle(claimed.only.settle("bury", 0, "why"))
    assert with_key(server, "a") == {}, "of dead letters the index knows nothing"


def test_a_key_may_name_several_items_after_a_merge(server: OneServer) -> None:
    server.put(Put("one", key="a"), Put("two", key="b"))
    server.command("HSET", server.key("keys"), "a", "one\1two\1gone")
    assert with_key(server, "a") == {"one": State.QUEUED, "two": State.QUEUED}


def test_large_items_with_a_key_are_named_only(server: OneServer) -> None:
    server.put(Put("one", bytes(700_000), key="a"), Put("two", bytes(700_000), key="b"))
    server.command("HSET", server.key("keys"), "a", "one\1two")
    found, left_out = server.ask(calls.Keyed(server.queue, "a"))
    assert ([copied.id for copied in found], left_out) == ([b"one"], [b"two"])


@pytest.mark.parametrize("count", [1, 3, 10, 11])
def test_pages_have_every_letter_once_in_the_order_of_death(server: OneServer, count: int) -> None:
    ids = letters(10)
    bury(server, *ids)
    put_and_claim(server, "claimed")
    server.put("ready")
    found, cursor, pages = list[str](), calls.START, 0
    while pages == 0 or cursor != calls.START:
        cursor, some = page(server, cursor, count)
        found, pages = found + some, pages + 1
        assert len(some) <= count
    assert found == ids
    assert server.contents().faults == []


def test_no_letter_and_no_count(server: OneServer) -> None:
    assert page(server) == (calls.START, [])
    bury(server, "a")
    assert page(server, count=0) == (calls.START, [])


def test_letters_that_leave_hide_no_other(server: OneServer) -> None:
    """Also the one that the cursor names, and where several died at the same moment."""
    ids = letters(9)
    bury(server, *ids)
    moment = server.now_us()
    for id in ids[2:7]:
        server.command("ZADD", server.key("dead"), "XX", moment + 10**6, entry_of(id))
    order = [*ids[:2], *ids[7:], *ids[2:7]]
    cursor, first = page(server, count=6)
    assert first == order[:6]
    server.cancel(order[5], order[1])
    _, second = page(server, cursor)
    assert set(second) >= set(order[6:]), "those of that moment may come again"
    assert not set(second) & {order[0], order[1], order[5]}


def test_a_letter_that_dies_meanwhile_comes_last(server: OneServer) -> None:
    bury(server, *letters(4))
    cursor, _ = page(server, count=4)
    bury(server, "young")
    assert page(server, cursor) == (calls.START, ["young"])


def test_each_letter_of_a_bundle_has_its_place(server: OneServer) -> None:
    server.put(Put("0a-0-0", [b"a", b"b", b"c", b"d"]))
    claimed = server.claim()
    decided = claimed.decided["0a-0-0"]
    server.settle(decided.settle("bury", 0, "why", [3]), decided.settle("bury", 0, "why", [1]))
    reply = server.ask(calls.DeadPage(server.queue, calls.START, 10))
    assert sorted(reply.places) == [(b"0a-0-0", 1), (b"0a-0-0", 3)]
    assert len(reply.copies.items) == 1


def test_a_page_has_bounded_letters(server: OneServer) -> None:
    server.limits["LETTERS_MAX"] = 3
    bury(server, *letters(5))
    cursor, first = page(server, count=100)
    assert (first, page(server, cursor, 100)) == (letters(5)[:3], (calls.START, letters(5)[3:]))
