"""Share the frame of these programs: a job as the only argument, the figures as the only line of output, both JSON.

These programs run in environments without zkrq, so they import nothing of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

ITEM = {"to": "ann@example.org", "text": "x" * 67}
"""100 bytes as JSON without spaces."""

PAYLOAD = json.dumps(ITEM, separators=(",", ":")).encode()
"""The item for libraries that take bytes."""

PATIENCE = 60.0
"""Seconds after which a phase is abandoned."""


TIMER = 0.002
"""Seconds by which a timer may be late without an error."""


class Job(NamedTuple):
    """Addresses of the servers, the number of items to push and consume, and the number of tasks."""

    servers: list[str]
    items: int
    tasks: int
    zookeeper: str = ""


class Rates(NamedTuple):
    """Items per second, and the settings under which they were reached."""

    push: float
    consume: float
    cycle: float
    settings: str


def rates(items: int, pushing: float, consuming: float, settings: str) -> Rates:
    """Compute the rates from the seconds of the two phases."""
    return Rates(items / pushing, items / consuming, items / (pushing + consuming), settings)


class Countdown:
    """Done when it has been counted down from ``items`` to zero."""

    def __init__(self, items: int) -> None:
        self._left = items
        self._done = asyncio.Event()

    def count(self, items: int = 1) -> None:
        self._left -= items
        if self._left <= 0:
            self._done.set()

    async def wait(self) -> None:
        """Wait until done.  Raises ``TimeoutError``."""
        async with asyncio.timeout(PATIENCE):
            await self._done.wait()


async def share(items: int, tasks: int, one: Callable[[], Awaitable[object]]) -> float:
    """Await ``one()`` repeatedly by this many tasks, ``items`` times in all; return the seconds."""
    left = iter(range(items))

    async def run() -> None:
        for _ in left:
            await one()

    began = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(run() for _ in range(tasks)))
    return time.perf_counter() - began


def run(measure: Callable[[Job], Awaitable[Rates]]) -> None:
    """Read the job, measure, print the figures."""

    async def main() -> None:
        say((await measure(Job(**json.loads(sys.argv[1]))))._asdict())

    asyncio.run(main())


def say(answer: object) -> None:
    """Print an answer in one line."""
    print(json.dumps(answer), flush=True)


async def pace(count: int, rate: float, begin: Callable[[int, float], object]) -> None:
    """Call ``begin(n, due)`` ``count`` times, ``rate`` times per second.  ``due``: now, or the time at which it was
    due."""
    started = time.perf_counter()
    for n in range(count):
        due = started + n / rate
        if (ahead := due - time.perf_counter()) > 0:
            await asyncio.sleep(ahead)
        elif n % 16 == 0:
            await asyncio.sleep(0)
        now = time.perf_counter()
        begin(n, now if now < due + TIMER else due)
