"""Searching from the page, and what is done with all that is found; in a real browser and without scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.browser import Browser
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
