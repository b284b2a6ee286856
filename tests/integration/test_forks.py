"""Handlers fork, at any moment: the children are processes of their own, and the worker does not notice them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

import zkrq
from tests.harness import HANG, new_namespace, until
from tests.integration.worker_stage import LOOPS, Stage, free_address
from zkrq import local
from zkrq.base.forks import undone_in_forks
from zkrq.process.exits import Exit

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

JOBS = '''
import asyncio, contextlib, json, multiprocessing, os, signal, socket
from pathlib import Path
import threading
import zkrq

HERE = Path(__file__).parent
clusters = []

def write(name, value):
    (HERE / f"{name}.new").write_text(json.dumps(value))
    (HERE / f"{name}.new").rename(HERE / name)

def listens(port):
    """Whether this process has a socket that listens on the port."""
    for file in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(file))) as each:
            if each.family == socket.AF_INET and each.getsockname()[1] == port and not is_connected(each):
                return True
    return False

def is_connected(each):
    try:
        return bool(each.getpeername())
    except OSError:
        return False

def refused():
    try:
        asyncio.run(clusters[0].queue("jobs").push("from a child"))
    except zkrq.WrongLoop:
        return True

def child(name):
    """Say what this process has inherited, then wait for a signal."""
    handlers = [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)]
    write(name, {
        "pid": os.getpid(),
        "handlers": handlers,
        "wakeup": signal.set_wakeup_fd(-1),
        "listens": listens(int(os.environ["PROBES_PORT"])),
        "refused": refused(),
    })
    signal.alarm(120)
    while True:
        signal.pause()

def end_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def by_fork(name):
    pid = os.fork()
    if not pid:
        child(name)
    return lambda: end_of(pid)

def by_multiprocessing(name):
    process = multiprocessing.get_context("fork").Process(target=child, args=(name,))
    process.start()
    def end():
        process.join()
        return process.exitcode
    return end

WAYS = {"fork": by_fork, "multiprocessing": by_multiprocessing}

def in_thread(item):
    write(f"end of {item}", WAYS[item.split()[0]](item)())

async def on_loop(item):
    end = WAYS[item.split()[0]](item)
    write(f"end of {item}", await asyncio.to_thread(end))

def in_main(cluster, name):
    """Fork in the main thread while the worker is idle, or drains."""
    end = by_fork(name)
    threading.Thread(target=lambda: write(f"end of {name}", end())).start()

async def hold(item):
    """A neighbour, whose claim is held meanwhile."""
    (HERE / f"begun {item}").touch()
    while not (HERE / "told").exists():
        await asyncio.sleep(0.01)
    (HERE / f"done {item}").touch()

async def late(item):
    """Fork when the drain has begun."""
    (HERE / f"begun {item}").touch()
    while not (HERE / "drains").exists():
        await asyncio.sleep(0.01)
    await on_loop(f"fork {item}")

def soon(item):
    """Signals that are sent at once must not be lost."""
    ends = []
    for _ in range(item):
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            while True:
                signal.pause()
        os.kill(pid, signal.SIGTERM)
        ends.append(end_of(pid))
    write("ends", ends)

def terminate(item):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        result = pool.map(abs, range(-4, 0))
    write("pool", result)

def busy(cluster):
    return zkrq.Worker().add(cluster.queue("soon"), soon).add(cluster.queue("terminate"), terminate)

def comes_back(how):
    """Fork a child that comes back; its exit code in the parent."""
    pid = os.fork()
    if pid:
        return end_of(pid)
    if how == "exit":
        raise SystemExit(7)
    if how == "text":
        raise SystemExit("a text")
    if how == "error":
        raise ValueError("in the child")
    if how == "interrupt":
        raise KeyboardInterrupt

def back_in_thread(how):
    code = comes_back(how)
    if code is not None:
        write(f"{how} in_thread", code)

async def back_on_loop(how):
    code = comes_back(how)
    if code is not None:
        write(f"{how} on_loop", code)

def batch(items):
    back_in_thread(items[0])

def returning(cluster):
    queue = cluster.queue
    worker = zkrq.Worker(concurrency=5).add(queue("in_thread"), back_in_thread).add(queue("on_loop"), back_on_loop)
    return worker.add(queue("batch"), batch, batch=2)

@contextlib.asynccontextmanager
async def worker(cluster):
    clusters.append(cluster)
    in_main(cluster, "fork idle")
    queue = cluster.queue
    worker = zkrq.Worker(concurrency=20, grace=60)
    for name in ("in_thread", "on_loop", "hold", "late"):
        worker.add(queue(name), globals()[name])
    yield worker
    in_main(cluster, "fork drained")
    while not (HERE / "end of fork drained").exists():
        await asyncio.sleep(0.01)
'''

ENDING = {"SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
CHILDREN = {
    f"{way} {place} {name}": place
    for way in ("fork", "multiprocessing")
    for place in ("in_thread", "on_loop")
    for name in ENDING
}


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with zkrq.connect(
        servers.redis_urls, servers.zookeeper_hosts, namespace=new_namespace(), found=True, description="onlooker"
    ) as cluster:
        stage = Stage(tmp_path, servers, cluster, prepared_zkrq)
        (tmp_path / "jobs.py").write_text(JOBS)
        yield stage


REPORTED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals of which a child reports how it handles them, as ``JOBS`` does."""


async def said(stage: Stage, name: str) -> Any:
    """What a process has written."""
    await until((stage.folder / name).exists)
    return json.loads((stage.folder / name).read_text())


async def ends_by(stage: Stage, name: str, number: signal.Signals) -> None:
    """A child has inherited nothing of the worker's, and ends by this signal."""
    inherited = await said(stage, name)
    # What ignores a signal goes on to do so: a shell without job control has what it starts ignore two of these.
    default = [str(signal.SIG_IGN if signal.getsignal(each) is signal.SIG_IGN else signal.SIG_DFL) for each in REPORTED]
    assert inherited == {"pid": inherited["pid"], "handlers": default, "wakeup": -1, "listens": False, "refused": True}
    os.kill(inherited["pid"], number)
    assert await said(stage, f"end of {name}") == -number


@LOOPS
async def test_children_are_processes_of_their_own(stage: Stage, number: signal.Signals, loop: str) -> None:
    probes = free_address()
    environment = {"PROBES_PORT": probes.rpartition(":")[2], **stage.on(loop)}
    async with stage.start("jobs:worker", "--probes", probes, **environment) as process:
        await ends_by(stage, "fork idle", number)
        for neighbour in range(3):
            await stage.cluster.queue("hold").push(neighbour)
            await stage.begun(str(neighbour))
        for name, place in CHILDREN.items():
            await stage.cluster.queue(place).push(name)
            await ends_by(stage, name, ENDING[name.split()[-1]])
        await stage.cluster.queue("late").push("late")
        await stage.begun("late")
        assert (await stage.cluster.queue("hold").size()).claimed == 3
        process.send_signal(number)
        (stage.folder / "drains").touch()
        await ends_by(stage, "fork late", number)
        (stage.folder / "told").touch()
        await ends_by(stage, "fork drained", number)
        with anyio.fail_after(HANG):
            assert await process.wait() == Exit.DONE
    for neighbour in range(3):
        assert (stage.folder / f"done {neighbour}").exists()
    for queue in ("in_thread", "on_loop", "hold", "late"):
        assert (await stage.cluster.queue(queue).size())[:3] == (0, 0, 0)


async def test_a_signal_that_is_sent_immediately_after_the_fork_is_not_lost(stage: Stage) -> None:
    async with stage.start("jobs:busy") as process:
        await stage.cluster.queue("soon").push(50)
        assert await said(stage, "ends") == [-signal.SIGTERM] * 50
        await stage.cluster.queue("terminate").push(None)
        assert await said(stage, "pool") == [4, 3, 2, 1]
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE


async def test_a_child_that_comes_back_from_its_handler_ends_there(stage: Stage) -> None:
    """It neither settles the item, nor stays."""
    codes = {"return": 0, "exit": 7, "text": 1, "error": 1, "interrupt": 1}
    async with stage.start("jobs:returning") as process:
        for place in ("in_thread", "on_loop"):
            for how, code in codes.items():
                await stage.cluster.queue(place).push(how)
                assert await said(stage, f"{how} {place}") == code
        (stage.folder / "exit in_thread").unlink()
        await stage.cluster.queue("batch").push("exit")
        assert await said(stage, "exit in_thread") == 7
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE
    for queue in ("in_thread", "on_loop", "batch"):
        assert (await stage.cluster.queue(queue).size())[:4] == (0, 0, 0, 0)


def test_what_is_undone_is_undone_in_the_child_alone() -> None:
    """And once, so a grandchild does not do it again."""
    undone: list[int] = []
    with undone_in_forks(lambda: undone.append(os.getpid())):
        child = os.fork()
        if not child:
            grandchild = os.fork()
            if not grandchild:
                os._exit(len(undone))
            os._exit(10 * len(undone) + os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11
    assert undone == []
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
