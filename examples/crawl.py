"""Crawl a site: items add items until none is left, and a report follows.

Each page is a member of the flow, under a name made of its address, so it is visited once, however many pages link to
it: a name is taken as long as the flow runs. A page adds those that it links to before it is acked, so the flow cannot
end in between.

Run it with ``python examples/crawl.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
import hashlib

import zkrq

PAGES = 300


def digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]


def links(url: str) -> list[str]:
    """Read a page of a site in which each page links to three others, and to the first."""
    number = int(url.rpartition("/")[2])
    return ["/0", *(f"/{other}" for other in (2 * number + 1, 2 * number + 2, number + 7) if other < PAGES)]


async def main() -> None:
    visited = list[str]()
    async with zkrq.embedded() as cluster:
        pages, reports = cluster.queue("pages"), cluster.queue("reports")
        reported = asyncio.Event()

        async def visit(url: str, claim: zkrq.Claim[str]) -> None:
            assert claim.flow is not None
            visited.append(url)
            for link in links(url):
                await claim.flow.push(link, name=digest(link))

        async def report(site: str) -> None:
            print(f"{site}: {len(visited)} pages visited, {len(visited) - len(set(visited))} twice")
            reported.set()

        async with zkrq.Worker(concurrency=20).add(pages, visit).add(reports, report):
            async with pages.flow("crawl-7") as flow:
                await flow.push("/0", name=digest("/0"))
                await flow.then("the site", queue=reports)
            status = await flow.result(timeout=None)
            await reported.wait()
    print(f"{status.state}: {status.done:,}, missed: {status.missed}")


if __name__ == "__main__":
    asyncio.run(main())
