"""The page in a real browser: it lives, its buttons work by keyboard too, it fits a phone, nothing of it is hostile."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path

import httpx
import pytest

import zkrq
from tests.browser import Browser
from tests.harness import HANG, in_process, new_namespace, settled, take
from tests.integration.page_stage import Stage, do, staged
from tests.serving import serving
from zkrq import local
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio

TOKEN = "a-long-random-text-that-nobody-guesses"


@pytest.fixture(scope="module")
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


async def test_the_page_lives_and_its_buttons_work(browser: Browser, stage: Stage) -> None:
    orders = stage.cluster.queue("orders")
    await orders.push_many(range(1234))
    await do(browser.open, stage.http.url)
    await do(browser.shows, "#queue-orders", "1,234")
    claim = await take(orders)
    await do(browser.shows, "#consumers ~ .scroll table", "worker <1>")
    await do(browser.shows, "#consumers ~ .scroll table", "1 item of orders")
    await claim.ack()
    await do(browser.shows, "#queue-orders", "1,233")  # without loading the page again
    for server in ("redis-1", "redis-2", "redis-3"):
        await do(browser.shows, "#servers ~ .scroll table", server)
    await do(browser.shows, "#servers ~ .scroll table", "MiB")  # of memory
    await do(browser.click, "#queue-orders th a")
    await do(browser.click, "#pause button")
    await do(browser.shows, "#notice", "orders is paused")
    await do(browser.shows, "h1", "paused")
    assert (await orders.statistics()).paused
    await do(browser.click, "#pause button")
    await do(browser.shows, "#notice", "orders is resumed")
    assert not (await orders.statistics()).paused
    assert await do(browser.complaints) == []


async def test_everything_can_be_done_by_keyboard(browser: Browser, stage: Stage) -> None:
    """And what has the focus keeps it while the page changes under it."""
    keyed = stage.cluster.queue("keyed")
    await keyed.push(1)

    def go_to(name: str) -> None:
        for _ in range(50):
            browser.press("\ue004")  # tab
            if browser.focused() == name:
                return
        raise AssertionError(f"the tab key does not reach {name}")

    await do(browser.open, f"{stage.http.url}/queues/keyed")
    await do(browser.wait, lambda: browser.script("return document.readyState === 'complete' && document.hasFocus()"))
    await do(browser.press, "\ue004")
    assert await do(browser.focused) == "Skip to the content"
    await do(browser.press, "\ue007")  # enter
    assert await do(browser.script, "return document.activeElement.id") == "live"
    await do(go_to, "Pause keyed")
    await do(browser.press, " ")
    await do(browser.wait, lambda: browser.focused() == "Resume keyed")
    await keyed.push(2)
    await do(browser.shows, "#tab-ready", "2")
    assert await do(browser.focused) == "Resume keyed"
    await do(browser.press, "\ue007")
    await do(browser.wait, lambda: browser.focused() == "Pause keyed")
    assert not (await keyed.statistics()).paused


async def test_dead_letters_are_shown_redriven_and_discarded(browser: Browser, stage: Stage) -> None:
    dead = stage.cluster.queue("dead")
    hostile = "<img src=x onerror=alert(1)>"
    first = await stage.bury("dead", {"html": hostile}, f"broken {hostile}")
    second = await stage.bury("dead", "second", "also broken")
    ids = [await stage.bury("dead", number, f"late by {number} s") for number in range(3)]
    await do(browser.open, f"{stage.http.url}/queues/dead?tab=dead")
    await do(browser.shows, "#groups", f"broken {hostile.replace('1', '…')}")
    await do(browser.shows, "#groups", "late by … s")
    await do(browser.shows, "#letters", f'{{"html":"{hostile}"}}')
    assert await do(browser.script, "return document.querySelectorAll('img').length") == 0

    await do(browser.click, f'[id="choose-{first}"]')
    await do(browser.click, f'[id="choose-{ids[0]}"]')
    await dead.push("more")
    await do(browser.shows, "#tab-ready", "1")  # what was ticked stays ticked while the page changes
    await do(browser.click, "#discard-chosen")
    await do(browser.shows, "main", "Discard the 2 dead letters that you chose? This cannot be undone.")
    assert (await dead.size()).dead == 5
    await do(browser.click, "#confirm")
    await do(browser.shows, "#notice", "2 dead letters of dead discarded")
    assert await dead.get(first) is await dead.get(ids[0]) is None
    await do(browser.wait, lambda: hostile not in browser.text("#live"))

    await do(browser.click, "#group-1 button")
    await do(browser.shows, "main", "Redrive 2 dead letters of “late by … s”?")
    await do(browser.click, "#confirm")
    await do(browser.shows, "#notice", "2 dead letters of dead redriven")
    assert await dead.size() == (3, 0, 0, 1)

    await do(browser.click, f'[id="letter-{second}"] th a')
    await do(browser.shows, "#history ~ ol", "It died of: also broken")
    await do(browser.click, "#redrive button")
    await do(browser.shows, "#notice", "1 dead letter of dead redriven")
    await do(browser.shows, "#live .badge", "ready")
    assert await dead.size() == (4, 0, 0, 0)
    assert await do(browser.complaints) == []


async def test_all_that_are_shown_are_chosen_by_one_box(browser: Browser, stage: Stage) -> None:
    for number in range(3):
        await stage.bury("boxes", number, "broken")
    await do(browser.open, f"{stage.http.url}/queues/boxes?tab=dead")
    await do(browser.click, "#choose-all")
    assert await do(browser.script, "return document.querySelectorAll('[form=selection]:checked').length") == 3
    await do(browser.click, "#redrive-chosen")
    await do(browser.shows, "main", "Redrive the 3 dead letters that you chose?")


async def test_a_curve_tells_its_value_under_the_pointer(browser: Browser, stage: Stage) -> None:
    await stage.cluster.queue("curved").push_many(range(17))
    await do(browser.open, f"{stage.http.url}/queues/curved")
    await do(browser.wait, lambda: browser.script("return document.querySelectorAll('.mark').length > 2"))

    def point() -> bool:
        from selenium.webdriver.common.action_chains import ActionChains

        marks = browser.driver.find_elements("css selector", ".curve .mark")
        ActionChains(browser.driver).move_to_element(marks[1]).perform()
        return bool(re.fullmatch(r"\d\d:\d\d:\d\d UTC: 17 items", browser.text("#tip")))

    await do(browser.wait, point)
    await do(browser.click, "#table-depth summary")
    await do(browser.shows, "#table-depth", "UTC: 17 items")
    assert await do(browser.complaints) == []


PHONE, DESK = 390, 1280
"""Widths, in pixels."""


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param(((PHONE, True), (DESK, False)), id="each width, each scheme"),
        pytest.param(((PHONE, False), (DESK, True)), id="the other ones", marks=pytest.mark.chaos),
    ],
)
async def test_it_fits_a_phone_and_has_names_and_contrast(
    browser: Browser, stage: Stage, looks: Sequence[tuple[int, bool]]
) -> None:
    """In light and dark; with names, ids and texts as long as they may be."""
    long, letter = "q" * 128, "i" if looks[0][1] else "j"  # an id that is gone is not new
    queue = stage.cluster.queue(long)
    await stage.bury(long, "x" * 3000, "r" * 900)
    await queue.push(1, id=letter * 128)
    claim = await take(queue)
    await queue.pause()
    async with queue.flow("f" * 63 + letter) as flow:
        await flow.push("y" * 3000, id=f"flow-{letter * 123}")
    for path, shown in (
        ("/", f"#queue-{long}"),
        (f"/queues/{long}?tab=dead", "#letters"),
        (f"/queues/{long}?tab=claimed", "#items table"),
        (f"/queues/{long}?tab=settings", "#settings"),
        (f"/queues/{long}?tab=figures&period=6+h", "#work-done"),
        (f"/queues/{long}/item?id={letter * 128}", "#history"),
        (f"/queues/{long}/find?id_prefix=&state=claimed", "#found"),
        ("/flows", ".flow"),
        (f"/flows/{long}/{flow.name}", "#left"),
    ):
        for width, dark in looks:
            await do(browser.open, f"{stage.http.url}{path}", width=width, dark=dark)
            await do(browser.wait, partial(browser.text, shown))
            assert await do(browser.script, "return document.documentElement.scrollWidth") <= width
            assert await do(browser.violations) == []
    assert await do(browser.complaints) == []
    await claim.ack()
    await flow.cancel()
    await queue.resume()  # for the other looks


async def test_a_lost_server_is_told_and_found_again(browser: Browser, shared_servers: local.Servers) -> None:
    """The page says that its figures are old; a token is asked for, and is on no page."""
    hub, namespace = Hub(), new_namespace()
    async with in_process(shared_servers, namespace, hub) as cluster:
        await cluster.queue("orders").push(1)
        async with serving(in_process(shared_servers, namespace, hub), tokens=(TOKEN,)) as http:
            await do(browser.open, http.url)
            await do(browser.shows, "h1", "Log in")
            await do(browser.press, "a wrong token that is long", "\ue007")
            await do(browser.shows, "#notice", "not the token")
            await do(browser.click, "#token")
            await do(browser.press, TOKEN, "\ue007")
            await do(browser.shows, "#queue-orders", "orders")
            assert TOKEN not in await do(lambda: browser.driver.page_source)
            cookie = await do(browser.driver.get_cookie, "zkrq-session")
            assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
            assert TOKEN not in cookie["value"]
            assert await do(browser.violations) == []
            await do(browser.complaints)  # a wrong token is one
            port = http.server.port
        await do(browser.shows, "#lost", "What is shown is old")
        async with serving(in_process(shared_servers, namespace, hub), tokens=(TOKEN,), port=port):
            await do(browser.wait, lambda: not browser.text("#lost"))
            await do(browser.click, "header form button")
            await do(browser.shows, "h1", "Log in")
    await do(browser.complaints)


async def test_the_window_is_titled_by_what_is_wrong(browser: Browser, servers: local.Servers) -> None:
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(servers, namespace, hub, command_timeout=0.5) as cluster,
        serving(in_process(servers, namespace, hub, command_timeout=0.5)) as http,
    ):
        await cluster.queue("orders").push(1)
        await do(browser.open, http.url)
        await do(browser.shows, "#queue-orders", "orders")
        assert await do(lambda: browser.driver.title) == f"Queues · {namespace} · zkrq"
        await servers.redis[0].kill()
        await cluster.queue("orders").push(2)
        await do(browser.shows, "#alarm", "one more failure stops pushes")
        await do(browser.wait, lambda: browser.driver.title == f"2 of 3 in sync · Queues · {namespace} · zkrq")
        assert await do(browser.violations) == []
        await servers.start()
        await do(browser.wait, lambda: browser.driver.title == f"Queues · {namespace} · zkrq")


# -- without a browser -------------------------------------------------------------------------------------------------


async def test_actions_work_without_scripts(stage: Stage) -> None:
    await stage.cluster.queue("plain").push(1)
    reply = await stage.http.client.post("/queues/plain/pause")
    assert (reply.status_code, reply.headers["location"]) == (303, "/queues/plain?done=pause&count=1&asked=1")
    assert (await stage.cluster.queue("plain").statistics()).paused
    id = await stage.bury("others", 1, "broken")
    await stage.http.client.post("/queues/others/redrive", data={"id": id})
    assert (await stage.cluster.queue("others").size()).ready == 1


async def test_an_item_that_waits_is_run_now(stage: Stage) -> None:
    queue = stage.cluster.queue("waiting")
    id = (await queue.push(1, delay=3600)).id
    assert 'action="/queues/waiting/advance"' in (await stage.http.client.get(f"/queues/waiting/item?id={id}")).text
    reply = await stage.http.client.post("/queues/waiting/advance", data={"id": id})
    assert (reply.status_code, reply.headers["location"]) == (
        303,
        f"/queues/waiting/item?id={id}&done=advance&count=1&asked=1",
    )
    assert "1 item of waiting ready" in (await stage.http.client.get(reply.headers["location"])).text
    assert (await queue.size()).ready == 1
    assert 'action="/queues/waiting/advance"' not in (await stage.http.client.get(f"/queues/waiting/item?id={id}")).text
    assert (await stage.http.client.post("/queues/waiting/advance")).status_code == 400


async def test_without_scripts_the_server_asks_before_letters_go(stage: Stage) -> None:
    queue = stage.cluster.queue("asked")
    ids = [await stage.bury("asked", number, "broken") for number in range(3)]
    post = partial(stage.http.client.post, "/queues/asked/discard")
    asked = await post()
    assert asked.status_code == 200
    assert "Discard all 3 dead letters?" in asked.text
    assert 'name="confirmed" value="yes">Discard all dead letters</button>' in asked.text
    assert 'name="id"' not in asked.text
    assert (await stage.http.client.post("/queues/asked/discard", data={"chosen": "yes"})).status_code == 400
    asked = await post(data={"id": ids[0]})
    assert "Discard this dead letter?" in asked.text
    assert f'name="id" value="{ids[0]}"' in asked.text
    assert "Redrive all 3 dead letters?" in (await stage.http.client.post("/queues/asked/redrive")).text
    assert (await queue.size()).dead == 3
    for form, left in (({"id": ids[0]}, 2), ({}, 0)):
        reply = await post(data={**form, "confirmed": "yes"})
        assert reply.status_code == 303
        assert reply.headers["location"].startswith("/queues/asked?tab=dead&done=discard&count=")
        assert (await queue.size()).dead == left
        assert "of asked discarded" in (await stage.http.client.get(reply.headers["location"])).text


def fields_of(text: str) -> dict[str, str]:
    """The fields of the form of the settings, as a browser without scripts sends them."""
    (form,) = re.findall(r'<form[^>]*action="/queues/[^"]*/settings">(.*?)</form>', text, re.DOTALL)
    inputs = [dict(re.findall(r'(\w+)="([^"]*)"', each)) | {"": each} for each in re.findall("<input([^>]*)>", form)]
    sent = [each for each in inputs if each.get("type") != "checkbox" or " checked" in each[""]]
    return {each["name"]: html.unescape(each["value"]) for each in sent}


async def test_settings_are_shown_and_changed_without_scripts(stage: Stage) -> None:
    """After a question; only what is changed is written."""
    client, letters = stage.http.client, zkrq.DeadLetters(max_age=60)
    queue = stage.cluster.queue("set", dead_letters=letters, history=5)
    await queue.push(1)
    await queue.set_max_size(9)
    page = (await client.get("/queues/set?tab=settings")).text
    assert page.count("declared in code") == 2
    assert page.count("set by an operator") == 1
    fields = fields_of(page)
    assert (fields["max_size"], fields["history"], fields["dead_letters.max_age"]) == ("9", "5", "60.0")
    assert (await client.post("/queues/set/settings", data=fields)).headers["location"] == "/queues/set?tab=settings"
    own = {"named.0.group": "digest", "named.0.rate": "2"}
    wanted = {**fields, "max_size": "", "limits.rate": "7", "groups.ordered": "yes", **own}
    asked = await client.post("/queues/set/settings", data=wanted)
    said = "7 in 1 s; in order within each group, but 2 in 1 s in group &#39;digest&#39;; a history of 5 items; "
    assert f"to {said}100,000 dead letters of at most 60 s? They hold for all programs." in asked.text
    assert (await queue.settings()).max_size == 9
    reply = await client.post("/queues/set/settings", data={**fields_of(asked.text), "confirmed": "yes"})
    assert reply.status_code == 303
    assert "The settings of set are changed" in (await client.get(reply.headers["location"])).text
    groups = zkrq.Groups(ordered=True, named={"digest": zkrq.Limits(rate=(2, 1))})
    expected = zkrq.QueueSettings(zkrq.Limits(rate=(7, 1)), groups, 5, None, letters)
    assert await queue.settings() == expected
    fields = fields_of((await client.get("/queues/set?tab=settings")).text)
    assert (fields["named.0.group"], fields["named.0.rate"], fields["named.1.group"]) == ("digest", "2", "")
    confirmed = {**wanted, "confirmed": "yes"}
    for field, wrong, says in (
        ("max_size", "many", "items at most: &#39;many&#39; is no number"),
        ("history", "10001", "history is 10001"),
        ("groups.concurrency", "2", "one item claimed at a time"),
        ("named.0.concurrency", "2", "one item claimed at a time"),
        ("named.0.seconds", "soon", "within seconds: &#39;soon&#39; is no number"),
        ("read", "{}", "open it again"),
    ):
        refused = await client.post("/queues/set/settings", data={**confirmed, field: wrong})
        assert (refused.status_code, says in refused.text) == (400, True), refused.text
    assert await queue.settings() == expected
    without = {**fields, "named.0.group": "", "confirmed": "yes"}
    assert (await client.post("/queues/set/settings", data=without)).status_code == 303
    assert (await queue.settings()).groups == zkrq.Groups(ordered=True)


async def test_settings_that_others_have_changed_meanwhile_are_not_overwritten(stage: Stage) -> None:
    client, queue = stage.http.client, stage.cluster.queue("contested")
    await queue.push(1)
    fields = {**fields_of((await client.get("/queues/contested?tab=settings")).text), "confirmed": "yes"}
    await queue.set_limits(zkrq.Limits(concurrency=3))
    refused = await client.post("/queues/contested/settings", data={**fields, "limits.rate": "7"})
    assert (refused.status_code, "look at them again" in refused.text) == (409, True)
    other = await client.post("/queues/contested/settings", data={**fields, "history": "7"})
    assert other.status_code == 303, "another section"
    assert await queue.settings() == zkrq.QueueSettings(zkrq.Limits(concurrency=3), history=7)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        reply = await client.post("/queues/contested/settings", data={**fields, "history": "8"}, headers=headers)
        assert reply.status_code == 403
    assert (await queue.settings()).history == 7


async def test_another_site_cannot_confirm(stage: Stage) -> None:
    id = await stage.bury("guarded-letters", 1, "broken")
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        confirmed = {"id": id, "confirmed": "yes"}
        reply = await stage.http.client.post("/queues/guarded-letters/discard", data=confirmed, headers=headers)
        assert reply.status_code == 403
    assert (await stage.cluster.queue("guarded-letters").size()).dead == 1


@pytest.mark.parametrize(
    "path", ["/queues/plain/explode", "/queues/a%20b/pause", "/queues/a%20b", "/queues/-/pause", "/queues/unheard-of"]
)
async def test_what_does_not_exist_is_not_found(stage: Stage, path: str) -> None:
    call = stage.http.client.get if path.count("/") == 2 else stage.http.client.post
    assert (await call(path)).status_code == 404


async def test_nothing_is_said_of_a_curve_before_there_is_one(stage: Stage) -> None:
    await stage.cluster.queue("young").push(1)
    text = (await stage.http.client.get("/queues/young")).text
    assert "<figcaption>Items, dead letters not counted</figcaption>" in text


async def test_another_site_acts_on_nothing(stage: Stage) -> None:
    queue = stage.cluster.queue("guarded")
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        assert (await stage.http.client.post("/queues/guarded/pause", headers=headers)).status_code in (403, 421)
    assert not (await queue.statistics()).paused


async def test_an_action_that_fails_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(queue: zkrq.Queue[bytes], ids: object) -> None:
        raise zkrq.OutcomeUnknown("it <may> have happened")

    monkeypatch.setattr("zkrq.serve.queue_pages.ACTIONS", {"pause": fail})
    for headers in ({}, {"HX-Request": "true"}):
        reply = await stage.http.client.post("/queues/plain/pause", headers=headers)
        assert reply.status_code == 504
        assert "it &lt;may&gt; have happened" in reply.text


async def test_pages_that_are_kept_up_to_date_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrq.serve.watching.STREAMS_MAX", 0)
    assert (await stage.http.client.get("/live")).status_code == 503


async def test_a_stream_ends_so_that_the_session_is_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkrq.serve.watching.STREAM_SECONDS", 0.0)
    assert "data: " in (await stage.http.client.get("/live")).text


async def test_a_stream_brings_each_look(stage: Stage) -> None:
    async with stage.http.client.stream("GET", "/live") as stream:
        events = (line async for line in stream.aiter_lines() if line.startswith('data: <p class="as-of">'))
        assert await anext(events)
        assert await anext(events)


async def test_the_page_tells_what_happens_while_servers_are_away(servers: local.Servers) -> None:
    """A paused queue, dead letters, a server that is killed and back, and then none that answers."""
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(servers, namespace, hub, command_timeout=0.5) as cluster,
        serving(in_process(servers, namespace, hub, command_timeout=0.5, operation_timeout=HANG)) as http,
    ):
        queue = cluster.queue("orders")
        await queue.push(1)

        async def told(*texts: str) -> bool:
            pages = [(await http.client.get(path)).text for path in ("/", "/queues/orders")]
            return all(any(re.search(text, page) for page in pages) for text in texts)

        await queue.pause()
        await settled(partial(told, "Items can be pushed and claimed", 'badge">paused'))
        await servers.redis[0].kill()
        await settled(
            partial(
                told,
                r"redis-1</th>\s*<td>out of sync, not connected",
                'class="strip warn"',
                "<title>2 of 3 in sync · orders",
            )
        )
        warnings = (await http.client.get("/v1/queues")).json()["warnings"]
        assert re.fullmatch(r"2 of 3 servers in sync; redis-1 out since .* UTC; one more failure stops .*", warnings[0])
        for server in servers.redis[1:]:
            server.pause()
        await settled(partial(told, "servers have not answered|server|no in-sync", "strip bad"))
        for server in servers.redis[1:]:
            server.resume()
        await servers.start()
        await settled(partial(told, "Items can be pushed and claimed", r"redis-1</th>\s*<td>in sync"))


def test_vendored_files_have_their_licence() -> None:
    static = Path(zkrq.__file__).parent / "serve" / "static"
    assert "Zero-Clause BSD" in (static / "htmx-LICENSE.txt").read_text()
    base = (static.parent / "templates" / "base.html").read_text()
    scripts = re.findall(r'<script src="/static/(\S+)"', base)
    assert {path.name for path in static.glob("*.js")} == set(scripts)


async def test_static_files_are_all_that_is_served_of_the_disk(stage: Stage) -> None:
    assert (await stage.http.client.get("/static/style.css")).headers["cache-control"] == "no-cache"
    for path in ("/static/../page.py", "/static/%2e%2e/page.py", "/static//etc/passwd", "/static/"):
        reply = await stage.http.client.send(httpx.Request("GET", f"{stage.http.url}{path}"))
        assert reply.status_code in (404, 405)
