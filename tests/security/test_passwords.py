"""Passwords of Redis are changed while clients work: no eviction, no refused push; a stale one harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, command, new_namespace, until
from tests.load import Load
from tests.security import rights
from zkrq import local
from zkrq.base.credentials import Credentials, Source
from zkrq.base.settings import Settings
from zkrq.client.cluster import Cluster
from zkrq.coordination.memory import Hub, MemoryCoordinator
from zkrq.replication.urls import Dialler

pytestmark = pytest.mark.anyio

USER = "rotated"

Connect = Callable[..., Cluster]


@pytest.fixture
async def connect(servers: local.Servers) -> AsyncGenerator[Connect]:
    """Make a client of one namespace, whose user has the least rights and the password ``old``."""
    namespace, hub = new_namespace(), Hub()
    await rights.each(servers, "ACL", "SETUSER", *rights.rule(USER, "old", namespace))

    def connect(auth: Credentials | None = None, events: list[zkrq.Event] | None = None) -> Cluster:
        on_event = None if events is None else events.append
        settings = Settings(namespace=namespace, found=True, description="test", on_event=on_event)
        dial = Dialler(None if auth is None else Source("redis_auth", auth))
        return Cluster(servers.redis_urls, MemoryCoordinator(hub), settings, dial=dial)

    yield connect
    await rights.each(servers, "ACL", "DELUSER", USER)


def untroubled(load: Load, cluster: Cluster, events: list[zkrq.Event]) -> None:
    assert not load.uncertain
    assert cluster.view.epoch == 1
    assert not [event for event in events if isinstance(event, zkrq.ServerEvicted | zkrq.ServerUnusableHere)]


async def kill_connections(servers: local.Servers) -> None:
    """One server after another ends all connections of the user."""
    for server in servers.redis:
        await command(server, "CLIENT", "KILL", "USER", USER)
        await asyncio.sleep(0.1)


async def test_a_password_is_changed_under_load(servers: local.Servers, connect: Connect, tmp_path: Path) -> None:
    """Who reads it from a file notices nothing, though every connection is cut again and again."""
    file, events = tmp_path / "login", list[zkrq.Event]()
    file.write_text(f"{USER}:old\n")
    async with connect(zkrq.LoginFile(file), events) as cluster:
        load = Load(cluster)
        async with load.running(producers=2, consumers=2):
            for old, new in (("old", "new"), ("new", "newer")):
                await rights.each(servers, "ACL", "SETUSER", USER, f">{new}")
                await kill_connections(servers)  # the old one still does
                file.write_text(f"{USER}:{new}\n")
                await rights.each(servers, "ACL", "SETUSER", USER, f"<{old}")
                await kill_connections(servers)
                await until(load.progress(200))
            assert (await command(servers.redis[0], "AUTH", USER, "old")).startswith(b"-WRONGPASS")
        untroubled(load, cluster, events)
        assert cluster.health().ok


async def test_a_function_is_asked_for_each_connection(servers: local.Servers, connect: Connect) -> None:
    asked: list[str] = []
    password = "old"

    def login() -> tuple[str, str]:
        asked.append(password)
        return USER, password

    async with connect(login) as cluster:
        await cluster.queue("jobs").push("x")
        assert asked == ["old"] * 3
        await rights.each(servers, "ACL", "SETUSER", USER, "resetpass", ">new")
        password = "new"
        await rights.each(servers, "CLIENT", "KILL", "USER", USER)
        await cluster.queue("jobs").push("y")
        assert asked == ["old"] * 3 + ["new"] * 3


async def test_a_stale_password_for_a_long_time(servers: local.Servers, connect: Connect) -> None:
    """Beside two that work: one as another user, one with the new password.  Only the stale client is refused."""
    events: dict[str, list[zkrq.Event]] = {name: [] for name in ("other", "timely", "stale")}
    async with (
        connect((USER, "old"), events["stale"]) as stale,
        connect(None, events["other"]) as other,
    ):
        await stale.queue("own").push("before")
        load = Load(other)
        async with load.running(producers=2, consumers=2):
            await rights.each(servers, "ACL", "SETUSER", USER, "resetpass", ">new")
            await kill_connections(servers)
            async with connect((USER, "new"), events["timely"]) as timely:
                for _ in range(25):  # longer than all waits after which a server is asked, judged or accused
                    with pytest.raises(
                        (zkrq.ConfigError, zkrq.OutcomeUnknown), match="correct the user or the password"
                    ):
                        await stale.queue("own").push("refused")
                    assert (await timely.queue("own").push("timely")).replicas == 3
                    await asyncio.sleep(0.2)
                with pytest.raises(zkrq.ConfigError, match="WRONGPASS"):
                    async with connect((USER, "old")):
                        pass
                assert not stale.health().ok
                assert timely.health().ok
            await until(load.progress(200))
        untroubled(load, other, events["other"])
        assert [type(event) for event in events["timely"] if not isinstance(event, zkrq.LoopBlocked)] == [
            zkrq.ViewChanged
        ]
        told = [event for event in events["stale"] if isinstance(event, zkrq.ServerUnusableHere)]
        assert {event.server for event in told} == {"redis-1", "redis-2", "redis-3"}
        assert len(told) == 3, "each once, however long it lasts"
        await rights.each(servers, "ACL", "SETUSER", USER, ">old")
        await until(lambda: stale.health().ok)
        await stale.queue("own").push("let in again")
        assert stale.view.epoch == 1


async def test_a_file_that_is_missing_for_a_while(servers: local.Servers, connect: Connect, tmp_path: Path) -> None:
    """It is told by its name; nothing is written, no server is evicted, and the client continues when it is back."""
    file, events = tmp_path / "login", list[zkrq.Event]()
    with pytest.raises(zkrq.ConfigError, match=r"redis_auth cannot be read: .*No such file"):
        connect(zkrq.LoginFile(file))
    file.write_text(f"{USER}:old")
    async with connect(zkrq.LoginFile(file), events) as cluster, connect() as other:
        file.rename(tmp_path / "away")
        await rights.each(servers, "CLIENT", "KILL", "USER", USER)
        for _ in range(3):
            with pytest.raises(zkrq.ConfigError, match=r"redis_auth cannot be read.*correct what redis_auth names"):
                async with asyncio.timeout(HANG):
                    await cluster.queue("jobs").push("x")
        assert (await other.queue("jobs").push("y")).replicas == 3
        (tmp_path / "away").rename(file)
        await until(lambda: cluster.health().ok)
        await cluster.queue("jobs").push("z")
        assert (await other.queue("jobs").size()).ready == 2
        assert other.view.epoch == 1


async def test_credentials_in_a_url_come_first(servers: local.Servers, connect: Connect) -> None:
    more: dict[str, Any] = {"min_replicas": 1, "found": True, "namespace": new_namespace()}
    given = [f"redis://{USER}:wrong@{servers.redis[0].address}"]
    with pytest.raises(zkrq.ConfigError, match="WRONGPASS"):
        async with zkrq.connect(given, servers.zookeeper_hosts, redis_auth=(USER, "old"), **more):
            pass
