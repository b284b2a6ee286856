"""Workers as processes, and what their handlers have done."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio.abc import Process

import zkrq
from tests.harness import HANG, new_namespace, settled
from zkrq import local
from zkrq.process.exits import Exit

ROOT = Path(__file__).parents[2]

JOBS = '''
import asyncio, contextlib, os, sys, threading, time
from pathlib import Path
import zkrq

HERE = Path(__file__).parent

class OddError(BaseException):
    pass

def note(item):
    with open(HERE / "done", "a") as file:
        file.write(f"{os.getpid()} {item}\\n")

async def handle(item, claim):
    (HERE / f"begun {item}").touch()
    if item == "until told":
        while not (HERE / "told").exists():
            await asyncio.sleep(0.01)
    if item == "for ever":
        await asyncio.Event().wait()
    if item == "deaf":
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
    if item == "block":
        time.sleep(3600)
    if item == "die":
        os._exit(9)
    if item == "exit":
        sys.exit(2)
    if item == "odd":
        raise OddError
    if item == "exit in a task":
        async def exit():
            sys.exit(2)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(exit())
    note(item)

def in_thread(item):
    if item == "exit":
        sys.exit(2)
    if item == "odd":
        raise OddError
    (HERE / f"begun {item}").touch()
    threading.Event().wait()

def few(cluster, handler):
    retry = zkrq.Retry(max_attempts=2, backoff=zkrq.constant(0))
    return zkrq.Worker(concurrency=2).add(cluster.queue("jobs", retry=retry), handler)

def twice(cluster):
    return few(cluster, handle)

def twice_in_threads(cluster):
    return few(cluster, in_thread)

def worker(cluster):
    return zkrq.Worker(concurrency=2).add(cluster.queue("jobs"), handle)

async def threads(cluster):
    return zkrq.Worker(concurrency=2).add(cluster.queue("jobs"), in_thread)

@contextlib.asynccontextmanager
async def framed(cluster):
    note("opened")
    yield worker(cluster)
    note(f"closed, {(await cluster.queue('jobs').size()).claimed} claimed")

def chain(cluster):
    """Each item pushes the next one, into the other queue."""
    first, second = cluster.queue("jobs"), cluster.queue("more")

    async def onwards(item):
        note(item)
        if item < 5:
            await (second if item % 2 else first).push(item + 1)

    return zkrq.Worker().add(first, onwards).add(second, onwards)

def nothing(cluster):
    return None

def send(item):
    return item["to"]

if __name__ == "__main__":
    zkrq.run(worker, grace=0.2)
    print("went on", flush=True)
'''


class Stage:
    """A namespace, a folder with the module of a worker, and a client that looks on."""

    def __init__(self, folder: Path, servers: local.Servers, cluster: zkrq.Cluster, prepared_zkrq: list[str]) -> None:
        self.folder = folder
        self._prepared_zkrq = prepared_zkrq
        self.cluster = cluster
        self.jobs = cluster.queue("jobs")
        (folder / "jobs.py").write_text(JOBS)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "NOTIFY_"))},
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": cluster.namespace,
            "ZKRQ_SESSION_TIMEOUT": "60",  # nothing here may wait for it
        }

    @asynccontextmanager
    async def start(self, *arguments: str, **environment: str) -> AsyncGenerator[Process]:
        """``zkrq worker`` in the folder; killed at the end if it is still there."""
        program = [sys.executable, "-m", "zkrq"] if "PYTHONPATH" in environment else self._prepared_zkrq
        async with self.run(*program, "worker", *arguments, **environment) as process:
            yield process

    @asynccontextmanager
    async def run(self, *command: str, **environment: str) -> AsyncGenerator[Process]:
        async with await anyio.open_process(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
        ) as process:
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()

    def on(self, loop: str) -> dict[str, str]:
        """The environment of a process that runs on this loop."""
        if loop != "asyncio":
            return {}
        (self.folder / "without").mkdir()
        (self.folder / "without" / "uvloop.py").write_text("raise ImportError")
        return {"PYTHONPATH": os.pathsep.join([str(self.folder / "without"), self.environment["PYTHONPATH"]])}

    async def end(self, process: Process, *numbers: signal.Signals) -> int:
        """Send signals to a process, and return its exit code."""
        for number in numbers:
            process.send_signal(number)
            await anyio.sleep(0.2)
        with anyio.fail_after(HANG):
            return await process.wait()

    async def begun(self, item: str) -> None:
        with anyio.fail_after(HANG):
            while not (self.folder / f"begun {item}").exists():
                await anyio.sleep(0.02)

    def done(self) -> list[str]:
        """What was noted as done."""
        file = self.folder / "done"
        return [line.partition(" ")[2] for line in file.read_text().splitlines()] if file.exists() else []

    def processes(self) -> set[int]:
        """The processes that have noted something."""
        file = self.folder / "done"
        return {int(line.split()[0]) for line in file.read_text().splitlines()} if file.exists() else set()

    async def until_done(self, count: int) -> None:
        with anyio.fail_after(HANG):
            while len(self.done()) < count:
                await anyio.sleep(0.02)

    async def workers(self) -> list[int]:
        """Process ids of the workers that are alive, as ZooKeeper says."""
        descriptions = [consumer.description for consumer in (await self.cluster.consumers()).values()]
        return [int(text.rpartition(":")[2]) for text in descriptions if text != "onlooker"]

    async def has_workers(self, count: int) -> bool:
        return len(await self.workers()) == count

    async def letters(self) -> list[zkrq.Item[Any]]:
        return [letter async for letter in self.jobs.scan("dead")]

    async def has_died(self, count: int) -> bool:
        return len(await self.letters()) == count

    async def has_failed(self, count: int) -> bool:
        return len([item async for item in self.jobs.scan() if item.failures]) == count

    async def is_free(self, ready: int) -> None:
        """No worker is left, and none of its claims: others can claim this many items immediately."""
        assert await self.workers() == []
        assert (await self.jobs.size())[:3] == (ready, 0, 0)


LOOPS = pytest.mark.parametrize(
    ("number", "loop"), [(signal.SIGTERM, "uvloop, if installed"), (signal.SIGINT, "asyncio")]
)
"""Both signals and both event loops, which handle signals in ways of their own."""


def free_address() -> str:
    """A port on loopback that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def get(url: str) -> str:
    """The text of a page, empty if nothing answers."""
    try:
        return httpx.get(url, timeout=HANG).text
    except httpx.TransportError:
        return ""


@asynccontextmanager
async def onlooking(servers: local.Servers, folder: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    """A stage in a new namespace, with a client that looks on."""
    async with zkrq.connect(
        servers.redis_urls,
        servers.zookeeper_hosts,
        namespace=new_namespace(),
        found=True,
        description="onlooker",
    ) as cluster:
        yield Stage(folder, servers, cluster, prepared_zkrq)


async def reloaded(stage: Stage, *flags: str) -> int:
    """See a program with ``--reload`` follow changes of its file, a broken one too; return its process."""
    pytest.importorskip("watchfiles")
    file = stage.folder / "jobs.py"
    text = file.read_text()
    async with stage.start("jobs:worker", "--reload", *flags) as process:
        await stage.jobs.push(1)
        await stage.until_done(1)
        file.write_text("broken(")
        await settled(lambda: stage.has_workers(0))
        file.write_text(text.replace("{item}\\n", "{item} fixed\\n"))
        await stage.jobs.push(2)
        await stage.until_done(2)
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE
        await stage.is_free(0)
    assert stage.done() == ["1", "2 fixed"]
    return process.pid
