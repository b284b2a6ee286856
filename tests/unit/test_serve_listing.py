"""The table of queues: its order, its filter, what needs attention, the empty ones, the totals."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

from tests.every import every
from zkrq.base.limits import Limits
from zkrq.client.backlog import Backlog
from zkrq.client.inspection import Sizes
from zkrq.serve.listing import COLUMNS, QUEUES_SHOWN, UNTAKEN_SECONDS, Choice, Row, arrange, read_choice
from zkrq.serve.shown import NO_FIGURES


def row(name: str, *sizes: int, paused: bool = False, oldest: float | None = None, rate: float = 0.0) -> Row:
    figures = NO_FIGURES._replace(sizes=Sizes(*sizes), paused=paused, oldest_ready=oldest)
    return Row(name, figures, rate, rate)


ROWS = [
    row("calm", 5, 0, 0, 0, oldest=2.0),
    row("large", 900, 0, 1, 0, oldest=2.0),
    row("dying", 0, 0, 0, 3),
    row("stuck", 4, 0, 0, 0, oldest=900.0),
    row("slow", 4, 0, 2, 0, oldest=600.0),
    row("off", 7, 0, 0, 0, oldest=9000.0, paused=True),
    row("later", 0, 8, 0, 0),
    row("empty", 0, 0, 0, 0),
    row("passing", 0, 0, 0, 0, rate=3.0),
]


def names(choice: Choice) -> list[str]:
    return [each.name for each in arrange(ROWS, choice).rows]


def test_trouble_comes_first() -> None:
    expected = ["slow", "stuck", "dying", "off", "large", "later", "calm", "passing"]
    assert names(Choice()) == expected
    assert names(Choice(falling=False)) == expected[::-1]


def test_what_needs_attention_is_said_in_a_few_words() -> None:
    told = {each.name: list(each.troubles) for each in ROWS}
    assert {name: texts for name, texts in told.items() if texts} == {
        "dying": ["3 dead letters"],
        "stuck": ["nothing is claimed: waits 15 min"],
        "slow": ["late: waits 10 min"],
        "off": ["paused"],
    }
    limited = NO_FIGURES._replace(sizes=Sizes(5, 0, 2, 0), limits=Limits(concurrency=2), claimable_in=None)
    assert Row("limited", limited).troubles == [limited.limited] == ["limited: 2 of 2 claimed"]
    away = ROWS[0]._replace(figures=ROWS[0].figures._replace(away=("b",)))
    assert away.troubles == ["some items not counted"]
    assert away.urgency > ROWS[2].urgency


LATE, LIMITED = 400.0, "limited: 2 of 2 claimed"
AT_LIMIT = {"limits": Limits(concurrency=2), "claimable_in": None}


@every(
    ("oldest", "claimed", "removed", "changes", "told", "red"),
    [
        (LATE, 0, 0.0, {}, "nothing is claimed: waits 7 min", True),
        (LATE, 0, 4.4, {}, "late: waits 7 min", True),
        (LATE, 0, None, {}, "late: waits 7 min", True),
        (LATE, 2, 0.0, {}, "late: waits 7 min", True),
        (LATE, 2, 4.4, {}, "late: waits 7 min", True),
        (LATE, 2, 4.4, AT_LIMIT, "at its limit: waits 7 min", False),
        (LATE, 0, 0.0, {"limits": Limits(rate=(1, 60.0)), "claimable_in": 9.0}, "at its limit: waits 7 min", False),
        (LATE, 0, 0.0, {"paused": True}, "", False),
        (LATE, 2, 4.4, {"paused": True, **AT_LIMIT}, "", False),
        (299.0, 0, 0.0, {}, "", False),
        (299.0, 2, 4.4, AT_LIMIT, "", False),
        (None, 0, 0.0, {}, "", False),
    ],
)
def test_what_is_said_of_a_queue_whose_items_wait_is_true(
    oldest: float | None, claimed: int, removed: float | None, changes: dict[str, Any], told: str, red: bool
) -> None:
    """Red is only what nobody has set: neither a pause nor a limit."""
    figures = NO_FIGURES._replace(sizes=Sizes(5, 0, claimed, 0), oldest_ready=oldest, **changes)
    seen = Row("q", figures, 1.0, removed)
    assert seen.waits == told
    assert seen.alarms == ([told] if red else [])
    assert (seen.urgency >= 4) == red


@every(
    ("oldest", "trend", "told"),
    [
        (61.0, Backlog(9, 3.25), "grows by 3.2 a second"),
        (61.0, Backlog(9, -0.1, 3 * 3600.0), "gone in 3 h"),
        (61.0, Backlog(9, -3.0, 3600.0), ""),
        (61.0, Backlog(9, 0.0), ""),
        (61.0, Backlog(9), ""),
        (61.0, None, ""),
        (59.0, Backlog(9, 3.25), ""),
        (None, Backlog(9, 3.25), ""),
    ],
)
def test_a_backlog_that_grows_or_lasts_is_in_the_list(oldest: float | None, trend: Backlog | None, told: str) -> None:
    figures = NO_FIGURES._replace(sizes=Sizes(9, 0, 1, 0), oldest_ready=oldest)
    seen = Row("q", figures, 1.0, 2.0, trend=trend)
    assert (list(seen.troubles), list(seen.alarms)) == ([told] if told else [], [])


def test_a_queue_of_which_no_consumer_takes_anything_says_so() -> None:
    """It is red only once its items wait for long."""
    figures = NO_FIGURES._replace(sizes=Sizes(5, 0, 0, 0), oldest_ready=31.0)
    seen = Row("q", figures, 0.0, 0.0, untaken=UNTAKEN_SECONDS)
    assert (list(seen.troubles), list(seen.alarms)) == (["no consumer takes any: waits 31 s"], [])
    assert seen._replace(untaken=UNTAKEN_SECONDS - 1).waits == ""
    late = seen._replace(figures=figures._replace(oldest_ready=LATE))
    assert list(late.alarms) == ["no consumer takes any: waits 7 min"]
    assert seen._replace(figures=figures._replace(**AT_LIMIT)).waits == "at its limit: waits 31 s"


def test_every_column_sorts_and_a_second_click_turns_it() -> None:
    assert names(Choice("name", falling=False)) == sorted(each.name for each in ROWS if each.name != "empty")
    assert names(Choice("ready"))[:2] == ["large", "off"]
    assert names(Choice("oldest"))[:2] == ["off", "stuck"]
    assert names(Choice("pushed"))[0] == names(Choice("removed"))[0] == "passing"
    assert names(Choice("dead"))[0] == "dying"
    assert names(Choice("scheduled"))[0] == "later"
    assert names(Choice("claimed"))[:2] == ["slow", "large"]
    assert Choice().by("name") == Choice("name", falling=False)
    assert Choice("name", falling=False, text="x").by("name") == Choice("name", falling=True, text="x")


def test_empty_queues_are_folded_and_totals_count_all_that_were_chosen() -> None:
    table = arrange(ROWS, Choice())
    assert table.empty == ["empty"]
    assert table.totals == (9, 920, 8, 3, 3, 9000.0, 3.0, 3.0)
    some = arrange(ROWS, Choice(text="L"))
    assert sorted(each.name for each in some.rows) == ["calm", "large", "later", "slow"]
    assert some.totals[:5] == (4, 909, 8, 3, 0)
    many = arrange([row(f"q{number}", 1, 0, 0, 0) for number in range(QUEUES_SHOWN + 7)], Choice())
    assert (len(many.rows), many.more) == (QUEUES_SHOWN, 7)


@every(
    "choice", [Choice(), Choice("dead", text="a&b=ü"), Choice("name", falling=True), Choice("trouble", falling=False)]
)
def test_a_choice_is_the_address_that_shows_it(choice: Choice) -> None:
    assert read_choice(dict(parse_qsl(choice.query.lstrip("?"), keep_blank_values=True))) == choice
    assert re.fullmatch(r"|\?[\w=&%+.-]*", choice.query)


def test_an_address_that_makes_no_sense_shows_the_usual_table() -> None:
    assert read_choice({"sort": "<script>", "order": "sideways"}) == Choice()
    assert read_choice({"sort": "name"}) == Choice("name", falling=COLUMNS["name"].falling)
    assert len(read_choice({"text": "x" * 9999}).text) == 200
