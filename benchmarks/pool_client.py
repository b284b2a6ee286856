"""zkrq in the fleet, with handlers in the processes of a pool: the program of its producer, and of its one worker.

A handler notes in a file how long its item took: so it is counted as it is for all, at the handler's first line.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import sys
import tempfile
import time

import zkrq
from benchmarks.fleet_client import push, queue_of
from benchmarks.peers.common import say
from benchmarks.peers.fleet import Duty, Item, orders
from benchmarks.peers.fleet import push as push_rounds

SETTINGS = "Worker(concurrency=slots, pool=Processes()), JSON, every other setting as it is by default, hiredis"

_FILE, _SECONDS = "FLEET_FILE", "FLEET_SECONDS"


async def handle(item: Item) -> None:
    """Note in how many seconds the item has reached this, and take the time of a handler."""
    seconds = time.monotonic() - item["at"]
    os.write(_descriptor(), json.dumps((item["n"], item["at"], seconds)).encode() + b"\n")
    await asyncio.sleep(float(os.environ[_SECONDS]))


@functools.cache
def _descriptor() -> int:
    return os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND)


async def _work(duty: Duty) -> None:
    with tempfile.NamedTemporaryFile() as reached:
        os.environ |= {_FILE: reached.name, _SECONDS: str(duty.handling)}
        async with (
            queue_of(duty) as queue,
            zkrq.Worker(concurrency=duty.slots, pool=zkrq.Processes()).add(queue, handle),
        ):
            say(SETTINGS)
            async for _ in orders():
                say([json.loads(line) for line in reached.read().splitlines()])


def main() -> None:
    """Do the duty in the argument."""
    logging.disable()
    duty = Duty(**json.loads(sys.argv[1]))
    asyncio.run(_work(duty) if duty.works else push_rounds(duty, push, SETTINGS))


if __name__ == "__main__":
    # Handlers are found by the module's own name, which has no second copy then.
    from benchmarks import pool_client

    pool_client.main()
