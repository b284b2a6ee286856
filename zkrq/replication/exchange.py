"""Wait for replies: the outcome of each call, and rounds of calls that are awaited together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


class Complaint(Exception):
    """A server answered one call with an error, of this text; never leaves the replication package."""


class TimedOut(TimeoutError):
    """A call was not answered in time; ``late``: seconds by which this process noticed that late."""

    def __init__(self, late: float) -> None:
        super().__init__()
        self.late = late


class Round:
    """Calls that are awaited together.

    ``landed`` is done when all have their replies, or as soon as one call has an outcome that is not a reply.
    """

    __slots__ = ("_flushes", "landed", "left")

    def __init__(self) -> None:
        self.left = 0
        self._flushes: list[Callable[[], None]] = []
        # As loop.create_future(), which is slower.
        self.landed: asyncio.Future[None] = asyncio.Future(loop=asyncio.get_running_loop())

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call this at the end of the turn of the event loop: one call-back serves all connections of the round."""
        if not self._flushes:
            asyncio.get_running_loop().call_soon(self._flush)
        self._flushes.append(flush)

    def _flush(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()


PENDING: Final = object()


class Exchange:
    """A command that was sent and its ``outcome``: PENDING, the reply, or the exception instead of it."""

    __slots__ = ("outcome", "round")

    outcome: object
    round: Round

    def land(self, outcome: object) -> None:
        """Record the outcome, once."""
        self.outcome = outcome
        round = self.round
        round.left -= 1
        if (not round.left or isinstance(outcome, Exception)) and not round.landed.done():
            round.landed.set_result(None)

    async def reply(self) -> object:
        """Wait for the reply, independently of the round.  Raises what ``Link.send`` names."""
        if self.outcome is PENDING:
            self.round = Round()
            self.round.left = 1
            await self.round.landed
        if isinstance(self.outcome, Exception):
            raise self.outcome.with_traceback(None)  # one exception may be the outcome of many calls
        return self.outcome
