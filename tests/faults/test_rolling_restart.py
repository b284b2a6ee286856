"""A rolling restart of all Redis servers and all worker processes, under load, as an operator does it for an update."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import zkrq
from tests.faults.stage import Stage
from tests.harness import HANG, push_surely, until
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio

WORKERS = 2
BETWEEN = 60
"""Items done between two restarts, at least."""

PAUSE = 0.005
"""Seconds between two pushes: the restarts take most of the time, and need the processors too."""

LONGER = 2 * HANG
"""Seconds of the workers' session time-out, and of their claims: an item that waited for either would fail the test."""

JOBS = f"""
import asyncio
from pathlib import Path
import zkrq

async def handle(item):
    await asyncio.sleep(0.01)
    with open(Path(__file__).parent / "done", "a") as file:
        file.write(f"{{item}}\\n")

def worker(cluster):
    with open(Path(__file__).parent / "started", "a") as file:
        file.write("1")
    return zkrq.Worker(concurrency=8).add(cluster.queue("jobs", claim_timeout={LONGER}), handle)
"""


class Workers:
    """Processes of ``zkrq worker``, and what they have done."""

    def __init__(self, folder: Path, stage: Stage, prepared_zkrq: list[str]) -> None:
        self._folder = folder
        self._zkrq = prepared_zkrq
        (folder / "jobs.py").write_text(JOBS)
        for name in ("done", "started"):
            (folder / name).touch()
        self._read = 0
        self._done = Counter[int]()
        self._environment = stage.environment(ZKRQ_SESSION_TIMEOUT=f"{LONGER}")
        self._processes: list[asyncio.subprocess.Process] = []

    @property
    def done(self) -> Counter[int]:
        with (self._folder / "done").open() as file:
            file.seek(self._read)
            lines = file.readlines()
        whole = [line for line in lines if line.endswith("\n")]
        self._read += sum(map(len, whole))
        self._done.update(map(int, whole))
        return self._done

    @property
    def _started(self) -> int:
        return (self._folder / "started").stat().st_size

    async def start(self) -> None:
        """Start a process, and wait until it works."""
        before = self._started
        self._processes.append(
            await asyncio.create_subprocess_exec(
                *(*self._zkrq, "worker", "jobs:worker", "--log-level", "error"),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
            )
        )
        await until(lambda: self._started > before)

    async def end_oldest(self) -> int:
        process = self._processes.pop(0)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(HANG):
            return await process.wait()

    async def do_more(self) -> None:
        """Wait until as many items more are done as between two restarts."""
        before = len(self.done)
        await until(lambda: len(self.done) >= before + BETWEEN, 0.1)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


class Producer:
    """Pushes numbers one after another, each until it is known to be there, and never far ahead of the workers."""

    def __init__(self, queue: zkrq.Queue[int], workers: Workers) -> None:
        self.pushed = 0
        self.stop = False
        self._queue = queue
        self._workers = workers

    async def produce(self) -> None:
        while not self.stop:
            if self.pushed - len(self._workers.done) > 10 * BETWEEN:
                await asyncio.sleep(0.05)
                continue
            try:
                async with asyncio.timeout(HANG):
                    await push_surely(self._queue, self.pushed, zkrq.new_id())
            finally:
                self.pushed += 1
            await asyncio.sleep(PAUSE)


async def test_nothing_is_lost_and_nothing_waits_for_a_time_out(
    stage: Stage, tmp_path: Path, prepared_zkrq: list[str]
) -> None:
    """Each server is restarted, and after it a worker, while items are pushed and done."""
    client = await stage.enter()
    workers = Workers(tmp_path, stage, prepared_zkrq)
    producer = Producer(client.queue, workers)
    try:
        for _ in range(WORKERS):
            await workers.start()
        async with asyncio.TaskGroup() as tasks:
            producing = tasks.create_task(producer.produce())
            await workers.do_more()
            for server in stage.servers.redis:
                await server.terminate()
                await workers.do_more()
                await server.start()
                await stage.expect_whole()
                assert await workers.end_oldest() == Exit.DONE
                await workers.start()
                await workers.do_more()
            producer.stop = True
            await producing
        await until(lambda: len(workers.done) == producer.pushed, 0.1)
        for _ in range(WORKERS):
            assert await workers.end_oldest() == Exit.DONE
        assert workers.done.keys() == set(range(producer.pushed))
        assert not any(await client.queue.size())
    finally:
        workers.kill()
