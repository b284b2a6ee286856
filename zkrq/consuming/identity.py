"""Provide the owner id under which this process claims, entered in the registry before the first claim.

Each ZooKeeper session has one, and another each time that a client declares the owner dead while its session is alive.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from zkrq.coordination.coordinator import Coordinator, SessionState, owner_id

_ENDED_KEPT = 100
"""Ended owners that are remembered, so that a late answer to one of their claim requests is not handed out."""


class Identity:
    """Enrol before the first claim, and again in every new session and after every fence."""

    def __init__(self, coordinator: Coordinator, description: str) -> None:
        self._coordinator = coordinator
        self.description = description
        self._enrolling = asyncio.Lock()
        self._ended: list[str] = []
        self._incarnation = 1
        self.certain_until = -math.inf
        """The session is certainly alive until then at least, by ``loop.time()``."""
        self.slots = 0
        """Handlers that the workers of this client run at the same time."""
        self.slots_changed: Callable[[], None] | None = None
        """Called after a worker began or ended."""
        self.is_quiet = False
        """Whether this client is to claim nothing more, as an operator says."""
        self.has_enrolled: Callable[[], None] | None = None
        """Called after each enrolment."""
        self.owner: str | None = None
        """The current owner id.  None before the first claim of a session, and after a fence."""

    async def get(self) -> str:
        """Return the owner id, enrolled.  While ZooKeeper does not answer, the current session's id stays in use.

        Raises ``Unavailable`` if there is none yet and ZooKeeper does not answer.
        """
        if self.owner is not None:
            return self.owner
        # One enrolment for all suppliers that begin at the same time: two would leave an entry in the registry that
        # nobody claims under, and that looks like a consumer.
        async with self._enrolling:
            if self.owner is None:
                owner = await self._coordinator.enrol(self.description, self._incarnation)
                session = self._coordinator.session
                if owner_id(session.id, self._incarnation) == owner and session.state is not SessionState.LOST:
                    self.owner = owner
                if self.has_enrolled:
                    self.has_enrolled()
                return owner
            return self.owner

    def add_slots(self, count: int) -> None:
        """Note that a worker with this many slots begins; negative: that it ends."""
        self.slots += count
        if self.slots_changed:
            self.slots_changed()

    def is_certain(self) -> bool:
        """Tell whether the session is certainly alive, by ZooKeeper's last answer."""
        now = asyncio.get_running_loop().time()
        # The cheap half of the question is asked for every item; only past the known moment ZooKeeper's last answer
        # is read.
        if now >= self.certain_until:  # it only grows while the session is alive
            self.certain_until = self._coordinator.valid_until
        return now < self.certain_until

    def end(self, session: str) -> str:
        """End the owner of a session that is over; return its id."""
        self.certain_until = -math.inf
        return self._end(owner_id(session, self._incarnation))

    def replace(self, owner: str) -> bool:
        """Enrol under another id before the next claim: this owner was declared dead.  False: it had ended before."""
        # Several servers may refuse the same dead owner.  Only the first refusal begins a new incarnation.
        if owner != self.owner:
            return False
        self._end(owner)
        self._incarnation += 1
        return True

    def _end(self, owner: str) -> str:
        self._ended = [*self._ended[-_ENDED_KEPT + 1 :], owner]
        if self.owner == owner:
            self.owner = None
        return owner

    def is_over(self, owner: str) -> bool:
        """Tell whether this owner is known to have ended, with its session or by a fence."""
        return owner in self._ended
