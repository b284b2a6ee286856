"""Run a consumer in its own process, ``python -m zkrq.cli.demo.consumer NAME REDIS ZOOKEEPER``, and read its reports.

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
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

from zkrq.base.errors import ClaimLost, OutcomeUnknown, Unavailable
from zkrq.cli.demo.tally import Report, Tally
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

CONNECT_TIMEOUT = 30.0
"""Seconds within which every consumer must have connected."""

KILL_TIMEOUT = 5.0
"""Seconds beyond ``EXIT_TIMEOUT`` until a consumer that was asked to leave, or was killed, must have exited."""

CONNECTED = "connected"
EVENT = "event"

Hear = Callable[[str, str], None]
"""Called with the name of a consumer and a sentence that it reported."""


# -- in its own process ------------------------------------------------------------------------------------------------


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


# -- in the demo's process ---------------------------------------------------------------------------------------------


class ConsumerProcess:
    """One consumer process.  All its reports go to the tally, including those made before it was killed and read only
    afterwards."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, tally: Tally, hear: Hear) -> None:
        self.name = name
        self.alive = True
        self._process = process
        self._tally = tally
        self._hear = hear
        self._leaving = False
        self._connected = asyncio.Event()
        self._readers = [asyncio.create_task(self._read_reports()), asyncio.create_task(self._read_complaints())]

    async def until_connected(self) -> None:
        """Wait until it is connected.  Raises ``Unavailable`` if it exits instead."""
        await self._connected.wait()
        if not self.alive:
            raise Unavailable(f"{self.name} ended instead of connecting")

    async def kill(self) -> int:
        """Send kill -9, and note all reports made before; return how many items it was working on."""
        self._leaving = True
        self._process.kill()
        await self._gone()
        held = self._tally.in_hand(self.name)
        self._tally.note_death(self.name)
        return held

    async def leave(self) -> None:
        """Ask it to shut down cleanly, and wait until it has."""
        self._leaving = True
        assert self._process.stdin
        self._process.stdin.close()
        await self._gone()

    async def _gone(self) -> None:
        with anyio.fail_after(EXIT_TIMEOUT + KILL_TIMEOUT):
            await asyncio.wait([*self._readers, asyncio.ensure_future(self._process.wait())])

    async def _read_reports(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            kind, at, text = line.decode().rstrip("\n").split(" ", 2)
            if kind == CONNECTED:
                self._connected.set()
            elif kind == EVENT:
                self._hear(self.name, text)
            else:
                self._tally.note(self.name, Report(kind), text, float(at))
        self.alive = False
        self._connected.set()

    async def _read_complaints(self) -> None:
        """Record why a consumer exited without having been asked to: the reason is on its stderr."""
        assert self._process.stderr
        complaint = (await self._process.stderr.read()).decode(errors="replace").strip()
        if not self._leaving:
            self._tally.troubles.append(f"{self.name} ended by itself: {complaint.rpartition(chr(10))[2]}")
            self._tally.note_death(self.name)

    async def end(self) -> None:
        """Make sure that the process is gone, however the demo ends."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._gone()


@asynccontextmanager
async def crew(
    size: int, redis: Mapping[str, str], zookeeper: str, tally: Tally, hear: Hear
) -> AsyncGenerator[list[ConsumerProcess], None]:
    """Start ``size`` consumers and wait until they are connected; they are gone when the context ends."""
    async with AsyncExitStack() as stack:
        processes: list[ConsumerProcess] = []
        for number in range(1, size + 1):
            name = f"consumer-{number}"
            # In a session of its own (uvloop cannot make a process group), because the demo handles Ctrl-C.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, name, json.dumps(redis), zookeeper),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            started = ConsumerProcess(name, process, tally, hear)
            stack.push_async_callback(started.end)
            processes.append(started)
        with anyio.fail_after(CONNECT_TIMEOUT):
            await asyncio.gather(*(started.until_connected() for started in processes))
        yield processes


def main() -> None:
    name, redis, zookeeper = sys.argv[1:]
    logging.getLogger("zkrq").setLevel(logging.CRITICAL)  # the demo itself reports what happens
    asyncio.run(consume(name, json.loads(redis), zookeeper))


if __name__ == "__main__":
    main()
