"""``page`` and ``read``: the pages in which items are copied, and the bytes that a reply may have."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lua.copying import BYTES_MAX, KIB, SOURCE, STATES, TABLE, TARGET, carried_out, copy, one_of_each, place
from tests.lua.entries import WINDOW_MS, Applied, Put, packed_item
from tests.lua.one_server import OneServer, put_and_claim
from tests.lua.player import Pair
from zkrq.protocol import copying
from zkrq.protocol.copying import copy_items
from zkrq.protocol.records import State, Version

# -- page ----------------------------------------------------------------------------------------------------------


def all_pages(server: OneServer, count: int = 200, meanwhile: Callable[[], object] = lambda: None) -> list[str]:
    """Every id of every page; ``meanwhile`` is called between two pages."""
    ids: list[str] = []
    cursor = b"0"
    while True:
        cursor, page = server.page(cursor, count)
        ids += [*page.found, *page.left_out]
        if cursor == b"0":
            return ids
        meanwhile()


def test_page_tells_what_read_tells(server: OneServer) -> None:
    one_of_each(server)
    clock = server.metadata().clock
    cursor, page = server.page(clock=clock)
    assert cursor == b"0"
    assert set(page.found) == set(STATES)
    living = {id: copy for id, copy in page.found.items() if id != "gone"}
    assert server.read_some(*living, clock=clock) == (living, [])
    gone = page.found["gone"]
    assert server.read_some("gone").found["gone"]._replace(since=gone.since) == gone
    records = server.contents().records
    assert {id: copy.record for id, copy in page.found.items()} == records


def test_copies_count_from_the_time_that_is_named(server: OneServer) -> None:
    one_of_each(server)
    contents = server.contents()
    clock = server.metadata().clock - 1_000_000
    _, page = server.page(clock=clock)
    for id in STATES[1:]:
        assert page.found[id].left_ms == pytest.approx((contents.moment_us(id) - clock) / 1000, abs=0.0011)


def test_copies_count_from_now_unless_a_time_is_named(server: OneServer) -> None:
    one_of_each(server)
    contents = server.contents()
    before = server.now_us()
    _, page = server.page()
    after = server.now_us()
    for id in STATES[1:]:
        left_us = page.found[id].left_ms * 1000
        assert contents.moment_us(id) - after - 1 <= left_us <= contents.moment_us(id) - before + 1


def test_installed_copies_count_from_the_time_that_is_named(server: OneServer) -> None:
    server.apply(Applied("a", packed_item(Version(1, 2), State.DEAD), -1.5), clock=1_700_000_000_000_000)
    assert server.contents().dead == {"a": 1_700_000_000_000_000 - 1_500}


def test_empty_queue_is_one_empty_page(server: OneServer) -> None:
    assert server.page() == (b"0", ({}, []))


def test_page_is_about_as_long_as_asked(server: OneServer) -> None:
    """Large pages would block the server; the records of small queues come at once."""
    server.put_numbered(3_000)
    _, page = server.page(count=200)
    assert 200 <= len(page.found) < 300


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.chaos), 200, pytest.param(1_000, marks=pytest.mark.chaos)]
)
def test_pages_visit_whoever_stays_while_the_queue_grows(server: OneServer, count: int) -> None:
    """Catch-up (4): the first page is read when the learner is given every write; what was there before is copied."""
    staying = server.put_numbered(1_500)
    come = 0

    def others_come() -> None:
        nonlocal come
        if come < 8_000:
            server.put(*(Put(f"later{come + n}") for n in range(500)))
            come += 500

    ids = all_pages(server, count, others_come)
    assert come >= 500
    assert set(staying) <= set(ids)


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.chaos), 200, pytest.param(1_000, marks=pytest.mark.chaos)]
)
def test_pages_visit_whoever_stays_while_the_queue_shrinks(server: OneServer, count: int) -> None:
    """Tombstones are dropped meanwhile, so that the hash is made smaller between two pages."""
    for start in range(0, 20_000, 500):
        server.put(*(Put(f"other{start + n}", priority=9) for n in range(500)))
    staying = server.put_numbered(1_500)

    def others_go() -> None:
        for _ in range(5):
            claimed = server.claim(count=500)
            if claimed.handed and not set(claimed.handed) & set(staying):
                server.settle(*claimed.settle("ack"), put_window_ms=0)

    ids = all_pages(server, count, others_go)
    assert server.metadata().items < 10_000, "else this shows nothing"
    assert set(staying) <= set(ids)


def test_pages_visit_whoever_stays_while_others_come_and_go(server: OneServer) -> None:
    staying = server.put_numbered(2_500)
    come = 0

    def others_come_and_go() -> None:
        nonlocal come
        server.put(*(Put(f"other{come + n}", priority=9) for n in range(400)))
        come += 400
        for _ in range(2):
            server.settle(*server.claim(count=200).settle("ack"), put_window_ms=0)

    assert set(staying) <= set(all_pages(server, 100, others_come_and_go))
    assert come > 4_000
    assert server.contents().ids(State.QUEUED) == set(staying)


# -- the limit of bytes --------------------------------------------------------------------------------------------


def test_payloads_beyond_the_limit_are_named(server: OneServer) -> None:
    """One reply must neither block the server nor fill the client's memory."""
    large = bytes(600 * KIB)
    server.put(*(Put(id, large) for id in "abc"))
    assert server.read_some("a", "b", "c")[1] == ["b", "c"]
    assert server.read_some("b", "c")[1] == ["c"]
    _, page = server.page()
    assert (len(page.found), len(page.left_out)) == (1, 2)
    assert {*page.found, *page.left_out} == set("abc")


def test_payload_larger_than_the_limit_comes_alone(server: OneServer) -> None:
    server.put(Put("a", bytes(3 * BYTES_MAX)))
    for copies in (server.read_some("a"), server.page()[1]):
        assert (set(copies.found), copies.left_out) == ({"a"}, [])
        assert copies.found["a"].payload == bytes(3 * BYTES_MAX)


@pytest.mark.parametrize(
    ("sizes", "left_out"),
    [
        ((512 * KIB - TABLE, 512 * KIB - TABLE), []),  # exactly the limit
        ((512 * KIB - TABLE, 512 * KIB - TABLE, 1), ["2"]),
        ((1, BYTES_MAX - TABLE), ["1"]),
        ((BYTES_MAX - 2 * TABLE, 0), []),
        ((2 * BYTES_MAX, 2 * BYTES_MAX), ["1"]),
        ((2 * BYTES_MAX, 1), ["1"]),
        ((0, 2 * BYTES_MAX), ["1"]),
    ],
)
def test_limit_of_bytes(server: OneServer, sizes: tuple[int, ...], left_out: list[str]) -> None:
    ids = [str(n) for n in range(len(sizes))]
    server.put(*(Put(id, bytes(size)) for id, size in zip(ids, sizes, strict=True)))
    copies = server.read_some(*ids)
    assert copies.left_out == left_out
    assert [*copies.found, *copies.left_out] == ids


def test_items_without_payload_are_never_left_out(server: OneServer) -> None:
    """Tombstones, and decisions whose push has not come: there is nothing to wait for."""
    server.put(Put("large", bytes(2 * BYTES_MAX)))
    server.settle(put_and_claim(server, Put("gone", priority=9)).only.settle("ack"))
    server.apply(Applied("bare", packed_item(Version(1, 2), State.CLAIMED, token="ann/1")))
    copies = server.read_some("large", "gone", "bare", "unknown")
    assert {id: copy.payload is None for id, copy in copies.found.items()} == {
        "large": False,
        "gone": True,
        "bare": True,
    }
    assert copies.left_out == []


LIMIT = 1_000


@given(st.lists(st.integers(0, 2 * LIMIT), min_size=1, max_size=30))
def test_every_reply_keeps_to_the_limit_and_goes_on(pair: Pair, sizes: list[int]) -> None:
    pair.reset()
    server, left = pair.one, [str(n) for n in range(len(sizes))]
    server.limits["BYTES_MAX"] = LIMIT
    try:
        server.put(*(Put(id, bytes(size)) for id, size in zip(left, sizes, strict=True)))
        while left:
            found, left_out = server.read_some(*left)
            assert found, "no call is in vain"
            assert {*found, *left_out} == set(left)
            assert (
                sum(len(copy.payload or b"") for copy in found.values()) <= LIMIT
                or len([copy for copy in found.values() if copy.payload]) == 1
            )
            left = left_out
    finally:
        server.limits.clear()


def test_large_payloads_are_copied(server: OneServer, other: OneServer) -> None:
    payloads = {str(n): bytes([n]) * 600 * KIB for n in range(7)} | {"huge": bytes(3 * BYTES_MAX)}
    for id, payload in payloads.items():
        server.put(Put(id, payload))
    assert copy(server, other) == len(payloads)
    assert other.contents().payloads == payloads


def test_items_are_read_and_copied_by_their_ids(server: OneServer, other: OneServer) -> None:
    """As many as there are, in as many calls as their payloads need; unknown ones are left out."""
    ids = server.put_numbered(2 * copying.READ_MAX + 1)
    server.put(*(Put(f"large{n}", bytes(600 * KIB)) for n in range(3)))
    large = [f"large{n}".encode() for n in range(3)]
    asked = [id.encode() for id in ids] + large
    carried_out(copy_items(place(SOURCE), place(TARGET), "q", [*asked, b"unknown"]), source=server, target=other)
    assert other.contents().records == server.contents().records
    assert other.contents().payloads == server.contents().payloads


def test_copied_live_item_leaves_the_payload_of_a_tombstone(server: OneServer, other: OneServer) -> None:
    """The target knows of an ack that the source has not heard of.  The producer's clock was ahead, so the item seems
    to be pushed after its removal; but it is the same life, and only the target may have its bytes."""
    pushed_at_ms = int(time.time() * 1000) + WINDOW_MS // 2
    for each in (server, other):
        each.put(Put("a", b"bytes", pushed_at_ms=pushed_at_ms))
    claim = server.claim().only
    assert other.apply(claim.apply()) == ([], [])
    other.settle(claim.settle("ack"))
    server.epoch = other.epoch = 2
    server.fence("ann")
    server.command("HDEL", server.key("payloads"), "a")
    carried_out(copy_items(place(SOURCE), place(TARGET), "q", [b"a"]), source=server, target=other)
    assert other.contents().payloads == {"a": b"bytes"}
