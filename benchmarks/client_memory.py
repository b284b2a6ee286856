"""Measure the memory of a client for one ``push_many`` of a million items, from a generator in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import load
from benchmarks.plan import Plan
from benchmarks.sheet import Sheet, Topic

MEMORY = Topic(
    "client-memory",
    "Memory of the client",
    "One `push_many` of this many 100-byte items from a generator, in a process of its own: the highest "
    "resident size of the whole process, and how much of that the call added.",
    "MiB",
    "items",
)

PATIENCE = 240.0


@dataclass(frozen=True, slots=True)
class _Job:
    redis: dict[str, str]
    items: int


async def run(plan: Plan, sheet: Sheet) -> None:
    async with load.servers(config=load.NO_REWRITE) as group:
        items = 100_000 if plan.quick else 1_000_000
        job = json.dumps(asdict(_Job(group.redis_urls, items)))
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.client_memory", job, stdout=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(PATIENCE):
                told, _ = await client.communicate()
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        if client.returncode:
            sheet.remark(f"memory of the client: its process ended with {client.returncode}")
            return
        before, peak = json.loads(told)
        sheet.add(MEMORY, f"{items:,}", whole_process=peak, of_the_call=peak - before)


async def _client(job: _Job) -> tuple[float, float]:
    async with load.cluster_of(job.redis, "") as cluster:
        queue = cluster.queue("many")
        await queue.push_many(load.ITEM for _ in range(1_000))
        before = _resident("VmRSS")
        await queue.push_many(dict(load.ITEM) for _ in range(job.items))
        return before, _resident("VmHWM")


def _resident(field: str) -> float:
    """Return this process's memory in MiB, now or at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_client(_Job(**json.loads(sys.argv[1]))))))
