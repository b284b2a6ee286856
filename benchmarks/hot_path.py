"""The client's own part of a push and an ack: encode, group commit, hand each caller its reply.  No network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import zkrq
from zkrq.ids import new_id_at
from zkrq.replication.batching import Batcher
from zkrq.replication.records import fresh
from zkrq.replication.replicas import Put
from zkrq.tasks import Tasks

ITEMS = 50_000
CALLERS = 256
ITEM = {"to": "ann@example.org", "text": "x" * 60}


async def run() -> dict[str, float]:
    """Microseconds of processor time per pushed item."""

    async def send(puts: Sequence[Put]) -> Sequence[int | Exception]:
        return [3] * len(puts)

    async def push(batcher: Batcher[Put, int]) -> None:
        now_ms = time.time_ns() // 1_000_000
        await batcher.add(Put(new_id_at(now_ms), fresh(0, now_ms), 0, zkrq.JSON.encode(ITEM)))

    async with Tasks("benchmark") as tasks:
        batcher: Batcher[Put, int] = Batcher(
            send, size=lambda put: len(put.payload), tasks=tasks, name="push", patience=60
        )
        left = iter(range(ITEMS))

        async def caller() -> None:
            for _ in left:
                await push(batcher)

        began = time.process_time()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return {"push: us of client time per item": (time.process_time() - began) / ITEMS * 1e6}
