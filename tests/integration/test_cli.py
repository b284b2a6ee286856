"""The command line over real servers, as a shell sees it: output, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

import zkrq
from tests.harness import new_namespace, over_zookeeper, take
from zkrq import local

pytestmark = pytest.mark.anyio

COMMAND_TIMEOUT = 20.0  # seconds for one command; one is usual on a busy machine
START_TIMEOUT = 60.0  # seconds until private servers are up


class Shell:
    """Runs ``zkrq`` with the servers in its environment, in a namespace of its own."""

    def __init__(self, servers: local.Servers) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ZKRQ_")},
            "ZKRQ_REDIS": ",".join(f"{name}={url}" for name, url in servers.redis_urls.items()),
            "ZKRQ_ZOOKEEPER": servers.zookeeper_hosts,
            "ZKRQ_NAMESPACE": new_namespace(),
        }

    async def run(self, *arguments: str, stdin: str = "", **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        with anyio.fail_after(COMMAND_TIMEOUT):
            result = await anyio.run_process(
                [sys.executable, "-m", "zkrq", *arguments],
                input=stdin.encode(),
                env={**self.environment, **environment},
                check=False,
            )
        return result.returncode, result.stdout.decode(), result.stderr.decode()

    async def value(self, *arguments: str, stdin: str = "") -> list[Any]:
        """The lines of a command that succeeds, with ``--json``."""
        code, out, err = await self.run(*arguments, "--json", stdin=stdin)
        assert (code, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    @asynccontextmanager
    async def start(self, *arguments: str) -> AsyncGenerator[Process, None]:
        """A command that goes on."""
        async with await anyio.open_process(
            [sys.executable, "-m", "zkrq", *arguments], env=self.environment, stdin=subprocess.DEVNULL
        ) as process:
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()


async def founded(servers: local.Servers) -> Shell:
    """A shell whose namespace exists."""
    shell = Shell(servers)
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=shell.environment["ZKRQ_NAMESPACE"])
    return shell


@pytest.fixture
async def shell(servers: local.Servers) -> Shell:
    return await founded(servers)


async def first_line(process: Process) -> str:
    assert process.stdout
    return await TextReceiveStream(process.stdout).receive()


async def test_push_stats_pop(shell: Shell) -> None:
    (receipt,) = await shell.value("push", "jobs", '{"to": "ann"}')
    assert receipt["replicas"] == 3
    lines = "1\n\n" + '"two"'  # an empty line is none, the last one needs no end
    code, out, err = await shell.run("push", "jobs", "-", "--priority", "5", stdin=lines)
    assert (code, err, len(out.splitlines())) == (0, "", 2)

    (stats,) = await shell.value("stats")
    jobs = stats["queues"]["jobs"]
    assert jobs.pop("oldest_ready") > 0
    assert jobs == {"ready": 3, "scheduled": 0, "claimed": 0, "dead": 0, "paused": False}
    assert stats["health"]["ok"]
    assert stats["health"]["servers"]["redis-2"] == {"place": "member", "connected": True, "catching_up": None}

    assert await shell.run("pop", "jobs", "--count", "2") == (0, '1\n"two"\n', "")
    (delivery,) = await shell.value("pop", "jobs", "--count", "2")
    assert (delivery["id"], delivery["item"], delivery["attempts"]) == (receipt["id"], {"to": "ann"}, 1)
    code, out, err = await shell.run("stats")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split() == ["jobs", "0", "0", "0", "0"]


async def test_the_same_id_is_pushed_once_and_cleared(shell: Shell) -> None:
    for _ in range(2):
        assert await shell.run("push", "jobs", "1", "--id", "once", "--delay", "60") == (0, "once\n", "")
    assert await shell.run("clear", "jobs") == (0, "1 item removed\n", "")
    assert await shell.run("pop", "jobs") == (0, "", "")


async def test_pop_buries_nothing(shell: Shell, servers: local.Servers) -> None:
    """What is no JSON is shown as what it is, and an item that has often failed is delivered like any other."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        retry = zkrq.Retry(max_attempts=30, backoff=zkrq.constant(0))
        queue = cluster.queue("jobs", codec=zkrq.RAW, retry=retry)
        await queue.push(b"often")
        for _ in range(25):
            await (await take(queue)).nack()
        await queue.push_many([b"\xff\x00", b'{"to": "ann"}', b"2"])
        code, out, err = await shell.run("pop", "jobs", "--count", "4")
        assert (code, out.splitlines(), err) == (0, ["b'often'", "b'\\xff\\x00'", '{"to": "ann"}', "2"], "")
        await queue.push(b"\xff")
        (delivery,) = await shell.value("pop", "jobs")
        assert (delivery["item"], delivery["payload"]) == (None, "\\xff")
        assert await queue.size() == (0, 0, 0, 0)


async def test_pop_waits_and_shows_up_among_the_consumers(shell: Shell) -> None:
    async with shell.start(
        "pop", "jobs", "--wait", f"{COMMAND_TIMEOUT}", "--description", "a waiting consumer"
    ) as waiting:
        with anyio.fail_after(COMMAND_TIMEOUT):
            while "a waiting consumer" not in [each["description"] for each in await shell.value("consumers")]:
                await anyio.sleep(0.1)
            await shell.run("push", "jobs", "7")
            assert await first_line(waiting) == "7\n"
            assert await waiting.wait() == 0


async def test_sigterm_ends_a_command_that_waits(shell: Shell) -> None:
    async with shell.start("pop", "jobs", "--wait", "600") as waiting:
        with anyio.fail_after(COMMAND_TIMEOUT):
            while not await shell.value("consumers"):
                await anyio.sleep(0.1)
            waiting.send_signal(signal.SIGTERM)
            assert await waiting.wait() == 128 + signal.SIGTERM
        assert await shell.value("consumers") == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["push", "jobs", "{bad"], "zkrq push: ITEM is not JSON"),
        (["push", "jobs", "-", "--id", "x"], "zkrq push: --id and --key are for one item"),
        (["pop", "no name"], "zkrq pop: the queue's name is 'no name'"),
        (["stats", "--session-timeout", "soon"], "zkrq stats: argument --session-timeout: invalid float value"),
        (["stats", "--redis", ""], "zkrq stats: redis is empty"),
    ],
)
async def test_what_has_to_be_mended_is_one_line_and_exit_code_2(shell: Shell, arguments: list[str], says: str) -> None:
    code, out, err = await shell.run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(says)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("ZKRQ_REDIS", "", "redis is not given, and ZKRQ_REDIS is not set: name the servers"),
        ("ZKRQ_SESSION_TIMEOUT", "soon", "the environment variable ZKRQ_SESSION_TIMEOUT is 'soon': seconds expected"),
        ("ZKRQ_OPERATION_TIMEOUT", "100", "the environment variable ZKRQ_OPERATION_TIMEOUT: operation_timeout is 100"),
        ("ZKRQ_JSON", "maybe", "argument --json: the environment variable ZKRQ_JSON is 'maybe': 1 or 0 exp"),
    ],
)
async def test_a_wrong_variable_is_named(shell: Shell, variable: str, text: str, says: str) -> None:
    code, out, err = await shell.run("stats", **{variable: text})
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"zkrq stats: {says}")


async def test_what_may_mend_itself_is_one_line_and_exit_code_1(shell: Shell) -> None:
    code, out, err = await shell.run("stats", ZKRQ_REDIS="redis://127.0.0.1:1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("zkrq stats: no Redis server can be reached")


async def test_a_wrong_line_of_many_is_named(shell: Shell) -> None:
    code, _, err = await shell.run("push", "jobs", "-", stdin="1\nx\n")
    assert code == 2
    assert err.startswith("zkrq push: line 2 is not JSON")


async def test_found_is_the_only_command_that_begins_a_namespace(servers: local.Servers) -> None:
    shell = Shell(servers)
    namespace = shell.environment["ZKRQ_NAMESPACE"]
    for arguments in (["push", "jobs", "1"], ["pop", "jobs"], ["stats"], ["servers", "list"]):
        code, out, err = await shell.run(*arguments, ZKRQ_FOUND="1")
        assert (code, out) == (2, "")
        assert f"namespace '{namespace}' does not exist" in err
    for _ in range(2):
        (done,) = await shell.value("found", "--min-replicas", "3")
        assert done == {"namespace": namespace, "servers": ["redis-1", "redis-2", "redis-3"], "min_replicas": 3}
    assert (await shell.run("found", "--min-replicas", "2"))[0] == 2
    (receipt,) = await shell.value("push", "jobs", "1")
    assert receipt["replicas"] == 3


async def test_dev_keeps_servers_up_until_a_signal(shell: Shell) -> None:
    async with shell.start("dev", "--redis", "1", "--zookeeper", "1", "--json") as dev:
        with anyio.fail_after(START_TIMEOUT):
            urls = json.loads(await first_line(dev))
            there = {"ZKRQ_REDIS": urls["redis"][0], "ZKRQ_ZOOKEEPER": urls["zookeeper"]}
            code, _, err = await shell.run("push", "jobs", "1", **there)
            assert (code, err) == (0, "")
            dev.send_signal(signal.SIGINT)
            assert await dev.wait() == 128 + signal.SIGINT
        with pytest.raises(OSError, match="connection"):
            await anyio.connect_tcp("127.0.0.1", int(urls["redis"][0].rpartition(":")[2]))


async def test_servers(servers: local.Servers) -> None:
    shell = await founded(servers)
    await shell.value("push", "jobs", "1")
    listed = await shell.value("servers", "list")
    assert [(line["server"], line["place"]) for line in listed] == [(f"redis-{n}", "member") for n in (1, 2, 3)]
    async with local.servers(redis=1, zookeeper=0) as more:
        (added,) = await shell.value("servers", "add", more.redis[0].url, "--name", "redis-4")
        assert added["server"] == "redis-4"
        code, out, err = await shell.run("servers", "remove", "redis-1")
        assert (code, out, err) == (0, "redis-1 is removed\n", "")
        code, _, err = await shell.run("servers", "remove", "redis-1")
        assert code == 2
        assert "is not a server of this namespace: redis-2, redis-3, redis-4" in err
        code, _, err = await shell.run("servers", "recover", "redis-2", "redis-3")
        assert code == 2
        assert "nothing to recover" in err
        assert [line["server"] for line in await shell.value("servers", "list")] == ["redis-2", "redis-3", "redis-4"]


async def test_servers_recover(servers: local.Servers) -> None:
    shell = await founded(servers)
    await shell.value("push", "jobs", "1")
    for server in servers.redis:
        await server.restart(wipe=True)
    code, _, err = await shell.run("push", "jobs", "2", "--operation-timeout", "2")
    assert code == 1
    assert "zkrq servers recover" in err
    code, out, _ = await shell.run("servers", "recover", "redis-1", "redis-2", "redis-3")
    assert (code, out) == (0, "recovered with redis-1, redis-2, redis-3\n")
    (receipt,) = await shell.value("push", "jobs", "2")
    assert receipt["replicas"] == 3


async def test_looking_and_administering(shell: Shell) -> None:
    (first,) = await shell.value("push", "jobs", '{"n": 1}', "--key", "one", "--ttl", "600")
    (again,) = await shell.value("push", "jobs", '{"n": 2}', "--key", "one")
    assert (again["duplicate"], again["id"]) == (True, first["id"])
    (item,) = await shell.value("get", "jobs", first["id"])
    assert (item["item"], item["state"], item["key"], item["died_at"]) == ({"n": 1}, "ready", "one", None)
    assert [each["id"] for each in await shell.value("peek", "jobs")] == [first["id"]]
    assert (await shell.value("pause", "jobs"))[0]["paused"]
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["paused"]
    assert await shell.value("pop", "jobs") == []
    assert not (await shell.value("resume", "jobs"))[0]["paused"]
    assert (await shell.value("cancel", "jobs", first["id"]))[0]["outcome"] == "removed"
    assert (await shell.run("get", "jobs", first["id"]))[0] == 2


async def test_dead_letters(shell: Shell, servers: local.Servers) -> None:
    namespace = shell.environment["ZKRQ_NAMESPACE"]
    async with zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many([1, 2, 3])
        for claim in await queue.pop_many(3, timeout=10):
            await claim.bury("no such address")
    letters = await shell.value("dead", "list", "jobs")
    assert [(each["item"], each["reason"]) for each in letters] == [(n, "no such address") for n in (1, 2, 3)]
    assert await shell.value("dead", "redrive", "jobs", letters[0]["id"]) == [{"redriven": 1}]
    assert await shell.value("dead", "discard", "jobs") == [{"removed": 2}]
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["ready"] == 1
