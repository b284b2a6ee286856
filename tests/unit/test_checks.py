"""Bad input is refused with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.checks import (
    MAX_DURATION,
    MAX_ID,
    MAX_NAME,
    check_count,
    check_duration,
    check_id,
    check_moment,
    check_name,
    read_duration,
)
from zkrq.base.errors import ConfigError
from zkrq.base.ids import new_id


def refused(check: Callable[..., object], value: object, **options: Any) -> str:
    """The message, which names what was wrong."""
    with pytest.raises(ConfigError) as error:
        check("the thing", value, **options)
    message = str(error.value)
    assert message.startswith("the thing ")
    assert len(message) < 1_000
    return message


# -- names ---------------------------------------------------------------------------------------------------------


@every("name", ["a", "emails", "9to5", "_x", "a.b:c-d_e", "x" * MAX_NAME])
def test_good_name(name: str) -> None:
    assert check_name("the thing", name) == name


@every(
    "name",
    [
        "",
        " ",
        "a b",
        "a\n",
        "\na",
        "a\0",
        "a{b}",
        "a/b",
        "a*",
        "-a",
        ".a",
        ":a",
        "é",
        "ß",
        "٣",
        "x" * (MAX_NAME + 1),
        "x" * 10**6,
        b"bytes",
        None,
        1,
        ["a"],
    ],
)
def test_bad_name(name: object) -> None:
    refused(check_name, name)


# -- ids -----------------------------------------------------------------------------------------------------------


@every("id", ["a", "order 17", "größe", "{tag}/x", "x" * MAX_ID, "é" * (MAX_ID // 2)])
def test_good_id(id: str) -> None:
    assert check_id("the thing", id) == id


def test_own_ids_are_good() -> None:
    assert check_id("the thing", id := new_id()) == id


@every(
    "id",
    [
        "",
        " ",
        " a",
        "a ",
        "a\0b",
        "\0",
        "a\n",
        "a\tb",
        "\x7f",
        "\u200b",
        "\ud800",
        "\xa0a",
        "x" * (MAX_ID + 1),
        "é" * (MAX_ID // 2) + "x",
        "x" * 10**6,
        b"bytes",
        None,
        1,
        True,
    ],
)
def test_bad_id(id: object) -> None:
    refused(check_id, id)


@given(st.text())
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        assert len(check_id("the thing", text).encode()) <= MAX_ID
    except ConfigError:
        return
    assert "\0" not in text


# -- durations -----------------------------------------------------------------------------------------------------


@every(
    ("value", "seconds"),
    [(0, 0.0), (1, 1.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), (timedelta(0), 0.0), (MAX_DURATION, MAX_DURATION)],
)
def test_good_duration(value: float | timedelta, seconds: float) -> None:
    checked = check_duration("the thing", value)
    assert checked == seconds
    assert type(checked) is float


@every(
    "value",
    [
        -1,
        -1e-9,
        float("nan"),
        float("inf"),
        float("-inf"),
        MAX_DURATION * 1.001,
        10**400,
        -(10**400),
        timedelta(seconds=-1),
        timedelta.max,
        timedelta.min,
        True,
        False,
        None,
        "5",
        b"5",
        5j,
        Decimal(5),
        Fraction(5),
        [5],
    ],
)
def test_bad_duration(value: object) -> None:
    refused(check_duration, value)


@pytest.mark.parametrize("nothing", [0, 0.0, -0.0, timedelta(0)])
def test_nothing_is_not_positive(nothing: float | timedelta) -> None:
    assert check_duration("the thing", nothing) == 0
    assert "more than 0" in refused(check_duration, nothing, positive=True)


@given(st.integers() | st.floats() | st.timedeltas())
def test_any_number_is_a_duration_or_refused(value: float | timedelta) -> None:
    try:
        seconds = check_duration("the thing", value)
    except ConfigError:
        return
    assert 0 <= seconds <= MAX_DURATION


# -- moments -------------------------------------------------------------------------------------------------------


class Nowhere(tzinfo):
    """A time zone that does not say where it is."""

    def utcoffset(self, dt: datetime | None, /) -> None:
        return None


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-7))])
def test_good_moment(zone: tzinfo) -> None:
    moment = datetime(2030, 1, 2, tzinfo=zone)
    assert check_moment("the thing", moment) is moment


@every(
    "value",
    [
        datetime(2030, 1, 2),  # noqa: DTZ001
        datetime(2030, 1, 2, tzinfo=Nowhere()),
        datetime(2030, 1, 2).date(),  # noqa: DTZ001
        1.9e9,
        "2030-01-02T00:00:00Z",
        None,
    ],
)
def test_bad_moment(value: object) -> None:
    refused(check_moment, value)


def test_naive_moment_is_told_what_to_do() -> None:
    assert "time zone" in refused(check_moment, datetime(2030, 1, 2))  # noqa: DTZ001


# -- counts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 3])
def test_good_count(value: int) -> None:
    assert check_count("the thing", value, least=1, most=3) == value


def test_count_without_limit() -> None:
    assert check_count("the thing", 10**9) == 10**9


@every("value", [0, 4, -1, True, 2.0, "2", None, float("nan")])
def test_bad_count(value: object) -> None:
    refused(check_count, value, least=1, most=3)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1e3", 1000),
        ("0.5", 0.5),
        ("15m", 900),
        ("12h", 43_200),
        ("30d", 2_592_000),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("1m500ms", 60.5),
    ],
)
def test_a_word_for_a_duration_may_have_units(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1h 30m", "1h30", "12 h", "1w", "-1h", "1h-5m", "soon", "1:30"])
def test_other_words_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="such as 3600 or 1h30m"):
        read_duration(text)
