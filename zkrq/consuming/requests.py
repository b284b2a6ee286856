"""Describe a claim request on its way, alone or together with settlements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zkrq.base.errors import ClaimLost, Unavailable
from zkrq.protocol import calls

if TYPE_CHECKING:
    from zkrq.protocol.deciding import Decided

Answered: TypeAlias = "Decided[calls.ClaimReply] | Decided[calls.TurnReply]"
"""The answer to a request: alone, or together with settlements."""


class Request(NamedTuple):
    """A claim request."""

    call: calls.Claim
    started: float
    """``loop.time()`` before it was sent, so the leases end here no later than on the server."""
    answer: asyncio.Future[Answered] | None = None
    """Its answer, if it was sent together with settlements."""

    @property
    def token(self) -> str:
        """What identifies its claims."""
        return f"{self.call.owner}/{self.call.seq}"

    def land(self, decided: Decided[calls.TurnReply]) -> None:
        """Take the answer to a turn: the request's own verdict counts, whatever became of the settlements."""
        match decided.reply.verdict:
            case calls.CLAIMED:
                if self.answer and not self.answer.done():
                    self.answer.set_result(decided)
            case calls.FENCED:
                self.fail(ClaimLost("this consumer was declared dead: its claims are lost"))
            case verdict:
                self.fail(Unavailable(f"the primary refused the claim request: {verdict.decode()}"))

    def fail(self, error: Exception) -> None:
        """Take the error of a turn."""
        if self.answer and not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # nobody waits for it if the queue was closed meanwhile
