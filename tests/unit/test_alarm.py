"""An alarm: one waiter, one timer for many waits."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from zkrq.base.alarm import Alarm

pytestmark = pytest.mark.anyio

LATE = 60.0
"""Seconds until a moment that these tests do not reach."""


async def test_it_is_rung_before_its_moment() -> None:
    alarm = Alarm()
    waiting = alarm.until(asyncio.get_running_loop().time() + LATE)
    alarm.ring()
    assert await waiting is True
    alarm.ring()  # of nobody


async def test_its_moment_comes() -> None:
    assert await Alarm().until(asyncio.get_running_loop().time() + 0.01) is False


async def test_a_moment_that_is_over_has_come() -> None:
    assert await Alarm().until(asyncio.get_running_loop().time() - 1) is False


async def test_many_waits_that_are_rung_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm, loop = Alarm(), asyncio.get_running_loop()
    first = alarm.until(loop.time() + LATE)
    alarm.ring()
    await first

    def refuse(*_: object) -> None:
        raise AssertionError("another timer was set")

    monkeypatch.setattr(loop, "call_at", refuse)
    for number in range(10):
        waiting = alarm.until(loop.time() + LATE + number)
        alarm.ring()
        assert await waiting is True


async def test_the_timer_of_an_earlier_wait_does_not_end_a_later_one() -> None:
    alarm, loop = Alarm(), asyncio.get_running_loop()
    first = alarm.until(loop.time() + 0.01)
    alarm.ring()
    await first
    until = loop.time() + 0.05
    assert await alarm.until(until) is False
    assert loop.time() >= until


async def test_a_moment_before_that_of_an_earlier_wait_is_kept() -> None:
    alarm, loop = Alarm(), asyncio.get_running_loop()
    first = alarm.until(loop.time() + LATE)
    alarm.ring()
    await first
    async with asyncio.timeout(LATE / 2):
        assert await alarm.until(loop.time() + 0.01) is False


async def test_a_cancelled_wait_leaves_an_alarm_that_works() -> None:
    alarm, loop = Alarm(), asyncio.get_running_loop()

    async def wait() -> None:
        await alarm.until(loop.time() + 0.01)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    alarm.ring()
    await asyncio.sleep(0.02)  # the timer has fired, and found nobody
    assert await alarm.until(loop.time() + 0.01) is False


async def test_stopped_it_leaves_no_timer() -> None:
    alarm, loop = Alarm(), asyncio.get_running_loop()
    waiting = alarm.until(loop.time() + 0.01)
    alarm.stop()
    await asyncio.sleep(0.02)
    assert not waiting.done()


def test_a_near_moment_comes_on_uvloop() -> None:
    """There a timer of less than half a millisecond is a plain handle."""

    async def wait(seconds: float) -> bool:
        async with asyncio.timeout(LATE):
            return await Alarm().until(asyncio.get_running_loop().time() + seconds)

    async def wait_longer() -> bool:
        """Wait with a timer that was set for a nearer moment."""
        alarm, loop = Alarm(), asyncio.get_running_loop()
        first = alarm.until(loop.time())
        alarm.ring()
        await first
        async with asyncio.timeout(LATE):
            return await alarm.until(loop.time() + 0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert [runner.run(wait(seconds)) for seconds in (-1, 0, 0.0002, 0.002)] == [False] * 4
        assert runner.run(wait_longer()) is False
