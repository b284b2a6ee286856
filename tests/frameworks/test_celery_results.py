"""Celery's results over zkrq, by real workers: waiting, groups, chords, failures, expiry, forgetting; and kills."""

# Celery has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import pytest
from celery import Celery, chain, chord, group  # pyright: ignore[reportAttributeAccessIssue]
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeout
from kombu.utils.uuid import uuid

import zkrq
from tests.frameworks.workers import Stage
from tests.harness import HANG, over_zookeeper
from zkrq.base.limits import RESULT_BYTES
from zkrq.kombu import BROKER_URL

pytestmark = pytest.mark.anyio

R = TypeVar("R")

COMMAND = ["celery", "-A", "tests.frameworks.celery_flows", "worker", "--concurrency=2", "--loglevel=info"]

CHORD_SIZE, LARGEST_CHORD_SIZE = 200, 1000
"""Members of a large chord, in a test run and in the long one."""

GROUP_SIZE = 1000
"""Members of a group that is kept in several parts."""


@pytest.fixture
async def app(stage: Stage) -> AsyncGenerator[Any]:
    servers = stage.servers
    options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": stage.namespace}
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=stage.namespace)
    app: Any = Celery("client", broker=BROKER_URL, backend="zkrq.kombu.results:ZkrqBackend")
    app.conf.update(broker_transport_options=options, result_expires=600)
    for name in ("add", "slow", "total", "text", "fails"):
        app.task(name=name, shared=False)(by_a_worker)
    yield app
    await asyncio.to_thread(app.backend.close)
    await asyncio.to_thread(app.pool.force_close_all)


def by_a_worker(*args: object) -> None:
    """Stand for a task of ``celery_flows.py``."""


async def apart(act: Callable[[], R]) -> R:
    """Call Celery, which blocks, in a thread."""
    async with asyncio.timeout(4 * HANG):
        return await asyncio.to_thread(act)


async def test_results_of_every_kind(stage: Stage, app: Any) -> None:
    add, total, text, fails = (app.tasks[name] for name in ("add", "total", "text", "fails"))

    def use() -> None:
        assert add.delay(1, 2).get(timeout=HANG) == 3
        assert chain(add.s(1, 2), add.s(3)).delay().get(timeout=HANG) == 6
        assert group(add.s(n, n) for n in range(5)).delay().get(timeout=HANG) == [0, 2, 4, 6, 8]
        assert chord([add.s(n, n) for n in range(5)], total.s()).delay().get(timeout=HANG) == 20
        assert len(text.delay(300_000).get(timeout=HANG)) == 300_000, "in parts"
        failed = fails.delay("why")
        with pytest.raises(ValueError, match="why"):
            failed.get(timeout=HANG)
        assert failed.state == "FAILURE"
        expired = add.apply_async((1, 1), expires=-1)
        with pytest.raises(TaskRevokedError):
            expired.get(timeout=HANG)
        done = add.delay(2, 2)
        assert done.get(timeout=HANG) == 4
        assert app.AsyncResult(done.id).state == "SUCCESS"
        done.forget()
        assert app.AsyncResult(done.id).state == "PENDING"
        with pytest.raises(CeleryTimeout):
            app.AsyncResult("unknown").get(timeout=0.2)
        with pytest.raises(ValueError, match="first"):
            chain(fails.s("first"), group(add.s(1), add.s(2))).delay().get(timeout=HANG)
        broken = chord([add.s(1, 1), fails.si("part")], total.s()).delay()
        with pytest.raises(Exception, match="part"):
            broken.get(timeout=HANG)

    async with stage.worker([*COMMAND, "-n", "celery@one"], "one"):
        await apart(use)


@pytest.mark.parametrize("size", [CHORD_SIZE, pytest.param(LARGEST_CHORD_SIZE, marks=pytest.mark.chaos)])
async def test_a_large_chord(stage: Stage, app: Any, size: int) -> None:
    add, total = app.tasks["add"], app.tasks["total"]

    def use() -> int:
        return chord([add.s(n, 0) for n in range(size)], total.s()).delay().get(timeout=3 * HANG)

    async with stage.worker([*COMMAND, "-n", "celery@one"], "one"):
        assert await apart(use) == sum(range(size))


async def test_a_large_group_is_kept_in_parts(app: Any) -> None:
    ids = [uuid() for _ in range(GROUP_SIZE)]

    def use() -> list[str]:
        group = app.GroupResult(uuid(), [app.AsyncResult(id) for id in ids])
        assert len(app.backend.encode(group.as_tuple())) > RESULT_BYTES
        group.save()
        restored = app.GroupResult.restore(group.id)
        assert restored.id == group.id
        return [member.id for member in restored]

    assert await apart(use) == ids


async def test_workers_that_prefetch_nothing_share_fairly(
    stage: Stage, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``acks_late`` and a multiplier of 1, a worker of one process holds the task that it runs, and no other."""
    monkeypatch.setenv("CELERY_PREFETCH_MULTIPLIER", "1")
    slow = app.tasks["slow"]
    command = [*COMMAND[:-2], "--concurrency=1", "--loglevel=info"]
    sent = await apart(lambda: [slow.delay(number, 1.0) for number in range(6)])
    held: set[int] = set()
    async with (
        stage.worker([*command, "-n", "celery@one"], "one"),
        stage.worker([*command, "-n", "celery@two"], "two"),
        over_zookeeper(stage.servers, stage.namespace) as cluster,
    ):
        queue = cluster.queue("celery", codec=zkrq.RAW)
        async with asyncio.timeout(2 * HANG):
            while any(sizes := await queue.size()):
                held.add(sizes.claimed)
                await asyncio.sleep(0.05)
    assert max(held) == 2
    assert await apart(lambda: [task.get(timeout=HANG) for task in sent]) == list(range(6))


@pytest.mark.chaos
async def test_no_result_is_lost_while_workers_and_servers_are_killed(stage: Stage, app: Any) -> None:
    slow, total = app.tasks["slow"], app.tasks["total"]
    sizes = (40, 60, 80)

    def use() -> list[int]:
        bodies = [chord([slow.s(n, 0.05) for n in range(size)], total.s()).delay() for size in sizes]
        return [body.get(timeout=3 * HANG) for body in bodies]

    async with stage.worker([*COMMAND, "-n", "celery@one"], "one") as one:
        using = asyncio.create_task(apart(use))
        await asyncio.sleep(5)
        os.killpg(one.pid, signal.SIGKILL)
        async with stage.worker([*COMMAND, "-n", "celery@two"], "two"):
            for server in stage.servers.redis[:2]:
                await asyncio.sleep(2)
                await server.kill()
                await asyncio.sleep(2)
                await server.start()
            leader = await stage.servers.zookeeper_leader()
            await leader.kill()
            await asyncio.sleep(2)
            await leader.start()
            assert await using == [sum(range(size)) for size in sizes]
