"""Faults of pools that fork, as they are known from the field: none of them is one here.

Others have their cases elsewhere: exceptions that cannot be pickled, memory that grows, signals to every process, and
descriptors of the parent in ``test_pool.py``; orphans and lines of output that mix in ``test_pool_programs.py``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import zkrq
from tests.harness import HANG, in_process, new_namespace, settled, until
from tests.integration import pool_jobs as jobs
from tests.integration.pool_stage import Pooled, is_alive, parent_of, pooled
from tests.integration.worker_stage import Stage, free_address, get, onlooking
from zkrq import local
from zkrq.client.cluster import Cluster
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio


@pytest.fixture
async def cluster(servers: local.Servers) -> AsyncGenerator[Cluster, None]:
    async with in_process(servers, new_namespace()) as opened:
        yield opened


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with onlooking(servers, tmp_path, prepared_zkrq) as stage:
        yield stage


async def begun(folder: Path) -> int:
    """The process of a handler that has begun."""
    file = folder / "begun"
    await until(lambda: file.exists() and bool(file.read_text()))
    return int(file.read_text())


def children_of(process: int) -> dict[int, str]:
    """The children of a process, and the state of each: Z is a zombie."""
    found: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parent) == process:
            found[int(stat.parent.name)] = state
    return found


async def test_locks_that_threads_of_the_parent_hold_are_free_in_a_child(cluster: Cluster) -> None:
    """A fork copies a lock that a thread holds, but not the thread, so taking the lock never returns."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with jobs.lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        async with pooled(cluster, jobs.take_the_lock, max_items=1) as pool:
            assert [(await pool.do(n)).value for n in range(2)] == [True, True]
    finally:
        done.set()
        holder.join()


async def test_a_handler_may_use_multiprocessing(cluster: Cluster) -> None:
    """Celery's children are daemons, which may have no children."""
    async with pooled(cluster, jobs.square_elsewhere) as pool:
        assert (await pool.do([1, 2, 3])).value == [1, 4, 9]
        assert pool.counts.died == 0


async def test_a_process_that_a_handler_forks_can_be_ended(cluster: Cluster) -> None:
    """A fork copies handlers of signals, too."""
    async with pooled(cluster, jobs.end_a_fork) as pool:
        assert (await pool.do("x")).value == -signal.SIGTERM


async def test_no_zombie_is_left_of_children_that_were_replaced(cluster: Cluster) -> None:
    async with pooled(cluster, jobs.die, concurrency=2, max_items=2) as pool:
        await until(lambda: pool.counts.idle == 2)
        starter = parent_of(pool.processes[0])
        for how in ("no harm", "exit", "no harm", "segfault", "no harm"):
            await pool.do(how)
        await until(lambda: pool.counts.idle == 2 and pool.counts.stopping == 0)
        assert sorted(children_of(starter)) == sorted(pool.processes)
        assert "Z" not in children_of(starter).values()


async def test_no_zombie_is_left_of_what_handlers_leave_behind(cluster: Cluster) -> None:
    """In a container process 1 would be the worker itself, which waits for none of them."""
    async with pooled(cluster, jobs.leave_behind) as pool:
        left = (await pool.do("x")).get()
        assert parent_of(left) == parent_of(pool.processes[0]), "adopted"
        await until(lambda: not Path(f"/proc/{left}").exists())
        assert (await pool.do("x")).state is zkrq.ResultState.DONE


async def test_a_child_that_stands_still_is_killed_at_the_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    async with pooled(cluster, jobs.stay, time_limit=0.5, kill_after=0.3) as pool:
        receipt = await pool.queue.push({"here": str(tmp_path), "how": "wait"})
        process = await begun(tmp_path)
        os.kill(process, signal.SIGSTOP)
        result = await pool.queue.result(receipt.id, timeout=HANG)
        assert (result.reason or "").endswith("TimeoutError: the handler was stopped at its time limit of 0.5 s")
        await until(lambda: not is_alive(process))
        await until(lambda: pool.counts.idle == 1)


async def test_a_child_that_stands_still_keeps_its_item_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    """Its claim is extended, so it goes on when it is continued."""
    async with pooled(cluster, jobs.tell, concurrency=2) as pool:
        first = await pool.queue.push(str(tmp_path / "go"))
        await until(lambda: pool.counts.working == 1)
        (stopped,) = _working(pool)
        os.kill(stopped, signal.SIGSTOP)
        (tmp_path / "now").touch()
        assert (await pool.do(str(tmp_path / "now"))).state is zkrq.ResultState.DONE
        (tmp_path / "go").touch()
        os.kill(stopped, signal.SIGCONT)
        assert (await pool.queue.result(first.id, timeout=HANG)).state is zkrq.ResultState.DONE


def _working(pool: Pooled) -> list[int]:
    inner: Any = pool.worker._pool  # pyright: ignore[reportPrivateUsage]
    return [child.process for child in inner._children.values() if child.jobs]


# -- programs ----------------------------------------------------------------------------------------------------------


async def test_ctrl_c_of_a_terminal_drains(stage: Stage) -> None:
    """It goes to the whole process group: the parent drains, and its children finish what they have."""
    command = [sys.executable, "-c", HEEDS_SIGHUP, "-m", "zkrq", "worker", "jobs:worker", "--pool", "2"]
    with subprocess.Popen(command, cwd=stage.folder, env=stage.environment, start_new_session=True) as process:
        try:
            await stage.jobs.push("until told")
            await stage.begun("until told")
            os.killpg(process.pid, signal.SIGINT)
            (stage.folder / "told").touch()
            with anyio.fail_after(HANG):
                assert await anyio.to_thread.run_sync(process.wait) == Exit.DONE
        finally:
            process.kill()
    assert stage.done() == ["until told"]
    await stage.is_free(0)


HEEDS_SIGHUP = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Tests that are run by nohup ignore this signal, and what they start does."""


async def test_a_terminal_that_is_closed_leaves_no_process(stage: Stage) -> None:
    """SIGHUP ends a program that does not handle it; so its children end."""
    command = [sys.executable, "-c", HEEDS_SIGHUP, "-m", "zkrq", "worker", "jobs:worker", "--pool", "2"]
    with subprocess.Popen(command, cwd=stage.folder, env=stage.environment, start_new_session=True) as process:
        try:
            await stage.jobs.push("for ever")
            await stage.begun("for ever")
            (starter,) = children_of(process.pid)
            children = [starter, *children_of(starter)]
            os.killpg(process.pid, signal.SIGHUP)
            with anyio.fail_after(HANG):
                assert await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True) == -signal.SIGHUP
        finally:
            process.kill()
    await until(lambda: not any(map(is_alive, children)))


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, and mount namespaces")
async def test_a_read_only_root(stage: Stage) -> None:
    """Nothing is written anywhere: neither a socket nor a semaphore needs a file."""
    (stage.folder / "quiet.py").write_text(
        "import os, zkrq\ndef handle(item): return os.getpid()\n"
        "def worker(cluster): return zkrq.Worker().add(cluster.queue('kept', results=zkrq.Results()), handle)\n"
    )
    locked = 'mount -o remount,bind,ro / && mount -t tmpfs -o ro none /dev/shm && ! touch /tmp/x && exec "$@"'
    probes = free_address()

    async def ready() -> bool:
        return await anyio.to_thread.run_sync(partial(get, f"http://{probes}/readyz")) == "ready\n"

    worker = [sys.executable, "-B", "-m", "zkrq", "worker", "quiet:worker", "--pool", "2", "--probes", probes]
    async with stage.run("unshare", "-m", "sh", "-c", locked, "sh", *worker) as process:
        await settled(ready)
        kept = stage.cluster.queue("kept", results=zkrq.Results())
        result = await kept.result((await kept.push("x")).id, timeout=HANG)
        assert result.get() != process.pid
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE
