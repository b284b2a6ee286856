"""What an event looks like in a log."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

import zkrq
from zkrq.base.events import SHOWN, ClaimsLost, Event, Events, LoopBlocked, ServerFull, SessionResumed, event_types
from zkrq.protocol.shards import FIRST, ShardName


def test_a_log_record_of_many_lost_claims_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that is fenced may have held a hundred thousand."""
    ids = tuple(f"id-{n}" for n in range(100_000))
    seen: list[object] = []
    with caplog.at_level(logging.INFO, "zkrq.events"):
        Events(seen.append).tell(ClaimsLost("shop", "jobs", ids, "fenced"))
    (record,) = caplog.records
    assert record.getMessage().startswith("100,000 claim(s) of queue jobs lost, fenced: id-0, ")
    assert record.getMessage().endswith(f"id-{SHOWN - 1} and 99,990 more")
    assert vars(record)["event"] == "ClaimsLost"
    assert len(record.getMessage()) < 300
    assert seen == [ClaimsLost("shop", "jobs", ids, "fenced")]


def test_an_event_of_a_shard_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """In the text only if it is another one than the first."""
    seen: list[object] = []
    events = Events(seen.append)
    first, other = events.of(FIRST), events.of(ShardName("b"))
    with caplog.at_level(logging.INFO, "zkrq.events"):
        first.tell(ServerFull("shop", "a"))
        events.several_shards = True
        first.tell(ServerFull("shop", "a"))
        other.tell(ServerFull("shop", "x"))
        other.tell(SessionResumed("shop", "me"))
    full = "has reached its maxmemory: pushes fail until it has room, claims and acks continue"
    assert [(record.getMessage(), vars(record)["shard"]) for record in caplog.records] == [
        (f"server a {full}", None),
        (f"server a {full}", "main"),
        (f"shard b: server x {full}", "b"),
        ("ZooKeeper answers session me again", None),
    ]
    assert seen == [*[ServerFull("shop", "a")] * 2, ServerFull("shop", "x", shard="b"), SessionResumed("shop", "me")]


def test_every_event_has_a_type_of_its_own() -> None:
    public = {name for name in zkrq.__all__ if isinstance(it := getattr(zkrq, name), type) and issubclass(it, Event)}
    assert {each.__name__ for each in event_types()} == public - {"Event", "ShardEvent"}


def test_every_event_is_a_sentence_for_people() -> None:
    """No name of a class or field, and no number with more digits than mean something."""
    for type in event_types():
        values: dict[str, Any] = {"int": 1234, "float": 3.0097736309999163, "bool": True, "str": "name"}
        values |= {"float | None": 3.0097736309999163, "tuple[str, ...]": ("redis-1", "redis-2")}
        values |= {"datetime": datetime(2026, 3, 1, tzinfo=UTC), "tuple[datetime, ...]": ()}
        event = type(*[values[str(each.type)] for each in fields(type) if each.name != "shard"])
        assert not re.search(r"[A-Z]\w+\(|\w=|\.\d\d|[\[{']|None", str(event)), str(event)
        assert type.__name__ in repr(event)


def test_a_blocked_loop_names_the_handlers() -> None:
    event = LoopBlocked("shop", 3.0097736309999163, 8, 2, False, ("send_email",))
    assert str(event) == (
        "the event loop was blocked for 3.0 s while these handlers ran: send_email; 2 of 8 held claim(s) expired"
    )
    assert str(LoopBlocked("shop", 2.5, 8, 0, True)) == (
        "the event loop was blocked for 2.5 s; the ZooKeeper session may have ended"
    )
