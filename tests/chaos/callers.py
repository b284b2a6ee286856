"""Thousands of callers wait for results while the primary is killed every few seconds: what is each told, and when?

    python -m tests.chaos.callers --seconds 300

A caller that was told pushes another item, so as many wait all the time.  Lateness is the time from the end of a
handler until its caller was told, so it has the ack in it, and with that the failover.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import zkrq
from tests.harness import HANG, new_namespace, push_surely
from zkrq import local
from zkrq.client.cluster import Cluster

CALLERS = 10_000
SESSION_TIMEOUT = 4.0
CONCURRENCY = 64
PACE = 250.0
"""Items a second that the handlers get through, so that callers wait."""

OUTAGE_MAX = 30.0
"""Seconds for which pushes may fail where a server dies while another one is out: of the rest of its pause, and of
the catch-up of the results of five minutes, on a busy machine."""

QUEUE = "sums"


@dataclass(slots=True)
class Findings:
    """``broken``: promises, by item.  ``late``: seconds, of each caller.  ``outages``: seconds from each kill until a
    push returned that had begun when the server was gone."""

    broken: list[str] = field(default_factory=list[str])
    late: list[float] = field(default_factory=list[float])
    outages: list[float] = field(default_factory=list[float])
    ended: dict[int, float] = field(default_factory=dict[int, float])
    """When the last handler of an item ended."""

    def told(self, number: int, result: zkrq.Result[Any]) -> None:
        if result.value != number * number:
            self.broken.append(f"item {number}: {result}")
        else:
            self.late.append(time.monotonic() - self.ended[number])

    def summary(self) -> str:
        late, slowest = sorted(self.late), max(self.outages, default=0.0)
        of = [statistics.median(late), late[int(len(late) * 0.99)], late[-1]]
        told = ", ".join(f"{each:.2f}" for each in of)
        return (
            f"{len(late)} callers were told, {len(self.broken)} wrongly; {len(self.outages)} primaries killed\n"
            f"late, in seconds, p50, p99 and most: {told}; longest failover {slowest:.2f}"
        )


async def run(servers: local.Servers, *, callers: int, seconds: float, kill_every: float) -> Findings:
    namespace, found, results = new_namespace(), Findings(), zkrq.Results(ttl=600)
    async with _cluster(servers, namespace, found=True) as asking, _cluster(servers, namespace) as doing:
        here, there = (each.queue(QUEUE, results=results) for each in (asking, doing))

        async def square(item: int) -> int:
            await asyncio.sleep(CONCURRENCY / PACE)
            found.ended[item] = time.monotonic()
            return item * item

        numbers, end = count(), time.monotonic() + seconds

        async def call() -> None:
            while True:
                number = next(numbers)
                await push_surely(here, number, f"{number}")
                found.told(number, await _result(here, f"{number}"))
                if time.monotonic() > end:
                    return

        async with asyncio.TaskGroup() as group:
            working = group.create_task(there.work(square, concurrency=CONCURRENCY))
            killing = group.create_task(_kill_primaries(servers, asking, found, kill_every))
            group.create_task(_stop_at(end, killing))
            await asyncio.gather(*(call() for _ in range(callers)))
            working.cancel()
    return found


@asynccontextmanager
async def _cluster(servers: local.Servers, namespace: str, *, found: bool = False) -> AsyncGenerator[Cluster]:
    addresses = servers.redis_urls, servers.zookeeper_hosts
    async with zkrq.connect(*addresses, namespace=namespace, found=found, session_timeout=SESSION_TIMEOUT) as cluster:
        yield cluster


async def _result(queue: zkrq.ResultQueue[Any, Any], id: str) -> zkrq.Result[Any]:
    while True:
        try:
            result = await queue.result(id, timeout=HANG)
        except zkrq.Unavailable:
            continue
        if result.state not in (zkrq.ResultState.QUEUED, zkrq.ResultState.CLAIMED):
            return result


async def _kill_primaries(servers: local.Servers, cluster: Cluster, found: Findings, kill_every: float) -> None:
    probes = cluster.queue(QUEUE + "-probes")
    while True:
        await asyncio.sleep(kill_every)
        name = cluster.view.primary(QUEUE)
        server = next(each for each in servers.redis if each.name == name)
        began = time.monotonic()
        await server.kill()
        await push_surely(probes, "probe", f"{len(found.outages)}")
        found.outages.append(time.monotonic() - began)
        await server.start()


async def _stop_at(end: float, task: asyncio.Task[None]) -> None:
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    task.cancel()


def fine(found: Findings) -> bool:
    outage = max(found.outages, default=0.0)
    return not found.broken and outage <= OUTAGE_MAX and max(found.late) <= outage + 1.0


async def _main(arguments: Sequence[str] | None = None) -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="in which callers come back (%(default)s)")
    parser.add_argument("--callers", type=int, default=CALLERS, help="that wait at a time (%(default)s)")
    parser.add_argument("--kill-every", type=float, default=10.0, metavar="SECONDS", help="(%(default)s)")
    args = parser.parse_args(arguments)
    async with local.servers(redis=3, zookeeper=3) as servers:
        found = await run(servers, callers=args.callers, seconds=args.seconds, kill_every=args.kill_every)
    print(found.summary(), *found.broken[:10], sep="\n")
    return fine(found)


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(_main()) else 1)
