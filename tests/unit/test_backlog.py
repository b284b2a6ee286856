"""Whether the ready items of a queue grow or shrink, from looks at it and from stored figures."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from zkrq.client.backlog import Backlog, backlog_of, stored_backlog
from zkrq.client.figures import Figures
from zkrq.serve.texts import show_backlog


@pytest.mark.parametrize(
    ("depths", "wanted"),
    [
        ([(0, 1000), (30, 900), (60, 880)], (-2.0, 440.0)),
        ([(0, 1000), (60, 1060)], (1.0, None)),
        ([(0, 1000), (100, 1001)], (0.0, None)),
        ([(0, 9000), (40, 1000), (100, 400)], (-10.0, 40.0)),
        ([(0, 1000), (59, 800)], None),
        ([(0, 1000), (60, 0)], None),
        ([], None),
    ],
)
def test_ready_items_shrink_or_grow(depths: list[tuple[float, int]], wanted: tuple[float, float | None] | None) -> None:
    trend = backlog_of(depths)
    assert (trend and (trend.per_second, trend.seconds_left)) == wanted


def minutes(*ready: int | None) -> list[Figures]:
    return [Figures(datetime.fromtimestamp(60 * number, UTC), 60.0, ready=count) for number, count in enumerate(ready)]


@pytest.mark.parametrize(
    ("found", "now", "ready", "wanted"),
    [
        ((900, 700, 500, 300), 210, 200, Backlog(200, -700 / 150, 200 / (700 / 150))),
        ((), 10, 5, Backlog(5)),
        ((), 10, 0, Backlog(0, None, 0.0)),
        ((None, None, 300), 200, 200, Backlog(200)),
        ((300, None, None), 150, 390, Backlog(390, 1.0)),
        ((400, 400, 400), 190, 400, Backlog(400, 0.0)),
    ],
)
def test_stored_figures_tell_it(found: tuple[int | None, ...], now: float, ready: int, wanted: Backlog) -> None:
    assert stored_backlog(minutes(*found), now, ready) == wanted


@pytest.mark.parametrize(
    ("backlog", "text"),
    [
        (Backlog(960, -3.2, 300.0), "shrinks by 3.2 a second: it is gone in 5 min if that goes on"),
        (Backlog(7, 12.0), "grows by 12 a second"),
        (Backlog(7, 0.0), "stays as it is"),
        (Backlog(7), ""),
        (None, ""),
    ],
)
def test_people_are_told_when_it_is_gone(backlog: Backlog | None, text: str) -> None:
    assert show_backlog(backlog) == text
