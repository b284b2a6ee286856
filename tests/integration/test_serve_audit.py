"""Who has changed what: the record of all servers of a namespace, and what each token lets do on the page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

import zkrq
from tests.browser import Browser
from tests.harness import in_process, new_namespace, settled
from tests.integration.page_stage import do
from tests.serving import Serving, serving
from zkrq import local
from zkrq.client.inner import client_of
from zkrq.coordination.memory import Hub
from zkrq.serve.audit import REGISTER, Line, decode

pytestmark = pytest.mark.anyio

ANN, EVE, OPERATOR = "a-token-that-administers", "a-token-that-reads", "a-token-that-operates"
TOKENS: Mapping[str, Any] = {"administrators": (f"ann {ANN}",), "readers": (f"eve {EVE}",), "tokens": (OPERATOR,)}


class Two:
    """Two servers of one namespace, one after the other or side by side."""

    def __init__(self, shared_servers: local.Servers, cluster: zkrq.Cluster, hub: Hub) -> None:
        self.cluster = cluster
        self._open = partial(in_process, shared_servers, cluster.namespace, hub)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Serving]:
        async with serving(self._open(), **TOKENS) as http:
            yield http

    async def lines(self) -> list[Line]:
        return decode((await client_of(self.cluster).coordinator.read(REGISTER)).data)


@pytest.fixture
async def two(shared_servers: local.Servers) -> AsyncGenerator[Two]:
    hub = Hub()
    async with in_process(shared_servers, new_namespace(), hub) as cluster:
        yield Two(shared_servers, cluster, hub)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_changes_are_recorded_with_their_holder_and_survive_the_server(two: Two) -> None:
    """And what programs do all day is not."""
    queue = two.cluster.queue("orders")
    await queue.push_many(range(3))
    ids = [claim.id for claim in await queue.pop_many(3, timeout=60) if await claim.bury("broken") is None]
    async with two.serving() as http:
        post = partial(http.client.post, headers=bearer(OPERATOR))
        assert (await post("/queues/orders/pause")).status_code == 303
        assert (await http.client.post("/v1/queues/orders/resume", headers=bearer(ANN))).status_code == 200
        asked = await post("/queues/orders/redrive")
        assert "Redrive all 3 dead letters?" in asked.text
        assert (await post("/queues/orders/redrive", data={"confirmed": "yes"})).status_code == 303
        await post("/v1/queues/orders/push", json={"item": 1})
        await post(f"/v1/queues/orders/items/{ids[0]}/cancel")
        await post("/queues/orders/explode")
        assert (await http.client.post("/queues/orders/pause", headers=bearer(EVE))).status_code == 403
    expected = [
        ("unnamed (operate)", "pause", "orders", "orders is paused: nothing more is claimed, and pushes continue."),
        ("ann", "resume", "orders", "done"),
        ("unnamed (operate)", "redrive", "orders", "3 dead letters of orders redriven."),
    ]
    assert [each[1:5] for each in await two.lines()] == expected, "a server that stops writes what it has noted"
    async with two.serving() as http:
        page = (await http.client.get("/audit", headers=bearer(EVE))).text
        assert page.index("3 dead letters of orders") < page.index("<td>ann</td>") < page.index("orders is paused")
        await http.client.post("/queues/orders/pause", headers=bearer(ANN))
        await settled(partial(has, two, 4))


async def has(two: Two, count: int) -> bool:
    return len(await two.lines()) == count


async def test_hostile_lines_do_not_break_the_page(two: Two) -> None:
    coordinator = client_of(two.cluster).coordinator
    data = b'{"lines": [7, [1, "<script>", "<b>", "<i>", "<u>", "id"], null]}'
    assert await coordinator.swap(REGISTER, data, -1)
    async with two.serving() as http:
        page = (await http.client.get("/audit", headers=bearer(EVE))).text
        assert "&lt;script&gt;" in page
        assert not any(tag in page for tag in ("<td><script>", "<td><b>", "<td><i>", "<td><u>"))
        await http.client.post("/queues/orders/pause", headers=bearer(ANN))
        await settled(partial(has, two, 2))


async def test_who_only_reads_sees_no_button(browser: Browser, two: Two) -> None:
    await two.cluster.queue("orders").push(1)
    async with two.serving() as http:
        for token, buttons in ((EVE, 0), (OPERATOR, 1)):
            await do(browser.open, http.url)
            await do(browser.shows, "h1", "Log in")
            await do(browser.click, "#token")
            await do(browser.press, token, "\ue007")
            await do(browser.shows, "#queue-orders", "orders")
            await do(browser.open, f"{http.url}/queues/orders")
            await do(browser.shows, "h1", "orders")
            assert await do(browser.script, "return document.querySelectorAll('#pause button').length") == buttons
            assert (await do(browser.text, ".badge") == "read-only") == (not buttons)
            await do(browser.open, f"{http.url}/audit", width=390, dark=True)
            await do(browser.shows, "#audit", "Nothing was changed yet")
            assert await do(browser.script, "return document.documentElement.scrollWidth") <= 390
            assert await do(browser.violations) == []
            await do(browser.click, "header form button")
            await do(browser.shows, "h1", "Log in")


async def test_consumers_that_are_made_quiet_are_named(two: Two) -> None:
    """Over HTTP and on the page: the owner, or the machine."""
    assert await two.cluster.queue("orders").pop_one(timeout=0) is None
    ((owner, told),) = (await two.cluster.consumers()).items()
    async with two.serving() as http:
        post = partial(http.client.post, headers=bearer(OPERATOR))
        assert (await post("/v1/consumers/quiet", json={"owners": [owner]})).status_code == 200
        assert (await post("/v1/consumers/quiet", json={})).status_code == 400
        for verb, form in (("unquiet", {}), ("quiet", {"confirmed": "host"})):
            assert (await post(f"/consumers/{owner}/{verb}", data=form)).status_code == 303
    assert [each[2:5] for each in await two.lines()] == [
        ("quiet", "consumers", owner),
        ("unquiet", owner, owner),
        ("quiet", owner, f"all of {told.host}"),
    ]
