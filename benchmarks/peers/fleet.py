"""Share the frame of the fleet's programs: a producer that pushes at a pace, and workers that note how long items took.

A program is ready when it has said its settings.  A producer pushes a round of items for each line on its standard
input, and says the seconds of each push.  A worker says which items have reached its handler since the last line, when
each push began, and how many seconds later its item was there: by the clock that all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from benchmarks.peers.common import ITEM, PATIENCE, pace, say


class Duty(NamedTuple):
    """What a process does: push, or work with this number of slots, and a handler that takes these seconds."""

    works: bool
    servers: list[str]
    queue: str
    number: int = 0
    """Number of the process, for programs that connect to one of the servers."""
    slots: int = 1
    handling: float = 0.0
    zookeeper: str = ""

    @property
    def server(self) -> str:
        """One of the servers: processes are spread over them."""
        return self.servers[self.number % len(self.servers)]


class Round(NamedTuple):
    """Items to push, numbered from ``first`` on, and how many of them a second."""

    first: int
    items: int
    rate: float


Item = dict[str, Any]
Push = Callable[[Item], Awaitable[object]]
Pushing = Callable[[Duty], AbstractAsyncContextManager[Push]]
"""Makes the queue, and is left when no worker is there any more."""

Handle = Callable[[Item], Awaitable[None]]
Working = Callable[[Duty, Handle], Awaitable[object]]
"""Works until it is killed.  The queue is there."""


def run(pushing: Pushing, working: Working, settings: str) -> None:
    """Do the duty in the argument."""
    logging.disable()
    duty = Duty(**json.loads(sys.argv[1]))
    asyncio.run(_work(duty, working, settings) if duty.works else push(duty, pushing, settings))


async def push(duty: Duty, pushing: Pushing, settings: str) -> None:
    """Push a round for each line on the standard input."""
    async with pushing(duty) as put:
        say(settings)
        async for order in orders():
            say(await _round(Round(*order), put))


async def _round(round_: Round, push: Push) -> list[float]:
    took: list[float] = []

    async def one(n: int) -> None:
        began = time.monotonic()
        await push({**ITEM, "n": round_.first + n, "at": began})
        took.append(time.monotonic() - began)

    async with asyncio.timeout(round_.items / round_.rate + PATIENCE), asyncio.TaskGroup() as pushes:
        await pace(round_.items, round_.rate, lambda n, _: pushes.create_task(one(n)))
    return took


async def _work(duty: Duty, working: Working, settings: str) -> None:
    reached: list[tuple[int, float, float]] = []

    async def handle(item: Item) -> None:
        reached.append((item["n"], item["at"], time.monotonic() - item["at"]))
        await asyncio.sleep(duty.handling)

    async def report() -> None:
        async for _ in orders():
            say(reached)
            reached.clear()

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(report())
            tasks.create_task(_unending(working(duty, handle)))
            say(settings)
    except ExceptionGroup as group:  # the last line that the program prints is to say why
        raise group.exceptions[0] from None


async def _unending(work: Awaitable[object]) -> None:
    await work
    raise RuntimeError("the worker has ended")


async def orders() -> AsyncGenerator[Any, None]:
    """Yield the lines of the standard input.  A thread would block the end of a program that fails."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield json.loads(line)
