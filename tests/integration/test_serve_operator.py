"""A bad day, worked through from the page alone: 40 queues, a dead server, 500 scheduled items, 200 dead letters of
four reasons; on a desktop and on a phone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

import zkrq
from tests.browser import Browser
from tests.harness import in_process, new_namespace, settled, take
from tests.integration.page_stage import Stage, do
from tests.serving import serving
from zkrq import local
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio

REASONS = {
    "KeyError: 'price'": 100,
    "TimeoutError: no answer of pay-{} within 30 s": 50,
    "HTTPError: 502 from https://pay.example/{}": 30,
    "ValueError: order {} is empty": 20,
}


MORE_REASONS = {
    f"{error}Error: job-{{}} was refused by {error.lower()}.example": 360 for error in ("A", "B", "C", "D", "E")
}
"""On a worse day: 2,000 letters of nine reasons."""


async def bury_all(orders: zkrq.Queue[object], reasons: Mapping[str, int]) -> None:
    """Of the letters with a wrong price every one is of the same customer."""
    for reason, count in reasons.items():
        customers = ("acme",) if "price" in reason else ("globex", "initech")
        await orders.push_many([{"customer": customers[number % len(customers)]} for number in range(count)])
        claims: list[zkrq.Claim[object]] = []
        while len(claims) < count:
            claims += await orders.pop_many(100, timeout=60)
        await asyncio.gather(*(claim.bury(reason.format(number)) for number, claim in enumerate(claims)))


OUT_OF_SIGHT = """
const [width] = arguments
const all = document.querySelectorAll("main button, main select, main input:not([type=hidden])")
const place = (each) => each.getBoundingClientRect()
const seen = [...all].filter((each) => each.checkVisibility() && !each.closest(".unseen"))
return seen.filter((each) => place(each).right > width + 1 || place(each).left < -1).map((each) => each.outerHTML)
"""
"""A script that returns what a visitor has to scroll sideways for."""


@asynccontextmanager
async def bad_day(servers: local.Servers, *, worse: bool = False) -> AsyncGenerator[Stage]:
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(servers, namespace, hub, command_timeout=0.5, description="worker on host-7") as cluster,
        serving(in_process(servers, namespace, hub, command_timeout=0.5)) as http,
    ):
        await bury_all(cluster.queue("orders"), {**REASONS, **(MORE_REASONS if worse else {})})
        await cluster.queue("mails").push_many(range(10_000 if worse else 500), delay=3600)
        await asyncio.gather(*(cluster.queue(f"calm-{number:02}").push(number) for number in range(30)))
        for number in range(7):
            queue = cluster.queue(f"idle-{number}")
            await queue.push(1)
            await (await take(queue)).ack()
        jobs = cluster.queue("jobs", history=10, groups=zkrq.Groups(concurrency=1), results=zkrq.Results())
        await jobs.push({"customer": "acme"}, id="job-6", key="order-6")
        await (await take(jobs)).ack(result={"sum": 42})
        for number in (7, 8):
            await jobs.push({"customer": "acme"}, id=f"job-{number}", group="acme")
        claim = await take(jobs)
        claim.progress(0.4, "page 12 of 30")
        await servers.redis[0].kill()
        await cluster.queue("calm-00").push(1)

        async def is_out() -> bool:
            return len(cluster.view.members) == 2

        await settled(is_out)
        yield Stage(http, cluster)
        del claim


async def test_a_bad_day_is_worked_through_from_the_page(browser: Browser, servers: local.Servers) -> None:
    from selenium.webdriver.support.ui import Select

    async with bad_day(servers) as stage:
        orders = stage.cluster.queue("orders")
        await do(browser.open, stage.http.url)
        await do(browser.shows, "#alarm", "one more failure stops pushes")
        await do(browser.wait, lambda: browser.driver.title.startswith("2 of 3 in sync · Queues"))
        await do(browser.shows, ".totals", "40 queues")
        assert (await do(browser.text, ".queues tbody tr:first-child")).startswith("orders\t200 dead letters")
        assert await do(browser.text, "#empty summary") == "7 empty queues"

        await do(browser.click, "#queue-orders td.bad a")
        await do(browser.shows, "#groups", "KeyError: 'price'\t100")
        await do(browser.shows, "#groups", "TimeoutError: no answer of pay-… within … s\t50")
        by = await do(browser.driver.find_element, "css selector", "#by")
        await do(Select(by).select_by_visible_text, "field customer")
        await do(browser.click, "#by ~ button")
        await do(browser.shows, "#group-1", "acme\t100")

        await do(browser.driver.back)
        await do(browser.shows, "#group-2", "TimeoutError")
        await do(browser.click, "#group-2 button")
        await do(browser.shows, "main", "Redrive 50 dead letters of “TimeoutError: no answer of pay-… within … s”?")
        await do(browser.click, "#confirm")
        await do(browser.shows, "#notice", "50 dead letters of orders redriven")
        assert await orders.size() == (50, 0, 0, 150)

        await do(browser.open, stage.http.url)
        await do(browser.click, "#find-item")
        await do(browser.press, "job-7", "\ue007")
        await do(browser.shows, "#found", "job-7, claimed in jobs")
        await do(browser.click, "#found a")
        await do(browser.shows, ".history", "Worked on by worker on host-7 for")
        assert await do(browser.complaints) == []


@pytest.mark.chaos
async def test_a_worse_day_fits_a_phone(browser: Browser, servers: local.Servers) -> None:
    """2,000 dead letters of nine reasons, 10,000 scheduled items: nothing to press or to choose is out of sight."""
    async with bad_day(servers, worse=True) as stage:
        await stage.cluster.schedules().add(stage.cluster.queue("jobs"), "a-report-of-every-night", 3600, {"of": "all"})
        pages = {
            "/": "#queue-orders",
            "/?sort=ready&text=calm": "#queue-calm-07",
            "/queues/orders?tab=dead": "#group-4",
            "/queues/orders?tab=dead&error=timeout&by=field+customer": "#group-2",
            "/queues/mails?tab=scheduled&count=500": "#item-500",
            "/queues/jobs/item?id=job-7": ".history",
            "/queues/jobs?tab=done": "#ended-1",
            "/queues/jobs/item?id=job-6": ".payload",
            "/queues/jobs?tab=groups": "#line-1",
            f"/consumers/{next(iter(await stage.cluster.consumers()))}": "main table",
            "/find?text=job-7": "#found",
            "/consumers": "#consumers ~ .scroll table",
            "/servers": "#servers ~ .scroll table",
            "/schedules": "main table",
            "/flows": "h1",
            "/audit": "#audit",
            "/upgrade": "h1",
        }
        await do(browser.open, "about:blank")
        await do(browser.complaints)  # of the page of a server that is gone
        for path, shown in pages.items():
            for width, dark in ((390, True), (1280, False)):
                await do(browser.open, f"{stage.http.url}{path}", width=width, dark=dark)
                await do(browser.wait, lambda shown=shown: browser.text(shown))
                assert await do(browser.script, "return document.documentElement.scrollWidth") <= width
                assert await do(browser.violations) == []
                assert await do(browser.script, OUT_OF_SIGHT, width) == [], path
        assert await do(browser.complaints) == []
