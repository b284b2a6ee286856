"""One clock is set by an hour, on real servers: that of one of three servers, of one of two that pushes need, or that
of one client."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import zkrq
from tests import shift
from tests.faults.stage import Actor, Stage
from tests.harness import HANG, until
from tests.load import QUEUE
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

    stage: Stage
    clocks: dict[str, ServerClock]


@pytest.fixture
async def clocked(servers: local.Servers, tmp_path: Path) -> AsyncGenerator[Clocked]:
    if shift.WHY_NOT:
        pytest.skip(shift.WHY_NOT)
    async with local.servers(redis=3, zookeeper=0) as own:
        made = Shift(tmp_path)
        clocks = {server.name: made.clock_of(server) for server in own.redis}
        await asyncio.gather(*(server.restart() for server in own.redis))
        stage = Stage(local.Servers(own.redis, servers.zookeeper), None)
        yield Clocked(stage, clocks)
        await stage.exeunt()


@dataclass
class Shell:
    """Runs commands of ``program`` in processes, and workers of the queue ``work``."""

    program: list[str]
    folder: Path
    stage: Stage

    def __post_init__(self) -> None:
        (self.folder / "jobs.py").write_text(JOBS)
        (self.folder / "done").touch()

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
            env=self.stage.environment(ZKRQ_OPERATION_TIMEOUT="2"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.parametrize(("seconds", "of_primary"), [(HOUR, True), (HOUR, False), (-HOUR, True), (-HOUR, False)])
async def test_the_clock_of_one_of_three_servers_is_set(
    clocked: Clocked, tmp_path: Path, prepared_zkrq: list[str], seconds: int, of_primary: bool
) -> None:
    """It is out until its clock is right again; no call fails, and nothing is delivered twice."""
    stage = clocked.stage
    client, other = await stage.enter(), await stage.enter({"name": "keyed"})
    shell, wrong = Shell(prepared_zkrq, tmp_path, stage), chosen(client, of_primary=of_primary)
    async with stage.load() as load, pushing_keys(other):
        async with stage.out_and_back():
            clocked.clocks[wrong].set(seconds)
            await expect_blamed(wrong, "ahead of" if seconds > 0 else "behind", client, other)
            await until(load.progress(100))
            await look(shell, wrong)
            await expect_work(client, shell)
            assert wrong not in client.view.members, "its clock is wrong still"
            warnings = client.cluster.health().warnings
            assert any(text.startswith(f"{wrong} is not brought back: its clock") for text in warnings)
            clocked.clocks[wrong].set(0)
        await until(load.progress(100))
    assert load.uncertain == [], "no push fails"
    assert {id: times for id, times in load.delivered.items() if times > 1} == {}
    assert Counter(await client.drain("keyed")) == {f"key-{number}": 1 for number in range(KEYS)}
    assert list(evicted(client, other)) == [wrong]
    assert client.cluster.health().ok


def chosen(client: Actor, *, of_primary: bool) -> str:
    """A server of the view: the primary of the queue, or another one."""
    primary = client.view.primary(QUEUE)
    return next(id for id in sorted(client.view.members) if (id == primary) is of_primary)


def evicted(*clients: Actor) -> dict[str, str]:
    """The servers that one of them has evicted, and why."""
    return {event.server: event.reason for client in clients for event in client.events(zkrq.ServerEvicted)}


async def expect_blamed(wrong: str, how: str, *clients: Actor) -> None:
    """The server is evicted, and the reason says how its clock differs."""
    await until(lambda: bool(evicted(*clients)))
    (reason,) = (text for id, text in evicted(*clients).items() if id == wrong)
    assert re.match(f"its clock is {ABOUT_HOUR} {how} the others'", reason)


async def expect_work(client: Actor, shell: Shell) -> None:
    """A worker that starts does what is pushed."""
    async with shell.worker():
        await client.cluster.queue("work").push("meanwhile")
        await until(lambda: shell.done == ["meanwhile"])


@asynccontextmanager
async def pushing_keys(client: Actor) -> AsyncGenerator[None]:
    """Push every key once in a round; the last round is completed."""
    is_over = False

    async def push() -> None:
        while not is_over:
            for number in range(KEYS):
                await client.push(f"key-{number}", key=f"key-{number}")

    async with asyncio.TaskGroup() as group:
        group.create_task(push())
        yield
        is_over = True


@pytest.mark.parametrize(("seconds", "of_primary"), [(HOUR, True), (-HOUR, False)])
async def test_the_clock_of_one_of_two_servers_that_pushes_need_is_set(
    clocked: Clocked, tmp_path: Path, prepared_zkrq: list[str], seconds: int, of_primary: bool
) -> None:
    """The client's clock decides which of the two is wrong."""
    stage = clocked.stage
    stage.servers = local.Servers(stage.servers.redis[:2], stage.servers.zookeeper)
    client, shell = await stage.enter(min_replicas=2, operation_timeout=2.0), Shell(prepared_zkrq, tmp_path, stage)
    await client.push_all(["before", "also before"])
    before, wrong = client.view, chosen(client, of_primary=of_primary)
    named = f"{wrong}: its clock is {ABOUT_HOUR}"
    clocked.clocks[wrong].set(seconds)
    pushed = await push_in_doubt(client, named)
    await expect_refused(client, named, is_keyed=of_primary)
    expect_told(client, named)
    await client.ack()
    await expect_shown(shell, ["pause", "other"])
    assert await doctor(shell) == [wrong]
    code, said = await shell.run("push", "jobs", '"by command"')
    assert code == Exit.TROUBLE, said
    assert re.search(named, said), said
    assert client.view == before, "nobody may be evicted"
    clocked.clocks[wrong].set(0)
    await until(lambda: client.cluster.health().ok)
    await client.push("after")
    left = [str(item) for item in await client.drain()]
    assert len(left) == len(set(left))
    pushed.add("by command")  # by a client that was new, and had to find out
    certain = {"also before", "after", *([] if of_primary else ["keyed"])}
    assert certain <= set(left) <= certain | pushed
    assert evicted(client) == {}


async def push_in_doubt(client: Actor, named: str) -> set[str]:
    """Push until the client knows the clock and writes nothing; return what it may have written before that."""
    pushed, doubts = set[str](), list[str]()
    with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}.* set it right"):
        for number in range(5):
            pushed.add(f"doubtful {number}")
            try:
                await client.push(f"doubtful {number}")
            except zkrq.OutcomeUnknown as error:
                doubts.append(str(error))
    assert all(re.search(named, text) for text in doubts), doubts
    return pushed


async def expect_refused(client: Actor, named: str, *, is_keyed: bool) -> None:
    """Pushes write nothing, and say whose clock is wrong.  The primary alone judges the age of one with a key."""
    with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}"):
        await client.push("refused")
    if is_keyed:
        with pytest.raises(zkrq.Unavailable, match=rf"^nothing was written: {named}"):
            await client.push("keyed", key="key")
    else:
        await client.push("keyed", key="key")


def expect_told(client: Actor, named: str) -> None:
    """The client reports the clock."""
    assert not client.cluster.health().ok
    assert any(re.search(f"server {named}", text) for text in client.cluster.health().trouble)
    assert client.events(zkrq.ClocksApart)


async def expect_shown(shell: Shell, *others: list[str]) -> None:
    """Commands that need no push succeed."""
    for command in (["stats"], ["servers", "list"], ["peek", "jobs"], *others):
        code, said = await shell.run(*command)
        assert code == 0, said


async def test_the_clock_of_a_client_is_set(stage: Stage, tmp_path: Path) -> None:
    """It stops that client's pushes, and nothing else."""
    shell = Shell([sys.executable, "-c", WRONG_CLIENT], tmp_path, stage)
    client = await stage.enter()
    before = client.view
    async with stage.load(2, 2) as load:
        async with shell.worker():
            await client.cluster.queue("work").push_many(map(str, range(50)))
            await until(lambda: len(shell.done) >= 50)
            await until(load.progress(100))
        await expect_shown(shell)
        code, said = await shell.run("doctor")
        assert "this client that differs" in said, said
        code, said = await shell.run("push", "work", '"refused"')
        assert code == Exit.USAGE, said
        assert "the clock here differs" in said
    assert load.uncertain == []
    assert sorted(shell.done, key=int) == [str(number) for number in range(50)]
    assert await client.cluster.queue("work").size() == (0, 0, 0, 0)
    assert client.view == before
    assert evicted(client) == {}
    assert client.cluster.health().ok


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
