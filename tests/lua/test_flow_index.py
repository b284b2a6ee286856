"""The index of flows says what the records say: a scrub finds where it does not, either way."""

from __future__ import annotations

from typing import cast

import pytest

from tests.lua.entries import BUNDLE, Put
from tests.lua.flowing import OTHER, following, member, open_held, push_decided, push_plain, steer
from tests.lua.one_server import OneServer
from zkrq.protocol import calls
from zkrq.protocol.records import Opens


@pytest.fixture
def begun(server: OneServer) -> OneServer:
    steer(server, "begin")
    return server


def scrubbed(server: OneServer) -> int:
    """Have the index say what the records say, as a scrub does; return how many entries did not."""
    page = server.ask(calls.Heads(server.queue, calls.START, 1000))
    repaired = server.ask(calls.RepairFlows(server.queue, calls.START, page.unlisted)).repaired if page.unlisted else 0
    cursor = calls.START
    while True:
        found = server.ask(calls.RepairFlows(server.queue, cursor))
        repaired, cursor = repaired + found.repaired, found.cursor
        if cursor == calls.START:
            return repaired


def everything_of_flows(server: OneServer) -> None:
    """What has an entry of each kind."""
    server.push(Put("in a group", group="g"))
    steer(server, "begin", flow=OTHER)
    steer(server, "begin", flow="closed")
    steer(server, "cancel", flow="closed")
    open_held(server, "closed")
    push_plain(server, member(server, "dead"), member(server, "missed"), member(server, "acked"))
    claimed = server.claim(count=4)
    first = claimed.settle("ack")[0]
    server.settle(first, *claimed.settle("bury", 0, "why")[1:2])
    push_plain(server, member(server, BUNDLE, 3), member(server, "alone"))
    push_decided(server, following(server, "then"), following(server, "fail", opens=Opens.FAILURE))
    server.cancel("missed")


def index_of(server: OneServer) -> list[bytes]:
    return cast("list[bytes]", server.command("ZRANGE", server.key("members"), 0, -1))


def test_a_scrub_finds_nothing_where_nothing_is_wrong(begun: OneServer) -> None:
    everything_of_flows(begun)
    before = index_of(begun)
    assert {entry[1:2] for entry in before if entry[:1] == b"\xfe"} >= {b"L", b"M", b"W", b"V", b"P", b"E"}
    assert scrubbed(begun) == 0
    assert index_of(begun) == before
    assert begun.contents().faults == []


def test_a_scrub_enters_what_is_missing(begun: OneServer) -> None:
    everything_of_flows(begun)
    before = index_of(begun)
    of_flows = [entry for entry in before if entry[:1] == b"\xfe"]
    for entry in of_flows:
        begun.command("ZREM", begun.key("members"), entry)
        assert scrubbed(begun) == 1
        assert index_of(begun) == before
    begun.command("ZREM", begun.key("members"), *of_flows[1:])
    page = begun.ask(calls.Heads(begun.queue, calls.START, 1000))
    without = begun.ask(calls.Heads(begun.queue, calls.START, 1000, checks=False))
    assert page.unlisted
    assert page.has_flows
    assert without == page._replace(unlisted=[], has_flows=False), "only what is asked for is looked at"
    begun.command("ZREM", begun.key("members"), *of_flows)
    assert scrubbed(begun) == len(of_flows)
    assert index_of(begun) == before


def test_a_scrub_removes_what_is_not_so(begun: OneServer) -> None:
    everything_of_flows(begun)
    before = index_of(begun)
    wrong = [
        b"\xfe",
        b"\xfe\xff\0",
        b"\xfeL",
        b"\xfeL\0\0\0",
        b"\xfeLimport-7\0nothing",
        b"\xfeDimport-7\0alone",
        b"\xfeLimport-70\0alone",
        b"\xfePnothing\0",
        b"\xfePimport-7\0alone" * 2,
        b"\xfeL\0\1flow import-7",
        *(b"\xfeNimport-7\0%d" % number for number in range(1000)),
    ]
    begun.command("ZADD", begun.key("members"), *(each for entry in wrong for each in (0, entry)))
    assert scrubbed(begun) == len(wrong)
    assert index_of(begun) == before


def test_a_scrub_leaves_entries_of_what_is_damaged(begun: OneServer) -> None:
    push_plain(begun, member(begun, "a"))
    record = cast("bytes", begun.command("HGET", begun.key("records"), "a"))
    begun.command("HSET", begun.key("records"), "a", "damaged")
    before = index_of(begun)
    assert scrubbed(begun) == 0
    assert index_of(begun) == before
    begun.command("HSET", begun.key("records"), "a", record)
    assert begun.contents().faults == []
