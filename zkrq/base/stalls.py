"""Notice that the event loop was blocked, and what that put at risk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LOOK_SECONDS = 1.0
"""Seconds between two looks at the clock.  A stall is measured up to this much too short, because it began after a
look."""

BLOCKED_SECONDS = 2.0
"""Seconds by which a look must be late for the stall to be reported."""


async def watch_for_stalls(report: Callable[[float], None]) -> None:
    """Report the seconds for which the event loop did not run, each time, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        late = loop.time() - due
        if late >= BLOCKED_SECONDS:
            report(late)
