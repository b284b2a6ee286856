"""Remote control of Celery's workers: commands reach every worker, their replies come back, events are seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from celery import Celery

import zkrq
from tests.frameworks.by_celery import COMMAND, CONCURRENCY
from tests.frameworks.workers import Stage
from tests.harness import HANG, until
from zkrq.kombu import BROKER_URL

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app(stage: Stage) -> AsyncGenerator[Celery]:
    servers = stage.servers
    options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": stage.namespace}
    await zkrq.found(servers.redis_urls, servers.zookeeper_hosts, namespace=stage.namespace)
    app = Celery("client", broker=BROKER_URL, broker_transport_options=options)
    yield app
    app.pool.force_close_all()


async def replies(ask: Callable[[], Any], count: int) -> Any:
    """Ask until so many workers have replied."""
    async with asyncio.timeout(HANG):
        while len(found := await asyncio.to_thread(ask) or ()) < count:
            await asyncio.sleep(0.1)
    return found


async def test_workers_are_asked_and_told(stage: Stage, app: Celery) -> None:
    names = {"celery@one", "celery@two"}
    asking = app.control.inspect(timeout=2.0)
    async with (
        stage.worker([*COMMAND, "-n", "celery@one"], "one"),
        stage.worker([*COMMAND, "-n", "celery@two"], "two") as two,
    ):
        assert (await replies(asking.ping, 2)).keys() == names
        assert (await replies(asking.registered, 2)).keys() == names

        sent = await asyncio.to_thread(app.send_task, "sleep", (1, 60.0))
        await until(lambda: len(stage.diary.entries("start")) == 1)
        active = await replies(asking.active, 2)
        assert [task["id"] for tasks in active.values() for task in tasks] == [sent.id]
        await asyncio.to_thread(app.control.revoke, sent.id, terminate=True)
        async with asyncio.timeout(HANG):
            while any((await replies(asking.active, 2)).values()):
                await asyncio.sleep(0.1)
        assert stage.diary.ended() == set(), "its process was terminated"

        await asyncio.to_thread(app.control.shutdown, destination=["celery@two"])
        async with asyncio.timeout(HANG):
            while two.poll() is None:
                await asyncio.sleep(0.1)
        assert (await replies(asking.ping, 1)).keys() == {"celery@one"}


async def test_another_deployment_controls_no_worker(stage: Stage, app: Celery) -> None:
    """Staging in another database of the same servers, with a chroot of its own and the same namespace."""
    servers = stage.servers
    redis = {name: f"{url}/1" for name, url in servers.redis_urls.items()}
    zookeeper = f"{servers.zookeeper_hosts}/staging"
    options = {"redis": redis, "zookeeper": zookeeper, "namespace": stage.namespace}
    await zkrq.found(redis, zookeeper, namespace=stage.namespace)
    staging = Celery("staging", broker=BROKER_URL, broker_transport_options=options)
    try:
        async with stage.worker([*COMMAND, "-n", "celery@production"], "production") as worker:
            asking = app.control.inspect(timeout=2.0)
            assert (await replies(asking.ping, 1)).keys() == {"celery@production"}
            assert not await asyncio.to_thread(staging.control.inspect(timeout=2.0).ping)
            await asyncio.to_thread(staging.control.shutdown)
            assert (await replies(asking.ping, 1)).keys() == {"celery@production"}
            assert worker.poll() is None
    finally:
        staging.pool.force_close_all()


async def test_a_task_that_is_revoked_before_it_begins_does_not_run(stage: Stage, app: Celery) -> None:
    async with stage.worker([*COMMAND, "-n", "celery@one"], "one"):
        await replies(app.control.inspect(timeout=2.0).ping, 1)
        later = await asyncio.to_thread(app.send_task, "sleep", (1, 0.0), countdown=5)
        await asyncio.to_thread(app.control.revoke, later.id)
        await asyncio.to_thread(app.send_task, "sleep", (2, 0.0), countdown=6)
        await until(lambda: stage.diary.ended() == {2})
        assert [entry.number for entry in stage.diary.entries("start")] == [2]


@pytest.mark.chaos
async def test_a_worker_that_consumes_no_more_runs_what_it_has_fetched(stage: Stage, app: Celery) -> None:
    count = 2 * CONCURRENCY
    async with stage.worker([*COMMAND, "-n", "celery@one"], "one"):
        for number in range(count):
            await asyncio.to_thread(app.send_task, "sleep", (number, 0.5))
        await until(lambda: len(stage.diary.entries("start")) == CONCURRENCY)
        asking = app.control.inspect(timeout=2.0)
        async with asyncio.timeout(HANG):
            while sum(map(len, (await replies(asking.reserved, 1)).values())) < count - len(
                stage.diary.entries("start")
            ):
                await asyncio.sleep(0.1)
        await asyncio.to_thread(app.control.cancel_consumer, "celery")
        await until(lambda: stage.diary.ended() == set(range(count)))
        assert len(stage.diary.entries("start")) == count


async def test_events_are_seen(stage: Stage, app: Celery) -> None:
    seen: list[dict[str, Any]] = []
    receivers: list[Any] = []

    def watch() -> None:
        with app.connection() as connection:
            receivers.append(app.events.Receiver(connection, handlers={"*": seen.append}))
            receivers[0].capture(wakeup=False)

    watching = asyncio.create_task(asyncio.to_thread(watch))
    await until(lambda: bool(receivers))
    try:
        async with stage.worker([*COMMAND, "-E", "-n", "celery@one"], "one"):
            await replies(app.control.inspect(timeout=2.0).ping, 1)
            await asyncio.to_thread(app.send_task, "sleep", (1, 0.0))
            expected = {"task-received", "task-started", "task-succeeded"}
            await until(lambda: expected <= {event["type"] for event in seen})
    finally:
        receivers[0].should_stop = True
        await watching
    assert {event["hostname"] for event in seen if event["type"].startswith("worker-")} == {"celery@one"}
