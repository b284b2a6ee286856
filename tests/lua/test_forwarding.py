"""``forward``: unfinished pushes are carried on."""

from __future__ import annotations

import time
from typing import cast

import pytest

from tests.lua.connection import Refused
from tests.lua.copying import KIB, TABLE
from tests.lua.entries import Applied, Decided, Put
from tests.lua.one_server import OneServer, put_and_claim
from zkrq.protocol.records import fresh


def forward(server: OneServer, *items: str, clock: int | None = None, window_ms: int = 10_000) -> dict[str, Decided]:
    given = [Applied(id, fresh(0, OLD_MS), 0, b"payload") for id in items]
    return server.forward(*given, clock=clock, window_ms=window_ms)


OLD_MS = 1_700_000_000_000


def test_unknown_items_are_carried_on_under_the_present_epoch(server: OneServer) -> None:
    server.epoch = 7
    decided = forward(server, "i", "i", "j")
    assert {id: record.record.version for id, record in decided.items()} == {"i": (7, 2), "j": (7, 2)}
    assert set(server.claim().handed) == {"i", "j"}


def test_what_is_known_also_as_a_tombstone_is_left_alone(server: OneServer) -> None:
    server.put("queued")
    server.settle(*(claimed.settle("ack") for claimed in put_and_claim(server, "gone").decided.values()))
    before = server.contents()
    assert forward(server, "queued", "gone") == {}
    assert server.contents() == before


def test_nothing_is_carried_on_late(server: OneServer) -> None:
    """Whoever was stopped between judging and deciding: meanwhile it may have been done, acked and forgotten."""
    with pytest.raises(Refused, match="LATE"):
        forward(server, "i", clock=time.time_ns() // 1000 - 11_000_000)
    assert server.contents().records == {}


def test_nothing_from_before_a_dropped_tombstone_is_carried_on(server: OneServer) -> None:
    server.command("HSET", server.key("lead"), "floor_ms", OLD_MS + 1)
    assert forward(server, "i") == {}


def test_a_page_of_large_items_reads_no_more_than_it_sends(server: OneServer) -> None:
    server.looks = False
    for n in range(40):
        server.put(Put(f"i{n}", bytes(512 * KIB - TABLE)))
    server.command("CONFIG", "RESETSTAT")
    server.page()
    stats = cast("bytes", server.command("INFO", "commandstats")).decode()
    assert f"cmdstat_hget:calls={2}," in stats
