"""What the page makes of figures: curves, rates, texts; and that every template renders whatever happens."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import zkrq
from tests.every import every
from zkrq.base.results import Result, ResultState
from zkrq.client.consumers import Consumer
from zkrq.client.flow import Flow
from zkrq.client.groups import Group, LargestGroups
from zkrq.client.health import Health, ServerHealth
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.items import EndedItem, Item
from zkrq.client.shards import ShardStatus
from zkrq.protocol.view import Life, ServerId, View
from zkrq.repair.progress import Progress
from zkrq.serve import curves
from zkrq.serve.actions import Form
from zkrq.serve.contents import Found, read_state
from zkrq.serve.curves import HEIGHT, MARKS, WIDTH, History, Point, Rate, draw, latest_rate, rates, thin
from zkrq.serve.letters import columns, group
from zkrq.serve.listing import Choice, Row, arrange
from zkrq.serve.problems import Busy
from zkrq.serve.queue_pages import Wish, read_wish
from zkrq.serve.rendering import make_templates
from zkrq.serve.shown import NO_FIGURES, show_queue, show_rate
from zkrq.serve.texts import (
    show_alarm,
    show_bytes,
    show_count,
    show_duration,
    show_moment,
    show_number,
    show_state,
    show_tone,
)
from zkrq.serve.watching import Look

TEMPLATES = make_templates()
"""One for all tests, since it compiles a template once."""


def test_history_keeps_the_last_minutes_of_the_queues_that_are_there() -> None:
    history = History()
    for at in range(0, 1000, 100):
        history.add(at, {"a": seen(at), "b": seen(1)} if at < 500 else {"a": seen(at)})
    assert history.points("a") == tuple(Point(at, at, at) for at in range(0, 1000, 100))
    assert history.points("b") == ()
    history.add(950 + curves.HISTORY_SECONDS, {"a": seen(0, removed=900)})
    assert history.points("a") == (Point(950 + curves.HISTORY_SECONDS, 0, 900, 900),)
    for at in range(curves.POINTS_MAX + 10):
        history.add(2000 + at / 10, {"a": seen(1)})
    assert len(history.points("a")) == curves.POINTS_MAX


def seen(ready: int, *, removed: int = 0, dead: int = 0, server: str = "redis-1") -> Statistics:
    """A queue as its primary counts it."""
    flow = Flow(ready + dead + removed, removed, server)
    return NO_FIGURES._replace(sizes=Sizes(ready, 0, 0, dead), flow=flow)


def test_what_passes_is_added_up_whoever_counts() -> None:
    """Between the looks at two primaries, and of a queue that began anew, it is not known."""
    history = History()
    looks = [seen(5), seen(8, removed=2), seen(50, server="redis-2"), seen(49, removed=1, server="redis-2"), seen(3)]
    for at, look in enumerate([*looks, seen(2, removed=2, dead=1)]):
        history.add(at, {"a": look})
    passed = [(0, 0), (5, 2), (5, 2), (5, 3), (5, 3), (7, 5)]
    assert [point[2:] for point in history.points("a")] == passed


def test_a_rate_is_of_the_last_seconds() -> None:
    passed = ((0, 0, 0), (5, 10, 0), (10, 20, 5), (20, 120, 5), (30, 120, 25))
    points = [Point(at, 0, pushed, removed) for at, pushed, removed in passed]
    assert rates(points) == [(5, 2.0, 0.0), (10, 2.0, 0.5), (20, 10.0, 0.0), (30, 0.0, 2.0)]
    assert rates(points[:1]) == rates([]) == []


@every("seconds", range(0, 31, 3))
def test_the_latest_rate_is_the_last_of_all(seconds: int) -> None:
    points = [Point(at, 0, at * at, at) for at in range(0, seconds, 2)]
    assert latest_rate(points) == next(iter(rates(points)[-1:]), None)


def test_a_curve_has_zero_in_sight_and_stays_within_its_edges() -> None:
    assert draw([0], [5.0]) is draw([], [], []) is None
    assert draw([0, 10], [5.0, 10.0]) == ([f"0.0,{HEIGHT / 2} {WIDTH}.0,0.0"], 10.0, ())
    assert draw([0, 10], [0.0, 5.0], [10.0, 0.0]) == (
        [f"0.0,{HEIGHT}.0 {WIDTH}.0,{HEIGHT / 2}", f"0.0,0.0 {WIDTH}.0,{HEIGHT}.0"],
        10.0,
        (),
    )
    assert draw([3, 3], [0.0, 0.0]) == ([f"0.0,{HEIGHT}.0 0.0,{HEIGHT}.0"], 0.0, ())


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@every("count", [2, 3, MARKS, 500])
def test_every_place_of_a_curve_tells_a_moment_that_was_looked_at(count: int) -> None:
    moments = [100.0 + 2 * number for number in range(count)]
    drawn = draw(moments, moments, [0.0] * count, ends=NOON)
    assert drawn
    assert len(drawn.marks) == min(count, MARKS)
    assert drawn.marks[0].left == 0.0
    assert abs(sum(mark.width for mark in drawn.marks) - WIDTH) < 0.01
    for mark in drawn.marks:
        assert mark.at == NOON - timedelta(seconds=moments[-1] - mark.values[0])
        place = (mark.values[0] - moments[0]) * WIDTH / (moments[-1] - moments[0])
        assert mark.left - 0.01 <= place <= mark.left + mark.width + 0.01


@every("most", [2, 3, 10, 100])
def test_thin_keeps_the_first_and_the_last(most: int) -> None:
    left = thin(range(57), most)
    assert (left[0], left[-1], len(left)) == (0, 56, min(57, most))
    assert list(left) == sorted(set(left))


@every(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (10, "10 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 days")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@every(("value", "text"), [(0, "0"), (1234567, "1,234,567"), (0.25, "0.2"), (-3.55, "-3.5"), (123.4, "123")])
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
    assert [show_bytes(size) for size in (0, 1023, 1024, 3 << 20, 5 << 30)] == [
        "0 bytes",
        "1,023 bytes",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [show_count(count, "item") for count in (0, 1, 1200)] == ["0 items", "1 item", "1,200 items"]


def test_a_wish_is_the_address_that_shows_it() -> None:
    assert read_wish({}) == Wish()
    searched = Wish("dead", error="a&b", after="x")
    for wish in (Wish("dead", 500, "header tenant", "a&b"), Wish("claimed"), Wish("dead", group=""), searched):
        fields = dict(re.findall(r"(\w+)=([^&]*)", wish.query()))
        assert (
            read_wish(
                {name: html.unescape(value).replace("%26", "&").replace("+", " ") for name, value in fields.items()}
            )
            == wish
        )
    assert read_wish({"tab": "<x>", "count": "-3", "by": ""}) == Wish()
    assert read_wish({"count": "99999"}).most == 500
    assert not searched.is_live
    assert Wish("dead").is_live
    assert Wish("ready", error="of another tab").is_live


GOOD = Health(True, "connected", 7, {"redis-1": ServerHealth("member", True)})
BAD = Health(
    False,
    "suspended",
    8,
    {
        "<b>": ServerHealth("learner", True, Progress(10, 1000, 5.0, 198.0)),
        "new": ServerHealth("learner", True, Progress(0, 0, 0.0, None)),
        "out": ServerHealth("out", False, out_since=NOON, reason="<i>no</i>"),
    },
    ("server <i> refuses",),
)
FIGURES = Statistics(Sizes(1, 2, 3, 4), True, 5.0, 0, 0, 0, 0)
ONE_SERVER = View(
    1,
    {ServerId("redis-1"): Life("run", "generation")},
    {},
    {},
    {ServerId("redis-1"): "redis://a"},
    min_replicas=1,
    by="",
)
HOSTILE: Item[bytes] = Item(
    id='<script>"',
    item=None,
    payload=b'{"<u>": "</pre><script>"}',
    state="dead",
    priority=3,
    attempts=2,
    failures=1,
    pushed_at=NOON,
    seconds_left=5.0,
    owner="1",
    reason="<img src=x>",
    key='"onclick="',
    traceback="<x>",
    died_at=NOON,
    expires_in=9.0,
    headers={"<i>": "<b>"},
)


ENDED = EndedItem('<script>"', "dead", NOON, 2.0, "1", 3, "<i>", "<b>", "<img src=x>")
LARGEST = LargestGroups([Group("<script>", 3, 1, "blocked", 9.0)], 1, whole=False)


def values_of(template: str, health: Health, *, read_only: bool, full: bool) -> dict[str, Any]:
    """All that a template is given."""
    points = [Point(0, 1), Point(2, 2)]
    figures = FIGURES if full else FIGURES._replace(oldest_ready=None, paused=False, sizes=Sizes(0, 0, 0, 0))
    letters = [HOSTILE] if full else []
    consumers = {"1": Consumer("<i>worker</i>", {"emails": 1})} if full else {}
    row = Row("emails", figures, 1.0, 2.0, draw([0, 1], [1.0, 2.0])) if full else Row("emails", figures)
    is_dead = template == "live_queue.html"
    return {
        "namespace": "shop",
        "session": True,
        "notice": "",
        "title": "Queues",
        "fragment": "live_overview.html",
        "stream": "/live",
        "up": "emails" if full else None,
        "look": Look(health, NOON, {}, consumers, {}, "<u>no answer</u>" if full else ""),
        "shards": {"b": ShardStatus("open", None, "away"), "main": ShardStatus("open", ONE_SERVER, None)}
        if full
        else {},
        "left_out": ["b"] if full else [],
        "writable": health.ok,
        "members": 1,
        "needed": 2,
        "read_only": read_only,
        "table": arrange([row], Choice(text="e" if full else ""))._replace(more=3 if full else 0),
        "choice": Choice("dead", text="<e>") if full else Choice(),
        "consumers": list(consumers.items()),
        "more_consumers": 2 if full else 0,
        "queue": "emails"
        if "find" in template or template == "confirm.html"
        else show_queue("emails", figures, points if full else [], NOON),
        "wish": Wish("dead" if is_dead else "ready", group=group(letters)[0].value if letters else None),
        "items": letters if template != "consumer.html" else {"emails": letters},
        "columns_of_letters": columns(letters),
        "groups": group(letters),
        "more_groups": 1,
        "grouped": len(letters),
        "next": "<b>" if full else None,
        "chosen": len(letters),
        "name": "emails",
        "id": HOSTILE.id,
        "form": Form((HOSTILE.id,) * 12, "<by>", "<img>") if template == "confirm.html" else "",
        "item": HOSTILE if full else None,
        "ended": [ENDED] if full else [],
        "largest": LARGEST if full else LargestGroups((), 0, whole=True),
        "result": Result("1", ResultState.DONE, b"<u>", has_value=True) if full else None,
        "text": "<img>",
        "found": ([("emails", HOSTILE)] if template == "find_all.html" else Found([HOSTILE], 1, whole=full))
        if full
        else (),
        "asked": 3,
        "trouble": "<img>" if full else "",
        "owner": "1",
        "consumer": Consumer("<i>worker</i>", {"emails": 1}),
        "question": "<img>?",
        "verb": "discard",
        "back": "/?<img>",
        "preview": 10,
    }


TABS = ("done", "groups")
RENDERED = ("live_overview.html", "live_queue.html", "live_item.html", "live.html", "consumer.html", "find_all.html")


@every("template", [*RENDERED, *TABS, "find.html", "confirm.html"])
@every("health", [GOOD, BAD])
@every("read_only", [False, True])
@every("full", [False, True])
def test_every_template_renders_and_escapes(template: str, health: Health, read_only: bool, full: bool) -> None:
    values = values_of(template, health, read_only=read_only, full=full)
    if template in TABS:
        template, values["wish"] = "live_queue.html", Wish(read_state(template))
    if template == "live_item.html" and read_only:
        values["item"] = None
    if template == "find.html":
        values["found"] = Found([HOSTILE] if full else [], 3, whole=full)
    text = TEMPLATES.get_template(template).render(values)
    for written in ("<script>", "<img", "<i>", "<b>", "<u>", "<x>", '"onclick', '<script>"'):
        assert written not in text
    if full and template in ("live_overview.html", "live.html"):
        assert '<tr id="shard-b" class="bad">' in text
        assert "1 of 1; a push needs 1" in text
    if template.startswith("live"):
        assert ("nothing can be pushed" in text) != health.ok
        for jargon in ("epoch", "from here", "place<", "member<", "learner"):
            assert jargon not in text
    if read_only and template.startswith("live"):
        assert 'method="post" action="/queues' not in text
        assert 'type="checkbox"' not in text


def test_who_may_act_sees_what_can_be_done() -> None:
    for template, shown in (
        ("live_queue.html", ("Resume", "Redrive all", "Discard chosen")),
        ("live_item.html", ("Retry now", "Discard")),
    ):
        text = TEMPLATES.get_template(template).render(values_of(template, GOOD, read_only=False, full=True))
        for button in shown:
            assert f">{button}</button>" in text


def test_an_item_that_is_not_dead_can_be_cancelled() -> None:
    values = values_of("live_item.html", GOOD, read_only=False, full=True)
    for state in ("ready", "scheduled", "claimed"):
        values["item"] = item_in(state)
        text = TEMPLATES.get_template("live_item.html").render(values)
        assert ">Cancel</button>" in text
        assert "Retry now" not in text


def item_in(state: Any) -> Item[bytes]:
    return replace(HOSTILE, state=state)


def test_a_lost_server_is_first_on_the_page_and_in_its_title() -> None:
    warning = "2 of 3 servers in sync; redis-1 out since 15:48 UTC; one more failure stops pushes"
    places = {"redis-1": "out", "redis-2": "member", "redis-3": "member"}
    servers = {name: ServerHealth(place, connected=True) for name, place in places.items()}
    health = Health(True, "connected", 7, servers, (), (warning,))
    text = TEMPLATES.get_template("live.html").render(values_of("live.html", health, read_only=True, full=False))
    assert "<title>2 of 3 in sync · Queues · shop · zkrq</title>" in text
    main = text[text.index("<main") :]
    assert '<section id="alarm" class="strip warn"' in main
    order = (
        '<li class="bad">redis-1',
        f'<p class="state warn">{warning}</p>',
        "can be pushed",
        "claims continue",
        "<h1",
    )
    assert sorted(order, key=main.index) == list(order)


def test_the_state_has_a_colour_and_a_word() -> None:
    warned = GOOD._replace(warnings=("<b> is out",))
    assert [show_tone(each) for each in (GOOD, warned, BAD)] == ["good", "warn", "bad"]
    assert show_tone(GOOD, "no answer") == "bad"
    assert show_alarm(GOOD) == ""
    assert show_alarm(GOOD, "late") == "no answer"
    assert show_alarm(BAD) == "0 of 3 in sync"
    assert show_alarm(GOOD._replace(ok=False)) == "not ready"


SUSPENDED, WARNED = GOOD._replace(session="suspended"), GOOD._replace(warnings=("one is out",))
NOT_READY = GOOD._replace(ok=False)
SILENT = "The servers do not answer."


@every(
    ("health", "trouble", "notes", "tone", "sentence"),
    [
        (GOOD, "", (), "good", "All servers are in sync. Items can be pushed and claimed."),
        (WARNED, "", (), "warn", "Items can be pushed and claimed. If pushes stop, claims continue."),
        (SUSPENDED, "", (), "warn", "Items can be pushed and claimed. If pushes stop, claims continue."),
        (SUSPENDED, "", ("no list",), "warn", "Items can be pushed and claimed. If pushes stop, claims continue."),
        (GOOD, "", ("no list",), "warn", "Items can be pushed and claimed. If pushes stop, claims continue."),
        (GOOD, "late", (), "bad", SILENT),
        (SUSPENDED, "late", (), "bad", SILENT),
        (NOT_READY, "", (), "bad", "Not everything works."),
        (NOT_READY, "late", (), "bad", "Not everything works."),
        (NOT_READY, "", ("no list",), "bad", "Not everything works."),
    ],
)
def test_each_state_has_its_sentence(
    health: Health, trouble: str, notes: tuple[str, ...], tone: str, sentence: str
) -> None:
    """As the page shows it: red only for what is so, and the servers are silent only if they were asked."""
    assert show_tone(health, trouble, notes) == tone
    values = values_of("live_overview.html", health, read_only=True, full=False)
    values["look"] = Look(health, NOON, {}, {}, {}, trouble, notes)
    text = TEMPLATES.get_template("live_overview.html").render(values)
    assert f'class="strip {tone}"' in text
    assert show_state(health, trouble, notes) == sentence
    assert sentence in text
    assert (SILENT in text) == (sentence == SILENT)
    assert ("The session with ZooKeeper is suspended" in text) == (health.session == "suspended")
    assert all(note in text for note in notes)


@every(
    ("error", "silent"),
    [(Busy("5 searches"), False), (zkrq.ConfigError("no"), False), (TimeoutError(), True), (zkrq.Unavailable(), True)],
)
def test_a_page_blames_the_servers_only_for_silence(error: Any, silent: bool) -> None:
    look = Look(GOOD, NOON).without(error)
    assert bool(look.trouble) == silent
    assert bool(look.notes) != silent
