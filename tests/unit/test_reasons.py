"""The reason of a failed delivery, in one text: reading returns what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zkrq
from zkrq.base.checks import check_lease
from zkrq.base.errors import FRAMES_MAX, MESSAGE_MAX, REASON_MAX, ConfigError, reason_of, split


def caught(depth: int = 1, error: BaseException | None = None) -> BaseException:
    """An error that was raised so many calls deep."""

    def inner(left: int) -> None:
        if left:
            inner(left - 1)
        raise error or ValueError("no such address")

    try:
        inner(depth - 1)
    except BaseException as problem:
        return problem
    raise AssertionError


def test_type_message_and_places() -> None:
    reason, summary = split(reason_of(caught(2)))
    assert reason == "ValueError: no such address"
    assert summary is not None
    places = summary.splitlines()
    assert len(places) == 3
    assert all(place.startswith("unit/test_reasons.py:") for place in places)
    assert [place.rpartition(" in ")[2] for place in places] == ["inner", "inner", "caught"], "innermost first"


def test_error_that_was_never_raised_has_no_places() -> None:
    note = reason_of(ValueError("no such address"))
    assert note == "ValueError: no such address"
    assert split(note) == (note, None)


def test_innermost_calls_are_told() -> None:
    _, summary = split(reason_of(caught(20)))
    assert summary is not None
    assert [place.rpartition(" in ")[2] for place in summary.splitlines()] == ["inner"] * FRAMES_MAX


def places_of(filename: str) -> str | None:
    """What is told of an error that was raised in a file of this name."""
    names: dict[str, Any] = {}
    exec(compile("def fail(): raise ValueError", filename, "exec"), names)
    try:
        names["fail"]()
    except ValueError as error:
        return split(reason_of(error))[1]
    raise AssertionError


def test_calls_of_our_own_are_not_told() -> None:
    """Users look for theirs."""
    with pytest.raises(ConfigError) as raised:
        check_lease("seconds", -1)
    _, summary = split(reason_of(raised.value))
    assert summary is not None
    assert "checks.py" not in summary
    package = Path(zkrq.__file__).parent
    assert "x.py" not in str(places_of(str(package / "repair" / "x.py")))
    assert str(places_of(f"{package}_jobs/x.py")).startswith("zkrq_jobs/x.py:1 in fail"), "called like ours, but theirs"


def test_long_message_leaves_room_for_the_places() -> None:
    reason, summary = split(reason_of(caught(error=ValueError("x" * 10_000))))
    assert reason == f"ValueError: {'x' * 10_000}"[:MESSAGE_MAX]
    assert summary is not None
    assert MESSAGE_MAX + FRAMES_MAX * 80 <= REASON_MAX


@given(st.text(max_size=MESSAGE_MAX * 2))
def test_any_message_is_read_as_it_was_written(message: str) -> None:
    """Also one that contains what stands between reason and places."""
    reason, summary = split(reason_of(caught(error=KeyError(message))))
    assert reason is not None
    assert "\0" not in reason
    assert summary is not None
    assert all(place.startswith("unit/test_reasons.py:") for place in summary.splitlines())
    plain = f"KeyError: {KeyError(message)}"
    assert reason == plain.replace("\0", " ")[:MESSAGE_MAX]


@given(st.text(max_size=50).map(lambda text: text.replace("\0", "")), st.text(max_size=50))
def test_split_is_the_two_parts(reason: str, summary: str) -> None:
    assert split(f"{reason}\0{summary}") == (reason or None, summary or None)
    assert split(reason) == (reason or None, None)


def test_nothing_was_noted() -> None:
    assert split("") == (None, None)


def test_summary_that_was_cut() -> None:
    """The server keeps so many bytes of it all, wherever they end."""
    note = reason_of(caught(5))
    for length in range(len(note)):
        reason, summary = split(note[:length])
        assert note.startswith((reason or "") + ("\0" + summary if summary else ""))
