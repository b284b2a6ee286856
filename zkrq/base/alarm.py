"""Wait for little: to be rung or for a moment, without a timer for each wait; or for the event loop's next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Generator


class Alarm:
    """Let one task wait until it is rung, or until a moment.

    A timer of an earlier wait is left, and set again only when it fires.  So a task that is usually rung long before
    its moment sets a timer once in that time, and not with each wait.

    ``_due`` is when the timer fires.  The timer is not asked, because uvloop returns a handle without ``when`` for a
    moment less than half a millisecond away.
    """

    __slots__ = ("_due", "_moment", "_timer", "_waiter")

    def __init__(self) -> None:
        self._moment = 0.0
        self._due = 0.0
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def until(self, moment: float) -> asyncio.Future[bool]:
        """Return what ends when this is rung, with True, or at a moment by ``loop.time()``, with False.

        Call it again only once that has ended.
        """
        loop = asyncio.get_running_loop()
        self._moment = moment
        if self._timer is None:
            self._due, self._timer = moment, loop.call_at(moment, self._fire)
        elif self._due > moment:
            self._timer.cancel()
            self._due, self._timer = moment, loop.call_at(moment, self._fire)
        waiter: asyncio.Future[bool] = asyncio.Future(loop=loop)  # as loop.create_future(), which is slower
        self._waiter = waiter
        return waiter

    def ring(self) -> None:
        """End the wait, if there is one."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(True)

    def stop(self) -> None:
        """Drop the timer, because nobody waits any more."""
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._due >= self._moment:
            self._waiter.set_result(False)
        else:
            self._due, self._timer = self._moment, asyncio.get_running_loop().call_at(self._moment, self._fire)


class _NextTurn:
    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


NEXT_TURN = _NextTurn()
"""``await NEXT_TURN`` goes on in the next turn of the event loop, at half of the calls of ``asyncio.sleep(0)``."""
