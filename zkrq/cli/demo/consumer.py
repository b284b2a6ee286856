"""Run a consumer in its own process: ``python -m zkrq.cli.demo.consumer NAME REDIS ZOOKEEPER``.

It reports on stdout, one line each, written immediately so that no report is lost when it is killed:

    delivered 81234.567890 019aa5f2c31-3f9c2a71-21b

It shuts down cleanly when its stdin ends, which also happens if the demo itself is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from zkrq.base.errors import ClaimLost, OutcomeUnknown, Unavailable
from zkrq.cli.demo.tally import Report
from zkrq.cli.demo.words import sentence
from zkrq.client.connecting import connect

if TYPE_CHECKING:
    from zkrq.base.events import Event
    from zkrq.client.queue import Queue
    from zkrq.consuming.claims import Claim

QUEUE = "demo"
SESSION_TIMEOUT = 3.0
"""Seconds until a killed consumer's claims are given back."""

CLAIM_TIMEOUT = 6.0
"""Seconds until an unextended claim expires if no ended session reveals that its holder died; twice the session
timeout, so that a run shows which of the two it was."""

HANDLERS = 16
"""Items that one consumer works on concurrently."""

WORK_SECONDS = (0.005, 0.035)
"""Shortest and longest time that a handler works, in seconds."""

RETRY_PAUSE = 0.05
"""Seconds before an ack or a push is retried."""

EXIT_TIMEOUT = 3
"""Seconds, an integer, from the end of stdin to a forced exit; a clean shutdown takes some milliseconds."""

CONNECTED = "connected"
EVENT = "event"


async def work(queue: Queue[Any], report: Callable[[Report, str], None]) -> None:
    """Run one handler's loop."""
    async for claim in queue.pop(prefetch=0):  # nothing is claimed ahead, so every claim has been reported
        report(Report.DELIVERED, claim.id)
        try:
            async with claim:
                await asyncio.sleep(random.uniform(*WORK_SECONDS))  # noqa: S311
                report(Report.FINISHED, claim.id)
                await _ack(claim)
                report(Report.ACKED, claim.id)
        except ClaimLost:
            report(Report.DROPPED, claim.id)


async def _ack(claim: Claim[Any]) -> None:
    """Retry the ack until it is known to be done.  Ends with ``ClaimLost`` when the claim does, at the latest."""
    while True:
        try:
            return await claim.ack()
        except (OutcomeUnknown, Unavailable):
            await asyncio.sleep(RETRY_PAUSE)


async def consume(name: str, redis: Mapping[str, str], zookeeper: str) -> None:
    """Work until stdin ends."""
    async with anyio.create_task_group() as tasks:

        async def leave_with_stdin() -> None:
            await _end_of_stdin()
            signal.alarm(EXIT_TIMEOUT)  # the servers may be gone by now
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave_with_stdin)

        def tell(event: Event) -> None:
            if text := sentence(event, name):
                _write(EVENT, text)

        async with connect(
            redis, zookeeper, description=name, session_timeout=SESSION_TIMEOUT, on_event=tell
        ) as cluster:
            _write(CONNECTED, name)
            async with anyio.create_task_group() as handlers:
                for _ in range(HANDLERS):
                    handlers.start_soon(work, cluster.queue(QUEUE, claim_timeout=CLAIM_TIMEOUT), _write)


def _write(kind: str, text: str) -> None:
    os.write(sys.stdout.fileno(), f"{kind} {time.monotonic():.6f} {text}\n".encode())


async def _end_of_stdin() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: os.read(sys.stdin.fileno(), 1) or ended.set())
    try:
        await ended.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


def main() -> None:
    name, redis, zookeeper = sys.argv[1:]
    logging.getLogger("zkrq").setLevel(logging.CRITICAL)  # the demo itself reports what happens
    asyncio.run(consume(name, json.loads(redis), zookeeper))


if __name__ == "__main__":
    main()
