"""Limit how long this client waits for a server, by time in which its own event loop was able to hear it.

Making a connection takes a dozen turns of the event loop and more.  Where handlers block the loop, so that every turn
takes most of a second, two seconds are over after three turns, and a server that answers each of them immediately would
count as silent.  So one turn counts as a small part of the limit at most, however long it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

TURNS = 30
"""Turns of the event loop, at least, within a limit.  A connection to a host's name, with TLS, a login whose password a
function gives, a database, a client's name and the first questions, takes 23 of them."""


@asynccontextmanager
async def patience(seconds: float, *, held: Callable[[], bool] = lambda: False) -> AsyncGenerator[None]:
    """Limit a block to these seconds, as ``asyncio.timeout`` does, of which a turn of the event loop takes one part in
    ``TURNS`` at most.  So the block ends about when both the seconds and ``TURNS`` turns are over.

    ``held``: while it returns True, this client waits for its own host, and the time does not count.  Raises
    ``TimeoutError``.
    """
    loop = asyncio.get_running_loop()
    part = seconds / TURNS
    counted_at = loop.time()
    timer: asyncio.Handle | None = None
    async with asyncio.timeout(None) as limit:

        def count(left: int) -> None:
            nonlocal counted_at, timer
            now = loop.time()
            if held():
                counted_at = now
            if (rest := counted_at + part - now) > 0:
                timer = loop.call_later(rest, count, left)
            elif left > 1:
                # In the very next turn: a timer that is set in a turn that takes long is due only in the one after it.
                # What a turn took beyond its part is forgotten, but for one part, or turns of little less than a part
                # would each cost two.
                counted_at = max(counted_at + part, now - part)
                timer = loop.call_soon(count, left - 1)
            else:
                limit.reschedule(now)

        count(TURNS)
        try:
            yield
        finally:
            if timer:
                timer.cancel()
