"""A consumer in a process of its own: ``python -m zkrq.cli.demo.consumer NAME REDIS ZOOKEEPER``.

It reports on stdout, one line each, written at once so that nothing is forgotten when it is killed:

    delivered 81234.567890 019aa5f2c31-3f9c2a71-21b

It ends in good order when its stdin ends, which is also how it learns that the demo itself was killed.
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
from typing import Any

import anyio

from zkrq.claims import Claim
from zkrq.cli.demo.tally import Report
from zkrq.cli.demo.words import sentence
from zkrq.connecting import connect
from zkrq.errors import ClaimLost, OutcomeUnknown, Unavailable
from zkrq.events import Event
from zkrq.queue import Queue

QUEUE = "demo"
SESSION_TIMEOUT = 3.0
"""Seconds until a killed consumer's claims come back."""

CLAIM_TIMEOUT = 6.0
"""Seconds until a claim comes back where no session's end tells of its holder's death; twice as long as a session, so
that it can be seen which of the two it was."""

HANDLERS = 16
"""Items that one consumer works on at once."""

WORK_SECONDS = (0.005, 0.035)
"""How long a handler works, from and to."""

RETRY_PAUSE = 0.05
"""Seconds before an ack or a push is tried again."""

EXIT_TIMEOUT = 3
"""Seconds, whole ones, from the end of stdin to a violent end; leaving in good order takes some milliseconds."""

CONNECTED = "connected"
EVENT = "event"


async def work(queue: Queue[Any], report: Callable[[Report, str], None]) -> None:
    """One handler's loop."""
    async for claim in queue.pop(prefetch=0):  # nothing ahead, so that every claim is one that was reported
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
    """Ack until it is known to be done.  Ends at the latest when the claim does, with ``ClaimLost``."""
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
    logging.getLogger("zkrq").setLevel(logging.CRITICAL)  # the demo tells what happens
    asyncio.run(consume(name, json.loads(redis), zookeeper))


if __name__ == "__main__":
    main()
