"""Millions of items through one queue: the memory of the client and of each Redis server must stay flat.

    python -m tests.soak --items 3000000 --seconds 900

Tombstones are the only thing that grows by design, up to a time (twice the put window) or in bytes (512 MiB a queue);
after that, memory must be flat.  The put window is shortened for this, so that the plateau is reached early.  At the
end every key is compared with the table of keys.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import sys
from pathlib import Path
from typing import NamedTuple

import zkrq
from tests.harness import command, in_process, new_namespace
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.protocol import keys, scrubbing
from zkrq.protocol.calls import Call

PUT_WINDOW_MS = 2_000
"""Instead of five minutes: tombstones live for twice as long."""

CONSUMERS = 64

PUSHED_TOGETHER = 2_000

ROUND = CONSUMERS * PUSHED_TOGETHER // 8
"""Items between two readings."""

TOLERANCE = 1.15
"""How much more the last quarter's readings may be than the second quarter's: allocators keep what they had."""

PER_QUEUE_MAX = {
    "owners": 100,
    "fenced_owners": 100,
    "lead": 10,
    "waiting": 100,
    "payloads": 0,
    "ready": 0,
    "claimed": 0,
    "holdings": 0,
}
"""Of a drained queue: how many entries a key may have."""


class Reading(NamedTuple):
    """After so many items: kilobytes of this process, and the bytes that each server's data takes."""

    items: int
    client_kb: int
    servers: tuple[int, ...]


async def used_memory(server: local.LocalRedis) -> int:
    found = re.search(rb"used_memory_dataset:(\d+)", await command(server, "INFO", "memory"))
    assert found
    return int(found[1])


def client_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


async def one_round(cluster: Cluster) -> None:
    """Push and ack the items of a round."""
    queue = cluster.queue("soak", codec=zkrq.RAW)

    async def consume() -> None:
        async for claim in queue.pop(limit=ROUND // CONSUMERS):
            await claim.ack()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONSUMERS):
            group.create_task(consume())
        for _ in range(0, ROUND, PUSHED_TOGETHER):
            await queue.push_many([b"x" * 100] * PUSHED_TOGETHER)


async def soak(items: int, seconds: float) -> list[Reading]:
    """Readings after each round, until so many items or so many seconds are over; the keys are checked at the end."""
    Call.put_window_ms = PUT_WINDOW_MS
    scrubbing.PUT_WINDOW_MS = PUT_WINDOW_MS
    readings: list[Reading] = []
    async with (
        local.servers(redis=3, zookeeper=0, redis_config={"appendonly": "no", "save": '""'}) as servers,
        in_process(servers, new_namespace()) as cluster,
    ):
        until = asyncio.get_running_loop().time() + seconds
        while len(readings) * ROUND < items and asyncio.get_running_loop().time() < until:
            await one_round(cluster)
            memory = await asyncio.gather(*map(used_memory, servers.redis))
            readings.append(Reading((len(readings) + 1) * ROUND, client_kb(), tuple(memory)))
        for server in servers.redis:
            await check_keys(server, cluster.namespace)
    return readings


async def check_keys(server: local.LocalRedis, namespace: str) -> None:
    """No key that the table does not know, and none without a bound."""
    known = set(re.findall(r"^(\w+) +(?:hash|zset|list|set) ", keys.__doc__ or "", re.MULTILINE)) | {"server", "queues"}
    names = re.findall(rb"(\{%s\}\S+)\r\n" % namespace.encode(), await command(server, "KEYS", "*"))
    for name in map(bytes.decode, names):
        kind = name.rpartition(":")[2]
        assert kind in known, f"{server.name} has {name}"
        if kind in PER_QUEUE_MAX:
            size = await length(server, name)
            assert size <= PER_QUEUE_MAX[kind], f"{server.name}: {name} has {size} entries"


async def length(server: local.LocalRedis, name: str) -> int:
    for ask in ("HLEN", "ZCARD", "LLEN", "SCARD"):
        if found := re.match(rb":(\d+)", await command(server, ask, name)):
            return int(found[1])
    raise AssertionError(f"{name} is no collection")


def judge(readings: list[Reading]) -> list[str]:
    """What has grown."""
    quarter = len(readings) // 4
    if quarter < 1:
        return ["too few readings"]
    early, late = readings[quarter : 2 * quarter], readings[-quarter:]
    grown: list[str] = []
    if max(r.client_kb for r in late) > TOLERANCE * max(r.client_kb for r in early):
        grown.append("the client")
    return grown + [
        f"redis-{n + 1}"
        for n in range(len(readings[0].servers))
        if max(r.servers[n] for r in late) > TOLERANCE * max(r.servers[n] for r in early)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=3_000_000)
    parser.add_argument("--seconds", type=float, default=900.0)
    args = parser.parse_args()
    readings = asyncio.run(soak(args.items, args.seconds))
    print("| items | client MiB | Redis MiB |\n| ---: | ---: | --- |")
    for reading in readings[:: max(1, len(readings) // 16)] + readings[-1:]:
        servers = ", ".join(f"{memory / 2**20:.1f}" for memory in reading.servers)
        print(f"| {reading.items:,} | {reading.client_kb / 1024:.1f} | {servers} |")
    grown = judge(readings)
    print(f"grown: {', '.join(grown)}" if grown else "flat")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
