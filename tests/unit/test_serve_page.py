"""What the page makes of figures: curves, rates, texts; and that every template renders whatever happens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.every import every
from zkrq.client.consumers import Consumer
from zkrq.client.flow import Flow
from zkrq.client.health import Health, ServerHealth
from zkrq.client.inspection import Sizes, Statistics
from zkrq.client.shards import ShardStatus
from zkrq.protocol.view import Life, ServerId, View
from zkrq.repair.progress import Progress
from zkrq.serve import curves
from zkrq.serve.curves import HEIGHT, WIDTH, History, Point, Rate, draw, rates
from zkrq.serve.page import (
    NO_FIGURES,
    PLACES,
    Shown,
    make_templates,
    show_alarm,
    show_duration,
    show_number,
    show_payload,
    show_rate,
)
from zkrq.serve.watching import Look


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


def test_a_curve_has_zero_in_sight_and_stays_within_its_edges() -> None:
    assert draw([0], [5.0]) is draw([], [], []) is None
    assert draw([0, 10], [5.0, 10.0]) == ([f"0.0,{HEIGHT / 2} {WIDTH}.0,0.0"], 10.0)
    assert draw([0, 10], [0.0, 5.0], [10.0, 0.0]) == (
        [f"0.0,{HEIGHT}.0 {WIDTH}.0,{HEIGHT / 2}", f"0.0,0.0 {WIDTH}.0,{HEIGHT}.0"],
        10.0,
    )
    assert draw([3, 3], [0.0, 0.0]) == ([f"0.0,{HEIGHT}.0 0.0,{HEIGHT}.0"], 0.0)


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


def test_a_payload_is_shown_by_its_beginning() -> None:
    assert show_payload(b'{"a":"\xc3\xa4"}') == '{"a":"ä"}'
    assert show_payload(b"\xff\x00") == "\ufffd\x00"
    assert show_payload(b"x" * 5000) == "x" * 1000 + "…"


GOOD = Health(True, "connected", 7, {"redis-1": ServerHealth("member", True)})
BAD = Health(
    False,
    "suspended",
    8,
    {
        "<b>": ServerHealth("learner", True, Progress(10, 1000, 5.0, 198.0)),
        "new": ServerHealth("learner", True, Progress(0, 0, 0.0, None)),
        "out": ServerHealth("out", False),
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
LETTER: dict[str, Any] = {
    "id": "<script>",
    "reason": "<img src=x>",
    "attempts": 2,
    "key": '"onclick="',
    "died_at": datetime(2026, 1, 2, tzinfo=UTC),
    "payload": b"</pre><script>",
    "traceback": "<x>",
    "owner": "1",
    "seconds_left": 5.0,
}


@every("template", ["live_overview.html", "live_queue.html", "live.html"])
@every("health", [GOOD, BAD])
@every("read_only", [False, True])
@every("full", [False, True])
def test_every_template_renders_and_escapes(template: str, health: Health, read_only: bool, full: bool) -> None:
    shards = {"b": ShardStatus("open", None, "shard b is away"), "main": ShardStatus("open", ONE_SERVER, None)}
    shown = Shown("emails", FIGURES, draw([0, 1], [1.0, 2.0]), draw([0, 1], [1.0, 2.0], [0.0, 1.0]), "idle")
    if not full:
        shown = Shown("emails", FIGURES._replace(oldest_ready=None, paused=False), None, None, "idle")
    look = Look(
        health,
        datetime(2026, 1, 2, tzinfo=UTC),
        {"emails": FIGURES} if full else {},
        {"1": Consumer("<i>worker</i>", {"emails": 1})} if full else {},
        "<u>no answer</u>" if full else "",
    )
    text = (
        make_templates()
        .get_template(template)
        .render(
            namespace="shop",
            session=True,
            notice="",
            title="Queues",
            fragment="live_overview.html",
            stream="/live",
            look=look,
            shards=shards if full else {},
            left_out=["b"] if full else [],
            writable=health.ok,
            members=1,
            needed=2,
            read_only=read_only,
            shown=[shown] if full else [],
            more=3 if full else 0,
            consumers=list(look.consumers.items()),
            more_consumers=2 if full else 0,
            places=PLACES,
            queue=shown,
            letters=[LETTER] if full else [],
            claimed=[LETTER] if full else [],
        )
    )
    for written in ("<script>", "<img", "<i>", "<b>", "<u>", "<x>", '"onclick'):
        assert written not in text
    if full and template != "live_queue.html":
        assert '<tr id="shard-b" class="bad">' in text
        assert "1 of 1; a push needs 1" in text
    assert ("Pause" in text or "Resume" in text) != read_only or not (full or template == "live_queue.html")
    assert ("nothing can be pushed" in text) != health.ok


def test_a_lost_server_is_first_on_the_page_and_in_its_title() -> None:
    warning = "2 of 3 servers in sync; redis-1 out since 15:48 UTC; one more failure stops pushes"
    places = {"redis-1": "out", "redis-2": "member", "redis-3": "member"}
    servers = {name: ServerHealth(place, connected=True) for name, place in places.items()}
    health = Health(True, "connected", 7, servers, (), (warning,))
    text = (
        make_templates()
        .get_template("live.html")
        .render(
            namespace="shop",
            session=False,
            notice="",
            title="Queues",
            fragment="live_overview.html",
            stream="/live",
            look=Look(health, datetime(2026, 1, 2, tzinfo=UTC)),
            shards={},
            left_out=[],
            writable=True,
            members=2,
            needed=2,
            read_only=True,
            shown=[],
            more=0,
            consumers=[],
            more_consumers=0,
            places=PLACES,
            queue=None,
        )
    )
    assert "<title>2 of 3 in sync · Queues · shop · zkrq</title>" in text
    main = text[text.index("<main") :]
    assert main.index(f'<p class="state warn">{warning}</p>') < main.index("can be pushed") < main.index("<h1")
    assert show_alarm(GOOD) == ""
    assert show_alarm(BAD) == "0 of 3 in sync"
    assert show_alarm(GOOD._replace(ok=False)) == "not ready"
