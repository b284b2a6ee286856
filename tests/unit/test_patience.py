"""The limit of a wait for a server: by seconds, or by turns of an event loop that takes its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest.mock import patch

import pytest

from zkrq.replication.patience import TURNS, patience

pytestmark = pytest.mark.anyio

TURN = 0.005
"""Seconds that a turn of a slow loop takes here; many times a part of the limit."""

LIMIT = TURN * 2

CONNECTION = 23
"""Turns that a connection takes at most: with a host's name to look up, TLS, a login, a database, and the first
questions."""


@dataclass
class Turns:
    count: int = 0


@asynccontextmanager
async def slow_loop(turn: float = TURN) -> AsyncGenerator[Turns]:
    """Each turn of the event loop takes so long, by the loop's own clock; count them."""
    loop, turns, goes_on = asyncio.get_running_loop(), Turns(), True
    now = loop.time()

    def block() -> None:
        nonlocal now
        now += turn
        turns.count += 1
        if goes_on:
            loop.call_soon(block)

    with patch.object(loop, "time", lambda: now):
        block()
        try:
            yield turns
        finally:
            goes_on = False


async def test_in_a_slow_loop_a_wait_ends_after_so_many_turns() -> None:
    """Not before, since that many are needed to make a connection; and not much later."""
    async with slow_loop() as turns:
        began = turns.count
        with pytest.raises(TimeoutError):
            async with patience(LIMIT):
                await asyncio.Event().wait()
        assert TURNS <= turns.count - began <= TURNS + 3


async def test_turns_of_little_less_than_a_part_do_not_count_for_less() -> None:
    """Each would cost two, if what it took beyond its part were forgotten."""
    part = 0.004
    async with slow_loop(0.7 * part) as turns:
        began = turns.count
        with pytest.raises(TimeoutError):
            async with patience(TURNS * part):
                await asyncio.Event().wait()
        assert turns.count - began <= TURNS / 0.7 + 10


async def test_what_needs_the_turns_of_a_connection_is_done() -> None:
    async with slow_loop(), patience(LIMIT):
        for _ in range(CONNECTION):
            await asyncio.sleep(0)


async def test_one_long_turn_costs_one_part_of_the_limit() -> None:
    """A process that was stopped for longer than the limit goes on waiting."""
    async with patience(LIMIT):
        time.sleep(3 * LIMIT)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_in_a_quick_loop_it_ends_after_the_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with patience(LIMIT):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= LIMIT


async def test_the_error_of_the_block_passes_and_no_timer_is_left() -> None:
    complaints = list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with pytest.raises(LookupError):
        async with patience(LIMIT):
            raise LookupError
    await asyncio.sleep(2 * LIMIT)
    assert not complaints, "of a timer that was left"
