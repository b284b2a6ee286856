"""The snippets of the page about flows do what they say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.harness import HANG, take
from tests.integration.snippet_runs import runs
from tests.snippets import execute

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster() -> AsyncGenerator[zkrq.testing.TestCluster]:
    async with zkrq.testing.cluster() as cluster:
        yield cluster


async def work(*queues: zkrq.Queue[Any]) -> list[Any]:
    """Take and ack one item of each of these; return them."""
    items = list[Any]()
    for queue in queues:
        async with await take(queue) as claim:
            items.append(claim.item)
    return items


@runs("flows.md", 'async with rows.flow("import-7") as flow:')
async def test_what_follows_comes_last(cluster: zkrq.Cluster, code: str) -> None:
    rows, checks, reports = (cluster.queue(name) for name in ("rows", "checks", "reports"))
    await execute(code, rows=rows, checks=checks, reports=reports, items=[1, 2])
    assert await work(rows, rows) == [1, 2]
    assert await reports.pop_one(timeout=0) is None
    assert await work(checks, reports) == [{"check": "totals"}, {"job": 7}]


@runs("flows.md", "async def start(job, claim):")
async def test_a_report_of_all_rows(cluster: zkrq.Cluster, code: str) -> None:
    rows, reports = cluster.queue("rows", results=zkrq.Results()), cluster.queue("reports")
    job, published = {"id": 7}, list[Any]()

    async def publish(job: Any, total: int) -> None:
        published.append((job, total))

    def pages(job: Any) -> list[list[dict[str, int]]]:
        return [[{"n": 1}, {"n": 2}], [{"n": 3}]]

    known = await execute(code, rows=rows, reports=reports, pages=pages, publish=publish)
    for _ in range(2):  # delivered again
        await known["start"](job, None)
    for _ in range(3):
        claim = await take(rows)
        await claim.ack(result=claim.item["n"])
    claim = await take(reports)
    await known["report"](claim.item, claim)
    assert published == [(job, 6)]


@runs("flows.md", 'async with check.flow(f"order-{id}") as flow:')
async def test_a_diamond(cluster: zkrq.Cluster, code: str) -> None:
    queues = {name: cluster.queue(name) for name in ("check", "price", "stock", "ship")}
    await execute(code, order={"id": 7}, id=7, **queues)
    for name in ("price", "stock", "ship"):
        assert await queues[name].pop_one(timeout=0) is None
    await work(queues["check"])
    await work(queues["stock"])
    assert await queues["ship"].pop_one(timeout=0) is None
    assert await work(queues["price"], queues["ship"]) == [{"id": 7}] * 2


@runs("flows.md", "with suppress(zkrq.FlowEnded):")
async def test_a_saga(cluster: zkrq.Cluster, code: str) -> None:
    bookings, refunds = cluster.queue("bookings", results=zkrq.Results()), cluster.queue("refunds")
    confirmations, undone = cluster.queue("confirmations"), list[str]()
    known = await execute(
        code,
        bookings=bookings,
        refunds=refunds,
        confirmations=confirmations,
        id=7,
        suppress=suppress,
        zkrq=zkrq,
        undo=undone.append,
    )
    flight, hotel, car = [await take(bookings) for _ in range(3)]
    await flight.ack(result="flight 12")
    await hotel.bury("the hotel is full")
    await car.ack(result="car 3")
    async with await take(refunds) as claim:
        await known["refund"](claim.item, claim)
    assert undone == ["flight 12", "car 3"]
    assert await confirmations.pop_one(timeout=0) is None


@runs("flows.md", 'async with files.flow(f"import-{id}") as flow:')
async def test_flows_in_a_flow(cluster: zkrq.Cluster, code: str) -> None:
    files, rows, checks, reports = (cluster.queue(name) for name in ("files", "rows", "checks", "reports"))
    known = {"a": ["1", "2"], "b": ["3"]}
    await execute(
        code, files=files, rows=rows, checks=checks, reports=reports, id=7, names=["a", "b"], lines=known.__getitem__
    )
    assert await work(rows, rows) == ["1", "2"]
    assert await work(checks) == ["a"]
    assert await checks.pop_one(timeout=0) is None
    assert await reports.pop_one(timeout=0) is None
    assert await work(rows, checks, reports) == ["3", "b", 7]


@runs("flows.md", "async def crawl(url, claim):")
async def test_a_crawl(cluster: zkrq.Cluster, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages, reports = cluster.queue("pages"), cluster.queue("reports")
    found = {"root": ["a", "b"], "a": ["b", "root"], "b": []}

    async def links(url: str) -> list[str]:
        return found[url]

    running = asyncio.create_task(execute(code, pages=pages, reports=reports, links=links, root="root", digest=str))
    seen = list[str]()
    for _ in found:
        async with await take(pages) as claim:
            seen.append(claim.item)
            await sys.modules["snippet"].crawl(claim.item, claim)
    await asyncio.wait_for(running, HANG)
    assert sorted(seen) == ["a", "b", "root"]
    assert "state=<FlowState.DONE: 'done'>" in capsys.readouterr().out
    assert await work(reports) == ["crawl-7"]
