"""Who may read and change the znodes of a namespace: with ``zookeeper_auth`` its clients alone, also afterwards."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import zkrq
from tests.harness import HANG, SESSION_TIMEOUT, new_namespace, settled, until
from tests.load import Load
from tests.security.znodes import link_of, opened
from zkrq import local
from zkrq.base.credentials import Credentials
from zkrq.client.cluster import Cluster
from zkrq.client.inner import client_of
from zkrq.coordination.coordinator import VIEW
from zkrq.producing.placement import write_home
from zkrq.protocol.shards import FIRST

pytestmark = pytest.mark.anyio

AUTH = ("shop", "first-secret")
NEXT = ("shop", "second-secret")


@pytest.fixture
def namespace() -> str:
    return new_namespace()


def connect(servers: local.Servers, namespace: str, auth: Credentials | None, **options: Any) -> Cluster:
    given: dict[str, Any] = {"zookeeper_auth": auth, "session_timeout": SESSION_TIMEOUT, **options}
    return zkrq.connect(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, **given)


async def found(servers: local.Servers, namespace: str, auth: Credentials | None) -> None:
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=namespace, zookeeper_auth=auth)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if "anybody who reaches ZooKeeper" in record.getMessage()]
    assert all(record.levelno == logging.WARNING for record in found)
    return [record.getMessage() for record in found]


async def test_nothing_is_open_when_auth_is_given(
    servers: local.Servers, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(servers, namespace, AUTH, found=True) as cluster:
        queue = cluster.queue("jobs")
        await queue.push("x")
        claim = await queue.pop_one(timeout=HANG)  # which enrols a consumer
        assert claim is not None
        await claim.ack()
        assert await opened(cluster) == []
    assert not warnings(caplog)


@pytest.mark.parametrize("auth", [None, NEXT, ("stranger", AUTH[1])])
async def test_others_are_told_what_to_give(
    servers: local.Servers, namespace: str, auth: tuple[str, str] | None
) -> None:
    await found(servers, namespace, AUTH)
    step = "give this client zookeeper_auth" if auth is None else "correct zookeeper_auth"
    for may_found in (False, True):
        with pytest.raises(zkrq.ConfigError, match=rf"no right .*{step}") as failed:
            async with connect(servers, namespace, auth, found=may_found):
                pass
        assert "secret" not in str(failed.value)
    async with connect(servers, namespace, AUTH) as cluster:
        assert cluster.view.epoch == 1
        assert await opened(cluster) == []


async def test_a_namespace_of_others_hides_none_of_those_that_exist(servers: local.Servers, namespace: str) -> None:
    """In the error about a misspelt one."""
    await found(servers, namespace, AUTH)
    await found(servers, f"{namespace}-open", None)
    with pytest.raises(zkrq.ConfigError, match=rf"there are: .*{namespace}-open") as failed:
        async with connect(servers, f"{namespace}-opem", None):
            pass
    assert f"{namespace}," in str(failed.value)


async def test_a_namespace_without_auth_gets_it(
    servers: local.Servers, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One client after another is started with it; then the namespace is founded again, and the znodes are theirs."""
    await found(servers, namespace, None)
    async with connect(servers, namespace, None) as before:
        home = f"{namespace}-home"
        coordinator = client_of(before).coordinator  # as where there are shards
        assert await write_home(coordinator, home, FIRST, -1, (VIEW, (await coordinator.read(VIEW)).version))
        load = Load(before)
        async with load.running(producers=1, consumers=1), connect(servers, namespace, AUTH) as after:
            assert len(warnings(caplog)) == 1
            assert "`zkrq found`" in warnings(caplog)[0]
            assert f"/{namespace}/view" in warnings(caplog)[0]
            await after.queue("other").push("x")
            claim = await after.queue("other").pop_one(timeout=HANG)
            assert claim is not None
            await settled(lambda: sees_two(before))  # though it may not read how the other one describes itself
            assert {f"/{namespace}/view", f"/{namespace}/homes/{home}"} <= set(await opened(after))

            await found(servers, namespace, AUTH)
            assert await opened(after) == []
            await claim.ack()
            await until(load.progress(200))  # Redis does not ask ZooKeeper
            with pytest.raises(zkrq.ConfigError, match="give this client zookeeper_auth"):
                await before.consumers()
            assert len(await after.consumers()) == 2
    caplog.clear()
    async with connect(servers, namespace, AUTH) as cluster:
        await cluster.queue("jobs").push("x")
    assert not warnings(caplog)


async def sees_two(cluster: Cluster) -> bool:
    return len(await cluster.consumers()) == 2


async def test_a_consumer_of_another_identity_is_not_declared_dead(servers: local.Servers, namespace: str) -> None:
    """While clients are changed over, some cannot read what the others write about themselves."""
    await found(servers, namespace, None)
    async with connect(servers, namespace, None) as before, connect(servers, namespace, AUTH) as after:
        await after.queue("jobs").push("x")
        claim = await after.queue("jobs").pop_one(timeout=HANG)
        assert claim is not None
        for _ in range(3):
            before._client.shard.reaper.look()  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.3)
        assert await before.queue("jobs").pop_one(timeout=0) is None
        assert claim.holds
        await claim.ack()


async def test_the_password_is_changed(servers: local.Servers, namespace: str, tmp_path: Path) -> None:
    """Under load: both identities for a time, then the new one alone.  Nobody is restarted, no session is lost."""
    file, told = tmp_path / "login", list[zkrq.Event]()
    file.write_text(":".join(AUTH))
    login = zkrq.LoginFile(file)
    await found(servers, namespace, login)
    async with (
        connect(servers, namespace, login, on_event=told.append) as one,
        connect(servers, namespace, AUTH) as late,
    ):
        load = Load(one)
        async with load.running(producers=1, consumers=1):
            file.write_text(f"{':'.join(NEXT)}\n{':'.join(AUTH)}\n")
            await found(servers, namespace, login)
            assert await identities(late, namespace) == 2
            async with connect(servers, namespace, login) as two:
                assert await opened(two) == []
                await late.consumers()
            file.write_text(":".join(NEXT))
            await found(servers, namespace, login)
            assert len(await one.consumers()) == 1  # it noticed, and came back with the new password
            assert await identities(one, namespace) == 1
            with pytest.raises(zkrq.ConfigError, match="correct zookeeper_auth"):
                await late.consumers()
            with pytest.raises(zkrq.ConfigError, match="correct zookeeper_auth"):
                async with connect(servers, namespace, AUTH):
                    pass
            await until(load.progress(200))
        assert one.view.epoch == 1
    assert not [event for event in told if isinstance(event, zkrq.SessionLost | zkrq.ServerEvicted)]


async def identities(cluster: Cluster, namespace: str) -> int:
    return len(await (await link_of(cluster)).rights(f"/{namespace}/view"))


async def test_credentials_that_disappear_while_it_works(
    servers: local.Servers, namespace: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The session goes on as long as its connection does; when that breaks, the file is asked for again and again."""
    file, told = tmp_path / "login", list[zkrq.Event]()
    file.write_text(":".join(AUTH))
    await found(servers, namespace, AUTH)
    async with connect(servers, namespace, zkrq.LoginFile(file), on_event=told.append) as cluster:
        file.unlink()
        (await link_of(cluster)).kill("for a test")
        await until(lambda: any("zookeeper_auth cannot be read" in record.getMessage() for record in caplog.records))
        await cluster.queue("jobs").push("still")
        file.write_text(":".join(AUTH))
        await until(lambda: any(isinstance(event, zkrq.SessionResumed | zkrq.SessionLost) for event in told))
        await until(lambda: cluster.health().ok)
        await cluster.consumers()
