"""Figures of handlers on the command line and over HTTP."""

from __future__ import annotations

import html
import re

import pytest

from tests.harness import over_zookeeper, take
from tests.integration.api_stage import Stage
from tests.integration.shell import Shell
from zkrq import local
from zkrq.client.queue import parts_of
from zkrq.consuming.claims import lease_of
from zkrq.operations.figures import WORK_FIGURES

pytestmark = pytest.mark.anyio


async def test_figures_on_the_command_line(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("figured")
        await queue.push_many([1, 2])
        await queue.push(3, task="print")
        for _ in range(2):
            await (await take(queue)).ack()
        await (await take(queue)).bury("bad")
    head, *told = await shell.value("figures", "figured", "--since", "2h", "--step", "1h")
    assert head == {"queue": "figured", "seconds": 3600.0}
    assert {*told[-1]} == {*WORK_FIGURES.names}
    assert [sum(each[name] for each in told) for name in ("begun", "done", "failed", "dead")] == [3, 2, 1, 1]
    assert told[-1]["tasks"]["print"]["failed"] == 1
    code, out, _ = await shell.run("figures", "figured", "--since", "2h", "--step", "1h")
    assert code == 0
    first, *rows = out.splitlines()
    assert first.split() == [
        "from",
        "(UTC)",
        "begun",
        "done",
        "failed",
        "dead",
        "waited",
        "p50",
        "p95",
        "took",
        "p50",
        "p95",
    ]
    assert len({len(row) for row in (first, *rows)}) == 1
    assert rows[0].split()[:6] == ["in", "all", "3", "2", "1", "1"]
    for times in ((), ("--since", "1h"), ("--step", "1m")):  # as the defaults are
        assert (await shell.run("figures", "figured", *times))[1].splitlines()[1].split()[2:6] == ["3", "2", "1", "1"]
    code, _, complaint = await shell.run("figures", "figured", "--since", "soon")
    assert (code, "such as 3600 or 1h30m" in complaint) == (2, True)
    code, _, complaint = await shell.run("figures", "figured", "--since", "36d")
    assert (code, "at most 3024000 s" in complaint) == (2, True)


async def test_figures_over_http(stage: Stage) -> None:
    queue = stage.cluster.queue(stage.name)
    await queue.push("one")
    await (await take(queue)).ack()
    for leases in parts_of(queue).leases:
        await leases.figuring.aclose()
    path = f"/v1/queues/{stage.name}/figures"
    told = (await stage.http.client.get(path)).json()["figures"]
    assert sum(each["done"] for each in told) == 1
    assert sum(each["durations"]["count"] for each in told) == 1
    hours = (await stage.http.client.get(path, params={"since": 86_400, "step": 3600})).json()["figures"]
    assert len(hours) in (24, 25)
    assert (await stage.http.client.get(path, params={"since": 86_400 * 36})).status_code == 400


async def page(stage: Stage, path: str) -> str:
    """The text of a page, without its marks."""
    told = (await stage.http.client.get(path)).text
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", told)).split())


async def test_figures_on_the_page(stage: Stage) -> None:
    """Curves and a table, without scripts; a task that is asked for; a period that is none is the usual one."""
    queue = stage.cluster.queue("drawn")
    await queue.push_many(range(4))
    claims = [await take(queue) for _ in range(4)]
    for claim in claims:
        lease = lease_of(claim)
        lease.grant.note_task(lease.position, "mail <b>")
    for claim in claims[1:]:
        await claim.ack()
    await claims[0].bury("bad")
    for leases in parts_of(queue).leases:
        await leases.figuring.aclose()
    text = await page(stage, "/queues/drawn?tab=figures")
    assert re.search(
        r"Done a second, failed dashed .* As a table \d\d:\d\d UTC: [\d.]+ done, [\d.]+ failed a second", text
    )
    assert re.search(r"task half took at most 95 % ▾ done failed dead half waited at most 95 % all .* m?s 3 1 1 ", text)
    told = (await stage.http.client.get("/queues/drawn?tab=figures&period=never&task=mail+%3Cb%3E")).text
    assert "Only task mail &lt;b&gt;." in told
    assert 'href="/queues/drawn?tab=figures&amp;period=1+h"' in told
    assert (
        'id="period-1" href="/queues/drawn?tab=figures&amp;period=1+h&amp;task=mail+%3Cb%3E" aria-current="page"'
        in told
    )
    for period in ("6+h", "24+h", "30+d"):
        assert "Deliveries that failed" in await page(stage, f"/queues/drawn?tab=figures&period={period}")
    assert "Too little in this time for a curve." in await page(stage, "/queues/drawn?tab=figures&task=none")
