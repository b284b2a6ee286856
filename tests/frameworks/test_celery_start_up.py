"""Celery's workers that start while the servers are away: they retry, or end, as the settings say."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from celery import Celery

import zkrq
from tests.frameworks.by_celery import COMMAND
from tests.frameworks.workers import Stage
from tests.harness import HANG, until
from zkrq import local
from zkrq.kombu import BROKER_URL

pytestmark = pytest.mark.anyio


@pytest.fixture
async def own_servers() -> AsyncGenerator[local.Servers]:
    """Servers that this file may stop."""
    async with local.servers(redis=1, zookeeper=1) as servers:
        yield servers


async def ended(process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(HANG):
        while process.poll() is None:
            await asyncio.sleep(0.1)
    return process.returncode


async def test_a_worker_waits_for_the_servers(own_servers: local.Servers, tmp_path: Path) -> None:
    stage = Stage(own_servers, tmp_path)
    options = {"redis": own_servers.redis_urls, "zookeeper": own_servers.zookeeper_hosts, "namespace": stage.namespace}
    await zkrq.found(own_servers.redis_urls, own_servers.zookeeper_hosts, namespace=stage.namespace, min_replicas=1)
    app = Celery("client", broker=BROKER_URL, broker_transport_options=options)
    await asyncio.to_thread(app.send_task, "sleep", (1, 0.0))
    await asyncio.to_thread(app.pool.force_close_all)
    for server in own_servers.all:
        await server.kill()
    log = tmp_path / "one.log"
    async with stage.worker([*COMMAND, "-n", "celery@one"], "one"):
        await until(lambda: log.exists() and "Cannot connect to zkrq://" in log.read_text())
        await own_servers.start()
        await until(lambda: stage.diary.ended() == {1})


async def test_a_worker_that_may_not_retry_ends(
    own_servers: local.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(own_servers, tmp_path)
    for server in own_servers.all:
        await server.kill()
    monkeypatch.setenv("CELERY_RETRY_ON_STARTUP", "0")
    async with stage.worker([*COMMAND, "-n", "celery@one"], "one") as process:
        assert await ended(process) == 1
    assert "broker_connection_retry_on_startup=False" in (tmp_path / "one.log").read_text()


async def test_a_mistake_in_the_settings_is_not_retried(
    own_servers: local.Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(own_servers, tmp_path)
    monkeypatch.setenv("CELERY_LEFT_OVER", "visibility_timeout")
    async with stage.worker([*COMMAND, "-n", "celery@one"], "one") as process:
        assert await ended(process) != 0
    assert "zkrq has no visibility_timeout: remove it" in (tmp_path / "one.log").read_text()
