"""Jobs of the page: what is done in the background with all that a search finds; stopped, killed, begun once more."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

import zkrq
from tests.browser import Browser
from tests.harness import HANG, in_process, new_namespace, over_zookeeper, settled, take
from tests.integration.page_stage import Stage, do, staged
from tests.integration.serve_process import process, url_of
from tests.serving import serving
from zkrq import local
from zkrq.client.bulk import Bulk
from zkrq.coordination.memory import Hub

pytestmark = pytest.mark.anyio

SPRING = {"campaign": "spring"}

FORM = {"header": "campaign=spring"}


@pytest.fixture(scope="module")
async def stage(shared_servers: local.Servers) -> AsyncGenerator[Stage]:
    async with staged(shared_servers) as stage:
        yield stage


def text_of(reply: httpx.Response) -> str:
    """The text of a page, without its marks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", reply.text)).split())


def fields_of(page: str) -> dict[str, str]:
    """What the form of a page is sent with: hidden fields, and the button."""
    found = re.findall(r'<(?:input type="hidden"|button id="confirm"[^>]*) name="([^"]*)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found}


async def jobs_of(client: httpx.AsyncClient) -> str:
    return text_of(await client.get("/jobs"))


async def begin(client: httpx.AsyncClient, queue: str, deed: str, form: dict[str, str]) -> str:
    """Begin a job after its question; the question."""
    asked = await client.post(f"/queues/{queue}/found/{deed}", data=form)
    assert asked.status_code == 200, asked.text
    reply = await client.post(f"/queues/{queue}/found/{deed}", data=fields_of(asked.text))
    assert (reply.status_code, reply.headers.get("location")) == (303, "/jobs"), reply.text
    return text_of(asked)


async def ended(client: httpx.AsyncClient, told: str) -> None:
    async def is_told() -> bool:
        return told in await jobs_of(client)

    await settled(is_told)


async def test_all_that_was_found_is_removed_after_a_question(stage: Stage) -> None:
    """The mails of a campaign, for instance; those that come after the question stay."""
    mails, client = stage.cluster.queue("campaigns"), stage.http.client
    await mails.push_many(range(700), headers=SPRING, delay=3600)
    await mails.push_many(range(20), headers={"campaign": "autumn"}, delay=3600)
    found = (await client.get("/queues/campaigns/find?header=campaign%3Dspring")).text
    assert 'formaction="/queues/campaigns/found/cancel"' in found
    asked = await client.post("/queues/campaigns/found/cancel", data=FORM)
    assert "Cancel 700 items with header campaign=spring? This cannot be undone." in text_of(asked)
    assert ">Cancel 700 items</button>" in asked.text
    assert (await mails.size()).scheduled == 720
    await mails.push("late", headers=SPRING, delay=3600)
    reply = await client.post("/queues/campaigns/found/cancel", data=fields_of(asked.text))
    assert reply.headers["location"] == "/jobs"
    await ended(client, "700 items were counted before. 700 items found, 700 cancelled.")
    assert (await mails.size()).scheduled == 21
    noted = text_of(await client.get("/audit"))
    for told in ("job 1: all with header campaign=spring begins", "campaign=spring is done, 700 cancelled"):
        assert told in noted


async def test_letters_and_waiting_items_have_jobs_too(stage: Stage) -> None:
    queue, client = stage.cluster.queue("deeds"), stage.http.client
    for number in range(6):
        await stage.bury("deeds", number, "no price" if number % 2 else "no answer")
    await queue.push_many(range(4), headers=SPRING, delay=3600)
    assert "Redrive 3 dead letters with error PRICE?" in await begin(client, "deeds", "redrive", {"error": "PRICE"})
    await ended(client, "3 redriven.")
    assert "Discard 3 dead letters with error ANSWER?" in await begin(client, "deeds", "discard", {"error": "ANSWER"})
    await ended(client, "3 items were counted before. 3 items found, 3 discarded.")
    assert "Run now 4 items" in await begin(client, "deeds", "advance", {"state": "scheduled"})
    await ended(client, "4 ready now.")
    assert await queue.size() == (7, 0, 0, 0)


async def test_all_that_was_found_is_exported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, client = stage.cluster.queue("exported"), stage.http.client
    await queue.push_many(range(700), headers=SPRING)
    await queue.push({"to": "ann"}, id="ann", delay=3600)
    async with queue.flow("outer") as outer, outer.flow("inner") as inner:  # what stands for a flow is no item
        await inner.push("a member", delay=3600)
    for query, count in (("header=campaign%3Dspring", 700), ("state=scheduled", 2), ("text=ANN", 1), ("", 702)):
        reply = await client.get(f"/queues/exported/export?{query}")
        assert reply.headers["content-disposition"] == 'attachment; filename="exported.jsonl"'
        lines = [json.loads(line) for line in reply.text.splitlines()]
        assert len(lines) == count, query
        assert [line["item"] for line in lines if line["id"] == "ann"] in ([], [{"to": "ann"}])
    assert 'href="/queues/exported/export?text=ann"' in (await client.get("/queues/exported/find?text=ann")).text
    assert (await client.get("/queues/exported/export?header=x")).status_code == 400
    assert (await client.get("/queues/unheard-of/export")).status_code == 404
    monkeypatch.setattr("zkrq.serve.contents.SEARCHES_MAX", 0)
    assert (await client.get("/queues/exported/export")).status_code == 503


async def test_what_cannot_be_begun_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client = stage.http.client
    await stage.cluster.queue("wrong").push(1, headers=SPRING)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("wrong/found/cancel", {}, "beside the state"),
        ("wrong/found/cancel", {"key": "nobody"}, "No item of wrong is meant: key nobody."),
        ("wrong/found/redrive", {"state": "ready"}, "only dead items"),
        ("wrong/found/eat", FORM, "no such action"),
        ("wrong/found/cancel", {"header": "x"}, "must be a name"),
        ("wrong/found/cancel", {**FORM, "begun": "soon"}, "open it again"),
        ("wrong/found/cancel", {f"field{number}": "x" for number in range(40)}, "too many fields"),
        ("a b/found/cancel", FORM, "name"),
    ]
    for path, form, says in wrong:
        reply = await client.post(f"/queues/{path}", data=form)
        assert reply.status_code == 400, (path, form)
        assert says in text_of(reply), (path, form)
    monkeypatch.setattr("zkrq.serve.jobs.RUNNING_MAX", 0)
    reply = await client.post("/queues/wrong/found/cancel", data={**FORM, "confirmed": "yes"})
    assert (reply.status_code, "0 jobs run already" in text_of(reply)) == (503, True)
    assert (await stage.cluster.queue("wrong").size()).ready == 1
    assert (await client.post("/jobs/999/stop")).status_code == 303


async def test_more_than_can_be_counted_is_told_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrq.serve.job_page.COUNT_SECONDS", 0.0)
    monkeypatch.setattr("zkrq.client.bulk.PAGE_MAX", 50)
    queue = stage.cluster.queue("uncounted")
    await queue.push_many(range(300), headers=SPRING)
    asked = await begin(stage.http.client, "uncounted", "cancel", FORM)
    assert re.search(r"Cancel all items, at least \d+ items \(there are more than could be counted now\)", asked)
    await ended(stage.http.client, "begun")
    await ended(stage.http.client, "300 items found, 300 cancelled.")


async def test_a_job_is_stopped_and_begun_once_more(
    browser: Browser, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a phone, in the dark, while the page lives."""
    queue, go_on, step = stage.cluster.queue("stopped"), asyncio.Event(), Bulk.step
    await queue.push_many(range(60), headers=SPRING)

    async def wait(self: Bulk) -> None:
        if self.changed:
            await go_on.wait()
        await step(self)

    monkeypatch.setattr(Bulk, "step", wait)
    monkeypatch.setattr("zkrq.client.bulk.PAGE_MAX", 20)
    await do(browser.open, f"{stage.http.url}/queues/stopped/find?header=campaign%3Dspring", width=390, dark=True)
    await do(browser.click, "#cancel-found")
    await do(browser.shows, "main", "Cancel 60 items with header campaign=spring?")
    assert await do(browser.violations) == []
    await do(browser.click, "#confirm")
    await do(browser.shows, "h1", "Jobs")
    await do(
        browser.shows, "section.flow .result", "60 items were counted before. 20 items found so far, 20 cancelled."
    )
    await do(browser.shows, "section.flow .badge", "running")
    assert await do(browser.violations) == []
    assert await do(browser.script, "return document.documentElement.scrollWidth") <= 390
    await do(browser.click, "section.flow button")
    await do(browser.shows, "section.flow .badge", "stopped")
    assert (await queue.size()).ready == 40
    go_on.set()
    await do(browser.click, "section.flow button")
    await do(browser.shows, "main", "Cancel 40 items")
    await do(browser.click, "#confirm")
    await do(browser.shows, "section.flow .result", "40 cancelled")
    assert (await queue.size()).ready == 0
    assert await do(browser.complaints) == []


async def test_a_job_that_fails_says_why(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*arguments: object) -> int:
        raise zkrq.Unavailable("no server <answers>")

    await stage.bury("failing", 1, "bad")
    monkeypatch.setattr("zkrq.client.bulk.PATIENCE", 0.0)
    monkeypatch.setattr(zkrq.Queue, "discard", fail)
    await begin(stage.http.client, "failing", "discard", {"error": "bad"})
    await ended(stage.http.client, "no server <answers>")


async def test_few_ended_jobs_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkrq.serve.jobs.KEPT", 2)
    queue = stage.cluster.queue("kept")
    for number in range(5):
        await queue.push(number, key=f"key-{number}")
        await begin(stage.http.client, "kept", "cancel", {"key": f"key-{number}"})
        await ended(stage.http.client, f"key key-{number}")
        await settled(lambda: _is_empty(queue))
    shown = (await stage.http.client.get("/jobs")).text
    assert len(re.findall(r'id="job-\d+"', shown)) <= 3
    assert "key-4" in shown


async def _is_empty(queue: zkrq.Queue[Any]) -> bool:
    return not any(await queue.size())


async def test_nothing_is_begun_where_nothing_may_be(shared_servers: local.Servers) -> None:
    hub, namespace = Hub(), new_namespace()
    async with (
        in_process(shared_servers, namespace, hub) as cluster,
        serving(in_process(shared_servers, namespace, hub), read_only=True) as http,
    ):
        await cluster.queue("orders").push(1, headers=SPRING)
        assert "found/cancel" not in (await http.client.get("/queues/orders/find?header=campaign%3Dspring")).text
        reply = await http.client.post("/queues/orders/found/cancel", data={**FORM, "confirmed": "yes"})
        assert reply.status_code == 403
        assert (await cluster.queue("orders").size()).ready == 1


async def test_a_job_whose_process_is_killed_is_completed_by_the_same_job_of_another(servers: local.Servers) -> None:
    namespace = new_namespace()
    async with over_zookeeper(servers, namespace) as cluster:
        queue = cluster.queue("jobs")
        # Each by itself, so that a page takes many calls, and the process is killed between two of them.
        await asyncio.gather(*(queue.push(number, headers=SPRING, id=f"spring-{number}") for number in range(2000)))
        others = [receipt.id for receipt in await queue.push_many(range(50))]
        claim = await take(queue)
        async with process(servers, namespace) as first, httpx.AsyncClient(timeout=HANG, trust_env=False) as client:
            client.base_url = await url_of(first)
            await begin(client, "jobs", "cancel", FORM)

            async def has_begun() -> bool:
                return sum(await queue.size()) < 2050

            await settled(has_begun)
            first.kill()
        left = sum(await queue.size()) - 50
        assert left > 0, "it was killed in the middle"
        async with process(servers, namespace) as second, httpx.AsyncClient(timeout=HANG, trust_env=False) as client:
            client.base_url = await url_of(second)
            await begin(client, "jobs", "cancel", FORM)
            await ended(client, f"{left:,} cancelled")
        assert {item.id async for item in queue.scan()} == {*others}
        with pytest.raises(zkrq.ClaimLost):
            await claim.ack()
