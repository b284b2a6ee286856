"""The moments of recurring pushes: the same for every process, whenever it starts."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.every import every
from zkrq.base.checks import Duration
from zkrq.base.errors import ConfigError
from zkrq.base.ids import made_at_ms, new_id_at
from zkrq.client import timetable, timetable_form
from zkrq.client.moments import EPOCH, latest, moment_id, next_moments, read_schedule
from zkrq.client.timetable import Key, StoredSchedule, Timetable, checked, divided, mark_of
from zkrq.client.timetable_form import decode, encode
from zkrq.operations.kinds import Text
from zkrq.operations.operation import Parameter
from zkrq.operations.schedules import OPTIONS, PUT_SCHEDULE, SCHEDULE, of_push

HOUR = timedelta(hours=1)


def zone_or_none(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except ZoneInfoNotFoundError:
        return None


BERLIN = zone_or_none("Europe/Berlin")

needs_cron = pytest.mark.skipif(find_spec("cronsim") is None, reason="cronsim is not installed")
needs_zones = pytest.mark.skipif(BERLIN is None, reason="no time zones are installed")

moments = st.datetimes(datetime(2024, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # pyright: ignore[reportArgumentType]


# -- periods ---------------------------------------------------------------------------------------------------------


def test_multiples_of_the_period_since_1970() -> None:
    assert next_moments(60, utc(2026, 5, 1, 12, 0, 30), 2) == [utc(2026, 5, 1, 12, 1), utc(2026, 5, 1, 12, 2)]
    assert next_moments(timedelta(days=1), utc(2026, 5, 1, 12)) == [utc(2026, 5, 2)]


def test_a_moment_is_not_after_itself() -> None:
    assert next_moments(60, utc(2026, 5, 1, 12)) == [utc(2026, 5, 1, 12, 1)]


def test_an_offset_moves_every_moment() -> None:
    assert next_moments(3600, utc(2026, 5, 1, 12), 2, offset=600) == [utc(2026, 5, 1, 12, 10), utc(2026, 5, 1, 13, 10)]


@given(moments, st.floats(0.1, 1e6), st.floats(0, 0.99))
def test_whoever_looks_later_finds_the_same_moments(after: datetime, period: float, part: float) -> None:
    row = next_moments(period, after, 5, offset=period * part)
    assert row == sorted(set(row))
    assert row[0] > after
    for start, rest in ((row[1], row[2:]), (row[1] + (row[2] - row[1]) / 2, row[2:])):
        assert next_moments(period, start, 3, offset=period * part) == rest


@every("period", [0, 0.01, -1, float("nan"), timedelta(0)])
def test_bad_periods_are_refused(period: Duration) -> None:
    with pytest.raises(ConfigError):
        read_schedule(period)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="offset"):
        read_schedule(60, offset=60)
    with pytest.raises(ConfigError, match="offset"):
        read_schedule("* * * * *", offset=1)
    with pytest.raises(ConfigError, match="zone"):
        read_schedule(60, zone=UTC)
    with pytest.raises(ConfigError, match="time zone"):
        next_moments(60, datetime(2026, 5, 1))  # noqa: DTZ001


# -- the last moment ---------------------------------------------------------------------------------------------------


def test_of_many_missed_moments_the_last_one_counts() -> None:
    schedule = read_schedule(60)
    noon = utc(2026, 5, 1, 12)
    assert latest(schedule, noon, noon + HOUR) == noon + HOUR
    assert latest(schedule, noon, noon + HOUR - timedelta(seconds=1)) == noon + HOUR - timedelta(minutes=1)
    assert latest(schedule, noon, noon + timedelta(seconds=59)) is None
    assert latest(schedule, noon, noon - HOUR) is None, "the clock was set back"


# -- cron expressions ------------------------------------------------------------------------------------------------


@needs_cron
def test_cron_in_utc_unless_said() -> None:
    assert next_moments("30 2 * * *", utc(2026, 5, 1, 12), 2) == [utc(2026, 5, 2, 2, 30), utc(2026, 5, 3, 2, 30)]
    assert next_moments("*/20 * * * * *", utc(2026, 5, 1, 12), 2) == [
        utc(2026, 5, 1, 12, 0, 20),
        utc(2026, 5, 1, 12, 0, 40),
    ]


@needs_cron
@needs_zones
def test_cron_in_a_zone() -> None:
    """2:30 does not exist on the one night and twice on the other; either time it fires once."""
    summer = next_moments("30 2 * * *", utc(2026, 3, 28, 12), 2, zone=BERLIN)
    assert [moment.astimezone(UTC) for moment in summer] == [utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30)]
    winter = next_moments("30 2 * * *", utc(2026, 10, 24, 12), 2, zone=BERLIN)
    assert [moment.astimezone(UTC) for moment in winter] == [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]
    assert next_moments("30 2 * * *", utc(2026, 3, 28, 12), 2, zone="Europe/Berlin") == summer
    assert str(read_schedule("30 2 * * *", zone="Europe/Berlin")) == str(read_schedule("30 2 * * *", zone=BERLIN))


@needs_cron
@every("name", ["Europe/Bonn", "", "../../etc/passwd", "/etc/passwd", "\0"])
def test_a_zone_that_does_not_exist_is_told(name: str) -> None:
    with pytest.raises(ConfigError, match=r"zone is .* 'Europe/Berlin'"):
        read_schedule("30 2 * * *", zone=name)


@needs_cron
@needs_zones
@given(
    st.sampled_from(["30 2 * * *", "0,30 2 * * *", "*/15 * * * *", "0 */2 * * *", "0 * * * *", "15 1-3 * * *"]),
    st.sampled_from([utc(2026, 3, 29), utc(2026, 10, 25), utc(2026, 6, 1)]),
    st.integers(-4 * 60, 4 * 60),
    st.integers(0, 8 * 60),
)
def test_whoever_looks_later_finds_the_same_moments_of_a_cron_expression(
    expression: str, night: datetime, minutes: int, later: int
) -> None:
    start = night + timedelta(minutes=minutes)
    row = [moment.astimezone(UTC) for moment in next_moments(expression, start, 60, zone=BERLIN)]
    assert row == sorted(set(row))
    second = start + timedelta(minutes=later)
    rest = [moment for moment in row if moment > second]
    assert rest
    found = next_moments(expression, second, len(rest), zone=BERLIN)
    assert [moment.astimezone(UTC) for moment in found] == rest


@needs_cron
@every("expression", ["", "every day", "61 * * * *", "* * * *", "0 0 30 2 *"])
def test_bad_cron_expressions_are_refused(expression: str) -> None:
    with pytest.raises(ConfigError):
        read_schedule(expression)


def test_without_cronsim_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert next_moments(60, EPOCH)
    with pytest.raises(ConfigError, match=r"zkrq\[cron\]"):
        next_moments("* * * * *", EPOCH)


# -- ids -------------------------------------------------------------------------------------------------------------


def test_an_id_carries_its_moment_and_its_schedule() -> None:
    noon = utc(2026, 5, 1, 12)
    id = moment_id("report", noon)
    assert id == moment_id("report", noon)
    assert made_at_ms(id) == round(noon.timestamp() * 1000)
    others = {
        moment_id("report", noon + timedelta(milliseconds=1)),
        moment_id("repor", noon),
        new_id_at(made_at_ms(id) or 0),
    }
    assert id not in others
    assert len(others) == 3


# -- what is stored --------------------------------------------------------------------------------------------------


def test_options_of_each_push_are_stored() -> None:
    """Those that are given; another one makes another declaration."""
    given = {"key": "k", "key_window": 60.0, "group": "a", "priority": 4, "ttl": 9.0, "headers": {"a": "b"}}
    entry = StoredSchedule("q", "n", 60.0, options=given)
    (stored,) = json.loads(encode(Timetable({entry.key: entry}), "n"))["schedules"]
    assert given.items() <= stored.items()
    assert decode(encode(Timetable({entry.key: entry}), "n")).entries == {entry.key: entry}
    assert hash(entry) == hash(replace(entry, options={})), "a mapping has no hash"
    marks = {mark_of(replace(entry, options={name: given[name]})) for name in given}
    assert len(marks | {mark_of(entry), mark_of(replace(entry, options={}))}) == len(given) + 2
    for bad in ({"priority": 10}, {"group": ""}, {"key_window": 60.0}, {"headers": {"a": 1}}):
        table = decode(json.dumps({"format": 1, "nonce": "", "schedules": [{**stored, "key": None, **bad}]}).encode())
        assert not table.entries
        assert len(table.unreadable) == 1


def test_an_option_that_is_added_to_the_table_is_stored_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = Parameter("colour", Text(10), "Of the item.")
    added = replace(OPTIONS, parameters=(*OPTIONS.parameters, colour))
    for module in (timetable, timetable_form):
        monkeypatch.setattr(module, "OPTIONS", added)
    put = replace(PUT_SCHEDULE, parameters=(*PUT_SCHEDULE.parameters, colour))
    monkeypatch.setattr(timetable, "PUT_SCHEDULE", put)
    entry = checked(StoredSchedule("q", "n", **divided("add()", {"when": 60.0, "colour": "red"})))
    assert decode(encode(Timetable({entry.key: entry}), "n")).entries == {entry.key: entry}
    shown = replace(SCHEDULE, fields=(*SCHEDULE.fields, of_push(colour)))
    assert shown.tell(entry)["colour"] == "red"


def test_what_a_later_release_has_added_is_kept() -> None:
    """This one pauses a schedule, changes another, and removes a third: only that one's fields go."""
    names = ("paused", "changed", "removed", "left")
    stored = json.loads(encode(Timetable({(e := StoredSchedule("q", name, 60.0)).key: e for name in names}), "n"))
    stored["calendar"] = {"closed": ["2030-12-25"]}
    for entry in stored["schedules"]:
        entry["jitter"] = {"of": entry["name"]}
    at = utc(2026, 5, 1)
    table = decode(json.dumps(stored).encode()).paused(Key("q", "paused"))
    table = table.changed(Key("q", "changed"), {"when": 30.0}, at).removed(Key("q", "removed"))
    table = table.added(StoredSchedule("q", "left", 15.0), replacing=True)
    again = json.loads(encode(table, "m"))
    assert again["calendar"] == {"closed": ["2030-12-25"]}
    assert {entry["name"]: (entry["jitter"], entry["when"], entry["paused"]) for entry in again["schedules"]} == {
        "paused": ({"of": "paused"}, 60.0, True),
        "changed": ({"of": "changed"}, 30.0, False),
        "left": ({"of": "left"}, 15.0, False),
    }
    assert again["nonce"] == "m"
    anew = json.loads(encode(table.added(StoredSchedule("q", "removed", 5.0)), "m"))
    assert "jitter" not in anew["schedules"][-1]
