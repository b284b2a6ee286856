"""Workers of frameworks as their users start them: a command, and the processes that it makes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.frameworks.diary import Diary, Entry
from tests.harness import HANG, SESSION_TIMEOUT, new_namespace
from zkrq import local

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Framework:
    """How the workers of a framework are started, and how tasks are sent to them."""

    command: Sequence[str]
    """Arguments of ``python -m``."""
    send: Callable[[Sequence[int], float], Awaitable[None]]
    """Send tasks with these numbers that take that many seconds."""
    left: Callable[[], Awaitable[int]]
    """Count the items in the queue, in every state."""
    forgotten: int = 0
    """How many tasks that have just begun a worker may forget when it is told to stop: they end, and are repeated."""

    async def is_empty(self) -> bool:
        return await self.left() == 0


class Stage:
    """A namespace on the servers, a diary, and the moments at which processes were killed."""

    def __init__(self, servers: local.Servers, folder: Path) -> None:
        self.servers = servers
        self.namespace = new_namespace()
        self.diary = Diary(folder / "diary")
        self.died: dict[int, float] = {}
        self.drained = set[int]()
        self._logs = folder

    @property
    def environment(self) -> Mapping[str, str]:
        """What the workers and their programs read."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
            "PYTHONPATH": str(ROOT),
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in self.servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": self.servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": self.namespace,
            "ZKRQ_FOUND": "1",
            "ZKRQ_SESSION_TIMEOUT": str(SESSION_TIMEOUT),
            "DIARY": str(self.diary.path),
        }

    @asynccontextmanager
    async def worker(self, command: Sequence[str], name: str) -> AsyncGenerator[subprocess.Popen[bytes]]:
        """Run a worker as the leader of a group of processes, which is killed at the end."""
        with (self._logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        except BaseException:
            print((self._logs / f"{name}.log").read_text())
            raise
        finally:
            self.kill(process)
            process.wait()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker with all of its processes, and note when."""
        with suppress(ProcessLookupError):
            group = processes_of(process.pid)
            os.killpg(process.pid, signal.SIGKILL)
            self.died.update(dict.fromkeys(group, time.monotonic()))

    async def drain(self, process: subprocess.Popen[bytes]) -> int:
        """Tell a worker to stop, and wait until it has ended; its exit code."""
        self.drained.update(processes_of(process.pid))
        process.send_signal(signal.SIGTERM)
        return await ended(process)

    def started_twice(self, framework: Framework) -> list[tuple[Entry, Entry]]:
        """Return the starts of tasks that were repeated, although their former worker was alive or was only drained.

        What the framework may forget when it is drained is left out if it had ended before it was repeated.
        """
        ended = {(entry.number, entry.process): entry.at for entry in self.diary.entries("end")}

        def was_forgotten(former: Entry, later: Entry) -> bool:
            return former.process in self.drained and ended.get((former.number, former.process), later.at) < later.at

        return [
            starts
            for starts in self.diary.started_twice(self.died)
            if not (framework.forgotten and was_forgotten(*starts))
        ]

    def back_after(self, killed: Sequence[int]) -> list[float]:
        """Return how many seconds after their worker's death the tasks that it had begun were started again."""
        ended = {(entry.number, entry.process) for entry in self.diary.entries("end")}
        return [
            later.at - self.died[former.process]
            for starts in self.diary.started_by().values()
            for former, later in pairwise(starts)
            if former.process in killed and (former.number, former.process) not in ended
        ]


def processes_of(group: int) -> list[int]:
    """List the processes of a group."""
    listed = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid, pgid in (line.split() for line in listed.splitlines()) if int(pgid) == group]


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until a worker has ended; its exit code."""
    async with asyncio.timeout(HANG):
        return await asyncio.to_thread(process.wait)
