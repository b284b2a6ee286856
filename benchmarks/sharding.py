"""Measure what an item costs when its queue is spread over several shards: the client, and each server.

    python -m benchmarks.sharding          # 1, 2 and 4 shards of three servers
    python -m benchmarks.sharding --docs   # and write the table into docs/shards.md

256 tasks of one process push and consume one item at a time.  The numbers of shards take turns in one run, so that a
slow moment of the machine meets all of them; each figure is the median of its rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

import zkrq
from benchmarks.counts import python_calls
from zkrq import local
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator

SHARDS = (1, 2, 4)
PER_SHARD = 3
TASKS = 256
ITEMS = 12_288
ROUNDS = 5
ITEM = {"to": "ann@example.org", "text": "x" * 60}

DOCS = Path(__file__).parents[1] / "docs" / "shards.md"

Figures = Mapping[str, float]


async def main(docs: bool) -> None:
    found = await measure()
    table = tell(found)
    print(table)
    if docs:
        text = re.sub(r"(?<=<!-- sharding -->\n).*?(?=<!-- end of sharding -->)", table, DOCS.read_text(), flags=re.S)
        DOCS.write_text(text)


async def measure() -> dict[int, Figures]:
    """Return the medians for each number of shards."""
    async with local.servers(redis=PER_SHARD * max(SHARDS), zookeeper=0) as servers, AsyncExitStack() as stack:
        every = list(servers.redis_urls.items())
        clusters = {shards: await stack.enter_async_context(_open(every, shards)) for shards in SHARDS}
        for cluster in clusters.values():
            await _cycle(cluster, ITEMS)  # loads every script, finds the pace
        rounds: dict[int, list[Figures]] = {shards: [] for shards in SHARDS}
        for _ in range(ROUNDS):
            for shards, cluster in clusters.items():
                rounds[shards].append(await _round(cluster, [url for _, url in every[: PER_SHARD * shards]]))
    return {
        shards: {name: statistics.median(figures[name] for figures in found) for name in found[0]}
        for shards, found in rounds.items()
    }


@asynccontextmanager
async def _open(every: Sequence[tuple[str, str]], shards: int) -> AsyncGenerator[Cluster]:
    """Open a namespace with so many shards, of the first of these servers."""
    settings = Settings(f"shards-{shards}", found=True, description="sharding", command_timeout=10.0)
    async with Cluster(dict(every[:PER_SHARD]), MemoryCoordinator(Hub()), settings) as cluster:
        for number in range(1, shards):
            start = number * PER_SHARD
            await cluster.add_shard(f"s{number}", dict(every[start : start + PER_SHARD]))
        yield cluster


async def _push(queue: zkrq.Queue[Any], items: int) -> None:
    left = iter(range(items))

    async def push() -> None:
        for _ in left:
            await queue.push(ITEM)

    await asyncio.gather(*(push() for _ in range(TASKS)))


async def _consume(queue: zkrq.Queue[Any], items: int) -> None:
    left, done = items, asyncio.Event()

    async def consume() -> None:
        nonlocal left
        async for claim in queue.pop():
            await claim.ack()
            left -= 1
            if not left:
                done.set()

    consumers = [asyncio.create_task(consume()) for _ in range(TASKS)]
    await done.wait()
    for consumer in consumers:
        consumer.cancel()
    await asyncio.wait(consumers)


async def _cycle(cluster: Cluster, items: int) -> None:
    queue = cluster.queue("jobs")
    await _push(queue, items)
    await _consume(queue, items)


async def _round(cluster: Cluster, urls: Sequence[str]) -> Figures:
    before, began, own = await _servers(urls), time.perf_counter(), time.process_time()
    await _cycle(cluster, ITEMS)
    own, seconds, after = time.process_time() - own, time.perf_counter() - began, await _servers(urls)
    with python_calls() as pushing:
        await _push(cluster.queue("jobs"), ITEMS // 4)
    with python_calls() as consuming:
        await _consume(cluster.queue("jobs"), ITEMS // 4)
    used = {name: [new[name] - old[name] for old, new in zip(before, after, strict=True)] for name in after[0]}
    return {
        "push: Python calls of the client": pushing[0] / (ITEMS // 4),
        "claim and ack: Python calls of the client": consuming[0] / (ITEMS // 4),
        "the client's processor time, µs": own / ITEMS * 1e6,
        "a server's processor time, µs": statistics.mean(used["seconds"]) / ITEMS * 1e6,
        "that of all servers, µs": sum(used["seconds"]) / ITEMS * 1e6,
        "script calls on a server": statistics.mean(used["scripts"]) / ITEMS,
        "items per second": ITEMS / seconds,
    }


async def _servers(urls: Sequence[str]) -> list[Figures]:
    return [await _server(url) for url in urls]


async def _server(url: str) -> Figures:
    async with Redis.from_url(url) as redis:  # pyright: ignore[reportUnknownMemberType]
        time: dict[str, Any] = await redis.info("cpu")  # pyright: ignore[reportUnknownMemberType]
        commands: dict[str, Any] = await redis.info("commandstats")  # pyright: ignore[reportUnknownMemberType]
    scripts = commands.get("cmdstat_fcall", {}).get("calls", 0)
    return {"seconds": time["used_cpu_user"] + time["used_cpu_sys"], "scripts": scripts}


def tell(found: Mapping[int, Figures]) -> str:
    """Print the figures as a table of Markdown, those of several shards beside their ratio to one."""
    lines = [f"| per item | {' | '.join(_name(shards) for shards in found)} |", "| --- |" + " ---: |" * len(found)]
    one = found[min(found)]
    for name, base in one.items():
        cells = [_cell(of[name], None if of is one else of[name] / base) for of in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _name(shards: int) -> str:
    return f"{shards} shard{'s' if shards > 1 else ''}"


def _cell(value: float, ratio: float | None) -> str:
    shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return shown if ratio is None else f"{shown} ({ratio:.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the cost of an item with 1, 2 and 4 shards.")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/shards.md")
    asyncio.run(main(parser.parse_args().docs))
