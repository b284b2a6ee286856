"""Background tasks that belong to somebody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from zkrq.errors import Closed
from zkrq.tasks import Tasks

pytestmark = pytest.mark.anyio


async def forever(begun: asyncio.Event, ended: asyncio.Event) -> None:
    try:
        begun.set()
        await asyncio.Event().wait()
    finally:
        ended.set()


async def fail() -> None:
    raise LookupError("nothing there")


async def test_result_of_a_task() -> None:
    async def work() -> int:
        return 42

    async with Tasks("test") as tasks:
        assert await tasks.start(work(), "work") == 42


async def test_failing_task_is_logged_and_takes_nobody_with_it(caplog: pytest.LogCaptureFixture) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    async with Tasks("test") as tasks:
        other = tasks.start(forever(begun, ended), "other")
        assert await tasks.start(fail(), "fail") is None
        await begun.wait()
        assert not other.done()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "test: fail failed")
    assert record.exc_info is not None
    assert record.exc_info[0] is LookupError


async def test_nothing_is_left_running() -> None:
    before = asyncio.all_tasks()
    begun, ended = asyncio.Event(), asyncio.Event()
    async with Tasks("test") as tasks:
        tasks.start(forever(begun, ended), "forever")
        await begun.wait()
    assert ended.is_set()
    assert asyncio.all_tasks() == before


async def test_task_that_has_not_begun_is_not_left_either() -> None:
    before = asyncio.all_tasks()
    async with Tasks("test") as tasks:
        tasks.start(asyncio.sleep(3600), "late")
    assert asyncio.all_tasks() == before


async def test_error_inside_the_block_is_the_callers() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    with pytest.raises(LookupError):
        async with Tasks("test") as tasks:
            tasks.start(forever(begun, ended), "forever")
            await begun.wait()
            await fail()
    assert ended.is_set()


async def test_left_in_another_task_than_entered() -> None:
    """The user's cluster may be opened in one task and closed in another."""
    begun, ended = asyncio.Event(), asyncio.Event()
    tasks = Tasks("test")
    await asyncio.create_task(tasks.__aenter__())
    tasks.start(forever(begun, ended), "forever")
    await begun.wait()
    await asyncio.create_task(tasks.__aexit__(None, None, None))
    assert ended.is_set()


async def test_left_twice() -> None:
    async with Tasks("test") as tasks:
        pass
    await tasks.__aexit__(None, None, None)


async def test_never_entered() -> None:
    await Tasks("test").__aexit__(None, None, None)


async def test_closed_takes_no_more() -> None:
    async with Tasks("test") as tasks:
        pass
    with pytest.raises(Closed, match="test is closed"):
        tasks.start(fail(), "late")


async def test_cancelled_task_leaves_the_others_alone() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()
    async with Tasks("test") as tasks:
        cancelled = tasks.start(asyncio.sleep(3600), "cancelled")
        other = tasks.start(forever(begun, ended), "other")
        await begun.wait()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert not other.done()


async def test_tasks_have_names() -> None:
    async with Tasks("shop") as tasks:
        assert tasks.start(asyncio.sleep(0), "count").get_name() == "shop: count"


async def test_cancelled_before_it_began_it_leaves_nothing() -> None:
    tasks = Tasks("test")
    opening = asyncio.create_task(tasks.__aenter__())
    await asyncio.sleep(0)  # it has made its runner, which has not run yet
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()} | {
        task for task in asyncio.all_tasks() if "test: tasks" not in task.get_name()
    }
