"""What an event looks like in a log."""

from __future__ import annotations

import logging

import pytest

import zkrq
from zkrq.events import SHOWN, ClaimsLost, Event, Events, ServerFull, SessionResumed, event_types
from zkrq.protocol.shards import FIRST, ShardName


def test_a_log_record_of_many_lost_claims_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer that is fenced may have held a hundred thousand."""
    ids = tuple(f"id-{n}" for n in range(100_000))
    seen: list[object] = []
    with caplog.at_level(logging.INFO, "zkrq.events"):
        Events(seen.append).tell(ClaimsLost("shop", "jobs", ids, "fenced"))
    (record,) = caplog.records
    assert record.getMessage().endswith(f"'id-{SHOWN - 1}', and 99,990 more), reason='fenced')")
    assert len(record.getMessage()) < 300
    assert seen == [ClaimsLost("shop", "jobs", ids, "fenced")]


def test_an_event_of_a_shard_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """The first one only where there are others, and never in the text, which is the same as before there were any."""
    seen: list[object] = []
    events = Events(seen.append)
    first, other = events.of(FIRST), events.of(ShardName("b"))
    with caplog.at_level(logging.INFO, "zkrq.events"):
        first.tell(ServerFull("shop", "a"))
        events.several_shards = True
        first.tell(ServerFull("shop", "a"))
        other.tell(ServerFull("shop", "x"))
        other.tell(SessionResumed("shop", "me"))
    assert [(record.getMessage(), vars(record)["shard"]) for record in caplog.records] == [
        ("ServerFull(cluster='shop', server='a')", None),
        ("ServerFull(cluster='shop', server='a')", "main"),
        ("ServerFull(cluster='shop', shard='b', server='x')", "b"),
        ("SessionResumed(cluster='shop', owner='me')", None),
    ]
    assert seen == [*[ServerFull("shop", "a")] * 2, ServerFull("shop", "x", shard="b"), SessionResumed("shop", "me")]


def test_every_event_has_a_type_of_its_own() -> None:
    public = {name for name in zkrq.__all__ if isinstance(it := getattr(zkrq, name), type) and issubclass(it, Event)}
    assert {each.__name__ for each in event_types()} == public - {"Event", "ShardEvent"}


@pytest.mark.parametrize("event", [SessionResumed("shop", "me"), ClaimsLost("shop", "jobs", ("x", "y"), "closed")])
def test_an_event_with_little_in_it_is_shown_whole(event: Event) -> None:
    assert str(event) == repr(event)
