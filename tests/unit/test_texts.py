"""What the page makes of figures: texts for people."""

from __future__ import annotations

from datetime import timedelta

from tests.every import every
from tests.unit.page_values import NOON
from zkrq.client.texts import show_bytes, show_count, show_due, show_duration, show_moment, show_number
from zkrq.serve.curves import Rate
from zkrq.serve.shown import show_rate


@every(
    ("seconds", "text"),
    [
        *((0, "0 s"), (0.00004, "0 s"), (0.0026, "2.6 ms"), (0.00996, "10 ms"), (0.026, "26 ms"), (0.9994, "999 ms")),
        *((0.9996, "1.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (10, "10 s"), (119, "119 s"), (120, "2 min")),
        *((7200, "2 h"), (172800, "2 days")),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@every(
    ("value", "text"),
    [
        *((0, "0"), (1234567, "1,234,567"), (0.25, "0.25"), (-3.55, "-3.5"), (123.4, "123"), (99.97, "100.0")),
        *((0.0166, "0.017"), (0.0009, "0"), (-0.5, "-0.5"), (0.996, "1"), (2.0, "2")),
    ],
)
def test_numbers_are_for_people(value: float, text: str) -> None:
    assert show_number(value) == text


def test_a_rate_is_told_in_words() -> None:
    assert [
        show_rate(passed) for passed in ([], [Rate(0, 0.01, 0)], [Rate(0, 2, 0)], [Rate(0, 9, 9), Rate(1, 0, 20.4)])
    ] == [
        "idle",
        "idle",
        "2 pushed and 0 removed a second",
        "0 pushed and 20.4 removed a second",
    ]


def test_moments_sizes_and_counts_are_for_people() -> None:
    assert show_moment(NOON, NOON + timedelta(hours=1)) == "12:00:00 UTC"
    assert show_moment(NOON, NOON + timedelta(days=1)) == "2026-01-02 12:00 UTC"


def test_what_is_due_has_its_moment() -> None:
    assert show_due(90.0, NOON) == "90 s, at 12:01:30 UTC"
    assert show_due(-3.0, NOON) == f"{show_duration(0.0)}, at 12:00:00 UTC"
    assert [show_bytes(size) for size in (0, 1023, 1024, 3 << 20, 5 << 30)] == [
        "0 bytes",
        "1,023 bytes",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [show_count(count, "item") for count in (0, 1, 1200)] == ["0 items", "1 item", "1,200 items"]
