"""The processes of ``zkrq worker --processes``: their supervisor is killed at any moment; what they inherit."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.harness import HANG, settled, until
from tests.integration.worker_stage import Stage, free_address, get, onlooking
from zkrq import local
from zkrq.process.exits import Exit

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="needs /proc to find processes by their variables"
    ),
]

HELD = '''
import os, time
from pathlib import Path

HERE = Path(__file__).parents[{up}]

def hold(stage):
    """Wait at a stage of the start until told to go on; the supervisor, who comes first, goes on."""
    if (HERE / "held at").read_text() == stage:
        (HERE / f"{{stage}} {{os.getpid()}}").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
'''

STARTS = (
    HELD.format(up=1)
    + """
try:
    (HERE / "supervisor").mkdir()
except FileExistsError:
    hold("starts")
"""
)
"""As ``sitecustomize``: what Python runs before anything of zkrq."""

IMPORTS = (
    HELD.format(up=0)
    + """
import zkrq
hold("imports")

async def handle(item):
    pass

def worker(cluster):
    hold("connected")
    return zkrq.Worker().add(cluster.queue("jobs"), handle)
"""
)

LOOKS = '''
import os, subprocess, sys
from pathlib import Path
import zkrq

LOOK = """
import os
print([name for name in os.environ if name.startswith(("ZKRQ_WORKER_", "NOTIFY_"))])
for file in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{file}") or os.path.islink(f"/proc/self/fd/{file}"):
        kind = os.readlink(f"/proc/self/fd/{file}")
        if kind.startswith("socket:") and int(file) > 2:
            print(kind)
"""

def look():
    return subprocess.check_output([sys.executable, "-c", LOOK], close_fds=False, text=True)

AT_IMPORT = look()

def handle(item):
    (Path(__file__).parent / "seen").write_text(AT_IMPORT + look())

def worker(cluster):
    return zkrq.Worker().add(cluster.queue("jobs"), handle)
'''

READ_ONLY = """
import tempfile

def none():
    raise FileNotFoundError("No usable temporary directory found")

tempfile._get_default_tempdir = none
"""
"""As ``sitecustomize``: Python on a read-only root."""


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with onlooking(servers, tmp_path, prepared_zkrq) as stage:
        yield stage


def customized(stage: Stage, code: str) -> dict[str, str]:
    """The environment of processes that run this code before anything else."""
    (stage.folder / "first").mkdir()
    (stage.folder / "first" / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(stage.folder / "first"), stage.environment["PYTHONPATH"]])}


def processes_of(namespace: str) -> set[int]:
    """The processes that run with this namespace in their environment."""
    found = set[int]()
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"ZKRQ_NAMESPACE={namespace}\0".encode() in each.read_bytes():
                found.add(int(each.parent.name))
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.parametrize("moment", ["born", "starts", "imports", "connected", "works"])
async def test_no_process_is_left_when_their_supervisor_is_killed(stage: Stage, moment: str) -> None:
    """It has died before they can look, or while they start, or when they work."""
    (stage.folder / "held at").write_text(moment)
    (stage.folder / "jobs.py").write_text(IMPORTS)
    namespace = stage.cluster.namespace
    try:
        async with stage.start("jobs:worker", "--processes", "2", **customized(stage, STARTS)) as process:
            if moment == "works":
                await settled(lambda: stage.has_workers(2))
            elif moment == "born":
                await until(lambda: len(processes_of(namespace)) > 1, pause=0)
            else:
                await until(lambda: len(list(stage.folder.glob(f"{moment} *"))) == 2)
            await stage.end(process, signal.SIGKILL)
            (stage.folder / "go").touch()
            await until(lambda: processes_of(namespace) == set())
        assert await stage.workers() == [] or moment == "works"
    finally:
        for pid in processes_of(namespace):
            os.kill(pid, signal.SIGKILL)


async def test_what_handlers_start_is_no_process_of_the_supervisor(stage: Stage) -> None:
    (stage.folder / "jobs.py").write_text(LOOKS)
    async with stage.start("jobs:worker", "--processes", "2", NOTIFY_SOCKET=str(stage.folder / "none")) as process:
        await stage.jobs.push("look")
        await until((stage.folder / "seen").exists)
        await until(lambda: bool((stage.folder / "seen").read_text()))
        assert (stage.folder / "seen").read_text() == "[]\n[]\n"
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE


async def test_processes_on_a_read_only_root(stage: Stage) -> None:
    """There is no directory for sockets, and none is needed."""
    probes = free_address()

    async def ready() -> bool:
        return await anyio.to_thread.run_sync(partial(get, f"http://{probes}/readyz")) == "ready\n"

    arguments = ("jobs:worker", "--processes", "2", "--probes", probes)
    async with stage.start(*arguments, **customized(stage, READ_ONLY)) as process:
        await settled(ready)
        await stage.jobs.push("done")
        await stage.until_done(1)
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE


async def test_a_variable_that_names_no_supervisor_is_an_error_to_correct(stage: Stage) -> None:
    """Rather than a fleet that takes itself for a supervisor, or a process that waits for one."""
    with anyio.fail_after(HANG):
        async with stage.start("jobs:worker", "--processes", "2", ZKRQ_WORKER_CONTROL="77") as process:
            assert await process.wait() == Exit.USAGE
