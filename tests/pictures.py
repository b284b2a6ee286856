"""Make the pictures of docs/images again: ``python -m tests.pictures``, after a change of the page or of ``zkrq top``.

A run with faults on three Redis and three ZooKeeper servers: dead letters, a pause, a server killed, then another.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import zkrq
from tests.browser import Browser, browse
from tests.harness import settled, take
from tests.serving import serving
from zkrq import local
from zkrq.cli.top import show, take_snapshot

IMAGES = Path(__file__).parents[1] / "docs" / "images"
REASONS = ("line {} has no column 'price'", "no answer of prices.example within {} s", "line {} has no column 'price'")
LETTERS = 40
TRACE = "00-8a3c60f7d188f8fa79d48a391a778fa6-00f067aa0ba902b7-01"
INVOICE = {"customer": "acme", "lines": [{"article": "A-1", "price": 1.1}]}
WARM_UP = 60.0  # seconds, so that the curves have a past


async def send(item: int) -> None:
    await asyncio.sleep(random.uniform(0.02, 0.1))


async def load(item: dict[str, object]) -> None:
    number = item["file"]
    assert isinstance(number, int)
    raise zkrq.Reject(REASONS[number % len(REASONS)].format(number))


async def produce(emails: zkrq.Queue[int]) -> None:
    """Push in bursts."""
    number = 0
    while True:
        for _ in range(random.choice((2, 5, 25))):
            number += 1
            await emails.push(number)
        await asyncio.sleep(random.uniform(0.1, 0.6))


@asynccontextmanager
async def busy(cluster: zkrq.Cluster) -> AsyncGenerator[None]:
    """Queues: one with traffic, one with dead letters, one that is paused, one with an item at work, and empty ones."""
    emails = cluster.queue("emails", history=1000)
    imports, reports, invoices = (cluster.queue(name) for name in ("imports", "reports", "invoices"))
    tenants = cluster.queue("exports", groups=zkrq.Groups(concurrency=1))
    for number in range(3):
        await (await put_and_take(cluster.queue(f"nightly-{number}"), number)).ack()
    held = await put_and_take(invoices, INVOICE, id="invoice-4711", headers={"traceparent": TRACE})
    for number in range(LETTERS):
        await imports.push({"customer": random.choice(("acme", "globex")), "file": number})
    for tenant, count in (("acme", 240), ("globex", 31), ("initech", 4)):
        await tenants.push_many(range(count), group=tenant)
    exports = [await take(tenants) for _ in range(2)]
    exports[0].progress(0.4, "table 12 of 30")
    await reports.push_many(range(4_200))
    await reports.pause()
    async with zkrq.Worker(concurrency=2).add(emails, send).add(imports, load):
        producing = asyncio.create_task(produce(emails))
        yield
        producing.cancel()
    for claim in (held, *exports):
        await claim.ack()


async def put_and_take(queue: zkrq.Queue[Any], item: object, **options: Any) -> zkrq.Claim[Any]:
    await queue.push(item, **options)
    return await take(queue)


def picture(browser: Browser, url: str, name: str, *, height: int, width: int = 1280, dark: bool = False) -> None:
    browser.open(url, width=width, dark=dark)
    browser.wait(lambda: browser.text(".as-of"))
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.driver.save_screenshot(str(IMAGES / name))


async def draw_top(cluster: zkrq.Cluster) -> None:
    """What a terminal shows, as rich writes it."""
    before = await take_snapshot(cluster)
    await asyncio.sleep(5)
    console = Console(record=True, width=90, file=io.StringIO())
    console.print(show(await take_snapshot(cluster), before))
    drawing = console.export_svg(title="zkrq top")
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)  # they would come from another site
    (IMAGES / "top.svg").write_text(drawing)


async def main() -> None:
    do = asyncio.to_thread
    async with local.servers(redis=3, zookeeper=3) as servers:
        connect = partial(
            zkrq.connect, servers.redis_urls, servers.zookeeper_hosts, namespace="shop", session_timeout=3, found=True
        )
        with tempfile.TemporaryDirectory() as folder:
            async with (
                connect(description="worker on host-7:4121") as cluster,
                serving(connect(description="zkrq serve")) as http,
            ):
                browser = await do(browse, Path(folder))
                try:
                    async with busy(cluster):
                        await do(browser.open, http.url)  # looked at, so that looks are frequent
                        await asyncio.sleep(WARM_UP)
                        await servers.redis[0].kill()

                        async def is_out() -> bool:
                            return len(cluster.view.members) == 2

                        await settled(is_out)
                        await draw_top(cluster)
                        await do(picture, browser, http.url, "page-desktop.png", height=860)
                        await do(picture, browser, f"{http.url}/queues/emails?tab=ready", "page-queue.png", height=640)
                        await do(picture, browser, f"{http.url}/queues/emails?tab=done", "page-done.png", height=760)
                        groups = f"{http.url}/queues/exports?tab=groups"
                        await do(picture, browser, groups, "page-groups.png", height=720)
                        await do(picture, browser, f"{http.url}/queues/imports?tab=dead", "page-dead.png", height=980)
                        item = f"{http.url}/queues/invoices/item?id=invoice-4711"
                        await do(picture, browser, item, "page-item.png", height=860)
                        await servers.redis[1].kill()
                        await settled(lambda: not_writable(cluster))
                        await asyncio.sleep(3)
                        await do(picture, browser, http.url, "page-phone.png", height=1000, width=390, dark=True)
                        await servers.start()
                        await settled(lambda: is_writable(cluster))
                finally:
                    await do(browser.driver.quit)


async def not_writable(cluster: zkrq.Cluster) -> bool:
    return not cluster.view.writable


async def is_writable(cluster: zkrq.Cluster) -> bool:
    return cluster.view.writable


if __name__ == "__main__":
    asyncio.run(main())
