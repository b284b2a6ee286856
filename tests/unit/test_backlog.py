"""Whether the ready items of a queue grow or shrink, from looks at it and from stored figures."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from zkrq.client.backlog import Backlog, Seen, backlog_of, stored_backlog
from zkrq.client.figures import Figures
from zkrq.client.texts import show_backlog


@pytest.mark.parametrize(
    ("depths", "wanted"),
    [
        ([(0, 1000, 0), (30, 900, 500), (60, 880, 600)], (-2.0, 440.0)),
        ([(0, 1000, 0), (60, 1060, 0)], (1.0, None)),
        ([(0, 1000, 0), (60, 1060, 900)], (1.0, None)),
        ([(0, 1000, 0), (100, 1001, 0)], (0.0, None)),
        ([(0, 9000, 0), (40, 1000, 100), (100, 400, 700)], (-10.0, 40.0)),
        ([(0, 1000, 7), (60, 24, 7)], (0.0, None)),
        ([(0, 1000, 7), (60, 400, 67)], (-1.0, 400.0)),
        ([(0, 1000, 0), (59, 800, 200)], None),
        ([(0, 1000, 0), (60, 0, 1000)], None),
        ([], None),
    ],
)
def test_ready_items_shrink_or_grow(depths: list[tuple[float, int, int]], wanted: object) -> None:
    """A cancel takes many away and does not go on: they shrink at most as fast as consumers settle items."""
    trend = backlog_of([Seen(*each) for each in depths])
    assert (trend and (trend.per_second, trend.seconds_left)) == wanted


def minutes(*ready: int | None, done: int = 1000, dead: int = 0) -> list[Figures]:
    """Figures of minutes since 1970 with these numbers of ready items."""
    return [
        Figures(datetime.fromtimestamp(60 * number, UTC), 60.0, done=done, dead=dead, ready=count)
        for number, count in enumerate(ready)
    ]


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
    ("done", "dead", "wanted"),
    [
        (0, 0, Backlog(24, 0.0)),
        (10, 5, Backlog(24, -45 / 150, 80.0)),
        (0, 600, Backlog(24, -976 / 150, 24 * 150 / 976)),
    ],
)
def test_what_was_cancelled_does_not_go_on(done: int, dead: int, wanted: Backlog) -> None:
    """976 items were cancelled at 200 s; after the first minute, consumers have settled items of three."""
    found = minutes(1000, 1000, 1000, 1000, done=done, dead=dead)
    assert stored_backlog(found, 210, 24) == pytest.approx(wanted)


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
