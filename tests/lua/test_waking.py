"""``claim`` that finds nothing: when to ask again, and who is woken by what."""

from __future__ import annotations

import pytest

from tests.lua.entries import Claimed, Put
from tests.lua.one_server import DEPLOYMENT, OneServer, put_and_claim


def next_ms(server: OneServer) -> int:
    return server.claim("bob", count=1).next_ms


def test_next_ms_tells_when_to_ask_again(server: OneServer) -> None:
    """-1: nothing on its way; 0: more is ready; else until the first due time or deadline."""
    assert next_ms(server) == -1
    server.put("a", "b", Put("later", delay_ms=50_000))
    assert next_ms(server) == 0
    assert 5_000 < next_ms(server) <= 50_000
    server.fence("bob")
    assert server.claim("ann", count=2, lease_ms=5_000).next_ms <= 5_000


def wait_for_an_item(server: OneServer, channel: str, count: int = 1) -> Claimed:
    return server.claim(f"owner-{channel}", count, waiter=channel)


def test_put_wakes_a_waiter(server: OneServer) -> None:
    """Claims: a waiter leaves its channel, and is told once."""
    with server.listen("ann") as ann:
        wait_for_an_item(server, "ann")
        server.put("a")
        assert ann.heard() == server.key("ready")
        server.put("b")
        assert ann.told_nothing()


def test_scheduled_put_wakes_too(server: OneServer) -> None:
    """Who waits must learn of a nearer due time."""
    with server.listen("ann") as ann:
        wait_for_an_item(server, "ann")
        server.put(Put("a", delay_ms=50))
        assert ann.heard() == server.key("ready")


@pytest.mark.parametrize(("verb", "ms"), [("nack", 0), ("release", 0), ("release", 1)])
def test_item_that_comes_back_wakes_a_waiter(server: OneServer, verb: str, ms: int) -> None:
    claim = put_and_claim(server, "a").only
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.settle(claim.settle(verb, ms))
        assert bob.heard() == server.key("ready")


def test_fencing_passes_a_wake_up_on(server: OneServer) -> None:
    """A client was woken and died, or closed, before it asked."""
    with server.listen("ann") as ann, server.listen("bob") as bob:
        wait_for_an_item(server, "ann")
        wait_for_an_item(server, "bob")
        server.put("a")
        assert ann.heard() == server.key("ready")
        server.fence("owner-ann")
        assert bob.heard() == server.key("ready")


def test_fencing_does_not_wake_the_one_that_is_fenced(server: OneServer) -> None:
    """Its client closes, say, and still listens."""
    channel = f"{server.key('server').removesuffix('server')}wake:{DEPLOYMENT}:ann"
    put_and_claim(server, "a", owner="ann")
    with server.listen(channel) as ann, server.listen("bob") as bob:
        server.claim("ann", waiter=channel)
        wait_for_an_item(server, "bob")
        server.fence("ann")
        assert bob.heard() == server.key("ready")
        assert ann.told_nothing()


@pytest.mark.parametrize("delay_ms", [0, 60_000])
def test_a_request_for_nothing_passes_a_wake_up_on(server: OneServer, delay_ms: int) -> None:
    """Also for what is not due yet: the next waiter must learn when it is."""
    with server.listen("ann") as ann, server.listen("bob") as bob:
        wait_for_an_item(server, "ann")
        wait_for_an_item(server, "bob")
        server.put(Put("a", delay_ms=delay_ms))
        assert ann.heard() == server.key("ready")
        assert bob.told_nothing()
        server.claim("owner-ann", 0)
        assert bob.heard() == server.key("ready")
        assert ann.told_nothing()


def test_fencing_wakes_a_waiter(server: OneServer) -> None:
    put_and_claim(server, "a", owner="ann")
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.fence("ann")
        assert bob.heard() == server.key("ready")


@pytest.mark.parametrize("verb", ["ack", "bury", "extend"])
def test_nobody_is_woken_for_what_does_not_come_back(server: OneServer, verb: str) -> None:
    claim = put_and_claim(server, "a").only
    with server.listen("bob") as bob:
        wait_for_an_item(server, "bob")
        server.settle(claim.settle(verb, 1000))
        assert bob.told_nothing()


def test_as_many_are_woken_as_there_are_items(server: OneServer) -> None:
    with server.listen("1") as first, server.listen("2") as second, server.listen("3") as third:
        for each in (first, second, third):
            wait_for_an_item(server, each.channel)
        server.put("a", "b")
        assert first.heard() == second.heard() == server.key("ready")
        assert third.told_nothing()


def test_dead_waiter_is_skipped(server: OneServer) -> None:
    """Nobody listens to the channel of a client that has died: then the next one is told."""
    wait_for_an_item(server, "dead")
    with server.listen("alive") as alive:
        wait_for_an_item(server, "alive")
        server.put("a")
        assert alive.heard() == server.key("ready")


def test_who_was_given_all_it_wanted_does_not_wait(server: OneServer) -> None:
    server.put("a")
    wait_for_an_item(server, "ann", count=1)
    assert "waiting" not in server.key_names()


def test_who_was_given_less_waits_for_the_rest(server: OneServer) -> None:
    server.put("a")
    wait_for_an_item(server, "ann", count=2)
    assert "waiting" in server.key_names()


def test_what_is_left_over_wakes_the_next_waiter(server: OneServer) -> None:
    """Somebody who was told may take less than there is."""
    with server.listen("bob") as bob:
        server.put("a", "b")
        server.command("ZADD", server.key("waiting"), server.now_ms(), "bob")
        server.claim("ann", count=1)
        assert bob.heard() == server.key("ready")


def test_waiter_that_has_not_asked_for_a_minute_is_forgotten(server: OneServer) -> None:
    """Bounded in memory."""
    server.command("ZADD", server.key("waiting"), server.now_ms() - 61_000, "old")
    wait_for_an_item(server, "ann")
    assert server.command("ZRANGE", server.key("waiting"), 0, -1) == [b"ann"]
