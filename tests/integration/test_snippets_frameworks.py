"""The snippets of docs about Celery and taskiq do what they say."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import zkrq
import zkrq.testing
from tests.integration.snippet_runs import HERE, on, runs
from tests.snippets import execute, snippet
from zkrq import local

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("own_tasks")
@runs("celery.md", "# tasks.py")
async def test_a_task_of_celery(code: str, servers: local.Servers, founded: str) -> None:
    code = on(servers, founded, code).replace('"namespace": "shop"', f'"namespace": {founded!r}')
    known = await execute(code)
    await asyncio.to_thread(known["send"].delay, "ann@example.org")
    async with zkrq.connect(list(servers.redis_urls.values()), servers.zookeeper_hosts) as cluster:
        assert (await cluster.queue("celery").size()).ready == 1
    await asyncio.to_thread(known["app"].close)
    await asyncio.to_thread(import_module("kombu.pools").reset)


@runs("celery.md", '# settings.py, with app.config_from_object("django.conf:settings", namespace="CELERY")')
async def test_the_settings_of_celery_in_django(code: str) -> None:
    app: Any = import_module("celery").Celery("shop")
    app.config_from_object(await execute(code), namespace="CELERY")
    assert app.connection_for_write().as_uri() == "zkrq://"
    assert app.connection_for_write().transport_options["zookeeper"] == "zk1,zk2,zk3"


@pytest.fixture
def own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery adds the tasks of one app to all others of a process; these do not go to those of other tests, or come
    from them."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set[object]())


def in_environment(monkeypatch: pytest.MonkeyPatch, servers: local.Servers, namespace: str) -> None:
    monkeypatch.setenv("ZKRQ_REDIS", ",".join(servers.redis_urls.values()))
    monkeypatch.setenv("ZKRQ_ZOOKEEPER", servers.zookeeper_hosts)
    monkeypatch.setenv("ZKRQ_NAMESPACE", namespace)


def _leave_logging_alone(**_: object) -> None:
    pass


@pytest.mark.usefixtures("own_tasks")
@runs("celery.md", "# flows.py")
async def test_chain_group_chord_retry_and_beat_of_celery(
    code: str, servers: local.Servers, founded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: Any = import_module("celery.beat")
    pools: Any = import_module("kombu.pools")
    signals: Any = import_module("celery.signals")
    testing: Any = import_module("celery.contrib.testing.worker")
    in_environment(monkeypatch, servers, founded)
    # Its entry point is not there where the tests run from a checkout.
    named = code.replace('backend="zkrq://"', 'backend="zkrq.kombu.results:ZkrqBackend"')
    known = await execute(named.replace("60.0}", "0.2}"))
    app = known["app"]

    def work() -> object:
        backend = app.backend  # one for all threads if it is there before they are, else perhaps one for each
        done = threading.Event()
        known["report"].run = lambda: done.set()
        with testing.start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=30):
            beat = beats.EmbeddedService(app, thread=True, max_interval=1, schedule_filename=str(tmp_path / "beat"))
            beat.start()
            try:
                return [*(result.get(timeout=60) for result in known["run"]()), done.wait(60)]
            finally:
                beat.stop()
                backend.close()

    # A worker configures logging for its whole process, which is that of the other tests, unless the program does.
    signals.setup_logging.connect(_leave_logging_alone)
    try:
        assert await asyncio.to_thread(work) == [6, [0, 2, 4], 6, 7, True]
    finally:
        signals.setup_logging.disconnect(_leave_logging_alone)
    await asyncio.to_thread(pools.reset)  # Celery leaves its connections open until the process ends
    await asyncio.to_thread(app.close)


@pytest.mark.usefixtures("own_tasks")
@runs("celery.md", "# orders.py")
async def test_groups_of_celery_that_keep_their_order(
    code: str, servers: local.Servers, founded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: Any = import_module("kombu.pools")
    in_environment(monkeypatch, servers, founded)
    known = await execute(code)
    async with zkrq.connect(list(servers.redis_urls.values()), servers.zookeeper_hosts) as cluster:
        orders = cluster.queue("orders", codec=zkrq.RAW)
        await orders.set_groups(zkrq.Groups(ordered=True))
        await asyncio.to_thread(known["run"])
        assert (await orders.size()).ready == 3
        assert [claim.group for claim in await orders.pop_many(3, timeout=0)] == ["order-42"]
    await asyncio.to_thread(known["app"].close)
    await asyncio.to_thread(pools.reset)


@runs("taskiq.md", "broker = ZkrqBroker(retry")
async def test_groups_of_taskiq_that_keep_their_order(code: str) -> None:
    names = vars(import_module("zkrq.taskiq"))
    make = partial(names["ZkrqBroker"], zkrq.testing.cluster)
    retries = names["ZkrqRetryMiddleware"]
    known = await execute(code, ZkrqBroker=make, ZkrqRetryMiddleware=retries, zkrq=zkrq)
    broker = known["broker"]
    await broker.startup()
    await broker.queue().set_groups(zkrq.Groups(ordered=True))
    await known["run"]()
    assert [claim.group for claim in await broker.queue().pop_many(3, timeout=0)] == ["order-42"]
    await broker.shutdown()


@runs("taskiq.md", "# tasks.py")
async def test_a_task_of_taskiq(code: str, servers: local.Servers, founded: str) -> None:
    """With the scheduler, which is for the same broker."""
    from taskiq import TaskiqScheduler

    from zkrq.taskiq import ZkrqScheduleSource

    known = await execute(on(servers, founded, code))
    broker = known["broker"]
    await broker.startup()
    try:
        await known["send"].kiq("ann@example.org")
        assert (await broker.queue().size()).ready == 1
        names = {"TaskiqScheduler": TaskiqScheduler, "ZkrqScheduleSource": ZkrqScheduleSource}
        known = await execute(snippet("taskiq.md", "scheduler = "), broker=broker, **names)
        (source,) = known["scheduler"].sources
        await source.startup()
        daily, *moments = await source.get_schedules()
        assert (daily.cron, daily.args) == ("0 7 * * 1-5", [])
        assert moments
        assert all(task.time.second == 0 and task.args == [1] for task in moments), "each full minute"
    finally:
        await broker.shutdown()


HERE["taskiq.md", "scheduler = "] = test_a_task_of_taskiq
