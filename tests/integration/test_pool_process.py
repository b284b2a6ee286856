"""`zkrq worker --pool`: handlers in processes of a program, as operators and service managers see it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.harness import HANG, settled, until
from tests.integration.pool_stage import is_alive
from tests.integration.worker_stage import JOBS, Stage, free_address, get, onlooking, reloaded
from zkrq import local
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio

POOLED = """
def own(cluster):
    pool = zkrq.Processes(slots=2, max_items=1000)
    return zkrq.Worker(pool=pool).add(cluster.queue("jobs"), handle)

def local(cluster):
    async def here(item): ...
    return zkrq.Worker().add(cluster.queue("jobs"), here)

def plain(cluster):
    return zkrq.Worker(concurrency=2).add(cluster.queue("jobs"), hold)

def by_task(cluster):
    return zkrq.Worker().add(cluster.queue("jobs"), {"first": handle, "second": zkrq.Task(handle), "": handle})

def hold(item, claim):
    (HERE / f"begun {item}").write_text(str(os.getpid()))
    sum(itertools.repeat(1)) if item == "gil" else note(item)
"""


@pytest.fixture
async def stage(servers: local.Servers, tmp_path: Path, prepared_zkrq: list[str]) -> AsyncGenerator[Stage]:
    async with onlooking(servers, tmp_path, prepared_zkrq) as stage:
        file = stage.folder / "jobs.py"
        file.write_text(JOBS.replace("import asyncio,", "import asyncio, itertools,") + POOLED)
        yield stage


def descendants(process: int) -> set[int]:
    """The processes that a process has started, and theirs."""
    found: set[int] = set()
    for task in Path("/proc").glob(f"{process}/task/*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child, *descendants(child)}
    return found


async def command(stage: Stage, *arguments: str) -> list[dict[str, object]]:
    """What a command prints as JSON."""
    program = [*stage._prepared_zkrq, *arguments, "--json"]  # pyright: ignore[reportPrivateUsage]
    result = await anyio.run_process(program, cwd=stage.folder, env=stage.environment)
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("item", ["deaf", "block"])
async def test_a_second_signal_ends_the_grace(stage: Stage, item: str) -> None:
    """Also of a handler that never ends: its item is free immediately, since its process has been killed."""
    async with stage.start("jobs:worker", "--pool", "1", "--grace", "600") as process:
        await stage.jobs.push(item)
        await stage.begun(item)
        (worker,) = await stage.workers()
        children = descendants(worker)
        assert await stage.end(process, signal.SIGTERM, signal.SIGTERM) == Exit.SIGNAL + signal.SIGTERM
        await stage.is_free(1)
        assert not any(map(is_alive, children))


async def test_a_burst_ends_when_the_queues_are_empty(stage: Stage) -> None:
    await stage.jobs.push_many(range(100))
    async with stage.start("jobs:worker", "--burst", "--pool", "2") as process:
        assert await stage.end(process) == Exit.DONE
    assert sorted(map(int, stage.done())) == list(range(100))
    assert await stage.workers() == []


@pytest.mark.parametrize("more", [(), ("--pool", "2")])
async def test_a_worker_program_with_a_handler_for_each_task(stage: Stage, more: tuple[str, ...]) -> None:
    for n, task in enumerate(("first", "second", None)):
        await stage.jobs.push(n, task=task)
    async with stage.start("jobs:by_task", "--burst", *more) as process:
        assert await stage.end(process) == Exit.DONE
    assert sorted(map(int, stage.done())) == [0, 1, 2]


async def test_a_burst_of_several_pools(stage: Stage) -> None:
    await stage.jobs.push_many(range(100))
    async with stage.start("jobs:worker", "--burst", "--processes", "2", "--pool", "2") as process:
        assert await stage.end(process) == Exit.DONE
    assert sorted(map(int, stage.done())) == list(range(100))


async def test_one_consumer_with_the_slots_of_all_children(stage: Stage) -> None:
    async def slots(expected: int) -> bool:
        told = [each for each in await command(stage, "consumers") if each["description"] != "onlooker"]
        return [each["slots"] for each in told] == [expected]

    # The last one has settings of its own, which stay: two slots in each child.
    for target, children, expected in (("worker", "8", 8), ("own", "3", 6)):
        async with stage.start(f"jobs:{target}", "--pool", children) as process:
            await settled(partial(slots, expected))
            assert await stage.end(process, signal.SIGTERM) == Exit.DONE


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("jobs:local", "--pool", "2"), "local.here cannot be sent to a process"),
        (("jobs:worker", "--pool", "0"), "--pool is 0: must be at least 1, at most 1000"),
        (("jobs:worker", "--pool", "1001"), "--pool is 1001: must be at least 1, at most 1000"),
    ],
)
async def test_what_is_wrong_is_one_line(stage: Stage, arguments: tuple[str, ...], says: str) -> None:
    program = [*stage._prepared_zkrq, "worker", *arguments]  # pyright: ignore[reportPrivateUsage]
    with anyio.fail_after(HANG):
        result = await anyio.run_process(
            [*program, "--log-level", "error"], cwd=stage.folder, env=stage.environment, check=False
        )
    assert (result.returncode, result.stderr.decode().count("\n")) == (Exit.USAGE, 1)
    assert says in result.stderr.decode()


async def test_several_pools_under_one_supervisor(stage: Stage) -> None:
    """Each parent has children of its own; one that crashes takes them along, and is started again with others."""
    async with stage.start("jobs:worker", "--processes", "2", "--pool", "2") as process:
        await settled(lambda: stage.has_workers(2))
        killed, other = await stage.workers()
        await until(lambda: len(descendants(killed)) == len(descendants(other)) == 3)
        theirs = descendants(killed)
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            living = set(await stage.workers()) - {killed}
            return other in living and len(living) == 2

        await settled(replaced)
        assert not any(map(is_alive, theirs))
        await stage.jobs.push_many(range(20))
        await stage.until_done(20)
        assert await stage.end(process, signal.SIGTERM) == Exit.DONE


async def test_pools_drain_when_the_supervisor_is_killed(stage: Stage) -> None:
    async with stage.start("jobs:worker", "--processes", "2", "--pool", "1") as process:
        await settled(lambda: stage.has_workers(2))
        started = set(await stage.workers())
        children = set[int]().union(*map(descendants, started))
        await stage.end(process, signal.SIGKILL)
        await settled(lambda: stage.has_workers(0))
        await until(lambda: not any(map(is_alive, started | children)))


async def test_a_service_manager_is_told(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> None:
    address = tmp_path_factory.mktemp("notify") / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(HANG)
        async with stage.start("jobs:worker", "--pool", "2", NOTIFY_SOCKET=str(address)) as process:
            assert await anyio.to_thread.run_sync(manager.recv, 100) == b"READY=1"
            assert await stage.end(process, signal.SIGTERM) == Exit.DONE
            assert await anyio.to_thread.run_sync(manager.recv, 100) == b"STOPPING=1"


async def test_reload(stage: Stage) -> None:
    """A changed file is a new process with new children, which import it anew."""
    await reloaded(stage, "--pool", "1")


async def test_a_process_is_alive_and_ready_while_handlers_block(stage: Stage) -> None:
    probes = free_address()

    async def says(path: str, text: str) -> bool:
        return text in (await anyio.to_thread.run_sync(get, f"http://{probes}{path}"))

    async with stage.start("jobs:plain", "--pool", "2", "--probes", probes):
        await stage.jobs.push_many(["gil", "gil"])
        await stage.begun("gil")
        await settled(partial(says, "/livez", "alive\n"))
        await settled(partial(says, "/readyz", "ready\n"))


async def test_metrics_of_children(stage: Stage) -> None:
    pytest.importorskip("prometheus_client")
    probes = free_address()
    label = f'cluster="{stage.cluster.namespace}"'

    async def figures() -> dict[str, float]:
        text = await anyio.to_thread.run_sync(get, f"http://{probes}/metrics")
        for without in (f"{label},", f",{label}", f"{{{label}}}"):
            text = text.replace(without, "")
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("zkrq_pool_")]
        return {name.removeprefix("zkrq_pool_"): float(value) for name, _, value in lines}

    async def shows(name: str, count: float) -> bool:
        return (await figures()).get(name) == count

    async def has_spent() -> bool:
        return (await figures())["cpu_seconds_total"] > 0.1

    async with stage.start("jobs:plain", "--pool", "2", "--probes", probes):
        await settled(partial(shows, 'processes{state="idle"}', 2))
        before = await figures()
        assert (before["started_total"], before['died_total{by="SIGKILL"}']) == (2, 0)
        assert 2 * 5e6 < before["resident_memory_bytes"] < 2 * 1e9
        await stage.jobs.push("gil")
        await settled(partial(shows, 'processes{state="working"}', 1))
        await settled(has_spent)
        spent = (await figures())["cpu_seconds_total"]
        os.kill(int((stage.folder / "begun gil").read_text()), signal.SIGKILL)
        await settled(partial(shows, 'died_total{by="SIGKILL"}', 1))
        await settled(partial(shows, "started_total", 3))
        after = await figures()
        assert after["cpu_seconds_total"] >= spent
