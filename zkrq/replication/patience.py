"""Limit how long this client waits for a server, by time in which its own event loop was able to hear it.

Making a connection takes a dozen turns of the event loop and more.  Where handlers block the loop, so that every turn
takes most of a second, two seconds are over after three turns, and a server that answers each of them immediately would
count as silent.  So one turn counts as a small part of the limit at most, however long it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

TURNS = 40
"""Turns of the event loop, at least, within a limit: what a connection with TLS and a login takes, twice over."""


@asynccontextmanager
async def patience(seconds: float) -> AsyncGenerator[None]:
    """Limit a block to these seconds, as ``asyncio.timeout`` does, of which a turn of the event loop takes one part in
    ``TURNS`` at most.  Raises ``TimeoutError``."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None
    async with asyncio.timeout(None) as limit:

        def pass_on(turns: int) -> None:
            nonlocal timer
            if turns:
                timer = loop.call_later(seconds / TURNS, pass_on, turns - 1)
            else:
                limit.reschedule(loop.time())

        pass_on(TURNS)
        try:
            yield
        finally:
            if timer:
                timer.cancel()
