"""Helpers for these tests, and those of ``tests/integration``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import zkrq
from tests.harness import HANG
from zkrq.working.outcomes import Ending, Outcome
from zkrq.working.worker import Source, work

FEW_ATTEMPTS = zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0))


async def bury(queue: zkrq.Queue[Any], count: int) -> list[str]:
    """Push items and bury them; their ids."""
    await queue.push_many(range(count))
    claims = await queue.pop_many(count, timeout=HANG)
    while len(claims) < count:
        claims += await queue.pop_many(count - len(claims), timeout=HANG)
    await asyncio.gather(*(claim.bury(f"bad {claim.item}") for claim in claims))
    return [claim.id for claim in claims]


@asynccontextmanager
async def working(queue: Source[Any], handler: Callable[..., object], **options: Any) -> AsyncGenerator[None, None]:
    """``work`` in the background, cancelled at the end."""
    settings: dict[str, Any] = {"grace": HANG, **options}
    task = asyncio.create_task(work(queue, handler, **settings))
    try:
        yield
    finally:
        await stop(task)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def are_sizes(queue: zkrq.Queue[Any], ready: int, claimed: int) -> bool:
    """Whether so many items are ready and claimed, and none scheduled."""
    return (await queue.size())[:3] == (ready, 0, claimed)


async def is_ready(queue: zkrq.Queue[Any], count: int) -> bool:
    """Whether so many items are ready."""
    return (await queue.size()).ready == count


async def is_empty(queue: zkrq.Queue[Any]) -> bool:
    return not any(await queue.size())


class Outcomes:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.list: list[tuple[Any, Outcome]] = []

    def __call__(self, claim: zkrq.Claim[Any], outcome: Outcome) -> None:
        self.list.append((claim.item, outcome))

    @property
    def endings(self) -> list[Ending]:
        return [outcome.ending for _, outcome in self.list]


class Careless:
    """A codec that writes whatever it is given, and reads JSON."""

    name = "careless"

    def encode(self, item: Any, /) -> bytes:
        return item

    def decode(self, data: bytes, /) -> Any:
        return zkrq.JSON.decode(data)
