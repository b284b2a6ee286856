"""Import rows, and make a report when all of them have been imported.

A handler makes the flow: the report first, which is held, then the rows, page by page. Each page has a name, so if this
handler dies and is delivered again, it pushes no row twice. When the last row has been acked, the report becomes ready;
its handler reads what the handlers of the rows have returned.

Run it with ``python examples/import_report.py``. For servers of your own replace ``zkrq.embedded()`` by
``zkrq.connect(redis=["redis://10.0.0.1", ...], zookeeper="zk1,zk2,zk3", namespace="shop", found=True)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import zkrq

ROWS, PAGE = 1_000, 100


def pages() -> Iterator[range]:
    """Read the file, a page at a time."""
    for first in range(0, ROWS, PAGE):
        yield range(first, first + PAGE)


async def main() -> None:
    reported = asyncio.Event()
    async with zkrq.embedded() as cluster:
        jobs = cluster.queue("jobs")
        rows = cluster.queue("rows", results=zkrq.Results())
        reports = cluster.queue("reports")

        async def start(job: dict[str, int], claim: zkrq.Claim[dict[str, int]]) -> None:
            async with rows.flow(f"import-{job['id']}", deadline=6 * 3600) as flow:
                await flow.then(job, queue=reports, id=f"report-{job['id']}")
                for number, page in enumerate(pages()):
                    await flow.push_many(page, name=f"page-{number}")
                    if claim.attempts == 1 and number == 4:
                        raise zkrq.RetryLater(0, "as if the process had died half-way")

        async def insert(row: int) -> int:
            return 2 * row

        async def report(job: dict[str, int], claim: zkrq.Claim[dict[str, int]]) -> None:
            assert claim.flow is not None
            amounts = [result.get() async for result in claim.flow.results()]
            print(f"import {job['id']}: {len(amounts)} rows, {sum(amounts)} in all")
            reported.set()

        await jobs.push({"id": 7})
        async with zkrq.Worker(concurrency=20).add(jobs, start).add(rows, insert).add(reports, report):
            await reported.wait()
        status = await rows.flow("import-7").status()
        print(f"{status.state}, {status.left} left")


if __name__ == "__main__":
    asyncio.run(main())
