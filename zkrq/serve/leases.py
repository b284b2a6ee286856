"""Decide about the lease of one HTTP client on one claim.  Pure: the time is an argument, in seconds of any clock.

While the lease lasts, the server keeps the claim alive.  When it has passed, the item goes back, as after a failed
delivery: the client may have died of it.

    held      -> settling (a request to ack, nack, release or bury is in flight), passed, lost
    settling  -> settled, held (it failed: the client may try again), lost
    settled, passed, lost: the end

A client that gets no answer repeats its request, so a repeated settling of the same verb is answered like the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zkrq.base.errors import ClaimLost

if TYPE_CHECKING:
    from zkrq.consuming.lease import Verb


class ClientLease:
    """The lease of one client on one claim: until when it holds, and how it ended."""

    def __init__(self, id: str, deadline: float) -> None:
        """``id``: of the item.  ``deadline``: when the lease passes unless it is extended."""
        self.id = id
        self.deadline = deadline
        self.settled: Verb | None = None
        """How the client settled the claim."""
        self.over = ""
        """Why the lease ended without that; empty while it holds."""
        self._settling = False

    def __repr__(self) -> str:
        return f"<ClientLease of {self.id} {self.over or self.settled or 'held'}>"

    @property
    def ended(self) -> bool:
        """Whether the claim was settled, lost, or has passed."""
        return bool(self.settled or self.over)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the lease passes, None while its claim is being settled."""
        return None if self._settling else max(0.0, self.deadline - now)

    def begin(self, verb: Verb, now: float) -> bool:
        """Begin to settle the claim.  False: this was done before, by an earlier try of the same request.

        Raises ``ClaimLost``.
        """
        if self.settled is verb:
            return False
        self.check(now)
        self._settling = True
        return True

    def done(self, verb: Verb) -> None:
        """Note that the claim is settled."""
        self._settling = False
        self.settled = verb

    def failed(self) -> None:
        """Note that settling failed: the client may try again while the lease lasts."""
        self._settling = False

    def extend(self, now: float, seconds: float) -> None:
        """Let the lease last for ``seconds`` from now.  Raises ``ClaimLost``."""
        self.check(now)
        self.deadline = now + seconds

    def end(self, reason: str) -> None:
        """Note that the claim is gone without having been settled; the first reason is kept."""
        self._settling = False
        if not self.ended:
            self.over = reason

    def check(self, now: float) -> None:
        """Raise ``ClaimLost`` unless the lease holds."""
        if self.settled:
            raise ClaimLost(f"the claim on item {self.id} was settled before: {self.settled}", id=self.id)
        if self.over:
            raise ClaimLost(f"the claim on item {self.id} is lost: {self.over}", id=self.id)
        if not self._settling and self.deadline <= now:
            raise ClaimLost(f"the claim on item {self.id} is lost: its lease has passed", id=self.id)
