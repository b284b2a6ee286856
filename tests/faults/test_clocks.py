"""One clock is set by an hour, on real servers: that of one of three servers, of one of two that pushes need, or that
of one client."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import zkrq
from tests import shift
from tests.harness import HANG, drain, new_namespace, over_zookeeper, take, until, whole_again
from tests.load import Load
from tests.shift import ServerClock, Shift
from zkrq import local
from zkrq.process.exits import Exit

pytestmark = pytest.mark.anyio

HOUR = 3600
ABOUT_HOUR = r"3(599|600)\.\d s"
"""An hour as it is read, with what the reading takes."""

KEYS = 100

JOBS = """
from pathlib import Path

import zkrq

async def handle(item: str) -> None:
    with open(Path(__file__).parent / "done", "a") as file:
        file.write(f"{item}\\n")

def worker(cluster):
    return zkrq.Worker().add(cluster.queue("work"), handle)
"""

WRONG_CLIENT = f"""
import sys
import time

from zkrq.base import clock

clock.go_by(lambda: time.time_ns() // 1000 + {HOUR} * 10**6)

from zkrq.cli import main

sys.exit(main(sys.argv[1:]))
"""
"""The command line on a machine whose clock is an hour ahead."""


@dataclass
class Clocked:
    """Servers whose clocks can be set, by the names of the servers."""

    servers: local.Servers
    clocks: dict[str, ServerClock]


@pytest.fixture
async def clocked(servers: local.Servers, tmp_path: Path) -> AsyncGenerator[Clocked]:
    if shift.WHY_NOT:
        pytest.skip(shift.WHY_NOT)
    async with local.servers(redis=3, zookeeper=0) as own:
        made = Shift(tmp_path)
        clocks = {server.name: made.clock_of(server) for server in own.redis}
        await asyncio.gather(*(server.restart() for server in own.redis))
        yield Clocked(local.Servers(own.redis, servers.zookeeper), clocks)


@dataclass
class Shell:
    """Runs commands of ``program`` in processes, and workers of the queue ``work``."""

    program: list[str]
    folder: Path
    servers: local.Servers
    namespace: str
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "done").touch()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("ZKRQ_", "NOTIFY_"))},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in self.servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": self.servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": self.namespace,
            "ZKRQ_OPERATION_TIMEOUT": "2",
        }

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command; its exit code and all that it says."""
        process = await self._start(*arguments)
        async with asyncio.timeout(HANG):
            said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()

    @property
    def done(self) -> list[str]:
        return (self.folder / "done").read_text().splitlines()

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[None]:
        """Run a worker; it must end in good order."""
        process = await self._start("worker", "jobs:worker", "--log-level", "error")
        said = asyncio.create_task(process.communicate())
        try:
            yield
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(HANG):
                text = (await said)[0].decode()
            assert process.returncode == 0, text
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await said

    async def _start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*self.program, *arguments),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def evicted(told: list[zkrq.Event]) -> dict[str, str]:
    return {event.server: event.reason for event in told if isinstance(event, zkrq.ServerEvicted)}


async def push_keys(queue: zkrq.Queue[str], stop: Callable[[], bool]) -> None:
    """Push every key once in a round, until enough rounds are over."""
    while not stop():
        for number in range(KEYS):
            await queue.push(f"key-{number}", key=f"key-{number}")


@pytest.mark.parametrize(("seconds", "of_primary"), [(HOUR, True), (HOUR, False), (-HOUR, True), (-HOUR, False)])
async def test_the_clock_of_one_of_three_servers_is_set(
    clocked: Clocked, tmp_path: Path, prepared_zkrq: list[str], seconds: int, of_primary: bool
) -> None:
    servers, told = clocked.servers, list[zkrq.Event]()
    shell = Shell(prepared_zkrq, tmp_path, servers, new_namespace())
    over = False
    async with (
        over_zookeeper(servers, shell.namespace, on_event=told.append) as cluster,
        over_zookeeper(servers, shell.namespace, on_event=told.append) as other,
    ):
        load = Load(cluster)
        keyed = other.queue("keyed")
        primary = cluster.view.primary("jobs")
        wrong = next(id for id in sorted(cluster.view.members) if (id == primary) is of_primary)
        async with asyncio.TaskGroup() as group, load.running():
            pushing = group.create_task(push_keys(keyed, lambda: over))
            before = cluster.view
            clocked.clocks[wrong].set(seconds)
            await until(lambda: bool(evicted(told)))
            (reason,) = (text for id, text in evicted(told).items() if id == wrong)
            assert re.match(f"its clock is {ABOUT_HOUR} {'ahead of' if seconds > 0 else 'behind'} the others'", reason)
            await until(load.progress(100))
            await look(shell, wrong)
            async with shell.worker():
                await cluster.queue("work").push("meanwhile")
                await until(lambda: shell.done == ["meanwhile"])
            assert wrong not in cluster.view.members, "its clock is wrong still"
            assert any(text.startswith(f"{wrong} is not brought back: its clock") for text in cluster.health().warnings)
            clocked.clocks[wrong].set(0)
            await whole_again(cluster, before)
            await until(load.progress(100))
            over = True
            await pushing
        assert load.uncertain == [], "no push fails"
        assert {id: times for id, times in load.delivered.items() if times > 1} == {}
        assert Counter(await drain(cluster, "keyed")) == {f"key-{number}": 1 for number in range(KEYS)}
        assert list(evicted(told)) == [wrong]
        assert cluster.health().ok


@pytest.mark.parametrize(("seconds", "of_primary"), [(HOUR, True), (-HOUR, False)])
async def test_the_clock_of_one_of_two_servers_that_pushes_need_is_set(
    clocked: Clocked, tmp_path: Path, prepared_zkrq: list[str], seconds: int, of_primary: bool
) -> None:
    """The client's clock decides which of the two is wrong."""
    servers, told = local.Servers(clocked.servers.redis[:2], clocked.servers.zookeeper), list[zkrq.Event]()
    shell = Shell(prepared_zkrq, tmp_path, servers, new_namespace())
    options = {"min_replicas": 2, "operation_timeout": 2.0}
    async with over_zookeeper(servers, shell.namespace, on_event=told.append, **options) as cluster:
        jobs, before = cluster.queue("jobs"), cluster.view
        await jobs.push_many(["before", "also before"])
        wrong = next(id for id in sorted(before.members) if (id == before.primary("jobs")) is of_primary)
        named = f"{wrong}: its clock is {ABOUT_HOUR}"
        clocked.clocks[wrong].set(seconds)
        pushed, doubts = set[str](), list[str]()
        with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}.* set it right"):
            for number in range(5):
                pushed.add(f"doubtful {number}")
                try:
                    await jobs.push(f"doubtful {number}")
                except zkrq.OutcomeUnknown as error:
                    doubts.append(str(error))
        assert all(re.search(named, text) for text in doubts), doubts
        with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}"):
            await jobs.push("refused")
        if of_primary:
            with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}"):
                await jobs.push("keyed", key="key")
        else:
            await jobs.push("keyed", key="key")  # the primary alone judges its age
        assert not cluster.health().ok
        assert any(re.search(f"server {named}", text) for text in cluster.health().trouble)
        assert any(isinstance(event, zkrq.ClocksApart) for event in told)
        await (await take(jobs)).ack()
        for command in (["stats"], ["servers", "list"], ["peek", "jobs"], ["pause", "other"]):
            code, said = await shell.run(*command)
            assert code == 0, said
        assert await doctor(shell) == [wrong]
        code, said = await shell.run("push", "jobs", '"by command"')
        assert code == Exit.TROUBLE, said
        assert re.search(named, said), said
        assert cluster.view == before, "nobody may be evicted"
        clocked.clocks[wrong].set(0)
        await until(lambda: cluster.health().ok)
        await jobs.push("after")
        left = [str(item) for item in await drain(cluster)]
        assert len(left) == len(set(left))
        pushed.add("by command")  # by a client that was new, and had to find out
        certain = {"also before", "after", *([] if of_primary else ["keyed"])}
        assert certain <= set(left) <= certain | pushed
        assert evicted(told) == {}


async def test_the_clock_of_a_client_is_set(servers: local.Servers, tmp_path: Path) -> None:
    """It stops that client's pushes, and nothing else."""
    told = list[zkrq.Event]()
    shell = Shell([sys.executable, "-c", WRONG_CLIENT], tmp_path, servers, new_namespace())
    async with over_zookeeper(servers, shell.namespace, on_event=told.append) as cluster:
        load, before = Load(cluster), cluster.view
        async with load.running(2, 2):
            async with shell.worker():
                await cluster.queue("work").push_many(map(str, range(50)))
                await until(lambda: len(shell.done) >= 50)
                await until(load.progress(100))
            for command in (["stats"], ["servers", "list"], ["peek", "jobs"]):
                code, said = await shell.run(*command)
                assert code == 0, said
            code, said = await shell.run("doctor")
            assert "this client that differs" in said, said
            code, said = await shell.run("push", "work", '"refused"')
            assert code == Exit.USAGE, said
            assert "the clock here differs" in said
        assert load.uncertain == []
        assert sorted(shell.done, key=int) == [str(number) for number in range(50)]
        assert await cluster.queue("work").size() == (0, 0, 0, 0)
        assert cluster.view == before
        assert evicted(told) == {}
        assert cluster.health().ok


async def look(shell: Shell, wrong: str) -> None:
    """What operators look with says whose clock is wrong, and does not fail because of it."""
    code, said = await shell.run("stats")
    assert code == 0, said
    assert "\njobs " in said
    assert re.search(f"{wrong} is not brought back: its clock is {ABOUT_HOUR}", said), said
    code, said = await shell.run("servers", "list")
    assert code == 0, said
    assert re.search(rf"^{wrong}: out, Redis .* \(its clock is {ABOUT_HOUR}", said, re.M), said
    assert await doctor(shell) == [wrong]


async def doctor(shell: Shell) -> list[str]:
    """The servers whose clocks are wrong, as `zkrq doctor` says; it finds nothing else that is wrong."""
    code, said = await shell.run("doctor")
    assert code == Exit.USAGE, said
    wrong = [line for line in said.splitlines() if line.startswith("wrong: ")]
    assert len(wrong) == 1, said
    return [match[1] for match in re.finditer(rf"the clock of server (\S+) is {ABOUT_HOUR}", wrong[0])]
