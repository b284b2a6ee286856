"""Manage the consumer processes from the demo's own process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio

from zkrq.base.errors import Unavailable
from zkrq.cli.demo import consumer
from zkrq.cli.demo.tally import Report, Tally

CONNECT_TIMEOUT = 30.0
"""Seconds within which every consumer must have connected."""

EXIT_TIMEOUT = consumer.EXIT_TIMEOUT + 5.0
"""Seconds until a consumer that was asked to leave, or was killed, must have exited."""

Hear = Callable[[str, str], None]
"""Called with the name of a consumer and a sentence that it reported."""


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
        with anyio.fail_after(EXIT_TIMEOUT):
            await asyncio.wait([*self._readers, asyncio.ensure_future(self._process.wait())])

    async def _read_reports(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            kind, at, text = line.decode().rstrip("\n").split(" ", 2)
            match kind:
                case consumer.CONNECTED:
                    self._connected.set()
                case consumer.EVENT:
                    self._hear(self.name, text)
                case _:
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
    """Start ``count`` consumers and wait until they are connected; they are gone when the context ends."""
    async with AsyncExitStack() as stack:
        processes: list[ConsumerProcess] = []
        for number in range(1, size + 1):
            name = f"consumer-{number}"
            # In a session of its own (uvloop cannot make a process group), because the demo handles Ctrl-C.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", consumer.__name__, name, json.dumps(redis), zookeeper),
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
