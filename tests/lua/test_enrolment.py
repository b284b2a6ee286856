"""``enrol`` and ``reserve``: a server gets a generation, in time, and is kept for one client meanwhile."""

from __future__ import annotations

import time

import pytest

from tests.lua.copying import PUSHED_AT_MS, one_of_each, status
from tests.lua.entries import Put
from tests.lua.one_server import OneServer
from zkrq.protocol import calls

# -- enrol ---------------------------------------------------------------------------------------------------------


def enrolment(server: OneServer) -> object:
    return server.command("HMGET", "{t}:server", "generation", "epoch", "name")


def test_late_enrolment_is_refused(server: OneServer) -> None:
    """A server that was flushed meanwhile has no generation left to compare: only time tells a late duplicate."""
    server.command("FLUSHALL")
    late = server.now_us() - 10_001_000
    assert status(lambda: server.enrol("g2", clock=late, window_ms=10_000)) == ("LATE", ())
    assert server.key_names() == set()
    server.enrol("g2", clock=server.now_us() - 5_000_000, window_ms=10_000)


def test_enrolment_is_in_time_by_the_servers_clock_alone(server: OneServer) -> None:
    """A clock that was set back meanwhile does no harm."""
    server.enrol("g2", "g1", clock=server.now_us() + 60_000_000, window_ms=1)
    assert enrolment(server) == [b"g2", b"1", b"redis-1"]


@pytest.mark.parametrize(("generation", "expected"), [("g1", ""), ("g2", "g1"), ("g2", "g0")])
def test_late_enrolment_is_refused_whatever_it_says(server: OneServer, generation: str, expected: str) -> None:
    before = enrolment(server)
    assert status(lambda: server.enrol(generation, expected, clock=1, window_ms=1))[0] == "LATE"
    assert enrolment(server) == before


def test_server_that_has_seen_a_later_epoch_is_not_enrolled(server: OneServer) -> None:
    """The view that says so is not the present one; or ZooKeeper has lost data."""
    server.seal(10)
    assert status(lambda: server.enrol("g2", "g1", epoch=9)) == ("STALE", (b"10",))
    assert enrolment(server) == [b"g1", b"10", b"redis-1"]
    server.enrol("g2", "g1", epoch=10)
    assert enrolment(server) == [b"g2", b"10", b"redis-1"]


def test_server_of_another_generation_is_not_enrolled(server: OneServer) -> None:
    """Rule 10."""
    assert status(lambda: server.enrol("g3", "g0", holding=1)) == ("MISMATCH", (b"g1",))
    assert status(lambda: server.enrol("g3", "", holding=1)) == ("MISMATCH", (b"g1",))
    assert enrolment(server) == [b"g1", b"1", b"redis-1"]


def test_flushed_server_is_of_another_generation(server: OneServer) -> None:
    server.command("FLUSHALL")
    assert status(lambda: server.enrol("g2", "g1")) == ("MISMATCH", (b"",))
    assert server.key_names() == set()


def test_server_with_items_is_enrolled_only_where_that_is_expected(server: OneServer) -> None:
    """Founding takes over nothing silently; who catches up wipes afterwards, who recovers has merged before."""
    one_of_each(server)
    before = server.contents()
    assert status(lambda: server.enrol("g2", "g1", holding=0)) == ("HOLDSDATA", ())
    assert enrolment(server) == [b"g1", b"1", b"redis-1"]
    server.enrol("g2", "g1", holding=1)
    assert enrolment(server) == [b"g2", b"1", b"redis-1"]
    assert server.contents() == before


def test_nobody_believes_what_a_server_holds_under_another_generation(server: OneServer) -> None:
    one_of_each(server)
    server.enrol("g2", "g1", holding=1)
    assert status(lambda: server.page()) == ("NOTINSYNC", (b"g2",))
    assert status(lambda: server.claim()) == ("NOTINSYNC", (b"g2",))


@pytest.mark.parametrize("holding", [0, 1])
def test_enrolment_repeated_is_ok(server: OneServer, holding: int) -> None:
    """Also when items have come meanwhile, and a later epoch."""
    server.enrol("g2", "g1", holding=holding)
    server.put(Put("a", b"p", pushed_at_ms=PUSHED_AT_MS), generation="g2")
    server.seal(5, "g2")
    server.enrol("g2", "g1", holding=holding)
    assert enrolment(server) == [b"g2", b"5", b"redis-1"]


def test_enrolment_in_the_same_life_gives_another_name(server: OneServer) -> None:
    server.enrol("g2", "g1", name="redis-9")
    server.enrol("g2", "g1", name="redis-10")
    assert enrolment(server) == [b"g2", b"1", b"redis-10"]


def test_emptied_server_is_enrolled(server: OneServer) -> None:
    one_of_each(server)
    server.wipe()
    server.enrol("g2", "g1", holding=0)


# -- reserve -------------------------------------------------------------------------------------------------------


def wait_until_free(hold_ms: int) -> None:
    time.sleep((hold_ms + 2) / 1000)


def test_reserved_server_is_taken(server: OneServer) -> None:
    server.reserve("one", 10_000)
    name, (left_ms,) = status(lambda: server.reserve("two", 10_000))
    assert name == "TAKEN"
    assert isinstance(left_ms, int)
    assert 5_000 < left_ms <= 10_000


def test_reservation_is_kept_by_who_has_it(server: OneServer) -> None:
    """From each time on when it asks."""
    server.reserve("one", 60)
    time.sleep(0.04)
    server.reserve("one", 60_000)
    time.sleep(0.04)
    assert status(lambda: server.reserve("two", 60_000))[0] == "TAKEN"


def test_reservation_ends_by_itself(server: OneServer) -> None:
    server.reserve("one", 20)
    wait_until_free(20)
    server.reserve("two", 10_000)
    assert status(lambda: server.reserve("one", 10_000))[0] == "TAKEN"


def test_who_is_refused_leaves_the_reservation_as_it_is(server: OneServer) -> None:
    server.reserve("one", 10_000)
    before = server.command("HGETALL", "{t}:server")
    status(lambda: server.reserve("two", 10_000))
    assert server.command("HGETALL", "{t}:server") == before


def test_clock_that_was_set_back_reserves_nothing_for_ever(server: OneServer) -> None:
    """Longer than anybody asks for it: nobody else may be kept out until that clock has caught up."""
    server.reserve("one", 3_600_000)
    server.reserve("two", 10_000)


def test_server_without_generation_is_reserved_and_gets_none(server: OneServer) -> None:
    """Catch-up: it is reserved before it is enrolled."""
    server.command("FLUSHALL")
    server.reserve("one")
    assert status(lambda: server.reserve("two"))[0] == "TAKEN"
    assert server.command("HMGET", "{t}:server", "generation", "epoch", "name") == [None, None, None]
    assert status(lambda: server.seal(1)) == ("NOTINSYNC", (b"",))
    server.enrol("g2", "")
    assert status(lambda: server.reserve("two"))[0] == "TAKEN"


def test_reserving_changes_neither_life_nor_epoch(server: OneServer) -> None:
    one_of_each(server)
    before, contents = enrolment(server), server.contents()
    server.ask(calls.Reserve("one", 10_000), epoch=99, generation="g9")
    assert enrolment(server) == before
    assert server.contents() == contents
