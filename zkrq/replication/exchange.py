"""Wait for replies: the outcome of each call, and rounds of calls that are awaited together."""

from __future__ import annotations

import asyncio
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

    __slots__ = ("landed", "left")

    def __init__(self) -> None:
        self.left = 0
        self.landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


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
