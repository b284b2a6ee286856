"""Flows within flows: over HTTP, on the page, from the command line and for threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import zkrq
from tests.harness import HANG, over_zookeeper, settled
from tests.harness import take as taken
from tests.integration.api_stage import Stage
from tests.integration.blocking import take
from tests.integration.shell import Shell
from zkrq import local, sync

pytestmark = pytest.mark.anyio


async def test_a_flow_is_begun_in_another_one_over_http(stage: Stage) -> None:
    client, home, name = stage.http.client, f"{stage.name}-pages", stage.name
    await client.put(f"/v1/flows/{name}/book")
    begun = await client.put(f"/v1/flows/{home}/one", json={"outer": f"{name}/book", "fail_fast": True})
    assert (begun.status_code, begun.json()["outer"]) == (200, f"{name}/book")
    await stage.http.post(f"/flows/{home}/one/push", {"item": "a"})
    for flow in (f"{home}/one", f"{name}/book"):
        await stage.http.post(f"/flows/{flow}/seal")
    told = (await client.get(f"/v1/flows/{name}/book")).json()
    assert (told["left"], told["nested"], told["outer"]) == (1, {"book.one": "one"}, None)
    assert told["queues"] == {"book.one": home}
    claim = await stage.http.claim(home)
    await stage.http.post(f"/claims/{claim['claim']}/bury", {"reason": "why"})

    async def has_failed() -> bool:
        told = (await client.get(f"/v1/flows/{name}/book")).json()
        return (told["dead"], told["held_up"]) == (1, "1 inner flow that failed")

    await settled(has_failed)
    letters = (await client.get(f"/v1/queues/{home}/dead")).json()["items"]
    assert {each["id"]: each["nested"] for each in letters}["book.one"] == f"{home}/one"
    for outer in ("book", f"{name}/", "/book", "a b/c", f"{name}/a/b", 7):
        refused = await client.put(f"/v1/flows/{home}/two", json={"outer": outer})
        assert refused.status_code == 400, refused.text
    refused = await client.put(f"/v1/flows/{home}/two", json={"outer": f"{name}/other"})
    assert refused.status_code == 409
    assert (await client.get(f"/v1/flows/{home}/two")).json()["state"] == "unknown"


async def test_pages_of_flows_name_each_other(stage: Stage) -> None:
    client, home = stage.http.client, stage.cluster.queue(f"{stage.name}-pages")
    async with stage.queue.flow("book") as outer:
        async with outer.flow("one", queue=home) as inner:
            await inner.push("a")
        async with outer.flow("two", queue=home) as other:
            await other.push("b")
    page = (await client.get(f"/flows/{stage.name}/book")).text
    for name in ("one", "two"):
        assert f'<a href="/flows/{home.name}/{name}">flow {name}</a>' in page
    assert "Redrive" in page, "there may be dead letters in inner flows"
    page = (await client.get(f"/flows/{home.name}/one")).text
    assert f'in <a href="/flows/{stage.name}/book">{stage.name}/book</a>' in page
    await inner.finish()
    await other.cancel()
    page = (await client.get(f"/flows/{stage.name}/book")).text
    assert f'<a href="/flows/{home.name}/two">flow two</a>' in page
    assert "flow one" not in page
    await outer.cancel()


async def test_the_command_line_names_inner_flows(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        books, pages = cluster.queue("books"), cluster.queue("pages")
        async with books.flow("book") as outer:
            await outer.push("a", id="a")
            async with outer.flow("one", queue=pages) as inner:
                await inner.push("x")
        _, out, _ = await shell.run("flows", "show", "books", "book")
        assert "\n  left: flow one of pages" in out
        assert "\n  left: a of books" in out
        (told,) = await shell.value("flows", "show", "pages", "one")
        assert told["outer"] == "books/book"
        assert "; in books/book" in (await shell.run("flows", "show", "pages", "one"))[1]
        await (await taken(pages)).bury("why")
        assert await shell.value("flows", "redrive", "books", "book") == [{"redriven": 1}]
        (told,) = await shell.value("flows", "cancel", "books", "book", "--yes")
        assert told["state"] == "cancelled"
        assert (await inner.status()).state == "cancelled"


async def test_what_stands_for_a_flow_is_not_moved_or_exported(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        pages = cluster.queue("pages")
        async with pages.flow("book") as outer, outer.flow("one", fail_fast=True) as inner:
            await inner.push("x", id="x")
        await (await taken(pages)).bury("why")
        await inner.result()
        assert {each["id"] for each in await shell.value("list", "pages", "--state", "dead")} == {"x", "book.one"}
        assert [each["id"] for each in await shell.value("export", "pages")] == ["x"]
        assert await shell.value("move", "dead", "pages", "others", "--error", "w") == [{"moved": 1, "kept": 0}]
        assert (await pages.size()).dead == 1
        assert (await outer.status()).dead == 1


async def test_doctor_says_how_a_failed_inner_flow_is_left_behind(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        books = cluster.queue("books")
        async with books.flow("book") as outer, outer.flow("one", fail_fast=True) as inner:
            await inner.push("x")
        await (await taken(books)).bury("why")
        await inner.result()
        _, out, _ = await shell.run("doctor")
        (said,) = [line for line in out.splitlines() if "books/book" in line]
        assert "held up by 1 inner flow that failed; `zkrq flows finish books book`, or `zkrq flows cancel`" in said
        (told,) = await shell.value("flows", "finish", "books", "book", "--yes")
        assert told["state"] == "done"
        assert "books/book" not in (await shell.run("doctor"))[1]


def test_threads_have_the_same(connect: Callable[..., sync.Cluster]) -> None:
    with connect() as cluster:
        books, pages = cluster.queue("books"), cluster.queue("pages")
        with books.flow("book") as outer:
            with outer.flow("one", queue=pages) as inner:
                inner.push("x")
            with pytest.raises(zkrq.ConfigError, match="deadline"):
                outer.flow("two", deadline=-1).begin()
        assert (inner.name, inner.queue) == ("one", pages.name)
        assert outer.status().nested == {"book.one": "one"}
        claim = take(pages)
        assert claim.flow
        with claim.flow.flow() as innermost:
            innermost.push("y")
        claim.ack()
        take(pages).ack()
        assert outer.result(timeout=HANG).state == "done"
