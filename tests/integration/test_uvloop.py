"""What uvloop's timers do otherwise than asyncio's, on real servers."""

from __future__ import annotations

import asyncio

import uvloop

import zkrq
from zkrq.replication.cutting import CUT_MAX


def test_many_items_are_acked_together() -> None:
    """Their payloads are dropped without waiting, by a timer that uvloop makes a plain handle."""

    async def run() -> list[zkrq.Claim[int]]:
        async with zkrq.embedded() as cluster:
            jobs, claims = cluster.queue("jobs"), list[zkrq.Claim[int]]()
            numbers = range(2 * (CUT_MAX + 1))
            await asyncio.gather(*(jobs.push(number, key=str(number)) for number in numbers))
            while len(claims) < len(numbers):
                claims += await jobs.pop_many(CUT_MAX)
            return await jobs.ack_many(claims)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == []
