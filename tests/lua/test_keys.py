"""``push`` with a key: it is taken from the push of an item until that is done or dead."""

from __future__ import annotations

import pytest

from tests.lua.entries import Applied, packed_item
from tests.lua.one_server import OneServer
from tests.lua.pushing import (
    LONG_MS,
    End,
    ack,
    bury,
    cancel,
    clear,
    exhaust,
    expire,
    expire_to_a_dead_letter,
    extend,
    fence,
    keyed,
    nack,
    push_and_claim,
    push_one,
    redrive,
    release,
)
from zkrq.protocol.records import State, Version


def test_key_that_is_taken_names_the_first(server: OneServer) -> None:
    """Keys: nothing is pushed while another item of that key is queued; nothing is written either.  What is known of
    the other one goes to all servers, before anybody relies on it."""
    _, first = server.push(keyed("a"))
    before = server.contents()
    outcomes, decided = server.push(keyed("b"))
    assert outcomes == ["=a"]
    assert set(decided) == {"a"}
    assert decided["a"].packed == first["a"].packed
    assert server.contents() == before


def test_item_that_has_the_key_is_stamped_with_a_newer_epoch(server: OneServer) -> None:
    server.push(keyed("a", delay_ms=LONG_MS))
    outcomes, decided = server.push(keyed("b"), keyed("c"), epoch=3)
    assert outcomes == ["=a", "=a"]
    assert set(decided) == {"a"}
    assert decided["a"].record.version == Version(3, 3)
    assert LONG_MS / 2 < decided["a"].left_ms <= LONG_MS
    contents = server.contents()
    assert (contents.homes("a"), contents.keys, contents.faults) == ({"scheduled"}, {"k": {"a"}}, [])


def test_another_key_is_free(server: OneServer) -> None:
    server.push(keyed("a", "k1"))
    assert push_one(server, keyed("b", "k2")) == "+"
    assert server.contents().keys == {"k1": {"a"}, "k2": {"b"}}


def test_key_of_another_queue_is_free(server: OneServer) -> None:
    server.push(keyed("a"))
    server.queue = "other"
    assert push_one(server, keyed("b")) == "+"


@pytest.mark.parametrize("key", ["x" * 128, "größe", "a b", "=", "1", "k=v\u2028"])
def test_any_text_is_a_key(server: OneServer, key: str) -> None:
    server.push(keyed("a", key))
    assert push_one(server, keyed("b", key)) == "=a"
    assert push_one(server, keyed("c", f"{key}'")) == "+"


@pytest.mark.parametrize("end", [ack, bury, cancel, clear, expire, expire_to_a_dead_letter, exhaust])
def test_key_is_free_again(server: OneServer, end: End) -> None:
    """Keys: only what is queued or claimed has one; a dead letter has none either."""
    end(server, push_and_claim(server, keyed("a")._replace(ttl_ms=LONG_MS)))
    contents = server.contents()
    assert (contents.keys, contents.expiring, contents.faults) == ({}, {}, [])
    assert push_one(server, keyed("b")) == "+"
    assert server.contents().keys == {"k": {"b"}}


@pytest.mark.parametrize("end", [nack, release, extend, fence, redrive])
def test_key_is_still_taken(server: OneServer, end: End) -> None:
    """Keys: whoever holds the item, and however often it comes back, it is the same one."""
    end(server, push_and_claim(server, keyed("a")))
    assert server.contents().keys == {"k": {"a"}}
    assert push_one(server, keyed("b")) == "=a"
    assert server.contents().faults == []


def test_key_of_a_scheduled_item_is_taken(server: OneServer) -> None:
    server.push(keyed("a", delay_ms=LONG_MS))
    assert push_one(server, keyed("b")) == "=a"


def test_end_of_another_item_frees_no_key(server: OneServer) -> None:
    """The first was buried, the second has its key by then: what becomes of the first is its own affair."""
    bury(server, push_and_claim(server, keyed("a")))
    server.push(keyed("b"))
    server.cancel("a")
    assert server.contents().keys == {"k": {"b"}}
    assert push_one(server, keyed("c")) == "=b"


def test_two_pushes_of_one_key_in_one_call(server: OneServer) -> None:
    """The first one counts, also before anything is written; the others are named after it."""
    outcomes, decided = server.push(keyed("a"), keyed("other", "k2"), keyed("b"), keyed("c"))
    assert outcomes == ["+", "+", "=a", "=a"]
    assert set(decided) == {"a", "other"}
    assert server.contents().faults == []


def test_index_that_names_an_item_that_left_takes_no_key(server: OneServer) -> None:
    """Every prefix of a script's writes is safe: who reads an index looks at the record."""
    server.command("HSET", server.key("keys"), "k", "never")
    assert push_one(server, keyed("a")) == "+"
    assert push_one(server, keyed("b")) == "=a"


def test_keyed_items_of_two_primaries_are_both_known(server: OneServer) -> None:
    """Recovery may bring together what two servers decided: then the key is taken until both are done."""
    server.push(keyed("b"))
    copy = packed_item(Version(1, 2), State.QUEUED, pushed_at_ms=server.now_ms(), key="k")
    server.apply(Applied("a", copy, 0, b"p"), payloads=True)
    assert server.contents().faults == []
    for claim in server.claim(count=2).decided.values():
        assert push_one(server, keyed("c")) in ("=a", "=b")
        server.settle(claim.settle("ack"))
        assert server.contents().faults == []
    assert push_one(server, keyed("c")) == "+"
