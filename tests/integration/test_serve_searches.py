"""Searching from the page, and what is done with all that is found; in a real browser and without scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

import pytest

from tests.browser import Browser
from tests.harness import take
from tests.integration.page_stage import Stage, do, staged
from zkrq import local

pytestmark = pytest.mark.anyio

PHONE = 390


@pytest.fixture(scope="module")
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


async def test_a_search_goes_on_by_itself_until_something_is_found(
    browser: Browser, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zkrq.serve.searching.SEARCH_SECONDS", 0.0)
    monkeypatch.setattr("zkrq.client.finding.CALLS_MAX", 1)
    queue = stage.cluster.queue("haystack")
    for number in range(150):
        await queue.push(number)
    await queue.push("needle", id="needle-1")
    await do(browser.open, f"{stage.http.url}/queues/haystack", width=PHONE, dark=True)
    await do(browser.click, "#all-conditions")
    await do(browser.shows, "h1", "Items of haystack")
    await do(browser.click, "#find-text")
    await do(browser.press, "NEEDLE", "\ue007")
    await do(browser.shows, "#found", "needle-1")
    await do(browser.wait, lambda: browser.script("return document.documentElement.scrollWidth") <= PHONE)
    assert await do(browser.violations) == []
    await do(browser.click, "#find-text")
    await do(browser.press, "-nowhere", "\ue007")
    await do(browser.shows, "#range", "0 items found.")
    assert await do(browser.complaints) == []


async def test_scheduled_items_and_waiting_retries_are_run_now_in_their_table(browser: Browser, stage: Stage) -> None:
    queue = stage.cluster.queue("later")
    planned, other = [(await queue.push(number, delay=3600)).id for number in range(2)]
    failed = (await queue.push("fails", priority=9)).id
    await (await take(queue)).nack(delay=1800, reason="no answer")
    await do(browser.open, f"{stage.http.url}/queues/later?tab=scheduled", width=PHONE)
    for id, left in ((failed, 2), (planned, 1)):
        box = await do(
            browser.script, f"return document.getElementById('run-{id}-button').getBoundingClientRect().right"
        )
        assert box <= PHONE, "nobody has to scroll to the button"
        await do(browser.click, f'[id="run-{id}-button"]')
        await do(browser.shows, "#notice", "1 item of later ready")
        await do(browser.shows, "#tab-scheduled", str(left))
        await do(browser.wait, partial(browser.script, f"return !document.getElementById('run-{id}')"))
    assert await queue.size() == (2, 1, 0, 0)
    assert await do(browser.violations) == []
    assert await do(browser.complaints) == []
    assert f'id="run-{other}"' not in (await stage.http.client.get("/queues/later?tab=ready")).text
