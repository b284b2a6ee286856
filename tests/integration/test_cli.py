"""The command line over real servers, as a shell sees it: pushes and pops, output, exit codes, signals, a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import zkrq
from tests.harness import over_zookeeper, take
from tests.integration.shell import COMMAND_TIMEOUT, START_TIMEOUT, Shell, first_line, on_a_terminal
from zkrq import local
from zkrq.operations.claims import CLAIMED
from zkrq.operations.queues import FIGURES

pytestmark = pytest.mark.anyio


async def test_push_stats_pop(shell: Shell) -> None:
    (receipt,) = await shell.value("push", "jobs", '{"to": "ann"}')
    assert receipt["replicas"] == 3
    lines = "1\n\n" + '"two"'  # an empty line is none, the last one needs no end
    code, out, err = await shell.run("push", "jobs", "-", "--priority", "5", stdin=lines)
    assert (code, err, len(out.splitlines())) == (0, "", 2)

    (stats,) = await shell.value("stats")
    (top,) = await shell.value("top")
    assert (top["queues"].keys(), top["servers"].keys()) == (stats["queues"].keys(), stats["health"]["servers"].keys())
    jobs = stats["queues"]["jobs"]
    assert (set(jobs), jobs) == ({*FIGURES.names}, {**top["queues"]["jobs"], "oldest_ready": jobs["oldest_ready"]})
    assert jobs.pop("oldest_ready") > 0
    known = {"ready": 3, "scheduled": 0, "claimed": 0, "dead": 0, "paused": False, "limited": None, "damaged": 0}
    assert {name: jobs[name] for name in known} == known
    assert stats["health"]["ok"]
    assert stats["health"]["servers"]["redis-2"].pop("version")
    assert stats["health"]["servers"]["redis-2"] == {
        "place": "member",
        "connected": True,
        "catching_up": None,
        "shard": "main",
        "out_since": None,
        "reason": None,
    }
    assert (stats["health"]["warnings"], top["warnings"]) == ([], [])

    assert await shell.run("pop", "jobs", "--count", "2") == (0, '1\n"two"\n', "")
    (delivery,) = await shell.value("pop", "jobs", "--count", "2")
    assert (delivery["id"], delivery["item"], delivery["attempts"]) == (receipt["id"], {"to": "ann"}, 1)
    assert set(delivery) == {*CLAIMED.names}
    code, out, err = await shell.run("stats")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].split() == ["jobs", "0", "0", "0", "0"]


async def test_lost_redundancy_is_told(shell: Shell, servers: local.Servers) -> None:
    await servers.redis[0].kill()
    await shell.value("push", "jobs", "1")
    code, out, err = await shell.run("stats")
    assert (code, err) == (0, "")
    warning = "warning: 2 of 3 servers in sync; redis-1 out since .* UTC; one more failure stops pushes"
    assert re.fullmatch(warning, out.splitlines()[1])
    for command in ("servers", "list"), ("stats",), ("top",):
        assert await shell.value(*command)  # JSON can write it
    await servers.start()


async def test_the_same_id_is_pushed_once_and_cleared(shell: Shell) -> None:
    for told in ("", "  is in the queue already"):
        assert await shell.run("push", "jobs", "1", "--id", "once", "--delay", "60") == (0, f"once{told}\n", "")
    code, out, err = await shell.run("clear", "jobs")
    assert (code, out) == (2, "")
    assert err.startswith("zkrq clear: to remove 1 item of queue 'jobs' in 'test-")
    assert err.endswith("' without being asked on a terminal, give --yes\n")
    assert await shell.run("clear", "jobs", "--yes") == (0, "1 item removed\n", "")
    assert await shell.run("pop", "jobs") == (0, "", "")


async def test_pop_destroys_nothing_that_it_cannot_read(shell: Shell, servers: local.Servers) -> None:
    """It is handed back, without counting a delivery; what has often failed is delivered like any other item."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        retry = zkrq.Retry(max_attempts=30, backoff=zkrq.constant(0))
        queue = cluster.queue("jobs", codec=zkrq.RAW, retry=retry)
        await queue.push(b'"often"')
        for _ in range(25):
            await (await take(queue)).nack()
        first, _ = await queue.push_many([b"\xff\x00", b'{"to": "ann"}'])
        second = await queue.push(b"\x81\xa2to\xa3ann")
        await queue.push(b"2")
        code, out, err = await shell.run("pop", "jobs", "--count", "4")
        assert (code, out.splitlines()) == (4, ['"often"', '{"to": "ann"}', "2"])
        *unread, last = err.splitlines()
        for receipt, line in zip((first, second), unread, strict=True):
            assert line.startswith(f"zkrq pop: item {receipt.id} is not JSON, it is handed back: ")
        assert last.startswith("zkrq pop: 2 items could not be read and handed back; --codec names another form")
        assert await queue.size() == (2, 0, 0, 0)
        items = await queue.peek(2)
        assert [(item.id, item.attempts) for item in items] == [(first.id, 0), (second.id, 0)]


async def test_pop_in_other_forms(shell: Shell, servers: local.Servers) -> None:
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs", codec=zkrq.RAW)
        await queue.push(b"\xff")
        assert await shell.run("pop", "jobs", "--codec", "raw") == (0, "b'\\xff'\n", "")
        await queue.push(b"\xff")
        (delivery,) = await shell.value("pop", "jobs", "--codec", "raw")
        assert (delivery["item"], delivery["payload"]) == (None, "\\xff")
        pytest.importorskip("msgspec")
        await shell.value("push", "jobs", '{"to": "ann"}', "--codec", "msgpack")
        assert [item.payload for item in await queue.peek(1)] == [b"\x81\xa2to\xa3ann"]
        assert await shell.run("pop", "jobs", "--codec", "msgpack") == (0, '{"to": "ann"}\n', "")
        await shell.value("push", "jobs", "no JSON", "--codec", "raw")
        assert await shell.run("pop", "jobs", "--codec", "raw") == (0, "b'no JSON'\n", "")
        assert await queue.size() == (0, 0, 0, 0)
        code, _, err = await shell.run("pop", "jobs", "--codec", "xml")
        assert (code, err) == (2, "zkrq pop: --codec is 'xml': json, msgpack, raw\n")


async def test_pop_hands_back_what_it_could_not_print(shell: Shell, servers: local.Servers) -> None:
    """The reader goes away in the middle."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many([f"{n} {'x' * 10_000}" for n in range(100)])
        pop = f"{sys.executable} -m zkrq pop jobs --count 100 | head --bytes 100000 >/dev/null; exit ${{PIPESTATUS[0]}}"
        with anyio.fail_after(COMMAND_TIMEOUT):
            ended = await anyio.run_process(["bash", "-c", pop], env=shell.environment, check=False)
        assert (ended.returncode, ended.stderr) == (1, b"")
        left = await queue.pop_many(100, timeout=COMMAND_TIMEOUT)
        numbers = [int(claim.item.split()[0]) for claim in left]
        assert numbers == list(range(numbers[0], 100))
        assert 9 <= numbers[0] < 100  # what was read entirely is not there again
        assert {claim.attempts for claim in left} == {1}
        await queue.ack_many(left)


async def test_pop_hands_back_at_ctrl_c(shell: Shell, servers: local.Servers) -> None:
    """Items that could not be read are held until the end, so that they are not met again; here the end is a signal."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs", codec=zkrq.RAW)
        receipt = await queue.push(b"\xff")
        async with shell.start("pop", "jobs", "--count", "2", "--wait", "600", prepared=False) as popping:
            with anyio.fail_after(COMMAND_TIMEOUT):
                while (await queue.size()).claimed == 0:
                    await anyio.sleep(0.05)
                await queue.push(b"1")
                assert await first_line(popping) == "1\n"
                popping.send_signal(signal.SIGINT)
                assert await popping.wait() == 128 + signal.SIGINT
        assert await queue.size() == (1, 0, 0, 0)
        assert [(item.id, item.attempts) for item in await queue.peek(1)] == [(receipt.id, 0)]


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


async def test_a_consumer_is_made_quiet_and_claims_again(shell: Shell) -> None:
    async with shell.start("pop", "jobs", "--wait", f"{COMMAND_TIMEOUT}", "--description", "quiet one") as waiting:
        with anyio.fail_after(COMMAND_TIMEOUT):
            while not (found := await shell.value("consumers")):
                await anyio.sleep(0.1)
            owner = found[0]["owner"]
            assert await shell.value("quiet", owner) == [{"owner": owner, "outcome": "done"}]
            await shell.run("push", "jobs", "7")
            (quiet,) = await shell.value("consumers")
            assert quiet["quiet"]
            assert quiet["pid"] > 0
            assert "quiet, has finished" in (await shell.run("consumers"))[1]
            assert await shell.value("unquiet", "--host", quiet["host"]) == [{"owner": owner, "outcome": "done"}]
            assert await first_line(waiting) == "7\n"
            assert await waiting.wait() == 0


async def test_a_consumer_that_has_died_is_not_called_quiet(shell: Shell) -> None:
    """It is listed until its session ends, which is while the command waits for its answer."""
    async with shell.start("pop", "jobs", "--wait", "600", "--session-timeout", "4", prepared=False) as waiting:
        with anyio.fail_after(2 * COMMAND_TIMEOUT):
            while not (found := await shell.value("consumers")):
                await anyio.sleep(0.1)
            owner = found[0]["owner"]
            waiting.kill()
            assert await shell.value("quiet", owner) == [{"owner": owner, "outcome": "ended"}]


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
        (["stats", "--session-timeout", "soon"], "zkrq stats: argument --session-timeout: 'soon' must be seconds"),
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


async def test_found_is_the_only_command_that_begins_a_namespace(
    servers: local.Servers, prepared_zkrq: list[str]
) -> None:
    shell = Shell(servers, prepared_zkrq)
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
    async with shell.start("dev", "--redis", "1", "--zookeeper", "1", "--json", prepared=False) as dev:
        with anyio.fail_after(START_TIMEOUT):
            urls = json.loads(await first_line(dev))
            there = {"ZKRQ_REDIS": urls["redis"][0], "ZKRQ_ZOOKEEPER": urls["zookeeper"]}
            code, _, err = await shell.run("push", "jobs", "1", **there)
            assert (code, err) == (0, "")
            dev.send_signal(signal.SIGINT)
            assert await dev.wait() == 128 + signal.SIGINT
        with pytest.raises(OSError, match="connection"):
            await anyio.connect_tcp("127.0.0.1", int(urls["redis"][0].rpartition(":")[2]))


async def test_dev_with_fewer_servers_than_the_environment_wants(shell: Shell) -> None:
    code, out, err = await shell.run("dev", "--redis", "1", ZKRQ_MIN_REPLICAS="2")
    says = "zkrq dev: ZKRQ_MIN_REPLICAS is 2, and --redis starts 1: unset it, or start more servers\n"
    assert (code, out, err) == (2, "", says)


@pytest.mark.parametrize("answer", ["y", "n", ""])
async def test_clear_asks(shell: Shell, answer: str) -> None:
    await shell.value("push", "jobs", "-", stdin="1\n2\n")
    with on_a_terminal(shell, "clear", "jobs") as command:
        shown = await anyio.to_thread.run_sync(command.until, "[y/N] ")
        assert "Remove 2 items of queue 'jobs' in 'test-" in shown
        command.type(f"{answer}\n")
        done = await anyio.to_thread.run_sync(command.ended)
    assert done == ((0, "2 items removed\n") if answer == "y" else (1, ""))
    assert (await shell.value("stats"))[0]["queues"]["jobs"]["ready"] == (0 if answer == "y" else 2)


@pytest.mark.parametrize("rich", [True, False])
async def test_long_work_shows_its_progress(shell: Shell, servers: local.Servers, rich: bool, tmp_path: Path) -> None:
    """With a bar where rich is installed, with lines otherwise."""
    async with over_zookeeper(servers, shell.environment["ZKRQ_NAMESPACE"]) as cluster:
        queue = cluster.queue("jobs")
        await queue.push_many(range(40))
        for claim in await queue.pop_many(40, timeout=COMMAND_TIMEOUT):
            await claim.bury("no such address")
    environment = dict[str, str]()
    if rich:
        pytest.importorskip("rich")
    else:
        (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['rich'] = None")
        environment["PYTHONPATH"] = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with on_a_terminal(shell, "dead", "redrive", "jobs", "--rate", "10", prepared=rich, **environment) as command:
        await anyio.to_thread.run_sync(command.until, "/40" if rich else " of 40")
        assert await anyio.to_thread.run_sync(command.ended) == (0, "40 items redriven\n")


# -- completion --------------------------------------------------------------------------------------------------------


async def test_completion(tmp_path: Path, prepared_zkrq: list[str]) -> None:
    """bash, with the script, completes commands, those of a group, and flags."""
    pytest.importorskip("shtab")
    made = await anyio.run_process([*prepared_zkrq, "completion", "bash"])
    script = tmp_path / "zkrq.bash"
    script.write_bytes(made.stdout)

    async def complete(line: str) -> list[str]:
        words = line.split(" ")
        ask = f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}"
        asked = f'source {script}; {ask}; _shtab_zkrq; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return (await anyio.run_process(["bash", "-c", asked])).stdout.decode().split()

    assert await complete("zkrq pe") == ["peek"]
    assert await complete("zkrq dead re") == ["redrive"]
    assert await complete("zkrq shards d") == ["drain"]
    assert await complete("zkrq pop --co") == ["--count", "--codec", "--command-timeout"]


async def test_completion_of_another_shell(prepared_zkrq: list[str]) -> None:
    process = await anyio.run_process([*prepared_zkrq, "completion", "csh"], check=False)
    assert (process.returncode, process.stderr) == (2, b"zkrq completion: SHELL is 'csh': bash or zsh\n")
