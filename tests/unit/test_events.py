"""What an event looks like in a log."""

from __future__ import annotations

import logging

import pytest

from zkrq.events import SHOWN, ClaimsLost, Events, ServerFull


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


@pytest.mark.parametrize("event", [ServerFull("shop", "a"), ClaimsLost("shop", "jobs", ("x", "y"), "closed")])
def test_an_event_with_little_in_it_is_shown_whole(event: ClaimsLost | ServerFull) -> None:
    assert str(event) == repr(event)
