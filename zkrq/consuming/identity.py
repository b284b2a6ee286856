"""Under which name this process claims: an owner id, entered in the registry before the first claim under it.

There is one per session, and one more each time that others declare the owner dead while its session lives.
"""

from __future__ import annotations

import asyncio
import math

from zkrq.coordination.coordinator import Coordinator, SessionState, owner_id

_ENDED_KEPT = 100
"""Ended owners that are remembered, so that a claim that was in flight when its owner ended is not handed out."""


class Identity:
    """Enrols when the first claim is wanted, and again in every new session and after every fence."""

    def __init__(self, coordinator: Coordinator, description: str) -> None:
        self._coordinator = coordinator
        self._description = description
        self._enrolling = asyncio.Lock()
        self._ended: list[str] = []
        self._valid_until = -math.inf
        self._incarnation = 1
        self.owner: str | None = None
        """The present owner id, or None before the first claim in a session or after a fence."""

    async def get(self) -> str:
        """The owner id, enrolled.  With ZooKeeper away the one of the present session still serves.

        Raises ``Unavailable`` where there is none yet and ZooKeeper does not answer.
        """
        if self.owner is not None:
            return self.owner
        async with self._enrolling:
            if self.owner is None:
                owner = await self._coordinator.enrol(self._description, self._incarnation)
                session = self._coordinator.session
                if owner_id(session.id, self._incarnation) == owner and session.state is not SessionState.LOST:
                    self.owner = owner
                return owner
            return self.owner

    def is_certain(self) -> bool:
        """Whether the session certainly lives, by the last word from ZooKeeper."""
        now = asyncio.get_running_loop().time()
        if now >= self._valid_until:  # it only grows as long as the session lives
            self._valid_until = self._coordinator.valid_until
        return now < self._valid_until

    def end(self, session: str) -> str:
        """That session is over, and with it its owner, whose id is returned."""
        self._valid_until = -math.inf
        return self._end(owner_id(session, self._incarnation))

    def replace(self, owner: str) -> bool:
        """This owner was declared dead: enrol under another id before the next claim.  False: it was over already."""
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
        """Whether this owner is known to be over, with its session or by a fence."""
        return owner in self._ended
