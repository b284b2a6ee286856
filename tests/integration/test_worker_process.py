"""Workers as processes: signals, exit codes, several processes, readiness; as a service manager sees them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.harness import HANG, settled, take
from tests.integration.worker_stage import LOOPS, Stage, free_address, get, onlooking, reloaded
from zkrq import local
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with onlooking(servers, tmp_path, prepared_zkrq) as stage:
        yield stage


@LOOPS
async def test_a_signal_drains(stage: Stage, number: signal.Signals, loop: str) -> None:
    async with stage.start("jobs:worker", **stage.on(loop)) as process:
        await stage.jobs.push("until told")
        await stage.begun("until told")
        process.send_signal(number)
        await stage.jobs.push("for another")
        await anyio.sleep(0.2)
        (stage.folder / "told").touch()
        assert await stage.end(process) == Exit.DONE
        await stage.is_free(1)
        assert stage.done() == ["until told"]


async def test_what_does_not_finish_is_handed_back(stage: Stage) -> None:
    async with stage.start("jobs:worker", "--grace", "0.2") as process:
        await stage.jobs.push("for ever")
        await stage.begun("for ever")
        assert await stage.end(process, signal.SIGTERM) == Exit.CUT_OFF
        await stage.is_free(1)
        assert (await take(stage.jobs)).attempts == 1


@LOOPS
@pytest.mark.parametrize("item", ["for ever", "deaf"])
async def test_a_second_signal_ends_the_grace(stage: Stage, number: signal.Signals, loop: str, item: str) -> None:
    async with stage.start("jobs:worker", "--grace", "600", **stage.on(loop)) as process:
        await stage.jobs.push(item)
        await stage.begun(item)
        assert await stage.end(process, number, number) == Exit.SIGNAL + number
        await stage.is_free(1)


@LOOPS
async def test_a_handler_that_blocks_the_loop_keeps_no_process(stage: Stage, number: signal.Signals, loop: str) -> None:
    short = {"ZKRQ_SESSION_TIMEOUT": "3"}
    async with stage.start("jobs:worker", "--grace", "600", **stage.on(loop), **short) as process:
        await stage.jobs.push("block")
        await stage.begun("block")
        assert await stage.end(process, number, number) == Exit.SIGNAL + number
        await settled(lambda: stage.has_workers(0))


async def test_a_thread_that_does_not_end_keeps_no_process(stage: Stage) -> None:
    async with stage.start("jobs:threads", "--grace", "0.1") as process:
        await stage.jobs.push("endless")
        await stage.begun("endless")
        assert await stage.end(process, signal.SIGTERM) == Exit.CUT_OFF
        await stage.is_free(1)


async def test_a_signal_before_there_is_a_worker(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        zookeeper = f"127.0.0.1:{silent.getsockname()[1]}"
        async with stage.start("jobs:worker", ZKRQ_ZOOKEEPER=zookeeper) as process:
            connection, _ = await anyio.to_thread.run_sync(silent.accept)
            with connection:
                assert await stage.end(process, signal.SIGTERM) == Exit.DONE


async def test_what_surrounds_the_worker_ends_after_the_drain(stage: Stage) -> None:
    async with stage.start("jobs:framed") as process:
        await stage.jobs.push(1)
        await stage.until_done(2)
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE
    assert stage.done() == ["opened", "1", "closed, 0 claimed"]


async def test_a_burst_ends_when_the_queues_are_empty(stage: Stage) -> None:
    await stage.jobs.push(0)
    await stage.jobs.push(5, delay=600)
    async with stage.start("jobs:chain", "--burst") as process:
        assert await stage.end(process) == Exit.DONE
    assert stage.done() == ["0", "1", "2", "3", "4", "5"]
    assert (await stage.jobs.size())[:3] == (0, 1, 0)
    assert await stage.workers() == []


async def test_a_script(stage: Stage) -> None:
    async with stage.run(sys.executable, "jobs.py") as process:
        await stage.jobs.push(1)
        await stage.until_done(1)
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE
    async with stage.run(sys.executable, "jobs.py") as process:
        await stage.jobs.push("for ever")
        await stage.begun("for ever")
        assert await stage.end(process, signal.SIGTERM) == Exit.CUT_OFF
        await stage.is_free(1)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("jobs", "module:function is expected"),
        ("no_such:worker", "there is no module 'no_such'"),
        ("no.such:worker", "there is no module 'no.such'"),
        ("jobs:missing", "module 'jobs' has no function 'missing'"),
        ("jobs:nothing", "the function must return a zkrq.Worker, not NoneType"),
        ("jobs:handle", "jobs:handle takes (item, claim): TARGET is the function that takes the cluster"),
    ],
)
async def test_a_wrong_target_is_one_line(stage: Stage, prepared_zkrq: list[str], target: str, says: str) -> None:
    with anyio.fail_after(HANG):
        result = await anyio.run_process(
            [*prepared_zkrq, "worker", target, "--log-level", "error"],
            cwd=stage.folder,
            env=stage.environment,
            check=False,
        )
    assert (result.returncode, result.stderr.decode().count("\n")) == (Exit.USAGE, 1)
    assert says in result.stderr.decode()


@pytest.mark.parametrize("code", ["import no_such_module", "def broken(", "1 / 0"])
async def test_a_module_that_cannot_be_imported_is_an_error_to_correct(
    stage: Stage, prepared_zkrq: list[str], code: str
) -> None:
    """A service manager must not start it again and again."""
    (stage.folder / "broken.py").write_text(code)
    with anyio.fail_after(HANG):
        result = await anyio.run_process(
            [*prepared_zkrq, "worker", "broken:worker"], cwd=stage.folder, env=stage.environment, check=False
        )
    lines = result.stderr.decode().splitlines()
    assert (result.returncode, lines[0]) == (Exit.USAGE, "Traceback (most recent call last):")
    assert lines[-1].startswith("zkrq worker: module 'broken' cannot be imported")


async def test_a_target_that_is_a_handler_is_an_error_to_correct(stage: Stage, prepared_zkrq: list[str]) -> None:
    with anyio.fail_after(HANG):
        result = await anyio.run_process(
            [*prepared_zkrq, "worker", "jobs:send"], cwd=stage.folder, env=stage.environment, check=False
        )
    lines = result.stderr.decode().splitlines()
    assert result.returncode == Exit.USAGE
    assert "TypeError: 'Cluster' object is not subscriptable; TARGET is the function" in lines[-1]


async def test_a_wrong_target_ends_all_processes(stage: Stage) -> None:
    async with stage.start("jobs:missing", "--processes", "2") as process:
        assert await stage.end(process) == Exit.USAGE


# -- several processes -------------------------------------------------------------------------------------------------


async def test_processes_drain_together(stage: Stage) -> None:
    async with stage.start("jobs:worker", "--processes", "2") as process:
        await settled(lambda: stage.has_workers(2))
        await stage.jobs.push("until told")
        await stage.begun("until told")
        process.send_signal(signal.SIGTERM)
        for pid in await stage.workers():  # a service manager may tell all processes
            with suppress(ProcessLookupError):  # one that had nothing to drain may be gone already
                os.kill(pid, signal.SIGTERM)
        await anyio.sleep(0.2)
        (stage.folder / "told").touch()
        assert await stage.end(process) == Exit.DONE
        await stage.is_free(0)
        assert stage.done() == ["until told"]


async def test_a_crashed_process_is_started_again(stage: Stage) -> None:
    probes = free_address()

    async def says(path: str, text: str) -> bool:
        return text in (await anyio.to_thread.run_sync(get, f"http://{probes}{path}"))

    async with stage.start("jobs:worker", "--processes", "2", "--probes", probes) as process:
        await settled(lambda: stage.has_workers(2))
        await settled(partial(says, "/readyz", "ready\n"))
        await stage.jobs.push("counted")
        await stage.until_done(1)
        await settled(partial(says, "/metrics", 'queue="jobs",verb="ack"} 1.0'))
        await settled(partial(says, "/metrics", f'zkrq_up{{cluster="{stage.cluster.namespace}",process="1"}} 1.0'))
        killed, other = await stage.workers()
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            alive = set(await stage.workers()) - {killed}
            return other in alive and len(alive) == 2

        await settled(replaced)
        await settled(partial(says, "/readyz", "ready\n"))
        assert await stage.end(process, signal.SIGINT) == Exit.DONE
        assert set(await stage.workers()) <= {killed}


@pytest.mark.parametrize(("signals", "code"), [(1, Exit.CUT_OFF), (2, Exit.SIGNAL + signal.SIGTERM)])
async def test_the_worst_end_of_a_process_is_that_of_all(stage: Stage, signals: int, code: int) -> None:
    grace = "0.2" if signals == 1 else "600"
    async with stage.start("jobs:worker", "--processes", "2", "--grace", grace) as process:
        await stage.jobs.push("for ever")
        await stage.begun("for ever")
        assert await stage.end(process, *[signal.SIGTERM] * signals) == code
        await stage.is_free(1)


async def test_processes_drain_when_their_parent_is_killed(stage: Stage) -> None:
    async with stage.start("jobs:worker", "--processes", "2") as process:
        await settled(lambda: stage.has_workers(2))
        await stage.end(process, signal.SIGKILL)
        await settled(lambda: stage.has_workers(0))


@pytest.mark.parametrize("target", ["twice", "twice_in_threads"])
async def test_a_handler_that_exits_ends_no_process(stage: Stage, target: str) -> None:
    """Not even with code 2, which says that another process would end in the same way."""
    await stage.jobs.push("until told" if target == "twice" else "innocent")
    await stage.jobs.push_many(["exit", "odd"])
    async with stage.start(f"jobs:{target}", "--processes", "2") as process:
        await stage.begun("until told" if target == "twice" else "innocent")
        await settled(lambda: stage.has_died(2))
        await settled(lambda: stage.has_workers(2))
        assert process.returncode is None
        if target == "twice":
            (stage.folder / "told").touch()
            await stage.until_done(1)
    letters = {letter.item: (letter.attempts, letter.failures, letter.reason) for letter in await stage.letters()}
    assert letters == {
        "exit": (2, 2, "failed in delivery 2 of 2: SystemExit: 2"),
        "odd": (2, 2, "failed in delivery 2 of 2: OddError: "),
    }


@pytest.mark.parametrize("loop", ["uvloop, if installed", "asyncio"])
async def test_a_task_that_exits_drains_its_process(stage: Stage, loop: str) -> None:
    """Its neighbours finish, and its code does not say that another process would end in the same way."""
    await stage.jobs.push("until told")
    async with stage.start("jobs:twice", **stage.on(loop)) as process:
        await stage.begun("until told")
        await stage.jobs.push("exit in a task")
        await settled(lambda: stage.has_failed(1))
        (stage.folder / "told").touch()
        assert await stage.end(process) == Exit.TROUBLE
        assert stage.done() == ["until told"]
    await stage.is_free(1)
    (item,) = await stage.jobs.peek(1)
    assert (item.attempts, item.failures, item.reason) == (1, 1, "SystemExit: 2")


async def test_a_burst_of_processes(stage: Stage) -> None:
    await stage.jobs.push_many(range(100))
    async with stage.start("jobs:worker", "--burst", "--processes", "2") as process:
        assert await stage.end(process) == Exit.DONE
    assert sorted(map(int, stage.done())) == list(range(100))


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_service_manager_is_told(
    stage: Stage, processes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    address = tmp_path_factory.mktemp("notify") / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG)
        arguments = ("jobs:worker", "--processes", str(processes))
        async with stage.start(*arguments, NOTIFY_SOCKET=str(address)) as process:
            assert await anyio.to_thread.run_sync(manager.recv, 100) == b"READY=1"
            assert await stage.end(process, signal.SIGTERM) == Exit.DONE
            assert await anyio.to_thread.run_sync(manager.recv, 100) == b"STOPPING=1"


async def test_reload(stage: Stage) -> None:
    """A changed file is a new process; a broken one is waited for."""
    supervisor = await reloaded(stage)
    first, second = stage.processes()
    assert supervisor not in {first, second}


@pytest.mark.parametrize("wrong", [["--processes", "2"], ["--burst"]])
async def test_reload_is_for_development(stage: Stage, wrong: list[str]) -> None:
    async with stage.start("jobs:worker", "--reload", *wrong) as process:
        assert await stage.end(process) == Exit.USAGE
