"""``forget``: a queue of which nothing is left says the same as one that was never there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.lua.entries import Put
from tests.lua.one_server import OneServer, put_and_claim

SOON_MS = 20
"""A put window after twice of which, and no later, tombstones have expired."""


def emptied(server: OneServer) -> None:
    """Items were there, all are gone."""
    server.settle(*put_and_claim(server, "a", "b").settle("ack"))
    server.put(Put("c", delay_ms=60_000))
    server.push(Put("k", key="key", ttl_ms=60_000))
    server.cancel("c", "k")


def of_the_queue(server: OneServer) -> set[str]:
    return server.key_names() - {"server", "queues"}


def expire(server: OneServer) -> None:
    """Let tombstones expire, and drop them."""
    time.sleep(3 * SOON_MS / 1000)
    server.trim(put_window_ms=SOON_MS)


def forget_in_time(server: OneServer) -> None:
    """Let everything expire, and forget the queue."""
    for owner in server.owners():
        server.retire(owner)
    expire(server)
    assert server.forget(put_window_ms=SOON_MS)


def test_nothing_of_a_forgotten_queue_is_left(server: OneServer) -> None:
    emptied(server)
    server.pause()
    server.resume()
    server.delete()
    assert len(of_the_queue(server)) > 3
    forget_in_time(server)
    assert server.key_names() == {"server"}


def test_other_queues_stay(server: OneServer) -> None:
    emptied(server)
    server.queue = "other"
    server.put("a")
    there = server.contents()
    server.queue = "q"
    forget_in_time(server)
    server.queue = "other"
    assert server.contents() == there
    assert server.command("SMEMBERS", server.key("queues")) == [b"other"]


NEEDED: dict[str, Callable[[OneServer], object]] = {
    "ready": lambda s: s.put("x"),
    "scheduled": lambda s: s.put(Put("x", delay_ms=60_000)),
    "claimed": lambda s: put_and_claim(s, "x"),
    "dead": lambda s: s.settle(*put_and_claim(s, "x").settle("bury")),
    "paused": lambda s: s.pause(),
}
"""What is there of a queue that is never forgotten."""


@pytest.mark.parametrize("why", NEEDED)
def test_queue_with_something_in_it_stays(server: OneServer, why: str) -> None:
    NEEDED[why](server)
    there = server.contents()
    time.sleep(3 * SOON_MS / 1000)
    assert not server.forget(put_window_ms=SOON_MS)
    assert server.contents() == there


REMEMBERED: dict[str, Callable[[OneServer], object]] = {
    "tombstones": lambda s: (s.put("x"), s.cancel("x")),
    "deletion": lambda s: (s.put("x"), s.cancel("x"), s.delete()),
    "end of a pause": lambda s: (s.pause(), s.resume()),
    "consumer": lambda s: s.claim("ann"),
    "fence": lambda s: (s.put("x"), s.cancel("x"), expire(s), s.fence("ann")),
    "floor": lambda s: (s.put("x"), s.cancel("x"), expire(s)),
}


@pytest.mark.parametrize("what", REMEMBERED)
def test_what_is_remembered_keeps_an_emptied_queue(server: OneServer, what: str) -> None:
    REMEMBERED[what](server)
    assert not server.forget()


def test_emptied_queue_is_forgotten_in_time(server: OneServer) -> None:
    emptied(server)
    server.pause()
    server.resume()
    for owner in server.owners():
        server.retire(owner)
    assert not server.forget(put_window_ms=SOON_MS)
    expire(server)
    assert server.forget(put_window_ms=SOON_MS)
    assert server.key_names() == {"server"}


def test_queue_begins_again(server: OneServer) -> None:
    emptied(server)
    forget_in_time(server)
    server.put("a", "d")
    assert server.claim().ids == ["a", "d"]
    assert server.contents().faults == []


def test_pause_of_the_next_life_is_above_that_of_the_former(server: OneServer) -> None:
    """A server that has missed the forgetting does not take it for an older one."""
    (former,) = server.pause().values()
    (ended,) = server.resume().values()
    time.sleep(3 * SOON_MS / 1000)
    assert server.forget(put_window_ms=SOON_MS)
    time.sleep(2.1)  # the least is ten minutes: a version for each decision, and one for each second
    (later,) = server.pause().values()
    assert former.bundle.version < ended.bundle.version < later.bundle.version


def test_late_calls_do_not_make_it_known_again(server: OneServer) -> None:
    """Looks of all clients, and payloads to drop."""
    server.put("a", "b")
    server.claim("ann")
    server.cancel("a", "b")
    forget_in_time(server)
    assert server.owners() == set()
    server.retire("ann")
    server.cut("a", "b")
    server.trim()
    server.count()
    server.statistics()
    assert server.key_names() == {"server"}
