"""Background tasks with an owner."""

from __future__ import annotations

import asyncio
import logging

import anyio
import pytest

import zkrq.base.tasks
from zkrq.base.errors import Closed
from zkrq.base.tasks import Once, Rounds, Tasks, see_through, wait_ended, wait_set

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
        with pytest.raises(LookupError):
            await tasks.start(fail(), "fail")
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


# -- loops that do not end ---------------------------------------------------------------------------------------------


async def test_loop_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zkrq.base.tasks, "RESTART_PAUSE", 0.0)
    runs, thrice = 0, asyncio.Event()

    async def stumble() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            thrice.set()
            await asyncio.Event().wait()
        if runs == 1:
            await fail()

    async with Tasks("test") as tasks:
        tasks.supervise(stumble, "stumble")
        await thrice.wait()
    (record,) = caplog.records
    assert record.getMessage() == "test: stumble failed and is started again in 0.0 s"


async def test_loop_that_finds_all_closed_ends() -> None:
    async def close() -> None:
        raise Closed

    async with Tasks("test") as tasks:
        await tasks.supervise(close, "close")


@pytest.mark.parametrize("seconds", [3600.0, None])
async def test_rounds_follow_a_call_and_a_pause(seconds: float | None) -> None:
    ran = asyncio.Queue[None]()
    rounds = Rounds(lambda: ran.put(None), seconds=seconds)
    async with Tasks("test") as tasks:
        tasks.supervise(rounds.run, "called")
        await ran.get()  # the first one needs no call
        for _ in range(3):
            rounds.call()
            await ran.get()
        tasks.supervise(Rounds(lambda: ran.put(None), seconds=0.0).run, "by itself")
        for _ in range(3):
            await ran.get()


async def test_call_during_a_round_is_not_lost() -> None:
    """What changes while a round looks is looked at by the next one."""
    ran = 0
    twice = asyncio.Event()

    async def act() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            rounds.call()
        else:
            twice.set()

    rounds = Rounds(act, seconds=3600)
    async with Tasks("test") as tasks:
        tasks.supervise(rounds.run, "rounds")
        await twice.wait()


async def test_only_calls_are_delayed() -> None:
    ran, delays = asyncio.Queue[None](), list[float]()

    def delay() -> float:
        delays.append(0.0)
        return 0.0

    rounds = Rounds(lambda: ran.put(None), seconds=0.0, delay=delay)
    async with Tasks("test") as tasks:
        tasks.supervise(rounds.run, "rounds")
        for _ in range(5):
            await ran.get()
        assert delays == []
        rounds.call()
        await ran.get()
        await ran.get()
        assert delays == [0.0]


# -- work that is seen through -------------------------------------------------------------------------------------


async def test_work_is_seen_through_although_the_waiter_is_cancelled() -> None:
    release, told = asyncio.Event(), list[str]()
    work = asyncio.create_task(release.wait())
    waiter = asyncio.create_task(see_through(work, cancelled=lambda: told.append("cancelled")))
    for _ in range(2):
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0)
        assert not waiter.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert work.result()
    assert told == ["cancelled", "cancelled"]


async def test_failure_of_work_that_is_seen_through() -> None:
    with pytest.raises(LookupError):
        await see_through(asyncio.create_task(fail()))


async def test_cancelled_work_is_at_its_end() -> None:
    work = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    work.cancel()
    await see_through(work)


async def test_cancellation_of_the_waiter_names_the_failure() -> None:
    release = asyncio.Event()

    async def fail_later() -> None:
        await release.wait()
        await fail()

    waiter = asyncio.create_task(see_through(asyncio.create_task(fail_later())))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError) as raised:
        await waiter
    assert isinstance(raised.value.__cause__, LookupError)


@pytest.mark.parametrize(("is_set", "seconds"), [(True, 3600.0), (True, 0.0), (False, 0.0), (True, None)])
async def test_event_is_waited_for_within_a_bound(is_set: bool, seconds: float | None) -> None:
    event = asyncio.Event()
    if is_set:
        event.set()
    assert await wait_set(event, seconds) is is_set


async def test_ends_are_waited_for_inside_a_cancelled_scope() -> None:
    ending = asyncio.create_task(asyncio.sleep(0.05))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_ended([ending], 10)
        assert ending.done()


async def test_ends_are_waited_for_in_bounded_time_until_the_waiter_is_cancelled() -> None:
    endless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    await wait_ended([endless], 0.01)
    await wait_ended([], 10)
    waiter = asyncio.create_task(wait_ended([endless], 10))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_those_who_wait_for_what_fails_share_the_next_attempt() -> None:
    """However many there are, each waits for two attempts at most."""
    attempts = list[asyncio.Future[None]]()

    async def act() -> None:
        attempts.append(asyncio.get_running_loop().create_future())
        await attempts[-1]

    once = Once(act)
    callers = [asyncio.create_task(once.done()) for _ in range(9)]
    for number in range(2):
        await asyncio.sleep(0)
        attempts[number].set_exception(LookupError(number))
        await asyncio.sleep(0.01)
    errors = [caller.exception() for caller in callers]
    assert [str(error) for error in errors] == ["0", *["1"] * 8]
    assert len({id(error) for error in errors}) == 9, "each has its own"
    later = asyncio.create_task(once.done())
    await asyncio.sleep(0)
    attempts[2].set_result(None)
    await later
    await once.done()
    assert (len(attempts), once.is_done) == (3, True)


async def test_what_is_done_is_not_done_again_unless_it_is_wanted() -> None:
    acts = list[int]()

    async def act() -> None:
        acts.append(len(acts))

    once = Once(act)
    for _ in range(2):
        await once.done()
    assert acts == [0]
    once.again()
    for _ in range(2):
        await once.done()
    assert acts == [0, 1]


async def test_an_attempt_that_is_cancelled_is_made_by_the_next_one() -> None:
    begun = list[asyncio.Event]()

    async def act() -> None:
        begun.append(asyncio.Event())
        await begun[-1].wait()

    once = Once(act)
    first, second = asyncio.create_task(once.done()), asyncio.create_task(once.done())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    begun[1].set()
    await second
    assert first.cancelled()
