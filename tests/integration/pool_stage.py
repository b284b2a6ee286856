"""A worker whose handlers run in processes, and looks at these."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zkrq
from tests.harness import HANG
from zkrq.client.cluster import Cluster
from zkrq.pool.counts import PoolStatistics

DEATHS = {
    "segfault": "the handler's process was killed by SIGSEGV",
    "exit": "the handler's process ended with exit code 3",
    "kill": "the handler's process was killed by SIGKILL",
    "close": "the handler's process was killed, because it closed its connection",
    "frame": "the handler's process was killed, because it sent a message of 4294967295 bytes, at most 262144 are "
    "allowed",
}
"""What is said of the item that ``jobs.die`` works on."""


class Pooled:
    """A worker with a pool, on one queue that keeps results."""

    def __init__(
        self, cluster: Cluster, handler: Callable[..., Any] | zkrq.Handlers[Any], attempts: int, **options: Any
    ) -> None:
        retry = zkrq.Retry(max_attempts=attempts, backoff=zkrq.constant(0))
        self.queue: zkrq.ResultQueue[Any, Any] = cluster.queue("jobs", retry=retry, results=zkrq.Results())
        self.outcomes: list[zkrq.Outcome] = []
        limit = options.pop("time_limit", None)
        grace, concurrency = options.pop("grace", 30.0), options.pop("concurrency", 1)
        more = {name: options.pop(name) for name in ("unknown_after",) if name in options}
        self.worker = zkrq.Worker(concurrency=concurrency, grace=grace, pool=zkrq.Processes(**options))
        given: Any = handler
        self.worker.add(
            self.queue, given, time_limit=limit, **more, after=lambda _, outcome: self.outcomes.append(outcome)
        )

    async def do(self, item: Any, **options: Any) -> zkrq.Result[Any]:
        """Push an item, and wait for its end."""
        receipt = await self.queue.push(item, **options)
        result = await self.queue.result(receipt.id, timeout=HANG)
        assert result.has_ended, result
        return result

    @property
    def counts(self) -> PoolStatistics:
        pool = self.worker._pool  # pyright: ignore[reportPrivateUsage]
        assert pool
        return pool.statistics()

    @property
    def processes(self) -> list[int]:
        pool = self.worker._pool  # pyright: ignore[reportPrivateUsage]
        assert pool
        return [child.process for child in pool._children.values()]  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def pooled(
    cluster: Cluster, handler: Callable[..., Any] | zkrq.Handlers[Any], *, attempts: int = 1, **options: Any
) -> AsyncGenerator[Pooled]:
    made = Pooled(cluster, handler, attempts, **options)
    async with made.worker:
        yield made


def is_alive(process: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def folder_in(parent: Path, name: str) -> Path:
    (folder := parent / name).mkdir()
    return folder
