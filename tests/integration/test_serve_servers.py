"""Servers are added, replaced and removed on the page, and a level is raised, by administrators alone."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

import pytest

import zkrq
from tests.browser import Browser
from tests.harness import in_process, new_namespace, settled, until
from tests.integration.page_stage import do
from tests.serving import Serving, serving
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.upgrading import Late
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.protocol.levels import UNNAMED, ClientInfo
from zkrq.serve.server_page import Changes, Wanted

pytestmark = pytest.mark.anyio

ANN, OPERATOR = "a-token-that-administers", "a-token-that-operates"


class Stage:
    """A namespace on the first two of three servers, and a server of its pages."""

    def __init__(self, http: Serving, cluster: zkrq.Cluster, servers: local.Servers, hub: Hub) -> None:
        self.http = http
        self.cluster = cluster
        self.hub = hub
        self.urls = dict(servers.redis_urls)

    async def members(self) -> set[str]:
        return set(self.cluster.view.members)

    async def are(self, *names: str) -> bool:
        return set(self.cluster.view.members) == set(names) == set(self.cluster.view.servers)


@pytest.fixture
async def stage(servers: local.Servers) -> AsyncGenerator[Stage]:
    hub, namespace = Hub(), new_namespace()
    async with in_process(servers, namespace, hub) as cluster:
        await cluster.queue("orders").push_many(range(7))
        opened = in_process(servers, namespace, hub)
        async with serving(opened, tokens=(OPERATOR,), administrators=(f"ann {ANN}",)) as http:
            yield Stage(http, cluster, servers, hub)


async def log_in(browser: Browser, stage: Stage, token: str) -> None:
    await do(browser.open, f"{stage.http.url}/login")
    await do(browser.click, "#token")
    await do(browser.press, token, "\ue007")
    await do(browser.shows, "h1", "Queues")
    await do(browser.complaints)  # a password without a name is one


async def test_a_server_is_removed_and_added_again_on_the_page(browser: Browser, stage: Stage) -> None:
    await log_in(browser, stage, OPERATOR)
    await do(browser.open, f"{stage.http.url}/servers")
    await do(browser.shows, "#servers ~ .scroll table", "redis-3")
    assert await do(browser.script, "return document.querySelectorAll('main form').length") == 0
    await log_in(browser, stage, ANN)
    for width, dark in ((390, True), (1280, False)):
        await do(browser.open, f"{stage.http.url}/servers", width=width, dark=dark)
        await do(browser.shows, "#change-servers", "Change the servers")
        assert await do(browser.script, "return document.documentElement.scrollWidth") <= width
        assert await do(browser.broken_words) == []
        assert await do(browser.violations) == []
    await do(browser.click, "button[aria-label='Remove redis-3']")
    await do(browser.shows, "main", "redis-3 is in sync. It is removed, and its data stays on it.")
    await do(
        browser.shows, "main", "Then 2 of 2 servers are in sync; a push needs 2: if one of them fails, pushes stop."
    )
    assert await do(browser.violations) == []
    await do(browser.click, "#confirm")
    await do(browser.shows, "h1", "Servers")
    await settled(partial(stage.are, "redis-1", "redis-2"))
    await do(browser.wait, lambda: "redis-3" not in browser.text("#servers ~ .scroll table"))
    await do(browser.click, "#add-url")
    await do(browser.press, stage.urls["redis-3"], "\ue004", "redis-3", "\ue007")
    await do(browser.shows, "main", "7 items of 1 queue are copied to ")
    await do(browser.click, "#confirm")
    await do(browser.shows, "#servers ~ .scroll table", "redis-3")
    await settled(partial(stage.are, "redis-1", "redis-2", "redis-3"))
    await do(browser.shows, "main", "redis-3 was added in ")
    await do(browser.shows, "main", f"Write redis-3={stage.urls['redis-3']} into ZKRQ_REDIS of all programs")
    await do(browser.shows, "main", "redis-3 was removed. Take redis-3 out of ZKRQ_REDIS of all programs")
    await do(browser.open, f"{stage.http.url}/audit", width=390)
    await do(browser.shows, "#audit", "redis-3 was removed")
    assert await do(browser.broken_words) == []
    assert (await do(browser.text, "#audit")).count("ann\t") == 2
    assert await do(browser.complaints) == []


async def test_a_dead_server_is_replaced_by_a_form(stage: Stage, servers: local.Servers) -> None:
    """Without scripts.  The new one is the former one's, under another name, once that is away."""
    post = partial(stage.http.client.post, headers={"Authorization": f"Bearer {ANN}"})
    await stage.cluster.remove_server("redis-3")
    await servers.redis[0].kill()
    with suppress(zkrq.ZkrqError):
        await stage.cluster.queue("orders").push(8)  # so that it is noticed
    form = {"name": "redis-1", "url": stage.urls["redis-3"]}
    asked = await post("/servers/replace", data=form)
    assert "redis-1 is out of sync. It is removed once the new one is in sync" in asked.text
    assert await stage.members() == {"redis-2"}
    reply = await post("/servers/replace", data={**form, "confirmed": "yes"})
    assert reply.status_code == 303, reply.text

    async def is_replaced() -> bool:
        return len(stage.cluster.view.members) == 2 and "redis-1" not in stage.cluster.view.servers

    await settled(is_replaced)
    text = html.unescape((await stage.http.client.get("/servers", headers={"Authorization": f"Bearer {ANN}"})).text)
    written = re.search(r"Write (redis-3)=(\S+) in the place of redis-1 into ZKRQ_REDIS", text)
    assert written, text
    given = {"redis-2": stage.urls["redis-2"], written[1]: written[2]}
    settings = Settings(namespace=stage.cluster.namespace)
    async with zkrq.Cluster(given, MemoryCoordinator(stage.hub), settings) as program:  # what is left to do, was done
        assert (await program.queue("orders").size()).ready >= 7
    await servers.start()
    added = {"name": "redis-2", "url": stage.urls["redis-1"]}
    again = html.unescape((await post("/servers/replace", data=added)).text)
    assert re.search(r"The last time, [\d:]+ UTC: redis-1 was replaced by redis-3 in .*\.", again), again
    assert (await stage.cluster.queue("orders").size()).ready >= 7


async def test_how_many_items_were_copied_is_known_to_the_process_that_copied_them(servers: local.Servers) -> None:
    async with (
        in_process(servers, new_namespace()) as cluster,
        Changes(cluster, lambda what, on, result: None) as changes,
    ):
        await cluster.queue("orders").push_many(range(7))
        assert await changes.make(Wanted("remove", "redis-3")) == "redis-3 was removed"
        await changes.make(Wanted("add", "redis-3", servers.redis_urls["redis-3"]))
        await until(lambda: len(changes.ended) == 2)
        assert re.fullmatch(r"redis-3 was added in .*s, 7 items copied, .*", changes.ended[-1].text)


async def test_what_cannot_be_done_is_said_and_changes_nothing(stage: Stage) -> None:
    post = partial(stage.http.client.post, headers={"Authorization": f"Bearer {ANN}"})
    yes = {"confirmed": "yes"}
    for path, fields, status, says in (
        ("/servers/remove", {"name": "redis-9"}, 400, "there is no server"),
        ("/servers/remove", {}, 400, "names no server"),
        ("/servers/add", {"url": stage.urls["redis-3"], "name": "again", **yes}, 400, "already, as redis-3"),
        ("/servers/add", {"url": stage.urls["redis-3"]}, 400, "already, as redis-3"),  # no question
        (
            "/servers/add",
            {"url": "redis://127.0.0.1:1"},
            503,
            "server 127.0.0.1:1 at redis://127.0.0.1:1",
        ),  # no question
        ("/servers/add", {"url": "redis://127.0.0.1:1", **yes}, 503, "Not done"),
        ("/servers/add", {"url": "nonsense", **yes}, 400, "Not done"),
        ("/servers/add", {"url": "redis://127.0.0.1:1", "shard": "x", **yes}, 400, "no such shard"),
        ("/servers/explode", {}, 404, "no such action"),
    ):
        reply = await post(path, data=fields)
        assert (reply.status_code, says in reply.text) == (status, True), (path, fields, reply.text)
    operator = {"Authorization": f"Bearer {OPERATOR}"}
    for path in ("/servers/remove", "/upgrade"):
        refused = await stage.http.client.post(path, data={"name": "redis-3", **yes}, headers=operator)
        assert (refused.status_code, "the right to administer" in refused.json()["message"]) == (403, True)
    assert await stage.members() == {"redis-1", "redis-2", "redis-3"}


async def test_an_upgrade_says_whether_it_is_safe_and_who_is_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, ann = stage.http.client, {"Authorization": f"Bearer {ANN}"}
    assert "there is nothing to upgrade" in (await client.get("/upgrade", headers=ann)).text
    monkeypatch.setattr("zkrq.client.cluster.Cluster.level", 1)
    late: dict[str, ClientInfo] = {"1": UNNAMED._replace(description="mailer <1>", host="host-7", version="0.2.0")}

    async def find_late(self: object, level: int | None) -> Late:
        return Late(2, "0.3.0", late)

    monkeypatch.setattr("zkrq.client.upgrading.Upgrading.find_late", find_late)
    page = (await client.get("/upgrade", headers=ann)).text
    assert "1 client must be replaced by zkrq 0.3.0 or later first" in page
    assert "mailer &lt;1&gt; (0.2.0) on host-7" in page
    assert 'id="upgrade"' not in page
    late.clear()
    page = (await client.get("/upgrade", headers=ann)).text
    assert "an upgrade is safe" in page
    assert ">Upgrade from level 1 to 2</button>" in page
    assert (
        "</form>"
        not in (await client.get("/upgrade", headers={"Authorization": f"Bearer {OPERATOR}"})).text.split("<main")[1]
    )
    asked = await client.post("/upgrade", headers=ann)
    assert "Upgrade from level 1 to 2? There is no way back to the release before." in asked.text
    reply = await client.post("/upgrade", headers=ann, data={"confirmed": "yes"})
    assert (reply.status_code, reply.headers["location"]) == (303, "/upgrade?from=1")
    assert "Upgraded from level 1 to " in (await client.get("/upgrade?from=1", headers=ann)).text
