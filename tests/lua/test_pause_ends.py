"""``pause`` with an end: the queue goes on by itself, on whichever server decides then."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.lua.contents import PAUSE
from tests.lua.one_server import OneServer

SOON_MS, LONG_MS, NAMED_MS = 40, 60_000, 4_000_000_000_123
"""Times that are left; the moment that a client has named, which nothing but the statistics tells."""


def paused(server: OneServer, left_ms: int = LONG_MS, until_ms: int = NAMED_MS) -> None:
    server.pause(until_ms=until_ms, left_ms=left_ms)


def ended(server: OneServer) -> None:
    paused(server, SOON_MS, NAMED_MS + 1)
    time.sleep(2 * SOON_MS / 1000)  # by the clock of the server


def test_it_hands_out_nothing_until_its_end_and_then_everything(server: OneServer) -> None:
    server.put("a")
    paused(server, SOON_MS)
    claimed = server.claim()
    assert claimed.handed == {}
    assert 0 < claimed.next_ms <= SOON_MS, "the consumer asks again at that moment"
    time.sleep((claimed.next_ms + 1) / 1000)
    assert server.claim().ids == ["a"]
    assert server.contents().faults == []


def test_statistics_tell_the_moment_that_was_named(server: OneServer) -> None:
    def told() -> tuple[int, int]:
        figures = server.statistics()
        return figures.paused, figures.paused_until_ms

    assert told() == (0, 0)
    paused(server)
    assert told() == (1, NAMED_MS)
    server.pause()
    assert told() == (1, 0), "the last call holds"
    ended(server)
    assert told() == (0, 0)
    paused(server)
    server.resume()
    assert told() == (0, 0)
    server.pause()
    assert told() == (1, 0)


def test_the_same_end_again_changes_nothing_and_another_does(server: OneServer) -> None:
    paused(server)
    before = server.contents().records[PAUSE]
    paused(server, LONG_MS // 2)
    assert server.contents().records[PAUSE] == before
    paused(server, LONG_MS // 2, NAMED_MS + 1)
    after = server.contents().records[PAUSE]
    assert after.version > before.version
    assert after.due_us < before.due_us
    server.pause(until_ms=NAMED_MS, left_ms=LONG_MS, call="one")
    server.resume()
    assert server.pause(until_ms=NAMED_MS, left_ms=LONG_MS, call="one").keys() == {PAUSE}
    assert server.statistics().paused == 0, "a call that was executed does nothing"


def test_all_who_wait_learn_of_the_end(server: OneServer) -> None:
    with server.listen("ann") as ann, server.listen("bob") as bob:
        server.claim("ann", waiter="ann")
        server.claim("bob", waiter="bob")
        paused(server)
        assert ann.heard() == bob.heard() == server.key("ready")
        assert 0 < server.claim("ann", waiter="ann").next_ms <= LONG_MS


@pytest.mark.parametrize("after", [ended, paused])
def test_another_server_ends_it_at_the_same_time(server: OneServer, after: Callable[[OneServer], None]) -> None:
    """Whatever its clock says: it has the record with the difference of the clocks."""
    decided = server.pause(until_ms=NAMED_MS, left_ms=SOON_MS if after is ended else LONG_MS)[PAUSE]
    server.reset()
    server.put("a")
    server.apply(decided.apply())
    if after is ended:
        time.sleep(2 * SOON_MS / 1000)
    assert server.claim(epoch=2).ids == (["a"] if after is ended else [])
    assert server.contents().faults == []


def test_affirmed_it_keeps_its_end(server: OneServer) -> None:
    """The scrub decides it again under the present epoch, also after its end."""
    server.put("a")
    ended(server)
    server.epoch = 5
    server.affirm(PAUSE)
    assert server.statistics().paused == 0
    assert server.claim().ids == ["a"]


def test_a_pause_that_has_ended_does_not_keep_a_queue(server: OneServer) -> None:
    paused(server)
    assert not server.forget(put_window_ms=SOON_MS)
    ended(server)
    assert not server.forget(put_window_ms=SOON_MS), "its end is remembered"
    time.sleep(3 * SOON_MS / 1000)
    assert server.forget(put_window_ms=SOON_MS)
    assert server.queues() == set()


def test_a_damaged_end_is_no_endless_pause_and_no_error(server: OneServer) -> None:
    """What is stored may be anything: the moment that is told is one that a client can read."""
    server.put("a")
    for field in (b"", b"x", b"12345678", bytes(8), b"\xff" * 8):
        paused(server)
        server.change(PAUSE, lambda bundle, field=field: bundle._replace(fields={"U": field}))
        figures = server.statistics()
        assert (figures.paused, 0 <= figures.paused_until_ms < 2**53) == (1, True)
        assert server.claim().ids == []
        server.resume()
