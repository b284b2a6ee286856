"""The bar of navigation, and the pages that it leads to, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from tests.browser import Browser
from tests.harness import settled, take
from tests.integration.page_stage import Stage, do, staged
from zkrq import local
from zkrq.serve.navigation import PLACES

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


CURRENT = "return document.querySelector('.places [aria-current]')?.innerText ?? ''"


async def test_the_bar_leads_to_every_page_by_keyboard_on_a_phone_in_the_dark(browser: Browser, stage: Stage) -> None:
    await stage.cluster.queue("orders").push(1)

    def go_to(name: str) -> None:
        for _ in range(30):
            browser.press("\ue004")  # tab
            if browser.focused() == name:
                return
        raise AssertionError(f"the tab key does not reach {name}")

    for width, dark in ((390, True), (1280, False)):
        await do(browser.open, stage.http.url, width=width, dark=dark)
        for title, _ in PLACES:
            await do(go_to, title)
            await do(browser.press, "\ue007")  # enter
            await do(browser.wait, lambda title=title: browser.script(CURRENT) == title and browser.text("h1") == title)
            assert await do(browser.script, "return document.documentElement.scrollWidth") <= width
            assert await do(browser.violations) == []
    assert await do(browser.complaints) == []


async def test_a_queue_is_paused_for_a_time(browser: Browser, stage: Stage) -> None:
    from selenium.webdriver.support.ui import Select

    queue = stage.cluster.queue("briefly")
    await queue.push(1)
    await do(browser.open, f"{stage.http.url}/queues/briefly")
    chosen = await do(browser.driver.find_element, "css selector", "#pause-seconds")
    await do(Select(chosen).select_by_visible_text, "for 1 h")
    await queue.push(2)
    await do(browser.shows, "#tab-ready", "2")  # what was chosen stays chosen while the page changes
    await do(browser.click, "#pause button")
    await do(browser.shows, "#notice", "briefly is paused, and goes on by itself")
    until = (await queue.statistics()).paused_until
    assert until
    assert timedelta(minutes=58) < until - datetime.now(UTC) < timedelta(hours=1)
    await do(browser.shows, "h1", "paused until ")
    assert await do(browser.violations) == []
    await do(browser.open, stage.http.url)
    await do(browser.shows, "#queue-briefly", "paused until ")
    assert await do(browser.script, "return document.querySelectorAll('#queue-briefly .badge.bad').length") == 0
    await do(browser.open, f"{stage.http.url}/queues/briefly", width=390)
    assert await do(browser.script, "return document.documentElement.scrollWidth") <= 390
    await do(browser.click, "#pause button")
    await do(browser.shows, "#notice", "briefly is resumed")
    for sent, paused_until in (("900", True), ("-1", False), ("901", False), ("", False)):
        assert (await stage.http.client.post("/queues/briefly/pause", data={"seconds": sent})).status_code == 303
        told = await queue.statistics()
        assert (told.paused, bool(told.paused_until)) == (True, paused_until)
    await queue.resume()


async def test_consumers_and_servers_have_pages_that_live(browser: Browser, stage: Stage) -> None:
    orders = stage.cluster.queue("lively")
    await orders.push(1)
    await do(browser.open, f"{stage.http.url}/servers")
    for server in ("redis-1", "redis-2", "redis-3"):
        await do(browser.shows, "#servers ~ .scroll table", server)
    await do(browser.open, f"{stage.http.url}/consumers")
    claim = await take(orders)
    await do(browser.shows, "#consumers ~ .scroll table", "1 item of lively")  # without loading the page again
    await do(browser.click, "#consumers ~ .scroll table th a")
    await do(browser.shows, "h1", "worker <1>")
    await do(browser.shows, "main table", claim.id)
    assert await do(browser.script, CURRENT) == "Consumers"
    claim.progress(0.5, "half-way")
    await do(browser.shows, "main table", "half-way")  # without loading the page again
    assert await do(browser.violations) == []
    await do(browser.open, f"{stage.http.url}/queues/lively/item?id={claim.id}")
    await do(browser.wait, partial(browser.text, "nav[aria-label=Queue] a"))
    await do(browser.click, "nav[aria-label=Queue] a")
    await do(browser.shows, "h1", "lively")
    await claim.ack()
    assert await do(browser.complaints) == []


async def test_a_consumer_is_made_quiet_from_its_page_and_claims_again(browser: Browser, stage: Stage) -> None:
    calm = stage.cluster.queue("calm")
    await calm.push("x")
    claim = await take(calm)
    await do(browser.open, f"{stage.http.url}/consumers/{claim.owner}")
    await do(browser.click, "#quiet button")
    await do(browser.shows, "main", "It finishes 1 item.")
    assert await do(browser.violations) == []
    await do(browser.click, "#confirm")
    await do(browser.shows, "#notice", "1 consumer will claim nothing more")
    await do(browser.shows, "main", "quiet")
    await calm.push("y")
    assert await calm.pop_one(timeout=0) is None
    await claim.ack()
    await do(browser.shows, "main", "It has finished: it may be stopped.")  # without loading the page again
    await do(browser.click, "#quiet button")
    await do(browser.shows, "#notice", "1 consumer will claim again")
    assert (await take(calm)).item == "y"
    assert await do(browser.complaints) == []


async def test_a_queue_is_paused_until_a_moment_from_its_page(stage: Stage) -> None:
    queue = stage.cluster.queue("halted")
    await queue.push(1)
    until = (datetime.now(UTC) + timedelta(days=1)).replace(second=0, microsecond=0)
    form = {"seconds": "0", "until": until.strftime("%Y-%m-%dT%H:%M")}
    assert (await stage.http.client.post("/queues/halted/pause", data={**form, "seconds": "900"})).status_code == 400
    reply = await stage.http.client.post("/queues/halted/pause", data=form)
    assert reply.status_code == 303, reply.text
    assert (await queue.statistics()).paused_until == until
    (item,) = await queue.peek(1)

    async def is_told() -> bool:
        told = "Ready, and waits: the queue is paused until "
        return told in (await stage.http.client.get(f"/queues/halted/item?id={item.id}")).text

    await settled(is_told)
    await queue.resume()
    reply = await stage.http.client.post("/queues/halted/pause", data={"until": "soon"})
    assert (reply.status_code, "must be a day and a time" in reply.text) == (400, True)
    assert not (await queue.statistics()).paused
