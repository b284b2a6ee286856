"""Workers of frameworks on three Redis and three ZooKeeper servers: killed, drained, and while servers are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from subprocess import Popen

import pytest
from celery import Celery

import zkrq
from tests import odd
from tests.frameworks import by_celery, by_taskiq
from tests.frameworks.workers import Framework, Stage, processes_of
from tests.harness import HANG, SESSION_TIMEOUT, over_zookeeper, settled, until
from zkrq.kombu import BROKER_URL

pytestmark = pytest.mark.anyio

FRAMEWORKS: dict[str, Callable[[Stage], AsyncGenerator[Framework]]] = {
    "taskiq": by_taskiq.framework,
    "celery": by_celery.framework,
}

TASKS = 10


@pytest.fixture(params=FRAMEWORKS)
async def framework(request: pytest.FixtureRequest, stage: Stage) -> AsyncGenerator[Framework]:
    async with asynccontextmanager(FRAMEWORKS[request.param])(stage) as opened:
        yield opened


async def test_a_worker_is_killed_and_the_next_one_drains(stage: Stage, framework: Framework) -> None:
    diary = stage.diary
    async with stage.worker(framework.command, "first") as first:
        await framework.send(range(TASKS), 1.0)
        await until(lambda: len(diary.entries("start")) >= 2)
        killed = processes_of(first.pid)
        stage.kill(first)
    async with stage.worker(framework.command, "second") as second:
        await until(lambda: diary.ended() == set(range(TASKS)))
        assert not stage.started_twice(framework)
        assert stage.back_after(killed)
        await settled(framework.is_empty)

        await framework.send(range(TASKS, 3 * TASKS), 1.0)
        await until(lambda: len(diary.ended()) > TASKS)
        assert await stage.drain(second) == 0
    assert not stage.started_twice(framework)
    assert diary.started_by().keys() == diary.ended(), "what had begun was finished"
    repeated = await framework.left() - (3 * TASKS - len(diary.ended()))
    assert 0 <= repeated <= framework.forgotten, "and the rest went back"


async def test_what_celery_has_only_fetched_goes_back_while_others_run(stage: Stage) -> None:
    async with (
        asynccontextmanager(by_celery.framework)(stage) as framework,
        over_zookeeper(stage.servers, stage.namespace) as cluster,
        stage.worker(framework.command, "first") as first,
    ):
        queue = cluster.queue("celery", codec=zkrq.RAW)

        async def is_claimed(count: int) -> bool:
            return (await queue.size()).claimed == count

        await framework.send(range(TASKS), HANG)
        await until(lambda: len(stage.diary.entries("start")) == by_celery.CONCURRENCY)
        await settled(partial(is_claimed, TASKS))
        first.send_signal(signal.SIGTERM)
        await settled(partial(is_claimed, by_celery.CONCURRENCY))
        assert first.poll() is None
        assert stage.diary.ended() == set()
        assert (await queue.size()).ready == TASKS - by_celery.CONCURRENCY


async def test_a_task_of_celery_may_raise_anything(stage: Stage) -> None:
    """Each is delivered once, also where it ends the process that runs it, and the others are done."""
    errors = len(odd.numbered())
    async with (
        asynccontextmanager(by_celery.framework)(stage) as framework,
        stage.worker(framework.command, "first"),
    ):
        servers = stage.servers
        options = {"redis": servers.redis_urls, "zookeeper": servers.zookeeper_hosts, "namespace": stage.namespace}
        app = Celery("client", broker=BROKER_URL, broker_transport_options=options)
        for number in range(errors + TASKS):
            await asyncio.to_thread(partial(app.send_task, "raise", (number,)))
        await settled(framework.is_empty)
        app.pool.force_close_all()
    assert stage.diary.counts_of("start") == dict.fromkeys(range(errors + TASKS), 1)
    assert stage.diary.ended() >= set(range(errors, errors + TASKS))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_while_everything_is_killed(stage: Stage, framework: Framework, seed: int) -> None:
    chance = random.Random(seed)
    diary, servers, names, killed = stage.diary, stage.servers, itertools.count(1), set[int]()
    async with AsyncExitStack() as stack:

        async def worker() -> None:
            workers.append(await stack.enter_async_context(stage.worker(framework.command, f"worker-{next(names)}")))

        workers = list[Popen[bytes]]()
        for _ in range(2):
            await worker()

        def is_busy(process: Popen[bytes]) -> bool:
            group, done = processes_of(process.pid), {(entry.number, entry.process) for entry in diary.entries("end")}
            begun = {(entry.number, entry.process) for entry in diary.entries("start") if entry.process in group}
            return bool(begun - done)

        async def kill_worker() -> None:
            process = workers.pop(0)
            await until(lambda: is_busy(process), 0.05)
            killed.update(processes_of(process.pid))
            stage.kill(process)
            await worker()

        async def drain_worker() -> None:
            process = workers.pop(0)
            await until(lambda: any(pid in diary.counts() for pid in processes_of(process.pid)), 0.2)  # it is at work
            drained = asyncio.create_task(stage.drain(process))
            await worker()
            assert await drained == 0

        async def kill_redis() -> None:
            server = chance.choice(servers.redis)
            await server.kill()
            await asyncio.sleep(3)
            await server.start()

        async def kill_leader() -> None:
            leader = await servers.zookeeper_leader()
            await leader.kill()
            await asyncio.sleep(3)
            await leader.start()

        sent = 0
        faults = [kill_worker, kill_redis, kill_leader, drain_worker] * 2
        chance.shuffle(faults)
        for fault in faults:
            task = asyncio.create_task(fault())
            while not task.done():
                await framework.send(range(sent, sent + 10), 0.2)
                sent += 10
                await asyncio.sleep(0.2)
            await task
            await asyncio.sleep(3)
        await until(lambda: len(diary.ended()) == sent, 0.2)
        await settled(framework.is_empty)
    assert diary.ended() == set(range(sent))
    assert not stage.started_twice(framework)
    back = stage.back_after(tuple(killed))
    print(f"{sent} tasks; {len(back)} of killed workers were back after at most {max(back, default=0):.1f} s")
    print(f"the session's time-out: {SESSION_TIMEOUT:g} s")
