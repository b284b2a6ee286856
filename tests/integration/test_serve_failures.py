"""The page of failures: what failed in all queues, in groups, and what is done about it; against real servers."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncGenerator, Sequence
from functools import partial

import pytest

import zkrq
from tests.browser import Browser
from tests.harness import settled, take
from tests.integration.page_stage import Stage, do, staged
from zkrq import local

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


async def page(stage: Stage, query: str = "", status: int = 200) -> str:
    """The text of the page, without its marks."""
    reply = await stage.http.client.get(f"/failures{query}")
    assert reply.status_code == status
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", reply.text)).split())


async def fail(stage: Stage, queue: str, reasons: Sequence[str], item: object = None, **options: str) -> str:
    """Push an item that has failed for these reasons, and waits for its next attempt."""
    q = stage.cluster.queue(queue)
    receipt = await q.push(item, **options)  # type: ignore[arg-type]
    for number, reason in enumerate(reasons):
        claim = await take(q)
        await claim.nack(0 if number < len(reasons) - 1 else 3600, reason)
    return receipt.id


async def seen(stage: Stage, text: str) -> str:
    """The page, once the server has looked at the queues."""

    async def is_there() -> bool:
        return text in await page(stage)

    await settled(is_there)
    return await page(stage)


async def test_failures_of_all_queues_and_both_kinds_are_in_groups(stage: Stage) -> None:
    assert "None." in await page(stage)
    await stage.bury("mails", {"to": "ann"}, "no answer from 10.0.0.1")
    waits = await fail(stage, "orders", ["no stock", "no answer from 10.0.0.2"], {"to": "bob"}, group="acme")
    await fail(stage, "orders", ["no stock"], {"to": "ann"})
    await stage.cluster.queue("orders").push("planned, and has not failed", delay=60)
    text = await seen(stage, "3 items")
    assert re.search(r"no answer from ….….….… 2 [\d:]+ UTC to [\d:]+ UTC Retry now Remove no stock 1 ", text)
    assert re.search(
        rf"{waits} no answer from 10.0.0.2 2 failures The last: no answer from 10.0.0.2 [\d:]+ UTC on worker <1> after "
        r"[\d.]+ m?s Before: no stock [\d:]+ UTC on worker <1> after [\d.]+ m?s orders again in \d+ min 2 ",
        text,
    )
    assert "planned" not in text
    assert re.search(r"queue items .* orders 2 .* mails 1 ", await page(stage, "?by=queue"))
    assert re.search(r"none 2 .* acme 1 ", await page(stage, "?by=group"))
    assert re.search(r"ann 2 .* bob 1 ", await page(stage, "?by=field+to"))
    assert "1 item." in await page(stage, "?kind=dead")
    assert "2 items." in await page(stage, "?kind=waiting")
    assert "2 items." in await page(stage, "?queue=orders")
    assert "2 items whose reason contains “ANSWER”" in await page(stage, "?error=ANSWER")
    shown = await page(stage, "?group=no+stock")
    assert "Items of “no stock”" in shown
    assert waits not in shown
    for nonsense in ("?queue=%00&kind=x&count=x", "?by=field+%00&group="):
        await page(stage, nonsense)


async def test_a_group_is_retried_and_removed_over_both_kinds(stage: Stage) -> None:
    mails, orders = stage.cluster.queue("mails"), stage.cluster.queue("orders")
    await stage.bury("mails", 1, "no answer")
    await fail(stage, "orders", ["no answer"])
    keep = await fail(stage, "orders", ["no stock"])
    await seen(stage, "3 items")
    post = stage.http.client.post
    asked = (await post("/failures/retry", data={"by": "reason", "group": "no answer"})).text
    assert "Have 2 items be ready now: 1 dead letter, and 1 that waits for a retry?" in asked
    assert await mails.size() == (0, 0, 0, 1)
    form = {"id": re.findall(r'name="id" value="([^"]*)"', asked), "confirmed": "yes"}
    reply = await post("/failures/retry", data=form)
    assert reply.status_code == 303
    assert "2 items ready now." in (await stage.http.client.get(reply.headers["location"])).text
    assert await mails.size() == (1, 0, 0, 0)
    assert await orders.size() == (1, 1, 0, 0)
    reply = await post("/failures/retry", data=form)  # once more
    assert "2 of those chosen were no longer waiting" in (await stage.http.client.get(reply.headers["location"])).text
    removed = {"id": f"scheduled orders {keep}", "chosen": "yes", "confirmed": "yes"}
    assert (await post("/failures/remove", data=removed)).status_code == 303
    assert await orders.get(keep) is None
    for path, data, status in (
        ("retry", {"chosen": "yes"}, 400),
        ("retry", {"by": "reason", "group": "unheard of"}, 400),
        ("retry", {}, 400),
        ("remove", {"id": ["dead", "dead a/b c", "dead mails ", ""]}, 400),
        ("remove", {"id": ["x"] * 3000}, 400),
        ("unheard-of", {"id": "dead mails x"}, 404),
    ):
        assert (await post(f"/failures/{path}", data=data)).status_code == status


async def test_the_page_says_how_much_was_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrq.serve.failing.ITEMS_MOST", 3)
    monkeypatch.setattr("zkrq.serve.failing.READ_MAX", 10)
    monkeypatch.setattr("zkrq.serve.failing.SHARE_LEAST", 1)
    for number in range(7):
        await stage.bury("mails", number, "no answer")
    await stage.cluster.queue("mails").push_many(range(5), delay=60)
    text = await seen(stage, "5 items.")
    assert "mails: 5 of 7 dead letters, the oldest" in text
    assert "mails: of 5 scheduled items, of which none need have failed, the 3 that are due first" in text
    assert "7 items." in await page(stage, "?kind=dead"), "page by page"
    monkeypatch.setattr("zkrq.serve.failing.READ_SECONDS", 0.0)
    assert "not every queue was read" in await page(stage)
    monkeypatch.setattr("zkrq.serve.contents.SEARCHES_MAX", 0)
    assert "0 searches are made already" in await page(stage)


async def test_a_queue_that_cannot_be_read_hides_no_other(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.bury("broken", 1, "of the one")
    await stage.bury("mails", 1, "of the other")
    await seen(stage, "2 items.")
    read = zkrq.Queue[bytes].dead_letters

    async def fails(self: zkrq.Queue[bytes], n: int = 100) -> object:
        if self.name == "broken":
            raise zkrq.Unavailable("no answer from there")
        return await read(self, n)

    monkeypatch.setattr("zkrq.client.inspection.Inspection.dead_letters", fails)
    text = await page(stage)
    assert "no answer from there" in text
    assert "of the other 1 " in text


async def test_failures_are_found_and_retried_on_a_phone(browser: Browser, stage: Stage) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    await stage.bury("mails", {"html": hostile}, f"broken {hostile}")
    await fail(stage, "orders-with-a-name-that-is-rather-long", ["no answer", "no answer"])
    await seen(stage, "2 items.")
    for width, dark in ((1280, False), (390, True)):
        await do(browser.open, f"{stage.http.url}/failures", width=width, dark=dark)
        await do(browser.shows, "#groups", f"broken {hostile.replace('1', '…')}")
        await do(browser.click, "#letters details summary")
        await do(browser.shows, "#letters details[open]", "The last: ")
        assert await do(browser.script, "return document.documentElement.scrollWidth") <= width
        assert await do(browser.script, "return document.querySelectorAll('img').length") == 0
        assert await do(browser.violations) == []
    await do(browser.click, "#choose-all")
    await do(browser.click, "#retry-chosen")
    await do(browser.shows, "main", "Have 2 items be ready now: 1 dead letter, and 1 that waits for a retry?")
    assert await do(browser.violations) == []
    await do(browser.click, "#confirm")
    await do(browser.shows, "#notice", "2 items ready now.")
    await do(browser.wait, partial(browser.text, "#live"))
    assert await do(browser.complaints) == []
    assert (await stage.cluster.queue("mails").size()).ready == 1
