"""Every template of the page renders and escapes, whatever happens; what it shows first, and to whom."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import zkrq
from tests.every import every
from tests.unit.page_values import BAD, GOOD, HOSTILE, NOON, values_of
from zkrq.client.health import Health, ServerHealth
from zkrq.client.items import Item
from zkrq.client.texts import show_alarm, show_state, show_tone
from zkrq.serve.contents import read_state
from zkrq.serve.navigation import PLACES
from zkrq.serve.problems import Busy
from zkrq.serve.queue_pages import Wish, read_wish
from zkrq.serve.rendering import make_templates
from zkrq.serve.watching import Look

TEMPLATES = make_templates()
"""One for all tests, since it compiles a template once."""


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


TABS = ("done", "groups")


LIVE = ("live_overview.html", "live_queue.html", "live_item.html", "live_consumers.html", "live_servers.html")

RENDERED = (
    *LIVE,
    *("live.html", "live_consumer.html", "find_all.html", "live_jobs.html", "ask.html", "edit.html"),
    *("failures.html", "level.html"),
)


@every("template", [*RENDERED, *TABS, "find.html"])
@every("health", [GOOD, BAD])
@every("read_only", [False, True])
@every("full", [False, True])
def test_every_template_renders_and_escapes(template: str, health: Health, read_only: bool, full: bool) -> None:
    values = values_of(template, health, read_only=read_only, full=full)
    if template in TABS:
        template, values["wish"] = "live_queue.html", Wish(read_state(template))
    if template == "live_item.html" and read_only:
        values["item"] = None
    text = TEMPLATES.get_template(template).render(values)
    for written in ("<script>", "<img", "<i>", "<b>", "<u>", "<x>", '"onclick', '<script>"'):
        assert written not in text
    if full and template in ("live_overview.html", "live.html"):
        assert '<tr id="shard-b" class="bad">' in text
        assert "1 of 1; a push needs 1" in text
    if template.startswith("live"):
        assert ("nothing can be pushed" in text) != health.ok
        for jargon in ("epoch", "from here", ">place<", ">member<", "learner"):
            assert jargon not in text
    if read_only and template.startswith("live"):
        assert 'method="post" action="/queues' not in text
        assert 'type="checkbox"' not in text


@every(
    ("template", "here", "current"),
    [
        ("live.html", "/consumers", "page"),
        ("live.html", "/", "page"),
        ("edit.html", "/", "true"),
        ("find.html", "/", "true"),
        ("ask.html", "/flows", "true"),
    ],
)
def test_every_page_has_the_bar_and_marks_where_it_is(template: str, here: str, current: str) -> None:
    values = values_of(template, GOOD, read_only=True, full=True) | {"here": here}
    values["up"] = None
    text = TEMPLATES.get_template(template).render(values)
    (bar,) = re.findall(r'<nav class="places" aria-label="Pages">(.*?)</nav>', text, re.DOTALL)
    links = re.findall(r'<a href="([^"]*)"(?: aria-current="(\w+)")?>([^<]*)</a>', bar)
    assert links == [(path, current if path == here else "", title) for title, path in PLACES]
    assert text.count(">read-only<") == 1


def test_who_may_act_sees_what_can_be_done() -> None:
    for template, shown in (
        ("live_queue.html", ("Resume", "Redrive all", "Discard chosen")),
        ("live_item.html", ("Redrive", "Edit and redrive", "Discard")),
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
        assert "Redrive" not in text


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
