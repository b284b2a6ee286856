"""Programs whose handlers run in processes: signals, a parent that is killed, output, handlers of the script itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest

from tests.harness import HANG
from tests.integration.worker_stage import LOOPS, Stage, onlooking
from zkrq import local
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio

POOLED = """
import asyncio, itertools, os, time
from pathlib import Path
import zkrq

HERE = Path(__file__).parent

def handle(item, claim):
    (HERE / f"process {item}").write_text(f"{os.getpid()} {os.getppid()}")
    (HERE / f"begun {item}").touch()
    if item == "until told":
        while not (HERE / "told").exists():
            time.sleep(0.01)
    if item == "for ever":
        time.sleep(3600)
    if item == "holds the GIL":
        sum(itertools.repeat(1))
    if item == "prints":
        for n in range(200):
            print("one", "line", n, claim.id)
    with open(HERE / "done", "a") as file:
        file.write(f"{os.getpid()} {item}\\n")

async def handle_async(item, claim):
    (HERE / f"begun {item}").touch()
    await asyncio.sleep(3600)

def worker(cluster):
    return zkrq.Worker(concurrency=2, pool=zkrq.Processes(kill_after=1)).add(cluster.queue("jobs"), handle)

def worker_async(cluster):
    return zkrq.Worker(concurrency=2, pool=zkrq.Processes(kill_after=1)).add(cluster.queue("jobs"), handle_async)

if __name__ == "__main__":
    zkrq.run(worker, grace=0.2)
"""


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with onlooking(servers, tmp_path, prepared_zkrq) as stage:
        (stage.folder / "pooled.py").write_text(POOLED)
        yield stage


def processes_of(stage: Stage, item: str) -> tuple[int, int]:
    """The process of a handler, and that of its starter."""
    process, starter = (stage.folder / f"process {item}").read_text().split()
    return int(process), int(starter)


async def all_gone(*processes: int) -> None:
    with anyio.fail_after(HANG):
        while any(_is_there(process) for process in processes):
            await anyio.sleep(0.02)


def _is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@LOOPS
async def test_a_signal_drains(stage: Stage, number: signal.Signals, loop: str) -> None:
    async with stage.start("pooled:worker", **stage.on(loop)) as process:
        await stage.jobs.push("until told")
        await stage.begun("until told")
        child, starter = processes_of(stage, "until told")
        assert len({child, starter, process.pid}) == 3
        process.send_signal(number)
        os.kill(child, number)  # as a service manager and a terminal do, which signal all processes
        os.kill(starter, number)
        await stage.jobs.push("for another")
        (stage.folder / "told").touch()
        assert await stage.end(process) == Exit.DONE
        await stage.is_free(1)
        assert stage.done() == ["until told"]
        await all_gone(child, starter)


@pytest.mark.parametrize("target", ["pooled:worker", "pooled:worker_async"])
async def test_what_does_not_finish_is_handed_back(stage: Stage, target: str) -> None:
    async with stage.start(target, "--grace", "0.2") as process:
        await stage.jobs.push("for ever")
        await stage.begun("for ever")
        assert await stage.end(process, signal.SIGTERM) == Exit.CUT_OFF
        await stage.is_free(1)


async def test_a_second_signal_ends_a_handler_that_holds_the_gil(stage: Stage) -> None:
    async with stage.start("pooled:worker", "--grace", "600") as process:
        await stage.jobs.push("holds the GIL")
        await stage.begun("holds the GIL")
        assert await stage.end(process, signal.SIGTERM, signal.SIGTERM) == Exit.SIGNAL + signal.SIGTERM
        await stage.is_free(1)
        await all_gone(*processes_of(stage, "holds the GIL"))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills children of a dead parent on Linux alone")
async def test_nothing_outlives_a_parent_that_is_killed(stage: Stage) -> None:
    async with stage.start("pooled:worker") as process:
        for item in ("holds the GIL", "for ever"):
            await stage.jobs.push(item)
            await stage.begun(item)
        process.kill()
        await all_gone(*processes_of(stage, "holds the GIL"), *processes_of(stage, "for ever"))


async def test_handlers_of_the_script_itself(stage: Stage) -> None:
    async with stage.run(sys.executable, "pooled.py") as process:
        await stage.jobs.push(1)
        await stage.until_done(1)
        assert process.pid not in stage.processes()
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_lines_of_several_processes_are_whole(stage: Stage, unbuffered: str) -> None:
    out, environment = stage.folder / "out", {**stage.environment, "PYTHONUNBUFFERED": unbuffered}
    with (
        out.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "zkrq", "worker", "pooled:worker"],
            cwd=stage.folder,
            env=environment,
            stdout=file,
        ) as process,
    ):
        try:
            receipts = await stage.jobs.push_many(["prints"] * 4)
            await stage.until_done(4)
        finally:
            process.send_signal(signal.SIGTERM)
            assert await anyio.to_thread.run_sync(process.wait) == 0
    lines = out.read_text().splitlines()
    expected = {f"one line {n} {receipt.id}" for n in range(200) for receipt in receipts}
    assert len(lines) == len(expected)
    assert set(lines) == expected


async def test_nothing_is_left_open(stage: Stage) -> None:
    """As Python finds it in its development mode, in the starter and in its parent."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "zkrq", "worker", "pooled:worker"]
    command += ["--burst", "--log-level", "error"]
    await stage.jobs.push("once")
    with anyio.fail_after(HANG):
        result = await anyio.run_process(command, cwd=stage.folder, env=stage.environment)
    assert result.stderr.decode() == ""
    assert stage.done() == ["once"]
