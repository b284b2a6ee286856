"""``metadata`` and ``install``: what a queue has besides items, as another server is told it."""

from __future__ import annotations

import time

import pytest

from tests.lua.copying import STATES, one_of_each, status
from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim


def test_metadata_of_an_unknown_queue(server: OneServer) -> None:
    before = server.now_us()
    items, clock, floor_ms, owners = server.metadata()
    assert (items, floor_ms, owners) == (0, 0, {})
    assert before <= clock <= server.now_us()


def test_standing_counts_tombstones_too(server: OneServer) -> None:
    one_of_each(server)
    assert server.metadata().items == len(STATES)


def test_standing_names_last_requests_and_fenced_owners(server: OneServer) -> None:
    server.claim("ann", seq=3)
    server.claim("ann", seq=5)
    server.claim("bob", seq=1)
    server.fence("bob")
    server.fence("eve")  # never claimed here
    time.sleep(0.02)
    owners = server.metadata().owners
    assert owners.keys() == {"ann", "bob", "eve"}
    assert owners["ann"] == (5, -1)
    assert [owners[name][0] for name in ("bob", "eve")] == [1, 0]
    assert all(20 <= owners[name][1] < 20_000 for name in ("bob", "eve"))


def test_standing_names_the_floor(server: OneServer) -> None:
    server.settle(put_and_claim(server, "a").only.settle("ack"), put_window_ms=0)
    after_the_push = 1  # the floor is the millisecond after it, which may not have come
    assert server.now_ms() - 20_000 < server.metadata().floor_ms <= server.now_ms() + after_the_push


def test_installing_names_the_queue_and_the_time(server: OneServer) -> None:
    assert server.queues() == set()
    before = server.now_us()
    assert before <= server.install() <= server.now_us()
    assert server.queues() == {"q"}
    assert server.key_names() == {"server", "queues"}


@pytest.mark.parametrize(("held", "given", "left"), [(0, 7, 7), (7, 9, 9), (9, 7, 9), (9, 10, 10), (10, 9, 10)])
def test_greater_number_and_floor_win(server: OneServer, held: int, given: int, left: int) -> None:
    """They are compared as numbers."""
    server.install(held, {"ann": (held, -1)})
    server.install(given, {"ann": (given, -1)})
    metadata = server.metadata()
    assert (metadata.floor_ms, metadata.owners) == (left, {"ann": (left, -1)})


def test_large_numbers_stay_exact(server: OneServer) -> None:
    floor_ms, seq = 1_800_000_000_123, 2**31 + 1
    server.install(floor_ms, {"ann": (seq, -1)})
    assert (server.metadata().floor_ms, server.metadata().owners["ann"][0]) == (floor_ms, seq)


def test_puts_from_before_an_installed_floor_are_refused(server: OneServer) -> None:
    """Tombstones: the source may have dropped those of what was removed before then."""
    now_ms = server.now_ms()
    server.install(now_ms - 1000)
    assert server.put(Put("old", pushed_at_ms=now_ms - 1001)) == [1]
    assert server.put(Put("new", pushed_at_ms=now_ms - 1000)) == []


def test_installed_owner_is_known(server: OneServer) -> None:
    server.install(0, {"ann": (7, -1)})
    assert server.owners() == {"ann"}
    assert status(lambda: server.claim("ann", seq=6))[0] == "OUTDATED"
    assert server.claim("ann", seq=8).ids == []


def test_installed_fence_refuses(server: OneServer) -> None:
    """Claims: a dead owner's late requests are refused by every server that may become the primary."""
    server.install(0, {"ann": (7, 100), "eve": (0, 0)})
    assert status(lambda: server.claim("ann", seq=8))[0] == "FENCED"
    assert status(lambda: server.claim("eve", seq=1))[0] == "FENCED"
    assert server.owners() == {"ann"}, "who never claimed here has nothing to be dealt with"


def test_fenced_owners_keep_their_age(server: OneServer) -> None:
    server.install(0, {"ann": (7, 300_000)})
    assert 300_000 <= server.metadata().owners["ann"][1] < 320_000


def test_fenced_here_already_is_fenced_since_then(server: OneServer) -> None:
    server.fence("ann")
    server.install(0, {"ann": (7, 300_000)})
    seq, ago_ms = server.metadata().owners["ann"]
    assert seq == 7
    assert 0 <= ago_ms < 20_000


def test_who_is_fenced_here_stays_fenced(server: OneServer) -> None:
    server.fence("ann")
    server.install(0, {"ann": (7, -1)})
    assert server.metadata().owners["ann"][1] >= 0


def test_old_fences_are_forgotten_with_the_next(server: OneServer) -> None:
    """Bounded in memory: an installed one is no younger than it was."""
    server.install(0, {"ann": (0, 700_000), "bob": (0, 500_000)})
    server.fence("eve")
    assert server.metadata().owners.keys() == {"bob", "eve"}


def test_installing_again_changes_nothing(server: OneServer) -> None:
    known = {"ann": (7, 5_000), "bob": (3, -1)}
    server.install(9, known)
    keys = [server.key(name) for name in ("owners", "fenced_owners", "lead")]
    before = server.pipeline(*(("DUMP", key) for key in keys))
    server.install(9, known)
    assert server.pipeline(*(("DUMP", key) for key in keys)) == before
