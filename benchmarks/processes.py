"""Run clients in processes of their own: each pushes its share by many tasks, then all consume until nothing is left.

Run as a program it is one such client.  It prints ``ready``, and begins each phase at a line on its standard input;
after each phase it prints when it began and ended.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import load, programs
from benchmarks.peers.common import say
from zkrq.local import Servers

PATIENCE = 120.0
"""Seconds after which clients are abandoned."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Items per second of all clients together; the client's own processor time in microseconds per item."""

    push: float
    consume: float
    cycle: float
    processor: float


@dataclass(frozen=True, slots=True)
class _Share:
    """Orders of one client."""

    redis: dict[str, str]
    zookeeper: str
    namespace: str
    items: int
    tasks: int


async def together(group: Servers, clients: int, items: int, *, tasks: int = load.TASKS) -> Rates:
    """Run this many clients that share the items, in a namespace of their own; return their rates.

    More than one client needs ZooKeeper.  Raises ``ProgramFailed``.
    """
    namespace = f"together-{secrets.token_hex(4)}"
    share = _Share(group.redis_urls, group.zookeeper_hosts, namespace, items // clients, tasks)
    started = [
        await programs.start(Path(sys.executable), "benchmarks.processes", asdict(share)) for _ in range(clients)
    ]
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*map(programs.answer, started))
            pushing, processor = await _phase(started)
            consuming, more = await _phase(started)
    finally:
        for client in started:
            await programs.kill(client)
    total = share.items * clients
    return Rates(total / pushing, total / consuming, total / (pushing + consuming), (processor + more) / total * 1e6)


async def _phase(clients: Sequence[Process]) -> tuple[float, float]:
    """Return the seconds from the first client's start to the last one's end, and of their processor time."""
    began, ended, processor = zip(*await asyncio.gather(*map(programs.ask, clients)), strict=True)
    return max(ended) - min(began), sum(processor)


async def _client(share: _Share) -> None:
    async with load.cluster_of(share.redis, share.zookeeper, namespace=share.namespace) as cluster:
        warm_up = cluster.queue(f"warm-up-{secrets.token_hex(4)}")
        await load.push(warm_up, 500)
        await load.consume(warm_up)
        queue = cluster.queue("together")
        say([])
        await _go()
        await _measured(lambda: load.push(queue, share.items, share.tasks))
        await _go()
        await _measured(lambda: load.consume(queue, share.tasks))


async def _go() -> None:
    await asyncio.to_thread(sys.stdin.readline)


async def _measured(work: Callable[[], Awaitable[None]]) -> None:
    processor, began = time.process_time(), time.time()
    await work()
    say([began, time.time(), time.process_time() - processor])


if __name__ == "__main__":
    asyncio.run(_client(_Share(**json.loads(sys.argv[1]))))
