"""Counts of what handlers did: what is read of several servers, and what a histogram says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zkrq
from tests.every import every
from tests.lua.entries import figures_field
from tests.unit.views import view_of
from zkrq.base.periods import HOUR, MINUTE
from zkrq.client.figures import check_span, total
from zkrq.protocol.figures import CLASSES, COUNTS, KEEPERS, Place, add_up, decode, greatest, keepers, quantile

NOW = 1_750_000_000.0

some_counts = st.lists(st.integers(0, 10**15 - 1), min_size=COUNTS, max_size=COUNTS)


@given(some_counts)
def test_counts_are_read_as_they_were_written(counts: list[int]) -> None:
    assert decode([figures_field(7, counts), figures_field(10, [1])]) == {
        Place(7, "mail"): counts,
        Place(10, "mail"): [1] + [0] * (COUNTS - 1),
    }


@given(st.lists(some_counts, min_size=1, max_size=3))
def test_the_greater_count_is_read_whatever_one_server_has_missed(reports: list[list[int]]) -> None:
    """Of the reports, one server has all, the other any part."""
    whole = {Place(7, ""): add_up(reports)}
    part = {Place(7, ""): add_up(reports[1:]), Place(8, ""): [1] * COUNTS}
    assert greatest([whole, part]) == greatest([part, whole]) == {**part, **whole}


@given(st.binary(max_size=200), st.booleans())
def test_whatever_is_stored_is_read(packed: bytes, begins_well: bool) -> None:
    for counts in decode([b"7\tmail\tsms\n" + packed if begins_well else packed]).values():
        assert len(counts) == COUNTS


def test_of_a_damaged_field_is_read_what_stands_before_the_damage() -> None:
    field = figures_field(7, [3, 9])
    for damage in (b"\1", b"\1\0", b"\1\0\2\5", b"\1\1\1\5", b"\1\0\x09" + 9 * b"\xff", b"\1\0\3\0\x64\1"):
        assert decode([b"x\n", field + damage, b""]) == {Place(7, "mail"): [3, 9] + [0] * (COUNTS - 2)}


@given(st.lists(st.integers(0, 10**6), min_size=CLASSES, max_size=CLASSES), st.floats(0, 1, allow_subnormal=False))
def test_a_quantile_lies_in_its_class(classes: list[int], part: float) -> None:
    value = quantile(classes, 0, part)
    if not sum(classes) or not part:
        assert value is None
        return
    assert value is not None
    below = sum(count for number, count in enumerate(classes) if 2**number <= value * 1000)
    assert below <= part * sum(classes) * (1 + 1e-9)
    assert 0 < value * 1000 <= 2 ** (CLASSES - 1)


def test_quantiles_are_right_within_a_factor_of_two() -> None:
    """A hundred items, of 1 to 100 milliseconds."""
    spread = [0] * CLASSES
    for ms in range(1, 101):
        spread[ms.bit_length()] += 1
    found = zkrq.Spread(tuple(spread))
    assert found.p50 == pytest.approx(0.050, rel=0.1)
    assert found.p95 == pytest.approx(0.095, rel=0.3)
    assert found.count == 100
    assert zkrq.Spread().p50 is None


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.floats(0.01, 1))
def test_no_quantile_is_above_the_longest_nor_below_its_class(times_ms: list[int], part: float) -> None:
    spread = [0] * CLASSES
    for ms in times_ms:
        spread[ms.bit_length()] += 1
    value = quantile(spread, max(times_ms), part)
    assert value is not None
    assert value <= max(*times_ms, 1) / 1000 * (1 + 1e-9)
    assert value * 1000 >= min(2 ** (ms.bit_length() - 1) if ms else 0 for ms in times_ms)


def test_the_longest_of_several_times_is_the_greatest_of_them() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    spreads = [zkrq.Spread((0,) * CLASSES), zkrq.Spread((3, *(0,) * 31), 0.0), zkrq.Spread((0, 1, *(0,) * 30), 0.001)]
    found = total([zkrq.Figures(at, 60.0, waits=each) for each in spreads])
    assert (found.waits.longest, found.waits.count, found.durations.longest) == (0.001, 4, None)


def test_two_members_keep_them_and_the_primary_is_one() -> None:
    view = view_of("a", "b", "c", "d")
    for queue in ("mail", "sms", "fax"):
        first, second = keepers(view, queue)
        assert (first, KEEPERS) == (view.primary(queue), 2)
        rest = replace(view, members={id: life for id, life in view.members.items() if id != first})
        assert keepers(rest, queue)[0] == second, "what the second one keeps is kept on"


@every(
    ("since", "step", "wanted"),
    [
        (3600, None, ("m", MINUTE, 60)),
        (26 * HOUR, None, ("m", MINUTE, 1560)),
        (27 * HOUR, None, ("h", HOUR, 27)),
        (35 * 86_400, None, ("h", HOUR, 840)),
        (6 * HOUR, 300, ("m", 300, 72)),
        (6 * HOUR, HOUR, ("h", HOUR, 6)),
        (30 * 86_400, 86_400, ("h", 86_400, 30)),
        (1, None, ("m", MINUTE, 1)),
    ],
)
def test_the_last_seconds_are_read(since: int, step: int | None, wanted: tuple[str, int, int]) -> None:
    span = check_span(since, step, NOW)
    assert (span.kind, span.unit * span.together, (span.last + 1 - span.first) // span.together) == wanted
    assert span.last * span.unit <= NOW < (span.last + 1) * span.unit or span.together > 1
    assert (span.last + 1) * span.unit > NOW
