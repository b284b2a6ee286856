"""taskiq's results over zkrq: the tests of result backends in taskiq-redis, with other connections, and more."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from taskiq import TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress, TaskState  # pyright: ignore[reportMissingTypeStubs]
from taskiq.serializers import PickleSerializer

import zkrq
from tests.frameworks.receiving import working
from tests.harness import HANG
from zkrq.client.stored import StoredResults
from zkrq.taskiq import ZkrqBroker, ZkrqResultBackend

pytestmark = pytest.mark.anyio

Make = Callable[..., AbstractAsyncContextManager[ZkrqResultBackend[Any]]]


@pytest.fixture
def started(connect: Callable[[], zkrq.Cluster]) -> Make:
    """Make a result backend that is started."""

    @asynccontextmanager
    async def start(**options: Any) -> AsyncGenerator[ZkrqResultBackend[Any]]:
        backend: ZkrqResultBackend[Any] = ZkrqResultBackend(connect, **options)
        await backend.startup()
        yield backend
        await backend.shutdown()

    return start


def an_error() -> TaskiqResult[Any]:
    return TaskiqResult(is_err=True, log="My Log", return_value=11, execution_time=112.2)


async def test_set_result_success(started: Make) -> None:
    async with started() as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())
        fetched = await backend.get_result(task_id=task_id, with_logs=True)
        assert (fetched.log, fetched.return_value, fetched.execution_time) == ("My Log", 11, 112.2)
        assert fetched.is_err


async def test_fetch_without_logs(started: Make) -> None:
    async with started() as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())
        fetched = await backend.get_result(task_id=task_id, with_logs=False)
        assert fetched.log is None
        assert (fetched.return_value, fetched.execution_time, fetched.is_err) == (11, 112.2, True)


async def test_remove_results_after_reading(started: Make) -> None:
    async with started(keep_results=False) as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())
        await backend.get_result(task_id=task_id)
        with pytest.raises(zkrq.NoResult):
            await backend.get_result(task_id=task_id)


class Unreadable(PickleSerializer):
    """Loads nothing while it is told so."""

    fails = True

    def loadb(self, value: bytes) -> Any:
        if self.fails:
            raise ValueError("of another release")
        return super().loadb(value)


async def test_a_result_is_not_forgotten_before_its_reader_has_it(
    started: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget = StoredResults.forget

    async def lost(self: StoredResults, ids: Iterable[str]) -> None:
        await forget(self, ids)
        raise zkrq.OutcomeUnknown("no answer")

    monkeypatch.setattr(StoredResults, "forget", lost)
    serializer = Unreadable()
    async with started(keep_results=False, serializer=serializer) as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())
        with pytest.raises(ValueError, match="another release"):
            await backend.get_result(task_id=task_id)
        serializer.fails = False
        assert (await backend.get_result(task_id=task_id)).return_value == 11
        assert not await backend.is_result_ready(task_id)


async def test_keep_results_after_reading(started: Make) -> None:
    async with started(keep_results=True) as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())
        assert await backend.get_result(task_id=task_id) == await backend.get_result(task_id=task_id)


async def test_many_at_once(started: Make) -> None:
    """taskiq-redis' test of a pool of one connection."""
    async with started() as backend:
        task_id = uuid.uuid4().hex
        await backend.set_result(task_id=task_id, result=an_error())

        async def get_result() -> None:
            await backend.get_result(task_id=task_id, with_logs=True)

        await asyncio.gather(*[get_result() for _ in range(10)])


async def test_set_progress(started: Make) -> None:
    async with started() as backend:
        task_id = uuid.uuid4().hex
        first = TaskProgress[Any](state=TaskState.STARTED, meta={"message": "quarter way", "pct": 25})
        second = TaskProgress[Any](state=TaskState.STARTED, meta={"message": "half way", "pct": 50})
        assert await backend.get_progress(task_id=task_id) is None
        await backend.set_progress(task_id=task_id, progress=first)
        assert await backend.get_progress(task_id=task_id) == first
        await backend.set_progress(task_id=task_id, progress=second)
        assert await backend.get_progress(task_id=task_id) == second
        await backend.set_progress(task_id=task_id, progress=first)
        assert await backend.get_progress(task_id=task_id) == first, "later, although its share is less"


async def test_what_it_refuses(started: Make, connect: Callable[[], zkrq.Cluster]) -> None:
    for ttl in (0, 0.5, 40 * 86400):
        with pytest.raises(zkrq.ConfigError, match="ttl"):
            ZkrqResultBackend(connect, ttl=ttl)
    with pytest.raises(zkrq.Closed, match="not started"):
        await ZkrqResultBackend[Any](connect).is_result_ready("x")
    async with started(serializer=PickleSerializer()) as backend:
        with pytest.raises(zkrq.PayloadTooLarge):
            await backend.set_result("x", TaskiqResult(is_err=False, return_value="x" * 1_100_000, execution_time=0.0))
        await backend.set_result("x", TaskiqResult(is_err=False, return_value="x" * 900_000, execution_time=0.0))
        assert len((await backend.get_result("x")).return_value) == 900_000


async def test_results_of_a_worker(connect: Callable[[], zkrq.Cluster]) -> None:
    broker = ZkrqBroker(connect)
    broker.with_result_backend(ZkrqResultBackend(broker))

    @broker.task
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return 2 * number

    await broker.startup()
    sent = [await double.kiq(number) for number in (1, 2, -1)]
    assert not await sent[0].is_ready()
    async with working(broker):
        one, two, failed = [await task.wait_result(timeout=HANG) for task in sent]
    assert (one.return_value, two.return_value) == (2, 4)
    assert failed.is_err
    await broker.shutdown()
