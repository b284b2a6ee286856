"""A rolling restart of all Redis servers and all worker processes, under load, as an operator does it for an update."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import zkrq
from tests.harness import HANG, new_namespace, over_zookeeper, until
from zkrq import local
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

    def __init__(self, folder: Path, servers: local.Servers, namespace: str, prepared_zkrq: list[str]) -> None:
        self._folder = folder
        self._zkrq = prepared_zkrq
        (folder / "jobs.py").write_text(JOBS)
        for name in ("done", "started"):
            (folder / name).touch()
        self._read = 0
        self._done = Counter[int]()
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "NOTIFY_"))},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": namespace,
            "ZKRQ_SESSION_TIMEOUT": f"{LONGER}",
        }
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

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


async def test_nothing_is_lost_and_nothing_waits_for_a_time_out(
    servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]
) -> None:
    namespace = new_namespace()
    pushed = 0
    stop = False

    async def produce(queue: zkrq.Queue[int]) -> None:
        nonlocal pushed
        while not stop:
            if pushed - len(workers.done) > 10 * BETWEEN:
                await asyncio.sleep(0.05)
                continue
            id = zkrq.new_id()
            try:
                async with asyncio.timeout(HANG):
                    while True:
                        try:
                            await queue.push(pushed, id=id)
                            break
                        except (zkrq.OutcomeUnknown, zkrq.NotEnoughReplicas, zkrq.Unavailable):
                            await asyncio.sleep(0.05)
            finally:
                pushed += 1
            await asyncio.sleep(PAUSE)

    async def more_done() -> None:
        before = len(workers.done)
        await until(lambda: len(workers.done) >= before + BETWEEN, 0.1)

    async with over_zookeeper(servers, namespace) as cluster:
        workers = Workers(tmp_path, servers, namespace, prepared_zkrq)
        try:
            for _ in range(WORKERS):
                await workers.start()
            async with asyncio.TaskGroup() as tasks:
                producing = tasks.create_task(produce(cluster.queue("jobs")))
                await more_done()
                for server in servers.redis:
                    await server.terminate()
                    await more_done()
                    await server.start()
                    await until(lambda: cluster.view.members.keys() == cluster.view.servers.keys())
                    assert await workers.end_oldest() == Exit.DONE
                    await workers.start()
                    await more_done()
                stop = True
                await producing
            await until(lambda: len(workers.done) == pushed, 0.1)
            for _ in range(WORKERS):
                assert await workers.end_oldest() == Exit.DONE
            assert workers.done.keys() == set(range(pushed))
            assert not any(await cluster.queue("jobs").size())
        finally:
            workers.kill()
